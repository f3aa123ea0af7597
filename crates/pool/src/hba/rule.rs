//! One line of `pg_hba.conf`.

use super::{
    ConnectionInfo, Networks, Origin,
    address::Addresses,
    names::{DatabaseName, UserName},
    words::Word,
};

/// One line of `pg_hba.conf`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    door: ConnType,
    databases: Vec<DatabaseName>,
    users: Vec<UserName>,
    pub(super) method: RuleMethod,
    pub(super) map: Option<String>,
    certificate: Option<ClientCertOption>,
}

/// Which connections it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnType {
    /// Unix sockets.
    Local,
    /// TCP, from these addresses; with TLS, without, or both.
    Host(Encryption, Addresses),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    Any,
    Tls,
    NoTls,
    /// By GSSAPI, which is not spoken: never.
    Gss,
}

/// What has to be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleMethod {
    Trust,
    Reject,
    Plain,
    Md5,
    ScramSha256,
    Cert,
    Peer,
}

/// Whose certificate is asked for, beside what the method asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientCertOption {
    /// Anybody's whom we believe.
    Anybodys,
    /// The user's.
    Users,
}

impl Rule {
    pub(super) fn parse(fields: &[Vec<Word>]) -> Result<Self, String> {
        let [kind, databases, users, rest @ ..] = fields else {
            return Err("a rule is type, databases, users, an address but for local, method".into());
        };
        let [kind] = &kind[..] else {
            return Err("one type is expected: local, host, hostssl or hostnossl".to_owned());
        };
        let databases = databases.iter().map(DatabaseName::parse).collect::<Result<_, _>>()?;
        let users = users.iter().map(UserName::parse).collect::<Result<_, _>>()?;
        let (door, rest) = match kind.text.as_str() {
            "local" => (ConnType::Local, rest),
            name => {
                let encryption = match name {
                    "host" | "hostnogssenc" => Encryption::Any,
                    "hostssl" => Encryption::Tls,
                    "hostnossl" => Encryption::NoTls,
                    "hostgssenc" => Encryption::Gss,
                    _ => {
                        let known = "local, host, hostssl, hostnossl";
                        return Err(format!("{name:?} is no type of connection ({known})"));
                    }
                };
                let (addresses, rest) = Addresses::parse(rest)?;
                (ConnType::Host(encryption, addresses), rest)
            }
        };
        let [method, options @ ..] = rest else { return Err("a method is missing".to_owned()) };
        let [method] = &method[..] else { return Err("one method is expected".to_owned()) };
        let method = RuleMethod::parse(&method.text, door)?;
        let mut rule = Self { door, databases, users, method, map: None, certificate: None };
        for option in options.iter().flatten() {
            let (name, value) = option
                .text
                .split_once('=')
                .ok_or_else(|| format!("{:?} is no option: name=value is expected", option.text))?;
            rule.option(name, value)?;
        }
        Ok(rule)
    }

    fn option(&mut self, name: &str, value: &str) -> Result<(), String> {
        let is_tls = matches!(self.door, ConnType::Host(Encryption::Tls, _));
        match (name, value) {
            ("map", _) if !matches!(self.method, RuleMethod::Cert | RuleMethod::Peer) => {
                Err("map is for the methods cert and peer".to_owned())
            }
            ("map", value) => {
                self.map = Some(value.to_owned());
                Ok(())
            }
            ("clientcert", _) if !is_tls => Err("clientcert is for hostssl".to_owned()),
            ("clientcert", "verify-ca") if self.method == RuleMethod::Cert => {
                Err("cert has to see whose certificate it is: clientcert=verify-full".to_owned())
            }
            ("clientcert", "verify-ca") => {
                self.certificate = Some(ClientCertOption::Anybodys);
                Ok(())
            }
            ("clientcert", "verify-full") => {
                self.certificate = Some(ClientCertOption::Users);
                Ok(())
            }
            ("clientcert", _) => Err("clientcert is verify-ca or verify-full".to_owned()),
            ("clientname", "CN") if is_tls => Ok(()),
            ("clientname", _) => Err("of clientname, CN is there, and for hostssl".to_owned()),
            _ => Err(format!("option {name:?} is not there (map and clientcert are)")),
        }
    }

    pub(super) fn wants_certificate(&self) -> bool {
        self.certificate.is_some() || self.method == RuleMethod::Cert
    }

    /// Whether it is for somebody.
    pub(super) fn is_about(&self, knock: &ConnectionInfo<'_>, networks: &Networks) -> bool {
        let at_door = match (self.door, knock.from) {
            (ConnType::Local, Origin::Unix { .. }) => true,
            (ConnType::Host(encryption, addresses), Origin::Tcp(Some(address))) => {
                let is_right = match encryption {
                    Encryption::Any => true,
                    Encryption::Tls => knock.is_tls,
                    Encryption::NoTls => !knock.is_tls,
                    Encryption::Gss => false,
                };
                // A socket for both families shows IPv4 as a part of IPv6.
                is_right && addresses.have(address.to_canonical(), networks)
            }
            _ => false,
        };
        let ConnectionInfo { database, user, is_physical, .. } = *knock;
        at_door
            && self.databases.iter().any(|name| name.is(database, user, is_physical))
            && self.users.iter().any(|name| name.is(user))
    }

    /// Whether somebody has shown the certificate that is asked for beside the method.
    pub(super) fn has_certificate_of(&self, knock: &ConnectionInfo<'_>) -> bool {
        match (self.certificate, knock.certificate) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ClientCertOption::Anybodys), Some(_)) => true,
            // Whether it may be another's, a map says.
            (Some(ClientCertOption::Users), Some(_)) if self.method == RuleMethod::Cert => true,
            (Some(ClientCertOption::Users), Some(shown)) => shown.common_name == Some(knock.user),
        }
    }
}

impl RuleMethod {
    fn parse(text: &str, door: ConnType) -> Result<Self, String> {
        let is_local = door == ConnType::Local;
        match text {
            "trust" => Ok(Self::Trust),
            "reject" => Ok(Self::Reject),
            "password" | "plain" => Ok(Self::Plain),
            "md5" => Ok(Self::Md5),
            "scram-sha-256" => Ok(Self::ScramSha256),
            "cert" if matches!(door, ConnType::Host(Encryption::Tls, _)) => Ok(Self::Cert),
            "cert" => Err("cert is for hostssl".to_owned()),
            // On unix sockets they are one.
            "peer" | "ident" if is_local => Ok(Self::Peer),
            "peer" | "ident" => Err(format!("{text} is for local")),
            _ => Err(format!(
                "method {text:?} is not there (trust, reject, password, md5, scram-sha-256, cert and \
                 peer are)"
            )),
        }
    }
}

//! [`HbaRule`]: a rule of `pg_hba.conf`, and the connections that it matches.

use super::{
    ClientOrigin, ConnectionInfo, Networks,
    address::RuleAddresses,
    names::{DatabaseName, UserName},
    tokenizer::HbaToken,
};

/// A parsed line of `pg_hba.conf`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HbaRule {
    conn_type: ConnType,
    databases: Vec<DatabaseName>,
    users: Vec<UserName>,
    pub(super) method: RuleMethod,
    pub(super) map: Option<String>,
    certificate: Option<ClientCertOption>,
}

/// The connection type of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnType {
    /// Connections over unix sockets.
    Local,
    /// TCP connections from these addresses, with the given encryption.
    Host(RuleEncryption, RuleAddresses),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleEncryption {
    Any,
    Tls,
    NoTls,
    /// GSSAPI encryption, which is not supported, so the rule never matches.
    Gss,
}

/// The authentication method of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleMethod {
    Trust,
    Reject,
    Plain,
    Md5,
    ScramSha256,
    PassThrough,
    Cert,
    Peer,
}

/// The `clientcert` option: requires a certificate in addition to the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientCertOption {
    /// The client must present a verified certificate, of any name.
    VerifyCa,
    /// The client must present a verified certificate whose common name is the user's name or, with
    /// the method `cert`, is mapped to it.
    VerifyFull,
}

impl HbaRule {
    pub(super) fn parse(fields: &[Vec<HbaToken>]) -> Result<Self, String> {
        let [kind, databases, users, rest @ ..] = fields else {
            return Err(
                "a rule must have a type, databases, users, an address unless local, and a method"
                    .into(),
            );
        };
        let [kind] = &kind[..] else {
            return Err("one type is expected: local, host, hostssl or hostnossl".to_owned());
        };
        let databases = databases.iter().map(DatabaseName::parse).collect::<Result<_, _>>()?;
        let users = users.iter().map(UserName::parse).collect::<Result<_, _>>()?;
        let (conn_type, rest) = match kind.text.as_str() {
            "local" => (ConnType::Local, rest),
            name => {
                let encryption = match name {
                    "host" | "hostnogssenc" => RuleEncryption::Any,
                    "hostssl" => RuleEncryption::Tls,
                    "hostnossl" => RuleEncryption::NoTls,
                    "hostgssenc" => RuleEncryption::Gss,
                    _ => {
                        let known = "local, host, hostssl, hostnossl";
                        return Err(format!("{name:?} is not a connection type ({known})"));
                    }
                };
                let (addresses, rest) = RuleAddresses::parse(rest)?;
                (ConnType::Host(encryption, addresses), rest)
            }
        };
        let [method, options @ ..] = rest else { return Err("a method is missing".to_owned()) };
        let [method] = &method[..] else { return Err("one method is expected".to_owned()) };
        let method = RuleMethod::parse(&method.text, conn_type)?;
        let mut rule = Self { conn_type, databases, users, method, map: None, certificate: None };
        for option in options.iter().flatten() {
            let (name, value) = option.text.split_once('=').ok_or_else(|| {
                format!("{:?} is not an option: name=value is expected", option.text)
            })?;
            rule.option(name, value)?;
        }
        Ok(rule)
    }

    fn option(&mut self, name: &str, value: &str) -> Result<(), String> {
        let is_tls = matches!(self.conn_type, ConnType::Host(RuleEncryption::Tls, _));
        match (name, value) {
            ("map", _) if !matches!(self.method, RuleMethod::Cert | RuleMethod::Peer) => {
                Err("map is only valid for the methods cert and peer".to_owned())
            }
            ("map", value) => {
                self.map = Some(value.to_owned());
                Ok(())
            }
            ("clientcert", _) if !is_tls => Err("clientcert is only valid for hostssl".to_owned()),
            ("clientcert", "verify-ca") if self.method == RuleMethod::Cert => {
                Err("method cert needs the name in the certificate: use clientcert=verify-full"
                    .to_owned())
            }
            ("clientcert", "verify-ca") => {
                self.certificate = Some(ClientCertOption::VerifyCa);
                Ok(())
            }
            ("clientcert", "verify-full") => {
                self.certificate = Some(ClientCertOption::VerifyFull);
                Ok(())
            }
            ("clientcert", _) => Err("clientcert must be verify-ca or verify-full".to_owned()),
            ("clientname", "CN") if is_tls => Ok(()),
            ("clientname", _) => {
                Err("clientname must be CN and is only valid for hostssl".to_owned())
            }
            _ => Err(format!("option {name:?} is not supported (map and clientcert are)")),
        }
    }

    /// Whether the rule is of no use without client certificates. A `host` rule with the method
    /// `cert` may be there to refuse connections.
    pub(super) fn needs_certificate(&self) -> bool {
        let is_tls = matches!(self.conn_type, ConnType::Host(RuleEncryption::Tls, _));
        self.certificate.is_some() || self.method == RuleMethod::Cert && is_tls
    }

    /// Whether the rule matches a connection.
    pub(super) fn matches(&self, connection: &ConnectionInfo<'_>, networks: &Networks) -> bool {
        let at_door = match (self.conn_type, connection.from) {
            (ConnType::Local, ClientOrigin::Unix { .. }) => true,
            (ConnType::Host(encryption, addresses), ClientOrigin::Tcp(Some(address))) => {
                let is_right = match encryption {
                    RuleEncryption::Any => true,
                    RuleEncryption::Tls => connection.is_tls,
                    RuleEncryption::NoTls => !connection.is_tls,
                    RuleEncryption::Gss => false,
                };
                // A dual-stack socket reports IPv4 addresses in IPv6 form.
                is_right && addresses.contains(address.to_canonical(), networks)
            }
            _ => false,
        };
        let ConnectionInfo { database, user, is_physical, .. } = *connection;
        at_door
            && self.databases.iter().any(|name| name.matches(database, user, is_physical))
            && self.users.iter().any(|name| name.matches(user))
    }

    /// Whether the connection has the certificate that `clientcert` requires.
    pub(super) fn certificate_matches(&self, connection: &ConnectionInfo<'_>) -> bool {
        match (self.certificate, connection.certificate) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(ClientCertOption::VerifyCa), Some(_)) => true,
            // For the method `cert`, the name is checked later, with the user name map.
            (Some(ClientCertOption::VerifyFull), Some(_)) if self.method == RuleMethod::Cert => {
                true
            }
            (Some(ClientCertOption::VerifyFull), Some(certificate)) => {
                certificate.common_name == Some(connection.user)
            }
        }
    }
}

impl RuleMethod {
    fn parse(text: &str, conn_type: ConnType) -> Result<Self, String> {
        let is_local = conn_type == ConnType::Local;
        match text {
            "trust" => Ok(Self::Trust),
            "reject" => Ok(Self::Reject),
            "password" | "plain" => Ok(Self::Plain),
            "md5" => Ok(Self::Md5),
            "scram-sha-256" => Ok(Self::ScramSha256),
            "pass-through" => Ok(Self::PassThrough),
            // As in PgBouncer, the type `host` is allowed: connections without TLS are refused.
            "cert" if !is_local => Ok(Self::Cert),
            "cert" => Err("cert is not valid for local".to_owned()),
            // On unix sockets, `ident` means `peer`. PgBouncer refuses all others by such a rule.
            "peer" | "ident" if is_local => Ok(Self::Peer),
            "peer" => Ok(Self::Peer),
            "ident" => Err("ident is only valid for local".to_owned()),
            _ => Err(format!(
                "method {text:?} is not supported (trust, reject, password, md5, scram-sha-256, \
                 pass-through, cert and peer are)"
            )),
        }
    }
}

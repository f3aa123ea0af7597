//! Host-based authentication: `pg_hba.conf` and `pg_ident.conf`.
//!
//! The grammar is PostgreSQL's (manual, chapter "Client Authentication"; `hba.c`), but some rules
//! are refused: those with host names, with a method that the pooler does not support, or with
//! `+group`, `samerole` or `samegroup`, because a pooler does not know role memberships. PgBouncer
//! supports less: no `samehost`, `samenet`, regular expressions or includes.
//!
//! ```text
//! files ─► tokenizer (lines, fields, quotes, @file, include) ─► rules, maps ─► required_auth
//! ```

mod address;
mod ident;
mod names;
mod networks;
mod rule;
mod tokenizer;

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use howdah_settings::Diagnostic;

use self::{
    ident::IdentMaps,
    rule::{HbaRule, RuleMethod},
    tokenizer::tokenize,
};

pub use self::{address::Network, networks::Networks};

/// The host-based authentication of a pooler: the rules of `pg_hba.conf` in order and the user name
/// maps of `pg_ident.conf`, with the networks and OS users of this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hba {
    rules: Vec<HbaRule>,
    maps: IdentMaps,
    networks: Networks,
    /// Names of OS users, by UID.
    os_users: BTreeMap<u32, String>,
}

/// The properties of a connection attempt that rules refer to.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionInfo<'a> {
    /// The user name that the client requests.
    pub user: &'a str,
    /// The database, by the name that clients use.
    pub database: &'a str,
    /// Whether the connection is for physical replication, which has no database.
    pub is_physical: bool,
    /// The client's address, or the OS user of a unix socket's peer.
    pub from: ClientOrigin,
    /// Whether the connection is encrypted with TLS.
    pub is_tls: bool,
    /// The client's verified certificate, if it has presented one.
    pub certificate: Option<ClientCertificate<'a>>,
}

/// The origin of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOrigin {
    /// A unix socket, with the UID of the peer process if the kernel reports it.
    Unix {
        /// UID of the peer process.
        uid: Option<u32>,
    },
    /// A TCP connection.
    Tcp(
        /// IP address of the client; `None` if the connection is already closed.
        Option<IpAddr>,
    ),
}

/// A verified client certificate.
#[derive(Clone, Copy, Debug)]
pub struct ClientCertificate<'a> {
    /// The subject's common name, if it has one.
    pub common_name: Option<&'a str>,
}

/// The authentication that a matching rule requires of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAuth {
    /// The client need not authenticate.
    Trust,
    /// The client must send its password in cleartext.
    Plain,
    /// The client must authenticate with md5 or SCRAM, depending on the stored secret.
    Md5,
    /// The client must authenticate with SCRAM-SHA-256.
    ScramSha256,
    /// A client whose secret is known must authenticate as with [`RequiredAuth::Md5`]; any other
    /// must send its password in cleartext, which is checked at the server.
    PassThrough,
    /// Nothing more is required: the certificate or OS user was accepted.
    Verified,
}

/// The reason why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HbaRefusal {
    /// No rule matches the connection.
    NoRule,
    /// The matching rule has the method `reject`.
    Rejected,
    /// The certificate is missing, or is for another user.
    Certificate,
    /// The OS user is unknown, or not allowed to log in as the requested user.
    Peer,
}

/// Access to the files of HBA rules; tests implement it in memory.
pub trait Files {
    /// Reads the text of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    fn text(&self, path: &Path) -> io::Result<String>;

    /// Lists the files of a directory.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
}

impl Hba {
    /// Reads the rules and, if given, the maps. `networks` and `os_users` describe this machine.
    ///
    /// # Errors
    ///
    /// The errors in both files and the files that they include, or the lack of any rule.
    pub fn read(
        rules: &Path,
        maps: Option<&Path>,
        files: &dyn Files,
        networks: Networks,
        os_users: BTreeMap<u32, String>,
    ) -> Result<Self, Vec<Diagnostic>> {
        let mut wrong = Vec::new();
        let mut hba = Self { networks, os_users, ..Self::default() };
        for line in tokenize(rules, files, &mut wrong) {
            match HbaRule::parse(&line.fields) {
                Ok(rule) => hba.rules.push(rule),
                Err(text) => wrong.push(line.error(text)),
            }
        }
        if let Some(path) = maps {
            for line in tokenize(path, files, &mut wrong) {
                if let Err(text) = hba.maps.add(&line.fields) {
                    wrong.push(line.error(text));
                }
            }
        }
        if wrong.is_empty() && hba.rules.is_empty() {
            let text = "there is no rule, so all logins would be refused".to_owned();
            wrong.push(Diagnostic::new(rules, 0, "", text));
        }
        if wrong.is_empty() { Ok(hba) } else { Err(wrong) }
    }

    /// Whether any rule needs a client certificate.
    pub fn needs_certificates(&self) -> bool {
        self.rules.iter().any(HbaRule::needs_certificate)
    }

    /// Returns how a client must authenticate according to the first rule that matches its
    /// connection.
    ///
    /// # Errors
    ///
    /// No rule allows the connection, or the certificate or OS user is not accepted.
    pub fn required_auth(
        &self,
        connection: &ConnectionInfo<'_>,
    ) -> Result<RequiredAuth, HbaRefusal> {
        let matches = |rule: &&HbaRule| rule.matches(connection, &self.networks);
        let rule = self.rules.iter().find(matches).ok_or(HbaRefusal::NoRule)?;
        if rule.method != RuleMethod::Reject && !rule.certificate_matches(connection) {
            return Err(HbaRefusal::Certificate);
        }
        let map = rule.map.as_deref();
        match rule.method {
            RuleMethod::Reject => Err(HbaRefusal::Rejected),
            RuleMethod::Trust => Ok(RequiredAuth::Trust),
            RuleMethod::Plain => Ok(RequiredAuth::Plain),
            RuleMethod::Md5 => Ok(RequiredAuth::Md5),
            RuleMethod::ScramSha256 => Ok(RequiredAuth::ScramSha256),
            RuleMethod::PassThrough => Ok(RequiredAuth::PassThrough),
            RuleMethod::Cert => {
                let name = connection.certificate.and_then(|certificate| certificate.common_name);
                let may = name.is_some_and(|name| self.maps.allows(map, name, connection.user));
                if may { Ok(RequiredAuth::Verified) } else { Err(HbaRefusal::Certificate) }
            }
            RuleMethod::Peer => {
                let ClientOrigin::Unix { uid: Some(uid) } = connection.from else {
                    return Err(HbaRefusal::Peer);
                };
                let name = self.os_users.get(&uid);
                let may = name.is_some_and(|name| self.maps.allows(map, name, connection.user));
                if may { Ok(RequiredAuth::Verified) } else { Err(HbaRefusal::Peer) }
            }
        }
    }
}

#[cfg(test)]
mod tests;

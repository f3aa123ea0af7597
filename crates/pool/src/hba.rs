//! Who may come in from where, and how they prove it: `pg_hba.conf` and `pg_ident.conf`.
//!
//! The grammar is PostgreSQL's (manual, chapter "Client Authentication"; `hba.c`), with what a pooler
//! can know: it has no roles, so `+group`, `samerole` and `samegroup` are refused rather than guessed,
//! and it looks up no host names. PgBouncer knows less: no `samehost`, `samenet`, regular expressions
//! or includes.
//!
//! ```text
//! files ─► words (lines, fields, quotes, @file, include) ─► rules, maps ─► judge(knock) ─► demand
//! ```

mod address;
mod ident;
mod names;
mod networks;
mod rule;
mod words;

use std::{
    collections::BTreeMap,
    fmt, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use self::{
    ident::Maps,
    rule::{Rule, RuleMethod},
    words::tokenize,
};

pub use self::{address::Network, networks::Networks};

/// Rules in their order, and the maps they name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hba {
    rules: Vec<Rule>,
    maps: Maps,
    networks: Networks,
    /// Names of the system's users, by number.
    os_users: BTreeMap<u32, String>,
}

/// Somebody who wants in.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionInfo<'a> {
    /// The user that they want to be.
    pub user: &'a str,
    /// The database, by the name that clients use.
    pub database: &'a str,
    /// Whether it is for physical replication, which is of no database.
    pub is_physical: bool,
    /// Where they come from.
    pub from: Origin,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
    /// What the client's certificate proves, if it has shown one that we believe.
    pub certificate: Option<Certificate<'a>>,
}

/// Where a client comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A unix socket; by the number of the system's user, if the kernel says.
    Unix {
        /// The number.
        uid: Option<u32>,
    },
    /// An address; `None` if the connection is gone already.
    Tcp(
        /// The address.
        Option<IpAddr>,
    ),
}

/// A certificate that was verified.
#[derive(Clone, Copy, Debug)]
pub struct Certificate<'a> {
    /// The subject's common name, if it has one.
    pub common_name: Option<&'a str>,
}

/// What somebody has to prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAuth {
    /// Nothing.
    Trust,
    /// The password, as it is.
    Plain,
    /// An md5 of it, or by SCRAM, as the stored secret is.
    Md5,
    /// By SCRAM.
    ScramSha256,
    /// Nothing more: certificate or system user have shown it.
    Proven,
}

/// Why somebody may not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No rule is about them.
    NoRule,
    /// A rule says so.
    Rejected,
    /// There is no certificate, or it is another's.
    Certificate,
    /// The system's user is nobody who may be that user.
    Peer,
}

/// Something that cannot be, at a place of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HbaError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; 0 if it is about the file.
    pub line: usize,
    /// What is wrong, and what to do.
    pub text: String,
}

impl fmt::Display for HbaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.text)
    }
}

/// Where texts of files come from.
pub trait Files {
    /// The text of a file.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn text(&self, path: &Path) -> io::Result<String>;

    /// The files of a directory.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
}

impl Hba {
    /// Reads rules, and maps if there is a file of maps; `networks` and `os_users` are the machine's.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with either file.
    pub fn read(
        rules: &Path,
        maps: Option<&Path>,
        files: &dyn Files,
        networks: Networks,
        os_users: BTreeMap<u32, String>,
    ) -> Result<Self, Vec<HbaError>> {
        let mut wrong = Vec::new();
        let mut hba = Self { networks, os_users, ..Self::default() };
        for line in tokenize(rules, files, &mut wrong) {
            match Rule::parse(&line.fields) {
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
            let text = "there is no rule, so nobody would be let in".to_owned();
            wrong.push(HbaError { file: rules.to_owned(), line: 0, text });
        }
        if wrong.is_empty() { Ok(hba) } else { Err(wrong) }
    }

    /// Whether any rule asks for a certificate.
    pub fn wants_certificates(&self) -> bool {
        self.rules.iter().any(Rule::wants_certificate)
    }

    /// What somebody has to prove: as the first rule says that is about them.
    ///
    /// # Errors
    ///
    /// They may not come in.
    pub fn judge(&self, knock: &ConnectionInfo<'_>) -> Result<RequiredAuth, Refusal> {
        let matches = |rule: &&Rule| rule.is_about(knock, &self.networks);
        let rule = self.rules.iter().find(matches).ok_or(Refusal::NoRule)?;
        if rule.method != RuleMethod::Reject && !rule.has_certificate_of(knock) {
            return Err(Refusal::Certificate);
        }
        let map = rule.map.as_deref();
        match rule.method {
            RuleMethod::Reject => Err(Refusal::Rejected),
            RuleMethod::Trust => Ok(RequiredAuth::Trust),
            RuleMethod::Plain => Ok(RequiredAuth::Plain),
            RuleMethod::Md5 => Ok(RequiredAuth::Md5),
            RuleMethod::ScramSha256 => Ok(RequiredAuth::ScramSha256),
            RuleMethod::Cert => {
                let name = knock.certificate.and_then(|certificate| certificate.common_name);
                let may = name.is_some_and(|name| self.maps.allows(map, name, knock.user));
                if may { Ok(RequiredAuth::Proven) } else { Err(Refusal::Certificate) }
            }
            RuleMethod::Peer => {
                let Origin::Unix { uid: Some(uid) } = knock.from else { return Err(Refusal::Peer) };
                let name = self.os_users.get(&uid);
                let may = name.is_some_and(|name| self.maps.allows(map, name, knock.user));
                if may { Ok(RequiredAuth::Proven) } else { Err(Refusal::Peer) }
            }
        }
    }
}

#[cfg(test)]
mod tests;

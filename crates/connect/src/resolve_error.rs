//! What can be wrong with connection words.

use std::{io, path::PathBuf};

use crate::{keyword, settings::Origin};

/// Connection words that do not say where to connect.
///
/// The words may hold a password in a place where none is looked for, a stray `@` is enough; so no
/// text is repeated here that may be a part of one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// libpq has no such keyword.
    #[error("unknown connection keyword {keyword:?}{}", hint(*.suggestion))]
    UnknownKeyword {
        /// As given.
        keyword: String,
        /// A keyword that is spelled almost like it.
        suggestion: Option<&'static str>,
    },
    /// A keyword/value string has something else where a keyword belongs.
    #[error("the connection string has a word that is not of the form keyword=value")]
    NotAKeyword,
    /// A keyword has no `=` behind it.
    #[error("missing \"=\" after {keyword:?} in the connection string")]
    MissingEquals {
        /// The keyword.
        keyword: String,
    },
    /// A quoted value does not end.
    #[error("the quoted value of {keyword:?} does not end in the connection string")]
    UnterminatedQuote {
        /// The keyword it belongs to.
        keyword: String,
    },
    /// What follows a password cannot be read, so it may be a part of it.
    #[error(
        "cannot read what follows the password in the connection string: put a password with \
         spaces, quotes or backslashes between single quotes, with \\ before each ' and \\ in it, \
         and in a URI write & as %26"
    )]
    PasswordNotQuoted,
    /// User or password of a URI hold a character that ends them.
    #[error(
        "cannot tell user and password from host in the URI: percent-encode the \"@\" (%40), \
         \":\" (%3A) and \"/\" (%2F) that belong to them"
    )]
    CredentialsNotEncoded,
    /// A URI of something else than PostgreSQL.
    #[error("{scheme}:// is not a PostgreSQL URI: write postgresql://")]
    UnknownScheme {
        /// What stands before `://`.
        scheme: String,
    },
    /// A bare word that looks like the rest of a URI.
    #[error("a database name holds \":\" and \"@\": is postgresql:// missing before it?")]
    UriWithoutScheme,
    /// A `%` of a URI is not followed by two hexadecimal digits, or they are 00.
    #[error("the {part} of the URI has a \"%\" that two hexadecimal digits, not 00, must follow")]
    BadPercentEncoding {
        /// Which part of the URI.
        part: &'static str,
    },
    /// What a part of a URI decodes to is not UTF-8.
    #[error("the {part} of the URI is not UTF-8 once decoded")]
    BadUtf8 {
        /// Which part of the URI.
        part: &'static str,
    },
    /// A part of a URI has a space inside.
    #[error("the {part} of the URI has a space: write it as %20")]
    UnencodedSpace {
        /// Which part of the URI.
        part: &'static str,
    },
    /// An IPv6 address of a URI has no closing bracket, is empty, or is followed by something else
    /// than a port, a path, parameters or the next host.
    #[error("the host of the URI is not an IPv6 address between \"[\" and \"]\"")]
    BadBrackets,
    /// A parameter of a URI has no `=`, or more than one.
    #[error("the URI has a parameter that is not of the form keyword=value")]
    BadParameter,
    /// A value that its keyword cannot have.
    #[error("{keyword} {value:?} ({origin}) is not {expected}")]
    InvalidValue {
        /// The keyword.
        keyword: &'static str,
        /// As given.
        value: String,
        /// Who gave it.
        origin: Origin,
        /// What would be valid.
        expected: &'static str,
    },
    /// `hostaddr` and `host` are lists of different lengths.
    #[error("{addresses} addresses in hostaddr do not match {hosts} hosts")]
    HostCount {
        /// Length of `host`.
        hosts: usize,
        /// Length of `hostaddr`.
        addresses: usize,
    },
    /// There are several ports, but not one for each host.
    #[error("{ports} ports do not match {hosts} hosts")]
    PortCount {
        /// Number of hosts.
        hosts: usize,
        /// Number of ports.
        ports: usize,
    },
    /// An option that needs verified or at least certain encryption, with an `sslmode` that does not
    /// promise it.
    #[error("sslmode {mode} is too weak for {option}: use {needed}")]
    WeakSslMode {
        /// The mode.
        mode: &'static str,
        /// The option, as it would be written.
        option: &'static str,
        /// The modes that would do.
        needed: &'static str,
    },
    /// A keyword that asks for protection which this program cannot give. Going on without it would
    /// be silent and wrong.
    #[error("{keyword} {value:?} ({origin}) is not supported")]
    Unsupported {
        /// The keyword.
        keyword: &'static str,
        /// As given.
        value: String,
        /// Who gave it.
        origin: Origin,
    },
    /// No service file has a section of that name.
    #[error("definition of service {service:?} not found")]
    ServiceNotFound {
        /// Name of the service.
        service: String,
    },
    /// The service file that was named cannot be read.
    #[error("cannot read service file {}", .path.display())]
    ServiceFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line of the service's section cannot be used.
    #[error("{}:{line}: {problem}", .path.display())]
    ServiceLine {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        problem: ServiceProblem,
    },
    /// No user was given, and the operating system does not know who we are.
    #[error("no user given, and the operating system user has no name")]
    NoUser,
    /// An environment variable is not UTF-8.
    #[error("{variable} is not UTF-8")]
    NotUtf8 {
        /// Its name.
        variable: &'static str,
    },
}

/// What can be wrong with a line of a service file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceProblem {
    /// Neither `[name]` nor `keyword=value`.
    #[error("not of the form keyword=value")]
    Syntax,
    /// libpq has no such keyword.
    #[error("unknown connection keyword {keyword:?}{}", hint(*.suggestion))]
    UnknownKeyword {
        /// As given.
        keyword: String,
        /// A keyword that is spelled almost like it.
        suggestion: Option<&'static str>,
    },
    /// A service that names a service.
    #[error("a service cannot name another service")]
    Nested,
    /// A service that is kept in a directory server.
    #[error("services kept in LDAP are not supported")]
    Ldap,
}

impl ResolveError {
    /// The error for a word in a keyword's place. It is shown only if it looks like a keyword.
    pub(crate) fn unknown_keyword(name: &str) -> Self {
        if looks_like_keyword(name) {
            let suggestion = keyword::nearest(name);
            Self::UnknownKeyword { keyword: name.to_owned(), suggestion }
        } else {
            Self::NotAKeyword
        }
    }
}

impl ServiceProblem {
    /// The same, in a service file.
    pub(crate) fn unknown_keyword(name: &str) -> Self {
        if looks_like_keyword(name) {
            let suggestion = keyword::nearest(name);
            Self::UnknownKeyword { keyword: name.to_owned(), suggestion }
        } else {
            Self::Syntax
        }
    }
}

fn looks_like_keyword(name: &str) -> bool {
    let of_keyword = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(of_keyword)
}

fn hint(suggestion: Option<&'static str>) -> String {
    suggestion.map(|name| format!(", did you mean {name}?")).unwrap_or_default()
}

//! Errors in connection parameters.

use std::{io, path::PathBuf};

use crate::{keyword, setting_origin::SettingOrigin};

/// The reason why connection parameters are invalid.
///
/// A misplaced character, such as a stray `@`, can move a part of the password into another field,
/// so errors never repeat text that may be part of a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// libpq has no such keyword.
    #[error("unknown connection keyword {keyword:?}{}", hint(*.suggestion))]
    UnknownKeyword {
        /// The unknown keyword, as given.
        keyword: String,
        /// A keyword with a similar spelling, if there is one.
        suggestion: Option<&'static str>,
    },
    /// A connection string contains something else where a keyword is expected.
    #[error("the connection string has a word that is not of the form keyword=value")]
    NotAKeyword,
    /// A keyword is not followed by `=`.
    #[error("missing \"=\" after {keyword:?} in the connection string")]
    MissingEquals {
        /// Keyword before the missing `=`.
        keyword: String,
    },
    /// A quoted value is not closed.
    #[error("the quoted value of {keyword:?} is not closed in the connection string")]
    UnterminatedQuote {
        /// Keyword before the unterminated value.
        keyword: String,
    },
    /// The text after a password cannot be parsed, so it may be part of the password.
    #[error(
        "cannot read what follows the password in the connection string: put a password with \
         spaces, quotes or backslashes between single quotes, with \\ before each ' and \\ in it, \
         and in a URI write & as %26"
    )]
    PasswordNotQuoted,
    /// The user or password in a URI seems to contain a delimiter.
    #[error(
        "cannot tell user and password from host in the URI: percent-encode the \"@\" (%40), \
         \":\" (%3A) and \"/\" (%2F) that belong to them"
    )]
    CredentialsNotEncoded,
    /// The URI has a scheme other than PostgreSQL's.
    #[error("{scheme}:// is not a PostgreSQL URI: write postgresql://")]
    UnknownScheme {
        /// The scheme before `://`.
        scheme: String,
    },
    /// A plain database name looks like the rest of a URI.
    #[error("a database name contains \":\" and \"@\": is postgresql:// missing before it?")]
    UriWithoutScheme,
    /// A `%` in a URI is not followed by two hexadecimal digits, or they are 00.
    #[error(
        "the {part} of the URI has an invalid escape: \"%\" needs two hexadecimal digits, not 00"
    )]
    BadPercentEncoding {
        /// Part of the URI with the invalid `%`.
        part: &'static str,
    },
    /// A part of a URI is not UTF-8 after decoding.
    #[error("the {part} of the URI is not UTF-8 after decoding")]
    BadUtf8 {
        /// Part of the URI that is not UTF-8.
        part: &'static str,
    },
    /// A part of a URI contains white space.
    #[error("the {part} of the URI has white space: write a space as %20")]
    UnencodedSpace {
        /// Part of the URI with the white space.
        part: &'static str,
    },
    /// An IPv6 address in a URI has no closing bracket, is empty, or is followed by something other
    /// than a port, a path, parameters or the next host.
    #[error(
        "the URI has an invalid IPv6 host: write the address between \"[\" and \"]\", as in postgresql://[::1]:5432/"
    )]
    BadBrackets,
    /// A parameter of a URI has no `=`, or more than one.
    #[error(
        "the URI has a parameter without \"=\", or with \"=\" in its value: write keyword=value, and %3D for \"=\" in a value"
    )]
    BadParameter,
    /// A value is not valid for its keyword.
    #[error("{keyword} {value:?} ({origin}) is not {expected}")]
    InvalidValue {
        /// Keyword with the invalid value.
        keyword: &'static str,
        /// The rejected value, as given.
        value: String,
        /// The source that set the value.
        origin: SettingOrigin,
        /// Description of the valid values.
        expected: &'static str,
    },
    /// `hostaddr` and `host` are lists of different lengths.
    #[error(
        "the number of addresses in hostaddr ({addresses}) is not the number of hosts ({hosts})"
    )]
    HostCount {
        /// Number of elements in `host`.
        hosts: usize,
        /// Number of elements in `hostaddr`.
        addresses: usize,
    },
    /// The number of ports is neither one nor the number of hosts.
    #[error("the number of ports ({ports}) is neither 1 nor the number of hosts ({hosts})")]
    PortCount {
        /// Number of elements in `host` or `hostaddr`; 1 if neither is set.
        hosts: usize,
        /// Number of elements in `port`.
        ports: usize,
    },
    /// An option requires a stronger `sslmode`: one that guarantees encryption, or also verifies
    /// the server.
    #[error("sslmode {mode} is too weak for {option}: use {needed}")]
    WeakSslMode {
        /// The value of `sslmode`.
        mode: &'static str,
        /// The option, as written in a connection string.
        option: &'static str,
        /// The modes that are strong enough.
        needed: &'static str,
    },
    /// A keyword requests protection that this program cannot provide. Ignoring the keyword would
    /// silently leave the connection unprotected.
    #[error("{keyword} {value:?} ({origin}) is not supported")]
    Unsupported {
        /// Keyword with the unsupported value.
        keyword: &'static str,
        /// The rejected value, as given.
        value: String,
        /// The source that set the value.
        origin: SettingOrigin,
    },
    /// No service file has a section with this name.
    #[error("definition of service {service:?} not found")]
    ServiceNotFound {
        /// Name of the requested service.
        service: String,
    },
    /// A service file cannot be read, or is not UTF-8.
    #[error("cannot read service file {}", .path.display())]
    ServiceFile {
        /// Path of the service file.
        path: PathBuf,
        /// The reason why the file cannot be read.
        source: io::Error,
    },
    /// A line in the service's section is invalid.
    #[error("{}:{line}: {problem}", .path.display())]
    ServiceLine {
        /// Path of the service file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The reason why the line is invalid.
        problem: ServiceProblem,
    },
    /// No user was given, and the operating system has no name for the current user.
    #[error("no user given, and the operating system user has no name")]
    NoUser,
    /// An environment variable is not UTF-8.
    #[error("the environment variable {variable} is not UTF-8")]
    NotUtf8 {
        /// Name of the environment variable.
        variable: &'static str,
    },
}

/// The reason why a line of a service file is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceProblem {
    /// The line is neither `[name]` nor `keyword=value`.
    #[error("not of the form keyword=value")]
    Syntax,
    /// libpq has no such keyword.
    #[error("unknown connection keyword {keyword:?}{}", hint(*.suggestion))]
    UnknownKeyword {
        /// The unknown keyword, as given.
        keyword: String,
        /// A keyword with a similar spelling, if there is one.
        suggestion: Option<&'static str>,
    },
    /// A service refers to a service, or to a service file.
    #[error("a service cannot name another service")]
    Nested,
    /// A service is defined in a directory server.
    #[error("services defined in LDAP are not supported")]
    Ldap,
}

impl ResolveError {
    /// Returns the error for a word that should be a keyword. The word is shown only if it looks
    /// like one.
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
    /// Returns the problem of a line of a service file whose keyword is unknown. The keyword is
    /// shown only if it looks like one.
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

//! [`ConnParams`]: the connection parameters from the command line.

use std::fmt;

use crate::{
    conninfo, resolve_error::ResolveError, setting_origin::SettingOrigin, settings::KeywordValues,
};

/// Connection parameters from the command line. An empty string counts as not given.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConnParams {
    /// A URI, a keyword/value string, or a plain database name.
    pub conninfo: Option<String>,
    /// `-h`: a host, a list of hosts, or the directory of a socket.
    pub host: Option<String>,
    /// `-p`: a port, or a list of them.
    pub port: Option<String>,
    /// `-U`: the user.
    pub user: Option<String>,
    /// `-d`: the name of a database, or a connection string as in [`ConnParams::conninfo`].
    pub database: Option<String>,
}

impl ConnParams {
    /// Creates parameters that consist of one connection string.
    pub fn from_conninfo(conninfo: impl Into<String>) -> Self {
        Self { conninfo: Some(conninfo.into()), ..Self::default() }
    }

    pub(crate) fn settings(&self) -> Result<KeywordValues, ResolveError> {
        let mut settings = KeywordValues::default();
        for (keyword, word) in [("host", &self.host), ("port", &self.port), ("user", &self.user)] {
            if let Some(word) = word.as_ref().filter(|word| !word.is_empty()) {
                settings.set(keyword, word, SettingOrigin::Argument)?;
            }
        }
        for text in [&self.database, &self.conninfo].into_iter().flatten() {
            if !text.is_empty() {
                settings.overlay(conninfo::parse(text)?);
            }
        }
        Ok(settings)
    }
}

/// Hides the connection strings, which may contain a password.
impl fmt::Debug for ConnParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct RedactedConninfo;
        impl fmt::Debug for RedactedConninfo {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("…")
            }
        }
        f.debug_struct("ConnParams")
            .field("conninfo", &self.conninfo.as_ref().map(|_| RedactedConninfo))
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
            .field("database", &self.database.as_ref().map(|_| RedactedConninfo))
            .finish()
    }
}

//! [`Words`]: what a person typed about a connection.

use std::fmt;

use crate::{
    conninfo,
    resolve_error::ResolveError,
    settings::{Origin, Settings},
};

/// What a person typed about a connection. An empty word counts as none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// A URI, a keyword/value string, or the bare name of a database.
    pub conninfo: Option<String>,
    /// `-h`: a host, a list of hosts, or the directory of a socket.
    pub host: Option<String>,
    /// `-p`: a port, or a list of them.
    pub port: Option<String>,
    /// `-U`.
    pub user: Option<String>,
    /// `-d`: the name of a database, or a connection string as in [`Words::conninfo`].
    pub database: Option<String>,
}

impl Words {
    /// Words that are one connection string.
    pub fn from_conninfo(conninfo: impl Into<String>) -> Self {
        Self { conninfo: Some(conninfo.into()), ..Self::default() }
    }

    pub(crate) fn settings(&self) -> Result<Settings, ResolveError> {
        let mut settings = Settings::default();
        for (keyword, word) in [("host", &self.host), ("port", &self.port), ("user", &self.user)] {
            if let Some(word) = word.as_ref().filter(|word| !word.is_empty()) {
                settings.set(keyword, word, Origin::Typed)?;
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

/// Keeps the connection strings to itself: they may hold a password.
impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Hidden;
        impl fmt::Debug for Hidden {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("…")
            }
        }
        f.debug_struct("Words")
            .field("conninfo", &self.conninfo.as_ref().map(|_| Hidden))
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
            .field("database", &self.database.as_ref().map(|_| Hidden))
            .finish()
    }
}

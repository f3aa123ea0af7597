//! Why a server could not be read.

use howdah_connect::{ConnectError, QueryError};

/// Why a reading failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// No connection could be had.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A statement failed, or the connection did.
    #[error("reading {what}: {source}")]
    Query {
        /// What was to be read.
        what: &'static str,
        /// What the server, or the connection, said.
        source: QueryError,
    },
    /// The answer is not what the statement asks for: something else than PostgreSQL answers.
    #[error("the server's answer has no {what}: is it PostgreSQL?")]
    NotPostgres {
        /// What was not there.
        what: &'static str,
    },
    /// The view is one of an extension that the database of the connection does not have.
    #[error(
        "there is no {extension} in this database: CREATE EXTENSION {extension}, \
         once it is in shared_preload_libraries"
    )]
    NoExtension {
        /// Its name.
        extension: &'static str,
    },
    /// What answers is no pooler's console, or one without the columns of PgBouncer's.
    #[error(
        "its console lacks columns of SHOW CLIENTS or SHOW SERVERS: is it the pooler's console?"
    )]
    NotPooler,
}

impl CollectError {
    pub(crate) fn query(what: &'static str) -> impl FnOnce(QueryError) -> Self {
        move |source| Self::Query { what, source }
    }

    /// Whether the connection is gone, so that only a new one can help.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Query { source, .. } => source.is_fatal(),
            Self::NotPostgres { .. } | Self::NoExtension { .. } | Self::NotPooler => false,
        }
    }

    /// The server's error code, if the server refused.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Query { source, .. } => source.sqlstate(),
            _ => None,
        }
    }
}

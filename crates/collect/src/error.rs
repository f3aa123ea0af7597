//! Errors while reading a server.

use howdah_connect::{ConnectError, QueryError};

/// The reason why a server could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// The connection could not be established.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A statement or the connection failed.
    #[error("cannot read {what}: {source}")]
    Query {
        /// The data that was being read: a phrase, or the name of a view.
        what: &'static str,
        /// The error of the server or of the connection.
        source: QueryError,
    },
    /// The response lacks a required value, so the peer is probably not PostgreSQL.
    #[error("the server's response has no {what}: is it PostgreSQL?")]
    NotPostgres {
        /// The missing part of the response.
        what: &'static str,
    },
    /// The view belongs to an extension that is not installed in the connected database.
    #[error(
        "extension {extension} is not installed in this database: add it to \
         shared_preload_libraries, restart, and run CREATE EXTENSION {extension}"
    )]
    NoExtension {
        /// Name of the extension.
        extension: &'static str,
    },
    /// The peer is not a pooler console, or its console lacks the columns of PgBouncer's.
    #[error("SHOW CLIENTS or SHOW SERVERS lacks columns: is this a pooler console?")]
    NotPooler,
}

impl CollectError {
    pub(crate) fn query(what: &'static str) -> impl FnOnce(QueryError) -> Self {
        move |source| Self::Query { what, source }
    }

    /// Whether a new connection is needed, because none was established or it is lost.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Query { source, .. } => source.is_fatal(),
            Self::NotPostgres { .. } | Self::NoExtension { .. } | Self::NotPooler => false,
        }
    }

    /// Returns the SQLSTATE of a failed statement, if the server reported one.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Query { source, .. } => source.sqlstate(),
            _ => None,
        }
    }
}

//! The formats of server logs.

use serde::Serialize;

/// A format in which PostgreSQL writes its log (`log_destination`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerLogFormat {
    /// Text lines that begin with `log_line_prefix`.
    Stderr,
    /// `csvlog`: rows of 22 to 26 columns, depending on the version.
    Csv,
    /// `jsonlog`: one object in each line, PostgreSQL 15 and later.
    Json,
}

impl ServerLogFormat {
    /// Returns the name of the format in `log_destination`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stderr => "stderr",
            Self::Csv => "csvlog",
            Self::Json => "jsonlog",
        }
    }
}

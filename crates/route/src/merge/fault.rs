//! [`Fault`]: why answers of several shards cannot be put together.

use howdah_wire::backend::{ErrorField, Severity, encode};

/// Why answers cannot be put together.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("the shards do not agree on what the answer is like")]
    Different,
    #[error(
        "answers of shards cannot be put together: the {what} of column \"{name}\" is not known for its type"
    )]
    Type { name: String, what: &'static str },
    #[error("answers of shards cannot be put together: several columns are called \"{0}\"")]
    Unclear(String),
    #[error("answers of shards cannot be put together: a value of column \"{0}\" cannot be read")]
    Value(String),
    #[error("the sum of column \"{0}\" over all shards is out of range")]
    Range(String),
    #[error("a shard has sent a message of {0} bytes, and {1} is the most that is put together")]
    Long(u32, u32),
    #[error("a shard has sent what cannot be: {0}")]
    Protocol(String),
    #[error("the connection to a shard was lost")]
    Lost,
}

impl Fault {
    fn sqlstate(&self) -> &'static [u8] {
        match self {
            Self::Type { .. } | Self::Unclear(_) | Self::Value(_) => b"0A000",
            Self::Different => b"55000",
            Self::Range(_) => b"22003",
            Self::Long(..) => b"54000",
            Self::Protocol(_) => b"08P01",
            Self::Lost => b"08006",
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Type { what: "order", .. } => Some(
                "Where every shard orders text by its bytes, as by the collation C, sharding.collation = 'bytes' tells so; or order by a number.",
            ),
            Self::Value(_) => Some("Dates are read in the ISO style only: SET datestyle TO 'ISO'."),
            Self::Different => Some("Its tables have to have the same columns on every shard."),
            _ => None,
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let message = self.to_string().replace('\0', " ");
        let hint = self.hint().map(|hint| (ErrorField::Hint.code(), hint.as_bytes()));
        let fields = encode::essentials(Severity::Error, self.sqlstate(), message.as_bytes());
        // Without a zero byte it cannot fail.
        let _ = encode::error_response(out, fields.into_iter().chain(hint));
    }
}

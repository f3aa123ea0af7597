//! [`MergeError`]: the reasons why the replies of several shards cannot be merged.

use howdah_wire::backend::{ErrorField, Severity, encode};

/// The reason why replies of several shards cannot be merged.
#[derive(Debug, thiserror::Error)]
pub(super) enum MergeError {
    #[error("shards returned different columns or replies")]
    Different,
    #[error(
        "results of shards cannot be merged: the {what} of column \"{name}\" is not supported for its type"
    )]
    Type { name: String, what: &'static str },
    #[error("results of shards cannot be merged: several columns are named \"{0}\"")]
    AmbiguousColumn(String),
    #[error("results of shards cannot be merged: cannot parse a value of column \"{0}\"")]
    Value(String),
    #[error("the sum of column \"{0}\" over all shards is out of range")]
    Range(String),
    #[error("a shard sent a message of {0} bytes; the limit for merging is {1}")]
    MessageTooLong(u32, u32),
    #[error("a shard violated the protocol: {0}")]
    Protocol(String),
    #[error("the connection to a shard was lost")]
    Lost,
}

impl MergeError {
    fn sqlstate(&self) -> &'static [u8] {
        match self {
            Self::Type { .. } | Self::AmbiguousColumn(_) | Self::Value(_) => b"0A000",
            Self::Different => b"55000",
            Self::Range(_) => b"22003",
            Self::MessageTooLong(..) => b"54000",
            Self::Protocol(_) => b"08P01",
            Self::Lost => b"08006",
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Type { what: "order", .. } => Some(
                "If every shard sorts text bytewise, as in the collation C, set sharding.collation = 'bytes'; or order by a number.",
            ),
            Self::Value(_) => {
                Some("Dates are supported in the ISO style only: SET datestyle TO 'ISO'.")
            }
            Self::Different => Some("Tables must have the same columns on every shard."),
            _ => None,
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let message = self.to_string().replace('\0', " ");
        let hint = self.hint().map(|hint| (ErrorField::Hint.code(), hint.as_bytes()));
        let fields = encode::essentials(Severity::Error, self.sqlstate(), message.as_bytes());
        // The texts contain no zero byte, so this cannot fail.
        let _ = encode::error_response(out, fields.into_iter().chain(hint));
    }
}

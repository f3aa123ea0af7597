//! [`ParsedStatement`]: a prepared statement as its Parse message describes it.

use std::sync::Arc;

use howdah_traffic::Text;
use howdah_wire::{
    Frame, Frontend,
    frontend::{FrontendMessage, Parse},
};

use crate::live::secrets::sql_text;

/// The text of a prepared statement, with its parameter types.
#[derive(Debug)]
pub(crate) struct ParsedStatement {
    pub(crate) sql: Text,
    /// Types of the parameters, by OID.
    pub(crate) types: Vec<u32>,
}

impl ParsedStatement {
    /// Parses the body of a Parse message without the statement's name; `None` if it is not valid.
    pub(crate) fn from_parse_body(text: &[u8]) -> Option<Arc<Self>> {
        // Prepend an empty name.
        let body = [b"\0", text].concat();
        match FrontendMessage::parse(Frame { tag: Frontend::Parse.tag(), body: &body }) {
            Ok(FrontendMessage::Parse(parse)) => Some(Arc::new(Self::from_parse(&parse))),
            _ => None,
        }
    }

    pub(crate) fn from_parse(parse: &Parse<'_>) -> Self {
        Self { sql: sql_text(parse.sql), types: parse.types.clone().collect() }
    }

    /// Whether the Parse message `parse` prepares the same statement.
    pub(crate) fn matches(&self, parse: &Parse<'_>) -> bool {
        self.sql.as_bytes() == parse.sql && parse.types.clone().eq(self.types.iter().copied())
    }
}

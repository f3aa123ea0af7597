//! Finds the names of cursors, savepoints, prepared statements and channels in SQL text.

use howdah_sql::{SqlToken, TokenKind};

/// The state of a statement up to the current token, as far as it shows where a name follows.
#[derive(Debug, Default)]
pub(super) struct NameContext {
    /// The first word of the statement, and the last two tokens, in lower case.
    first: Vec<u8>,
    last: [Vec<u8>; 2],
    /// Whether the statement's name was found, or cannot follow.
    is_named: bool,
}

impl NameContext {
    /// Moves past a token; returns whether it is a name: a word, a quoted name, or the constant of
    /// a channel.
    pub(super) fn advance(&mut self, token: SqlToken<'_>) -> bool {
        match token.kind {
            TokenKind::Space | TokenKind::Comment => return false,
            TokenKind::Punctuation if token.text == b";" => {
                *self = Self::default();
                return false;
            }
            _ => {}
        }
        let word = token.text.to_ascii_lowercase();
        let is_name = match token.kind {
            TokenKind::Word => self.is_name(&word),
            TokenKind::QuotedName => self.is_name(b""),
            TokenKind::String => self.last[0] == b"pg_notify" && self.last[1] == b"(",
            _ => false,
        };
        let is_current = self.last == [&b"current"[..], b"of"];
        self.is_named |= is_name && !is_current && token.kind != TokenKind::String;
        if self.first.is_empty() {
            self.first.clone_from(&word);
        }
        self.last.swap(0, 1);
        self.last[1] = word;
        is_name
    }

    /// Whether a word at this position is a name. `word` is in lower case, and empty for a quoted
    /// name.
    fn is_name(&self, word: &[u8]) -> bool {
        let [before, last] = &self.last;
        if before == b"current" && last == b"of" {
            return true;
        }
        if self.is_named || self.first.is_empty() {
            return false;
        }
        let follows_first = *last == self.first;
        match &self.first[..] {
            b"declare" | b"savepoint" | b"execute" | b"listen" | b"unlisten" | b"notify" => {
                follows_first
            }
            b"close" => follows_first && word != b"all",
            b"prepare" => follows_first && word != b"transaction",
            b"release" => word != b"savepoint" || last == b"savepoint",
            b"deallocate" => !matches!(word, b"all") && (word != b"prepare" || last == b"prepare"),
            b"rollback" => {
                last == b"to" && word != b"savepoint" || before == b"to" && last == b"savepoint"
            }
            b"fetch" | b"move" => !DIRECTIONS.contains(&word),
            b"explain" => last == b"execute" || last == b"declare",
            b"create" => last == b"execute" && !matches!(word, b"function" | b"procedure"),
            _ => false,
        }
    }
}

/// Words that may precede the cursor's name in FETCH and MOVE.
const DIRECTIONS: [&[u8]; 11] = [
    b"next",
    b"prior",
    b"first",
    b"last",
    b"absolute",
    b"relative",
    b"all",
    b"forward",
    b"backward",
    b"from",
    b"in",
];

/// Returns a name as the server stores it: in lower case unless it is quoted.
pub(super) fn folded_name(text: &[u8]) -> Vec<u8> {
    let Some(quoted) = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")) else {
        return text.to_ascii_lowercase();
    };
    let mut name = Vec::with_capacity(quoted.len());
    let mut rest = quoted;
    while let Some(quote) = memchr::memchr(b'"', rest) {
        name.extend_from_slice(&rest[..=quote]);
        rest = rest.get(quote + 2..).unwrap_or_default();
    }
    name.extend_from_slice(rest);
    name
}

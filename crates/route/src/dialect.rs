//! Tracks session parameters that affect how statement texts are lexed.

use howdah_sql::may_hide_ascii;

/// The session parameters that determine how the bytes of a statement text are read.
#[derive(Clone, Debug)]
pub(crate) struct TextDialect {
    /// Whether a backslash in a plain string is an ordinary character:
    /// `standard_conforming_strings`.
    conforming: bool,
    client: Option<Box<[u8]>>,
    server: Option<Box<[u8]>>,
    /// Whether the client's encoding is known and its multi-byte characters contain no ASCII bytes.
    is_safe: bool,
    is_same: bool,
}

impl Default for TextDialect {
    fn default() -> Self {
        Self { conforming: true, client: None, server: None, is_safe: false, is_same: false }
    }
}

/// Maximum length of an encoding name that is stored, in bytes. A longer one counts as unknown.
const NAME_MAX: usize = 32;

impl TextDialect {
    pub(crate) fn parameter_status(&mut self, name: &[u8], value: &[u8]) {
        let encoding = (value.len() <= NAME_MAX).then(|| value.to_ascii_uppercase().into());
        match name {
            b"standard_conforming_strings" => self.conforming = value == b"on",
            b"client_encoding" => self.client = encoding,
            b"server_encoding" => self.server = encoding,
            _ => return,
        }
        // The server does not convert text if the encodings are equal or one of them is SQL_ASCII.
        let (client, server) = (self.client.as_deref(), self.server.as_deref());
        let raw = Some(&b"SQL_ASCII"[..]);
        self.is_same = client.is_some() && client == server || client == raw || server == raw;
        self.is_safe = client.is_some_and(|client| !may_hide_ascii(client));
    }

    /// Whether our lexer finds the same tokens in the text as PostgreSQL's scanner.
    pub(crate) fn is_lexed_alike(&self, sql: &[u8]) -> bool {
        (self.conforming || memchr::memchr(b'\\', sql).is_none())
            && (self.is_safe || sql.is_ascii())
    }

    /// Whether all text has the same bytes on the server.
    pub(crate) fn encodings_match(&self) -> bool {
        self.is_same
    }

    /// Whether this text has the same bytes on the server.
    pub(crate) fn is_unconverted(&self, text: &[u8]) -> bool {
        self.is_same || text.is_ascii()
    }
}

#[test]
fn non_ascii_text_requires_known_encodings() {
    let mut dialect = TextDialect::default();
    let follows = |dialect: &TextDialect| dialect.is_lexed_alike("select 'ü'".as_bytes());
    assert!(!follows(&dialect) && dialect.is_lexed_alike(b"select '\\'"));
    dialect.parameter_status(b"client_encoding", b"UTF8");
    assert!(follows(&dialect) && !dialect.encodings_match());
    dialect.parameter_status(b"server_encoding", b"LATIN1");
    assert!(!dialect.encodings_match());
    dialect.parameter_status(b"server_encoding", b"UTF8");
    assert!(dialect.encodings_match());
    dialect.parameter_status(b"client_encoding", b"sjis");
    assert!(!follows(&dialect) && !dialect.encodings_match());
    dialect.parameter_status(b"standard_conforming_strings", b"off");
    assert!(!dialect.is_lexed_alike(b"select '\\'") && dialect.is_lexed_alike(b"select 1"));
}

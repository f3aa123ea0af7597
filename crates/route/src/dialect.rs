//! What a session's parameters say about the reading of its texts.

/// Settings of a session that decide what bytes of a text mean.
#[derive(Clone, Debug)]
pub(crate) struct Dialect {
    /// `standard_conforming_strings`: a backslash in a plain string is a backslash.
    conforming: bool,
    client: Option<Box<[u8]>>,
    server: Option<Box<[u8]>>,
    /// No byte of a letter beyond ASCII looks like ASCII.
    is_safe: bool,
    is_same: bool,
}

impl Default for Dialect {
    fn default() -> Self {
        Self { conforming: true, client: None, server: None, is_safe: false, is_same: false }
    }
}

/// Longest name of an encoding that is kept.
const NAME_MAX: usize = 32;

impl Dialect {
    pub(crate) fn parameter_status(&mut self, name: &[u8], value: &[u8]) {
        let kept = (value.len() <= NAME_MAX).then(|| value.to_ascii_uppercase().into());
        match name {
            b"standard_conforming_strings" => self.conforming = value == b"on",
            b"client_encoding" => self.client = kept,
            b"server_encoding" => self.server = kept,
            _ => return,
        }
        // Without a conversion bytes are what they are.
        let (client, server) = (self.client.as_deref(), self.server.as_deref());
        let raw = Some(&b"SQL_ASCII"[..]);
        self.is_same = client.is_some() && client == server || client == raw || server == raw;
        // Those that a server cannot have, because their letters hold such bytes.
        let unsafe_ones: [&[u8]; 7] =
            [b"BIG5", b"GB18030", b"GBK", b"JOHAB", b"SHIFT_JIS_2004", b"SJIS", b"UHC"];
        self.is_safe = client.is_some_and(|client| !unsafe_ones.contains(&client));
    }

    /// Whether PostgreSQL's scanner splits a text where ours does.
    pub(crate) fn is_followed(&self, sql: &[u8]) -> bool {
        (self.conforming || memchr::memchr(b'\\', sql).is_none())
            && (self.is_safe || sql.is_ascii())
    }

    /// Whether text is the same bytes on the server.
    pub(crate) fn same_encoding(&self) -> bool {
        self.is_same
    }

    /// Whether this text is the same bytes on the server.
    pub(crate) fn is_same(&self, text: &[u8]) -> bool {
        self.is_same || text.is_ascii()
    }
}

#[test]
fn letters_beyond_ascii_wait_until_encodings_are_known() {
    let mut dialect = Dialect::default();
    let follows = |dialect: &Dialect| dialect.is_followed("select 'ü'".as_bytes());
    assert!(!follows(&dialect) && dialect.is_followed(b"select '\\'"));
    dialect.parameter_status(b"client_encoding", b"UTF8");
    assert!(follows(&dialect) && !dialect.same_encoding());
    dialect.parameter_status(b"server_encoding", b"LATIN1");
    assert!(!dialect.same_encoding());
    dialect.parameter_status(b"server_encoding", b"UTF8");
    assert!(dialect.same_encoding());
    dialect.parameter_status(b"client_encoding", b"sjis");
    assert!(!follows(&dialect) && !dialect.same_encoding());
    dialect.parameter_status(b"standard_conforming_strings", b"off");
    assert!(!dialect.is_followed(b"select '\\'") && dialect.is_followed(b"select 1"));
}

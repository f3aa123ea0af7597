//! Encodings of texts.

/// Whether multi-byte characters of an encoding may contain ASCII bytes, such as quotes and
/// backslashes. `name` is in upper case, as servers report it. These are the encodings that only
/// clients can have (PostgreSQL manual, section 24.3.1).
pub fn may_hide_ascii(name: &[u8]) -> bool {
    const HIDING: [&[u8]; 7] =
        [b"BIG5", b"GB18030", b"GBK", b"JOHAB", b"SHIFT_JIS_2004", b"SJIS", b"UHC"];
    HIDING.contains(&name)
}

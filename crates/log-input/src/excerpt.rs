//! Shortens untrusted input for messages.

/// Returns the first line of some bytes, shortened for display.
pub fn shorten(bytes: &[u8]) -> String {
    let line = &bytes[..memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len())];
    let text = String::from_utf8_lossy(&line[..line.len().min(4 * EXCERPT_CHARS)]);
    let mut excerpt: String = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .take(EXCERPT_CHARS)
        .collect();
    if excerpt.len() < line.len() && text.chars().nth(EXCERPT_CHARS).is_some() {
        excerpt.push('…');
    }
    excerpt
}

/// Maximum characters of an excerpt.
const EXCERPT_CHARS: usize = 120;

#[test]
fn excerpt_is_short_and_has_no_control_characters() {
    assert_eq!(shorten(b"a\x00b\xff"), "a\u{fffd}b\u{fffd}");
    assert_eq!(shorten(&[b'x'; 1000]).chars().count(), EXCERPT_CHARS + 1);
}

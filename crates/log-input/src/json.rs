//! A JSON parser for envelopes: splits a stream into objects, and reads members and strings.
//!
//! The parser accepts bytes that are not UTF-8, because a log contains text in the encoding of each
//! database.

use crate::problem::InputProblem;

/// A splitter of a stream into objects: consecutive ones, one per line, or the elements of one
/// array.
///
/// Everything between the objects is skipped (brackets, commas, the head of a document with an
/// array at one of its keys). JSON strings contain no raw newline, so one inside a string shows
/// that the object was cut; the next object begins after it.
#[derive(Debug)]
pub(super) struct ObjectSplitter {
    bytes_max: usize,
    /// The object so far, from its brace.
    object: Vec<u8>,
    depth: u32,
    state: JsonScanState,
    /// Whether each object of this stream is on one line; `None` until the first one has shown it.
    in_lines: Option<bool>,
    /// Current line number, from 1.
    line: u64,
    /// Line on which the object started.
    start_line: u64,
    /// Whether the head of a document such as `{"events": [` was skipped.
    in_document: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonScanState {
    Between,
    Inside,
    String,
    Escape,
    /// The rest of the line on which an object became too long.
    Skip,
}

impl ObjectSplitter {
    /// Creates a splitter that rejects objects longer than `bytes_max`.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            object: Vec::new(),
            depth: 0,
            state: JsonScanState::Between,
            in_lines: None,
            line: 1,
            start_line: 1,
            in_document: false,
        }
    }

    /// Reads the next bytes. Calls `take` with each object that ends in them, or with its problem,
    /// and with the line on which it started.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Result<&[u8], InputProblem>, u64),
    ) {
        let mut at = 0;
        while at < bytes.len() {
            at += match self.state {
                JsonScanState::Between => self.scan_between(&bytes[at..]),
                JsonScanState::Inside => self.scan_inside(&bytes[at..], &mut take),
                JsonScanState::String => self.scan_string(&bytes[at..], &mut take),
                JsonScanState::Escape => {
                    self.object.push(bytes[at]);
                    self.state = JsonScanState::String;
                    1
                }
                JsonScanState::Skip => self.skip_line(&bytes[at..]),
            };
            if self.object.len() > self.bytes_max {
                self.reject(InputProblem::TooLong, &mut take);
            }
        }
    }

    /// Rejects an incomplete object, because the input has ended.
    pub(super) fn finish(&mut self, mut take: impl FnMut(Result<&[u8], InputProblem>, u64)) {
        if !self.object.is_empty() {
            self.reject(InputProblem::CutShort, &mut take);
        }
    }

    /// Returns the beginning of the incomplete object, for an excerpt.
    pub(super) fn rest(&self) -> &[u8] {
        &self.object
    }

    fn scan_between(&mut self, bytes: &[u8]) -> usize {
        match memchr::memchr2(b'{', b'\n', bytes) {
            None => bytes.len(),
            Some(at) if bytes[at] == b'\n' => {
                self.line += 1;
                at + 1
            }
            Some(at) => {
                (self.state, self.depth, self.start_line) = (JsonScanState::Inside, 1, self.line);
                self.object.clear();
                self.object.push(b'{');
                at + 1
            }
        }
    }

    fn scan_inside(
        &mut self,
        bytes: &[u8],
        take: &mut impl FnMut(Result<&[u8], InputProblem>, u64),
    ) -> usize {
        let plain = bytes.iter().position(|byte| b"\"{}[]\n".contains(byte)).unwrap_or(bytes.len());
        self.object.extend_from_slice(&bytes[..plain]);
        let Some(byte) = bytes.get(plain) else { return plain };
        self.object.push(*byte);
        match byte {
            b'"' => self.state = JsonScanState::String,
            b'\n' => {
                self.line += 1;
                if self.in_lines == Some(true) {
                    self.reject(InputProblem::BadEnvelope, take);
                    self.state = JsonScanState::Between;
                }
            }
            b'[' if !self.in_document && is_document_head(&self.object) => {
                self.in_document = true;
                self.object.clear();
                self.state = JsonScanState::Between;
            }
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            _ => {
                self.depth -= 1;
                if self.depth == 0 {
                    self.in_lines.get_or_insert(!self.object.contains(&b'\n'));
                    take(Ok(&self.object), self.start_line);
                    self.object.clear();
                    self.object.shrink_to(RETAINED_BYTES_MAX);
                    self.state = JsonScanState::Between;
                }
            }
        }
        plain + 1
    }

    fn scan_string(
        &mut self,
        bytes: &[u8],
        take: &mut impl FnMut(Result<&[u8], InputProblem>, u64),
    ) -> usize {
        let plain = memchr::memchr3(b'"', b'\\', b'\n', bytes).unwrap_or(bytes.len());
        self.object.extend_from_slice(&bytes[..plain]);
        let Some(byte) = bytes.get(plain) else { return plain };
        self.object.push(*byte);
        match byte {
            b'"' => self.state = JsonScanState::Inside,
            b'\\' => self.state = JsonScanState::Escape,
            _ => {
                self.line += 1;
                self.reject(InputProblem::BadEnvelope, take);
                self.state = JsonScanState::Between;
            }
        }
        plain + 1
    }

    /// Skips the rest of a line.
    fn skip_line(&mut self, bytes: &[u8]) -> usize {
        let Some(newline) = memchr::memchr(b'\n', bytes) else { return bytes.len() };
        self.line += 1;
        self.state = JsonScanState::Between;
        newline + 1
    }

    fn reject(
        &mut self,
        reason: InputProblem,
        take: &mut impl FnMut(Result<&[u8], InputProblem>, u64),
    ) {
        take(Err(reason), self.start_line);
        self.object = Vec::new();
        self.state = JsonScanState::Skip;
    }
}

/// Maximum retained capacity; a buffer that one long object made larger is shrunk.
const RETAINED_BYTES_MAX: usize = 1 << 20;

/// Whether an object begins like a document whose first key is that of the array of entries:
/// `{"events": [`, `{"entries": [` or `{"records": [`.
fn is_document_head(object: &[u8]) -> bool {
    if object.len() > 64 {
        return false;
    }
    let head: Vec<u8> = object.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    [&b"{\"events\":["[..], b"{\"entries\":[", b"{\"records\":["].contains(&head.as_slice())
}

/// An iterator over the members of an object, as pairs of name and raw value.
pub(super) struct Members<'a> {
    rest: &'a [u8],
}

/// Starts the iteration over the members of `object`, which begins with its brace.
pub(super) fn members(object: &[u8]) -> Members<'_> {
    let object = object.trim_ascii();
    Members { rest: object.strip_prefix(b"{").unwrap_or_default() }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.iter().position(|byte| *byte == b'"')?;
        if self.rest[..start].contains(&b'}') {
            return None;
        }
        let (name, rest) = split_string(&self.rest[start..])?;
        let rest = rest.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let len = value_len(rest)?;
        let (value, rest) = rest.split_at(len);
        self.rest = rest;
        Some((&name[1..name.len() - 1], value.trim_ascii_end()))
    }
}

/// Returns the raw elements of an array.
pub(super) fn elements(array: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = array.trim_ascii().strip_prefix(b"[").unwrap_or_default();
    std::iter::from_fn(move || {
        let len = value_len(rest)?;
        let element = rest[..len].trim_ascii();
        rest = rest[len..].strip_prefix(b",").unwrap_or_default();
        (!element.is_empty()).then_some(element)
    })
}

/// Splits after the string at the front, including its quotes.
fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(bytes.split_at(at + 1));
        }
        at += 2;
    }
}

/// Returns the length of the value at the front, up to the comma or bracket after it.
fn value_len(bytes: &[u8]) -> Option<usize> {
    let mut depth = 0_u32;
    let mut at = 0;
    loop {
        match *bytes.get(at)? {
            b'"' => at += split_string(&bytes[at..])?.0.len() - 1,
            b'{' | b'[' => depth = depth.checked_add(1)?,
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => depth -= 1,
            b',' if depth == 0 => return Some(at),
            _ => {}
        }
        at += 1;
    }
}

/// Appends the contents of a string to `out`; returns false if the value is not a valid string,
/// after which `out` may contain part of it.
pub(super) fn unescape_into(value: &[u8], out: &mut Vec<u8>) -> bool {
    let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    let Some(mut rest) = quoted else { return false };
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let Some(len) = unescape_json(&rest[at + 1..], out) else { return false };
        rest = &rest[at + 1 + len..];
    }
    out.extend_from_slice(rest);
    true
}

/// Returns the contents of a string; `None` if the value is not a valid string.
pub(super) fn parse_string(value: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    unescape_into(value, &mut out).then_some(out)
}

/// Appends the character escaped after a backslash to `out`; returns the length of the escape, or
/// `None` if it is not valid.
///
/// A high surrogate must not be followed by another escape than that of a low one. Half a pair on
/// its own becomes U+FFFD.
pub fn unescape_json(bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let byte = match *bytes.first()? {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'b' => 0x08,
        b'f' => 0x0c,
        byte @ (b'"' | b'\\' | b'/') => byte,
        b'u' => {
            let first = hex(&bytes[1..])?;
            let (code, len) = match (first, &bytes[5..]) {
                (0xd800..0xdc00, [b'\\', b'u', second @ ..]) => {
                    let low = hex(second)?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                    (0x1_0000 + ((first - 0xd800) << 10) + low, 11)
                }
                _ => (first, 5),
            };
            let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            return Some(len);
        }
        _ => return None,
    };
    out.push(byte);
    Some(1)
}

fn hex(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.get(..4)?;
    digits.iter().try_fold(0, |sum, digit| Some(sum * 16 + char::from(*digit).to_digit(16)?))
}

/// Appends a text as a JSON string. Bytes from 0x80 on are copied unchanged, as the server does.
pub(super) fn push_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..0x20 => out.extend(format!("\\u{byte:04x}").bytes()),
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(text: &[u8], chunk: usize) -> Vec<(u64, String)> {
        let mut objects = ObjectSplitter::new(60);
        let mut got = Vec::new();
        let mut take = |object: Result<&[u8], InputProblem>, line| {
            let text = match object {
                Ok(object) => String::from_utf8_lossy(object).into_owned(),
                Err(reason) => format!("{reason:?}"),
            };
            got.push((line, text));
        };
        text.chunks(chunk).for_each(|bytes| objects.feed(bytes, &mut take));
        objects.finish(&mut take);
        got
    }

    fn check(text: &str, expected: &[(u64, &str)]) {
        for chunk in 1..=text.len() {
            let got = objects(text.as_bytes(), chunk);
            assert!(
                got.iter().map(|(n, o)| (*n, o.as_str())).eq(expected.iter().copied()),
                "{chunk}: {got:?}"
            );
        }
    }

    #[test]
    fn objects_in_lines_arrays_and_documents_are_found() {
        check("{\"a\":1}\n{\"b\":\"}\\\"\"}\n", &[(1, "{\"a\":1}"), (2, "{\"b\":\"}\\\"\"}")]);
        check("[\n {\n\"a\": {}},\n{\"b\":[1]}\n]", &[(2, "{\n\"a\": {}}"), (4, "{\"b\":[1]}")]);
        let events = "{\"events\": [{\"a\":1},{\"b\":2}], \"token\": \"x\"}";
        check(events, &[(1, "{\"a\":1}"), (1, "{\"b\":2}")]);
    }

    #[test]
    fn broken_line_does_not_affect_others() {
        let text = "{\"a\":1}\n{\"b\":\"x\n{\"c\":1}\n{\"d\":{\n{\"e\":1}\n";
        let expected = [
            (1, "{\"a\":1}"),
            (2, "BadEnvelope"),
            (3, "{\"c\":1}"),
            (4, "BadEnvelope"),
            (5, "{\"e\":1}"),
        ];
        check(text, &expected);
        let long = format!("{{\"a\":\"{}\"}}\n{{\"b\":1}}\n{{\"c\"", "x".repeat(100));
        check(&long, &[(1, "TooLong"), (2, "{\"b\":1}"), (3, "CutShort")]);
    }

    #[test]
    fn members_and_strings_are_parsed() {
        let object =
            b"{ \"a\" : \"x\\n\\u20ac\\ud83d\\ude00\", \"b\":{\"c\":\"}\",\"d\":[1,2]} , \"e\":12}";
        let got: Vec<_> = members(object).collect();
        assert_eq!(got.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [b"a", b"b", b"e"]);
        assert_eq!(parse_string(got[0].1).as_deref(), Some("x\n€😀".as_bytes()));
        assert_eq!(got[1].1, b"{\"c\":\"}\",\"d\":[1,2]}");
        assert_eq!((got[2].1, parse_string(got[2].1)), (&b"12"[..], None));
        let array: Vec<_> = elements(b"[\"a,\", null , [1,2],{}]").collect();
        assert_eq!(array, [&b"\"a,\""[..], b"null", b"[1,2]", b"{}"]);
        assert_eq!(
            elements(b"[]").count() + elements(b"null").count() + elements(b"[1").count(),
            0
        );
        assert_eq!(members(b"{}").count() + members(b"{\"a\"").count() + members(b"").count(), 0);
        for broken in [&b"\"\\\""[..], b"\"\\u12\"", b"\"\\x\"", b"\"", b"x"] {
            assert_eq!(parse_string(broken), None, "{}", String::from_utf8_lossy(broken));
        }
    }

    #[test]
    fn quoted_text_round_trips() {
        let text: Vec<u8> = (1..=255).collect();
        let mut quoted = Vec::new();
        push_string(&text, &mut quoted);
        assert_eq!(parse_string(&quoted), Some(text));
    }
}

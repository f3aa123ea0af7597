//! Parses one object of a jsonlog, with a fast path for objects as the server writes them.
//!
//! The server writes keys without spaces and always in the same order, so the key that followed the
//! previous one in earlier objects is compared instead of parsed. Everything else (another key,
//! spaces, escapes, nesting) is parsed at the same place, and the next key is predicted again.

use howdah_log_input::unescape_json;

use super::{JsonLogKey, KEYS, KeySpans, NO_KEYS};
use crate::{record::spans::FieldSpan, scan::bitmasks::Bitmasks};

/// A parser of objects that stores the values of the known keys at the top level and in `record`.
#[derive(Clone, Debug)]
pub(super) struct ObjectParser {
    /// Quotes, backslashes and newlines of the text that is being parsed.
    masks: Bitmasks,
    /// The keys seen so far, after an entry for the beginning of an object.
    known: Vec<KeyName>,
}

/// A text with its bitmasks, and the line in it that is being parsed.
#[derive(Clone, Copy)]
struct JsonLine<'a> {
    text: &'a [u8],
    /// The text up to the end of the line.
    line: &'a [u8],
    masks: &'a Bitmasks,
}

/// A key with the characters around it, as a log contains it: `"user":`.
#[derive(Clone, Copy, Debug)]
struct KeyName {
    /// The key's bytes as two integers, and masks for comparing them with the bytes of a log.
    words: [u128; 2],
    masks: [u128; 2],
    len: usize,
    /// Index of the key's value in [`KeySpans`], or [`IGNORED`] or [`RECORD`].
    key: usize,
    /// Indexes of the last two keys that followed this one, or 0.
    next: [u8; 2],
}

/// The key of a value that is not stored, and of an object that contains the record.
const IGNORED: usize = KEYS;
const RECORD: usize = KEYS + 1;

/// Index of the entry for the beginning of an object.
const BEGINNING: usize = 0;

/// Longest key that is predicted, in bytes, with its quotes and colon; the server's are shorter.
const NAME_BYTES: usize = 32;

/// Maximum number of entries for known keys; the server writes 29 keys.
const NAMES_MAX: usize = 64;

/// Maximum nesting depth of objects and arrays.
const DEPTH_MAX: u32 = 16;

impl Default for ObjectParser {
    fn default() -> Self {
        Self { masks: Bitmasks::default(), known: vec![KeyName::BEGINNING] }
    }
}

impl KeyName {
    const BEGINNING: Self =
        Self { words: [0; 2], masks: [u128::MAX; 2], len: 0, key: IGNORED, next: [0; 2] };

    /// Creates an entry for a key; returns `None` if the key is longer than [`NAME_BYTES`].
    fn new(text: &[u8], key: usize) -> Option<Self> {
        let (mut bytes, mut bits) = ([0; NAME_BYTES], [0; NAME_BYTES]);
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        bits[..text.len()].fill(u8::MAX);
        Some(Self {
            words: halves(&bytes),
            masks: halves(&bits),
            len: text.len(),
            key,
            ..Self::BEGINNING
        })
    }

    /// Whether `text` begins with this key.
    #[inline]
    fn is_at(&self, text: &[u8; NAME_BYTES]) -> bool {
        let ([low, high], [low_mask, high_mask]) = (halves(text), self.masks);
        low & low_mask == self.words[0] && high & high_mask == self.words[1]
    }
}

#[inline]
fn halves(bytes: &[u8; NAME_BYTES]) -> [u128; 2] {
    let half = |at: usize| bytes[at..].first_chunk().map_or(0, |half| u128::from_le_bytes(*half));
    [half(0), half(NAME_BYTES / 2)]
}

impl ObjectParser {
    /// Starts a text; [`parse`](Self::parse) then parses lines of it.
    pub(super) fn start_text(&mut self, text: &[u8]) {
        self.masks.scan(text, *b"\"\\\n");
    }

    /// Returns the offset of the first newline at or after `from`.
    #[inline]
    pub(super) fn newline(&self, from: usize) -> Option<usize> {
        self.masks.next(from, |[_, _, newlines]| *newlines)
    }

    /// Finds the values of the known keys of the object that fills the started text from `start` to
    /// `end`, exclusive; `None` if that is not an object.
    #[inline]
    pub(super) fn parse(
        &mut self,
        text: &[u8],
        (start, end): (usize, usize),
        keys: &mut KeySpans,
        scratch: &mut Vec<u8>,
    ) -> Option<()> {
        *keys = NO_KEYS;
        let line = JsonLine { text, line: text.get(..end)?, masks: &self.masks };
        let at = object(line, start, 0, &mut self.known, keys, scratch)?;
        (at == end || line.skip_space(at) == end).then_some(())
    }
}

/// Parses `{"key": value, …}` at `at` and returns its end. Nested keys are stored only inside
/// `record`.
#[inline]
fn object(
    line: JsonLine<'_>,
    at: usize,
    depth: u32,
    known: &mut Vec<KeyName>,
    keys: &mut KeySpans,
    scratch: &mut Vec<u8>,
) -> Option<usize> {
    let mut at = line.after(at, b'{')?;
    if line.byte(at)? != b'"' && line.byte(line.skip_space(at))? == b'}' {
        return line.after(at, b'}');
    }
    let mut name = BEGINNING;
    loop {
        let key;
        (name, key, at) = match predict(line, at, name, known) {
            Some(next) => (next, known[next].key, at + known[next].len),
            None => parse_name(line, at, name, known, scratch)?,
        };
        at = if key == RECORD && depth == 0 && line.byte(at)? == b'{' {
            nested_record(line, at, known, keys, scratch)?
        } else {
            let (value, end) = value(line, at, depth, scratch)?;
            if let Some(slot) = keys.get_mut(key) {
                *slot = value;
            }
            end
        };
        at = match line.byte(at)? {
            b',' => at + 1,
            b'}' => return Some(at + 1),
            _ => match line.after(at, b',') {
                Some(after) => after,
                None => return line.after(at, b'}'),
            },
        };
    }
}

#[cold]
fn nested_record(
    line: JsonLine<'_>,
    at: usize,
    known: &mut Vec<KeyName>,
    keys: &mut KeySpans,
    scratch: &mut Vec<u8>,
) -> Option<usize> {
    object(line, at, 1, known, keys, scratch)
}

/// Returns the index of the key at `at`, if it recently followed the key `before`.
#[inline(always)]
fn predict(line: JsonLine<'_>, at: usize, before: usize, known: &[KeyName]) -> Option<usize> {
    // This may include bytes of the next line, which no key contains.
    let text = line.text.get(at..)?.first_chunk()?;
    let next = known[before].next.map(usize::from);
    // The beginning of an object follows no key, so 0 means none.
    next.into_iter().find(|next| *next > 0 && known[*next].is_at(text))
}

/// Parses the key at `at` with its colon. Returns its index in `known` or [`BEGINNING`], the
/// [key](KeyName::key), and the offset of the value.
#[cold]
fn parse_name(
    line: JsonLine<'_>,
    at: usize,
    before: usize,
    known: &mut Vec<KeyName>,
    scratch: &mut Vec<u8>,
) -> Option<(usize, usize, usize)> {
    let start = line.skip_space(at);
    let (name, end) = string(line, start, scratch)?;
    let key = match name.get(line.line, scratch)? {
        b"record" => RECORD,
        name => JsonLogKey::from_name(name).map_or(IGNORED, |key| key as usize),
    };
    let value = line.skip_space(line.after(end, b':')?);
    let is_plain = start == at && end + 1 == value;
    let text = if is_plain { &line.line[start..value] } else { b"" };
    Some((add_name(text, key, before, known), key, value))
}

/// Returns the index of a key with this text, adding it if it is new; [`BEGINNING`] if the text is
/// empty or too long, or if there are too many keys.
fn add_name(text: &[u8], key: usize, before: usize, known: &mut Vec<KeyName>) -> usize {
    let Some(name) = KeyName::new(text, key).filter(|name| name.len > 0) else {
        return BEGINNING;
    };
    let same = |known: &KeyName| (known.words, known.len) == (name.words, name.len);
    let number = match known.iter().skip(1).position(same) {
        Some(number) => number + 1,
        None if known.len() < NAMES_MAX => {
            known.push(name);
            known.len() - 1
        }
        None => return BEGINNING,
    };
    let [last, _] = known[before].next;
    known[before].next = [number as u8, last];
    number
}

/// Parses any value and returns its end. The span of an object or array is its source text.
#[inline(always)]
fn value(
    line: JsonLine<'_>,
    at: usize,
    depth: u32,
    scratch: &mut Vec<u8>,
) -> Option<(FieldSpan, usize)> {
    let end = match line.byte(at)? {
        b'"' => return string(line, at, scratch),
        b'{' | b'[' => nested(line, at, depth, scratch)?,
        _ => {
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
            at + line.line[at..].iter().position(|byte| !is_part(byte))?
        }
    };
    match &line.line[at..end] {
        b"" => None,
        b"null" => Some((FieldSpan::ABSENT, end)),
        _ => Some((FieldSpan::input(at, end), end)),
    }
}

/// Skips an object or array, and returns its end.
#[cold]
fn nested(line: JsonLine<'_>, at: usize, depth: u32, scratch: &mut Vec<u8>) -> Option<usize> {
    if depth >= DEPTH_MAX {
        return None;
    }
    let close = if line.byte(at)? == b'{' { b'}' } else { b']' };
    let (mut at, from) = (at + 1, scratch.len());
    loop {
        at = line.skip_space(at);
        at = match line.byte(at)? {
            b',' | b':' => at + 1,
            byte if byte == close => break,
            _ => value(line, at, depth + 1, scratch)?.1,
        };
    }
    scratch.truncate(from);
    Some(at + 1)
}

/// Parses a string at `at` and returns its end; a string with escapes is copied to `scratch`.
#[inline(always)]
fn string(line: JsonLine<'_>, at: usize, scratch: &mut Vec<u8>) -> Option<(FieldSpan, usize)> {
    if line.byte(at)? != b'"' {
        return None;
    }
    let end = line.quote_or_backslash(at + 1)?;
    match line.byte(end)? {
        b'"' => Some((FieldSpan::input(at + 1, end), end + 1)),
        _ => escaped(line, at + 1, end, scratch),
    }
}

/// Parses a string whose text begins at `at` and has its first backslash at `found`.
fn escaped(
    line: JsonLine<'_>,
    mut at: usize,
    mut found: usize,
    scratch: &mut Vec<u8>,
) -> Option<(FieldSpan, usize)> {
    let from = scratch.len();
    loop {
        scratch.extend_from_slice(line.line.get(at..found)?);
        if line.byte(found)? == b'"' {
            return Some((FieldSpan::scratch(from, scratch.len()), found + 1));
        }
        at = found + 1;
        at += unescape_json(line.line.get(at..)?, scratch)?;
        found = line.quote_or_backslash(at)?;
    }
}

impl JsonLine<'_> {
    #[inline(always)]
    fn byte(&self, at: usize) -> Option<u8> {
        self.line.get(at).copied()
    }

    /// Returns the offset of the first quote or backslash at or after `from`, which may be after
    /// the line.
    #[inline(always)]
    fn quote_or_backslash(&self, from: usize) -> Option<usize> {
        self.masks.next(from, |[quotes, slashes, _]| quotes | slashes)
    }

    /// Returns the offset after this byte, if it is at `at` or after spaces there.
    #[inline]
    fn after(&self, at: usize, byte: u8) -> Option<usize> {
        if self.byte(at) == Some(byte) {
            return Some(at + 1);
        }
        let at = self.skip_space(at);
        (self.byte(at) == Some(byte)).then_some(at + 1)
    }

    #[inline(never)]
    fn skip_space(&self, at: usize) -> usize {
        let rest = self.line.get(at..).unwrap_or_default();
        at + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
    }
}

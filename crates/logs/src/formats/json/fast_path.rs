//! The fast path for objects as the server writes them: without spaces or nesting, keys always in
//! the same order.
//!
//! Each key is usually followed by the same key as in the previous object, so the next key is
//! compared instead of parsed. The [parser](super::parse) handles any other object.

use super::{JsonLogKey, KEYS, KeySpans, NAME_BYTES, ObjectParser};
use crate::{record::spans::FieldSpan, scan::bitmasks::Bitmasks};

/// A parser for typical objects, which stores the known keys and the keys that followed each of
/// them.
#[derive(Clone, Debug)]
pub(super) struct ObjectFastPath {
    /// The known keys, after an entry for the beginning of an object.
    known: Vec<KeyName>,
}

/// A key with the characters around it, as a log contains it: `"user":`.
#[derive(Clone, Copy, Debug)]
struct KeyName {
    /// The key's bytes as two integers, and masks for comparing them with the bytes of a log.
    words: [u128; 2],
    masks: [u128; 2],
    len: usize,
    /// Index of the key's value in [`KeySpans`]; out of range for a key that is not read.
    key: usize,
    /// Indexes of the last two keys that followed this one, or 0.
    next: [u8; 2],
}

/// Maximum number of entries for known keys; the server writes 29 keys.
const NAMES_MAX: usize = 64;

impl Default for ObjectFastPath {
    fn default() -> Self {
        Self { known: vec![KeyName::BEGINNING] }
    }
}

impl KeyName {
    const BEGINNING: Self =
        Self { words: [0; 2], masks: [u128::MAX; 2], len: 0, key: KEYS, next: [0; 2] };

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

impl ObjectFastPath {
    /// Finds the values of the known keys of the object that fills `chunk` from `start` to `end`,
    /// exclusive; `None` if it needs the full parser. `masks` are the quotes, backslashes and
    /// newlines of the chunk.
    #[inline]
    pub(super) fn parse(
        &mut self,
        chunk: &[u8],
        (start, end): (usize, usize),
        masks: &Bitmasks,
        keys: &mut KeySpans,
        scratch: &mut Vec<u8>,
    ) -> Option<()> {
        let line = chunk.get(..end)?;
        if line.get(start) != Some(&b'{') {
            return None;
        }
        let mut at = start + 1;
        let mut name = 0;
        loop {
            name = match self.predicted(chunk, at, name) {
                Some(next) => next,
                None => self.add_name(line, at, name, masks)?,
            };
            let KeyName { len, key, .. } = self.known[name];
            let (value, end) = value(line, at + len, masks, keys, scratch)?;
            if let Some(slot) = keys.get_mut(key) {
                *slot = value;
            }
            at = end + 1;
            match line.get(end)? {
                b',' => {}
                b'}' => return (at == line.len()).then_some(()),
                _ => return None,
            }
        }
    }

    /// Returns the index of the key at `at`, if it recently followed the key `before`.
    #[inline]
    fn predicted(&self, chunk: &[u8], at: usize, before: usize) -> Option<usize> {
        // This may include bytes of the next line, which no key contains.
        let text = chunk.get(at..)?.first_chunk()?;
        let next = self.known[before].next.map(usize::from);
        // The beginning of an object follows no key, so 0 means none.
        next.into_iter().find(|next| *next > 0 && self.known[*next].is_at(text))
    }

    /// Returns the index of the key at `at`, adding it if it is new.
    #[cold]
    fn add_name(
        &mut self,
        line: &[u8],
        at: usize,
        before: usize,
        masks: &Bitmasks,
    ) -> Option<usize> {
        if line.get(at) != Some(&b'"') {
            return None;
        }
        let end = masks.next(at + 1, |[quotes, slashes, _]| quotes | slashes)?;
        let text = line.get(at..end + 2).filter(|text| text.ends_with(b"\":"))?;
        let key = JsonLogKey::from_name(&text[1..text.len() - 2]).map_or(KEYS, |key| key as usize);
        let name = KeyName::new(text, key)?;
        let same = |known: &KeyName| (known.words, known.len) == (name.words, name.len);
        let number = match self.known.iter().skip(1).position(same) {
            Some(known) => known + 1,
            None if self.known.len() < NAMES_MAX => {
                self.known.push(name);
                self.known.len() - 1
            }
            None => return None,
        };
        let [last, _] = self.known[before].next;
        self.known[before].next = [number as u8, last];
        Some(number)
    }
}

/// Finds the value at `at`; returns its span and its end.
#[inline]
fn value(
    line: &[u8],
    at: usize,
    masks: &Bitmasks,
    keys: &mut KeySpans,
    scratch: &mut Vec<u8>,
) -> Option<(FieldSpan, usize)> {
    if line.get(at)? == &b'"' {
        let end = masks.next(at + 1, |[quotes, slashes, _]| quotes | slashes)?;
        return match line.get(end)? {
            b'"' => Some((FieldSpan::input(at + 1, end), end + 1)),
            _ => escaped(line, at, masks, keys, scratch),
        };
    }
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let len = line[at..].iter().position(|byte| !is_part(byte))?;
    match &line[at..at + len] {
        b"" => None,
        b"null" => Some((FieldSpan::ABSENT, at + len)),
        _ => Some((FieldSpan::input(at, at + len), at + len)),
    }
}

/// Like [`value()`], for a text with escapes.
fn escaped(
    line: &[u8],
    at: usize,
    masks: &Bitmasks,
    keys: &mut KeySpans,
    scratch: &mut Vec<u8>,
) -> Option<(FieldSpan, usize)> {
    let from = scratch.len();
    let mut parser = ObjectParser { line, at: at + 1, keys, scratch };
    loop {
        let found = masks.next(parser.at, |[quotes, slashes, _]| quotes | slashes)?;
        parser.scratch.extend_from_slice(line.get(parser.at..found)?);
        parser.at = found + 1;
        if *line.get(found)? == b'"' {
            return Some((FieldSpan::scratch(from, parser.scratch.len()), found + 1));
        }
        parser.escape()?;
    }
}

//! Objects as the server writes them: without spaces or anything nested, keys always in the same order.
//!
//! The key behind each key is nearly always the one that was there the last time, so it is compared
//! instead of read. An object that is any other way is left to the [parser](super::parse).

use super::{KEYS, Key, Keys, NAME_BYTES, Parser};
use crate::{masks::Masks, pieces::Span};

/// The keys that were met, and which came behind which.
#[derive(Clone, Debug)]
pub(super) struct Quick {
    /// The first stands for the beginning of an object.
    names: Vec<Name>,
}

/// A key as it stands in a log: `"user":`.
#[derive(Clone, Copy, Debug)]
struct Name {
    /// Its bytes as two numbers, and which bits of the bytes in a log are to be compared with them.
    words: [u128; 2],
    masks: [u128; 2],
    len: usize,
    /// Its place among the [`Keys`]; beyond them for one that is not read.
    key: usize,
    /// The names that came behind it, the last two.
    next: [u8; 2],
}

/// Names that are known, at most. Servers have 29.
const NAMES_MAX: usize = 64;

impl Default for Quick {
    fn default() -> Self {
        Self { names: vec![Name::BEGINNING] }
    }
}

impl Name {
    const BEGINNING: Self =
        Self { words: [0; 2], masks: [u128::MAX; 2], len: 0, key: KEYS, next: [0; 2] };

    /// `None` if it is too long.
    fn of(text: &[u8], key: usize) -> Option<Self> {
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

    /// Whether these bytes begin with it.
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

impl Quick {
    /// Finds the keys of the object that fills `piece` from `start` to before `end`; `None` if it has to be
    /// read with more care. `masks` are quotes, backslashes and newlines of the piece.
    #[inline]
    pub(super) fn parse(
        &mut self,
        piece: &[u8],
        (start, end): (usize, usize),
        masks: &Masks,
        keys: &mut Keys,
        scratch: &mut Vec<u8>,
    ) -> Option<()> {
        let line = piece.get(..end)?;
        if line.get(start) != Some(&b'{') {
            return None;
        }
        let mut at = start + 1;
        let mut name = 0;
        loop {
            name = match self.expected(piece, at, name) {
                Some(next) => next,
                None => self.read_name(line, at, name, masks)?,
            };
            let Name { len, key, .. } = self.names[name];
            let (value, end) = value(line, at + len, masks, keys, scratch)?;
            if let Some(place) = keys.get_mut(key) {
                *place = value;
            }
            at = end + 1;
            match line.get(end)? {
                b',' => {}
                b'}' => return (at == line.len()).then_some(()),
                _ => return None,
            }
        }
    }

    /// The number of the name at `at`, if it is one of those that came behind `before` the last times.
    #[inline]
    fn expected(&self, piece: &[u8], at: usize, before: usize) -> Option<usize> {
        // Perhaps with bytes of the next line, of which no name has any.
        let text = piece.get(at..)?.first_chunk()?;
        let next = self.names[before].next.map(usize::from);
        // The beginning comes behind nothing: it stands for no name.
        next.into_iter().find(|next| *next > 0 && self.names[*next].is_at(text))
    }

    /// The number of the name at `at`, which is learnt.
    #[cold]
    fn read_name(&mut self, line: &[u8], at: usize, before: usize, masks: &Masks) -> Option<usize> {
        if line.get(at) != Some(&b'"') {
            return None;
        }
        let end = masks.next(at + 1, |[quotes, slashes, _]| quotes | slashes)?;
        let text = line.get(at..end + 2).filter(|text| text.ends_with(b"\":"))?;
        let key = Key::from_name(&text[1..text.len() - 2]).map_or(KEYS, |key| key as usize);
        let name = Name::of(text, key)?;
        let same = |known: &Name| (known.words, known.len) == (name.words, name.len);
        let number = match self.names.iter().skip(1).position(same) {
            Some(known) => known + 1,
            None if self.names.len() < NAMES_MAX => {
                self.names.push(name);
                self.names.len() - 1
            }
            None => return None,
        };
        let [last, _] = self.names[before].next;
        self.names[before].next = [number as u8, last];
        Some(number)
    }
}

/// The value at `at`, and where it ends.
#[inline]
fn value(
    line: &[u8],
    at: usize,
    masks: &Masks,
    keys: &mut Keys,
    scratch: &mut Vec<u8>,
) -> Option<(Span, usize)> {
    if line.get(at)? == &b'"' {
        let end = masks.next(at + 1, |[quotes, slashes, _]| quotes | slashes)?;
        return match line.get(end)? {
            b'"' => Some((Span::input(at + 1, end), end + 1)),
            _ => escaped(line, at, masks, keys, scratch),
        };
    }
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let len = line[at..].iter().position(|byte| !is_part(byte))?;
    match &line[at..at + len] {
        b"" => None,
        b"null" => Some((Span::ABSENT, at + len)),
        _ => Some((Span::input(at, at + len), at + len)),
    }
}

/// The same for a text in which something is escaped.
fn escaped(
    line: &[u8],
    at: usize,
    masks: &Masks,
    keys: &mut Keys,
    scratch: &mut Vec<u8>,
) -> Option<(Span, usize)> {
    let from = scratch.len();
    let mut parser = Parser { line, at: at + 1, keys, scratch };
    loop {
        let found = masks.next(parser.at, |[quotes, slashes, _]| quotes | slashes)?;
        parser.scratch.extend_from_slice(line.get(parser.at..found)?);
        parser.at = found + 1;
        if *line.get(found)? == b'"' {
            return Some((Span::scratch(from, parser.scratch.len()), found + 1));
        }
        parser.escape()?;
    }
}

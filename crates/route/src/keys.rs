//! Where in a statement its keys stand, and their values in one text or Bind.

use std::{borrow::Cow, ops::Range};

use howdah_shard::{Key, KeyType};
use howdah_wire::{Format, frontend::Bind};

/// What stands for one column of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The word NULL.
    Null,
    /// A constant.
    Constant {
        at: Place,
        /// A minus stands before it.
        is_negative: bool,
    },
    /// A parameter, counted from 0.
    Parameter {
        index: u16,
        /// It is cast to the key's type, so it may be text that is read as one.
        is_cast: bool,
        /// It stands nowhere but where keys do, so that its type follows if it is not said.
        is_alone: bool,
    },
}

/// Where a constant is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is the `n`-th that was taken out of the skeleton.
    Taken(usize),
    /// It is part of the skeleton.
    Kept(Box<[u8]>),
}

/// A key as a statement gives it: a source for each column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) sources: Vec<Source>,
    /// It is inserted, not compared with: then NULL is a value like any other.
    pub(crate) is_inserted: bool,
}

/// One text with its constants, or one Bind with its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values<'a> {
    pub(crate) sql: &'a [u8],
    /// Places in `sql`.
    pub(crate) constants: &'a [Range<usize>],
    /// Types that the Parse said, and the Bind.
    pub(crate) bind: Option<(&'a [u32], &'a Bind<'a>)>,
    /// Letters beyond ASCII are the same bytes on the server.
    pub(crate) same_encoding: bool,
}

/// What a [`Row`] is in one text or Bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A key.
    Key(Vec<Option<Key>>),
    /// Nothing is equal to NULL, so no row is meant, on whatever shard.
    Nothing,
    /// A value is not understood.
    NotUnderstood,
}

impl Row {
    /// The key's values.
    pub(crate) fn key(&self, columns: &[KeyType], values: Values<'_>) -> Found {
        let mut key = Vec::with_capacity(columns.len());
        let mut is_nothing = false;
        for (source, of) in self.sources.iter().zip(columns) {
            match source.key(*of, values) {
                None => return Found::NotUnderstood,
                Some(None) if !self.is_inserted => is_nothing = true,
                // Spaces at the end are cut where a column's length is limited.
                Some(Some(Key::Bytes(bytes)))
                    if self.is_inserted && *of == KeyType::Text && bytes.ends_with(b" ") =>
                {
                    return Found::NotUnderstood;
                }
                Some(value) => key.push(value),
            }
        }
        if is_nothing { Found::Nothing } else { Found::Key(key) }
    }
}

impl Source {
    /// The outer is none if it is not understood, the inner if it is NULL.
    fn key(&self, of: KeyType, values: Values<'_>) -> Option<Option<Key>> {
        match self {
            Self::Null => Some(None),
            Self::Constant { at, is_negative } => {
                let text = match at {
                    Place::Taken(index) => &values.sql[values.constants.get(*index)?.clone()],
                    Place::Kept(text) => text,
                };
                constant(text, *is_negative, of, values.same_encoding).map(Some)
            }
            Self::Parameter { index, is_cast, is_alone } => {
                let (types, bind) = values.bind?;
                let said = types.get(usize::from(*index)).copied().unwrap_or(0);
                let is_text = is_text_for(of, said, *is_cast, *is_alone)?;
                let format = bind.formats.of(usize::from(*index))?;
                match bind.values.clone().nth(usize::from(*index))? {
                    None => Some(None),
                    Some(value) => {
                        let as_text = is_text || format == Format::Text;
                        let key = if as_text { of.parse(value) } else { of.decode(value) };
                        let is_same =
                            of != KeyType::Text || values.same_encoding || value.is_ascii();
                        key.ok().filter(|_| is_same).map(Some)
                    }
                }
            }
        }
    }
}

const BYTEA: u32 = 17;
const INT8: u32 = 20;
const INT2: u32 = 21;
const INT4: u32 = 23;
const TEXT: u32 = 25;
const UNKNOWN: u32 = 705;
const VARCHAR: u32 = 1043;
const UUID: u32 = 2950;

/// Whether a parameter of the type that was said is text, in both formats; none if a value of this type is
/// not, or not surely, a key of type `of`.
fn is_text_for(of: KeyType, said: u32, is_cast: bool, is_alone: bool) -> Option<bool> {
    match (of, said) {
        // The server takes the type of the column that it is compared with.
        (_, 0 | UNKNOWN) => is_alone.then_some(false),
        (KeyType::Int, INT2 | INT4 | INT8) => Some(false),
        (KeyType::Text, TEXT | VARCHAR) => Some(false),
        (KeyType::Uuid, UUID) => Some(false),
        (KeyType::Bytea, BYTEA) => Some(false),
        (_, TEXT | VARCHAR) => is_cast.then_some(true),
        _ => None,
    }
}

/// The key that a constant is, as it is written.
fn constant(text: &[u8], is_negative: bool, of: KeyType, same_encoding: bool) -> Option<Key> {
    if text.first()?.is_ascii_digit() {
        // A number with a point or an exponent may be rounded, and of a number no other key is made.
        let is_plain = of == KeyType::Int && text.iter().all(u8::is_ascii_digit);
        let sign: &[u8] = if is_negative { b"-" } else { b"" };
        return is_plain.then(|| of.parse([sign, text].concat()).ok()).flatten();
    }
    let value = string(text)?;
    let is_same = of != KeyType::Text || same_encoding || value.is_ascii();
    (!is_negative && is_same).then(|| of.parse(&*value).ok()).flatten()
}

/// The value of a string constant of one piece: `'…'`, `E'…'` with no escapes but of quote and backslash,
/// `$tag$…$tag$`.
fn string(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    match text {
        [b'$', rest @ ..] => {
            let tag = memchr::memchr(b'$', rest)? + 2;
            Some(Cow::Borrowed(text.get(tag..text.len().checked_sub(tag)?)?))
        }
        [b'\'', inside @ ..] => quoted(inside, false),
        [b'e' | b'E', b'\'', inside @ ..] => quoted(inside, true),
        _ => None,
    }
}

fn quoted(inside: &[u8], escapes: bool) -> Option<Cow<'_, [u8]>> {
    let end = inside.len().checked_sub(1)?;
    let is_special = |byte: &u8| *byte == b'\'' || (escapes && *byte == b'\\');
    if inside.iter().position(is_special)? == end {
        return Some(Cow::Borrowed(&inside[..end]));
    }
    let mut value = Vec::with_capacity(inside.len());
    let mut rest = inside;
    loop {
        rest = match rest {
            [b'\''] => return Some(Cow::Owned(value)),
            [b'\'', b'\'', behind @ ..] => {
                value.push(b'\'');
                behind
            }
            [b'\\', escaped @ (b'\\' | b'\''), behind @ ..] if escapes => {
                value.push(*escaped);
                behind
            }
            // The end of a piece that another follows, or an escape that is not followed here.
            [b'\'', ..] => return None,
            [b'\\', ..] if escapes => return None,
            [byte, behind @ ..] => {
                value.push(*byte);
                behind
            }
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_read_as_the_server_reads_them() {
        let int = |text: &str, negative| constant(text.as_bytes(), negative, KeyType::Int, true);
        assert_eq!(int("42", false), Some(Key::Int(42)));
        assert_eq!(int("9223372036854775808", true), Some(Key::Int(i64::MIN)));
        assert_eq!(int("'-7'", false), Some(Key::Int(-7)));
        assert_eq!(int("$$8$$", false), Some(Key::Int(8)));
        for not in ["4.0", "1e3", "0x10", "1_000", "9223372036854775808", "'a'", "'1'\n'2'", "x'1'"]
        {
            assert_eq!(int(not, false), None, "{not}");
        }
        let text = |text: &str, same| constant(text.as_bytes(), false, KeyType::Text, same);
        let bytes = |text: &str| Some(Key::Bytes(text.as_bytes().to_vec()));
        assert_eq!(text("'it''s'", true), bytes("it's"));
        assert_eq!(text("E'it\\'s \\\\'", true), bytes("it's \\"));
        assert_eq!(text("'\\n'", true), bytes("\\n"));
        assert_eq!(text("$a$'$$$a$", true), bytes("'$$"));
        assert_eq!(text("''", true), bytes(""));
        assert_eq!(text("'ü'", true), bytes("ü"));
        for not in ["E'\\n'", "E'\\x41'", "U&'a'", "n'a'", "7"] {
            assert_eq!(text(not, true), None, "{not}");
        }
        assert_eq!(text("'ü'", false), None);
    }

    #[test]
    fn types_of_parameters_decide_what_they_are() {
        assert_eq!(is_text_for(KeyType::Int, 0, false, true), Some(false));
        assert_eq!(is_text_for(KeyType::Int, 0, false, false), None);
        assert_eq!(is_text_for(KeyType::Int, 1700, false, true), None);
        assert_eq!(is_text_for(KeyType::Int, TEXT, false, true), None);
        assert_eq!(is_text_for(KeyType::Int, TEXT, true, false), Some(true));
        assert_eq!(is_text_for(KeyType::Text, VARCHAR, false, false), Some(false));
        assert_eq!(is_text_for(KeyType::Text, INT8, true, true), None);
    }

    proptest::proptest! {
        #[test]
        fn strings_come_back_as_they_were_quoted(value in proptest::collection::vec(1_u8.., 0..30)) {
            let doubled = |special: &[u8]| -> Vec<u8> {
                let each = |byte: &u8| match special.contains(byte) {
                    true => vec![*byte, *byte],
                    false => vec![*byte],
                };
                value.iter().flat_map(each).collect()
            };
            let plain = [b"'", &doubled(b"'")[..], b"'"].concat();
            assert_eq!(string(&plain).as_deref(), Some(&value[..]));
            let escaped = [b"E'", &doubled(b"'\\")[..], b"'"].concat();
            assert_eq!(string(&escaped).as_deref(), Some(&value[..]));
        }
    }
}

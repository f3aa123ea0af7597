//! Sources of key values in a statement, and their evaluation for one text or Bind.

use std::{borrow::Cow, ops::Range};

use crate::shard::{KeyType, ShardKey};
use howdah_wire::{ValueFormat, frontend::Bind};

/// The source of the value of one key column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyValueSource {
    /// The keyword NULL.
    Null,
    /// A constant in the text.
    Constant {
        at: ConstantPosition,
        /// Whether a minus sign precedes the constant.
        is_negative: bool,
    },
    /// A parameter, numbered from 0.
    Parameter {
        index: u16,
        /// Whether the parameter is cast to the key's type. It may then be text, which is parsed as
        /// that type.
        is_cast: bool,
        /// Whether the parameter is used only as a key. If so, and Parse declares no type for it,
        /// the server gives it the type of the key column.
        is_key_only: bool,
    },
}

/// The location of a constant's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConstantPosition {
    /// The index of the constant among those that were extracted from the original text.
    Extracted(usize),
    /// The constant's text, which is part of the parameterized text and therefore the same for all
    /// texts that share the plan.
    Inline(Box<[u8]>),
}

/// A sharding key in a statement, given by the source of each column's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySource {
    pub(crate) sources: Vec<KeyValueSource>,
    /// Whether the key is inserted rather than compared. NULL is then a value like any other.
    pub(crate) is_inserted: bool,
}

/// The values from which keys are evaluated: one text with its constants, and its Bind, if any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyValues<'a> {
    pub(crate) sql: &'a [u8],
    /// Positions of constants in `sql`.
    pub(crate) constants: &'a [Range<usize>],
    /// The parameter types declared in Parse, and the Bind message; `None` for a Query message.
    pub(crate) bind: Option<(&'a [u32], &'a Bind<'a>)>,
    /// Whether non-ASCII characters have the same bytes on the server as in the client's text.
    pub(crate) same_encoding: bool,
}

/// The result of evaluating a [`KeySource`] for one text or Bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyLookup {
    /// The values of the key's columns; `None` is NULL.
    Key(Vec<Option<ShardKey>>),
    /// A column is compared with NULL, so no row can match on any shard.
    NoRows,
    /// A value cannot be evaluated with certainty.
    Unsupported,
}

impl KeySource {
    /// Evaluates the key for the given text or Bind.
    pub(crate) fn key(&self, columns: &[KeyType], values: KeyValues<'_>) -> KeyLookup {
        let mut key = Vec::with_capacity(columns.len());
        let mut is_nothing = false;
        for (source, of) in self.sources.iter().zip(columns) {
            match source.key(*of, values) {
                None => return KeyLookup::Unsupported,
                Some(None) if !self.is_inserted => is_nothing = true,
                // The server may trim trailing spaces, if the column's length is limited.
                Some(Some(ShardKey::Bytes(bytes)))
                    if self.is_inserted && *of == KeyType::Text && bytes.ends_with(b" ") =>
                {
                    return KeyLookup::Unsupported;
                }
                Some(value) => key.push(value),
            }
        }
        if is_nothing { KeyLookup::NoRows } else { KeyLookup::Key(key) }
    }
}

impl KeyValueSource {
    /// Evaluates one column. The outer option is `None` if the value is not supported, the inner if
    /// it is NULL.
    fn key(&self, of: KeyType, values: KeyValues<'_>) -> Option<Option<ShardKey>> {
        match self {
            Self::Null => Some(None),
            Self::Constant { at, is_negative } => {
                let text = match at {
                    ConstantPosition::Extracted(index) => {
                        &values.sql[values.constants.get(*index)?.clone()]
                    }
                    ConstantPosition::Inline(text) => text,
                };
                constant(text, *is_negative, of, values.same_encoding).map(Some)
            }
            Self::Parameter { index, is_cast, is_key_only: is_alone } => {
                let (types, bind) = values.bind?;
                let declared = types.get(usize::from(*index)).copied().unwrap_or(0);
                let is_text = is_text_for(of, declared, *is_cast, *is_alone)?;
                let format = bind.formats.at(usize::from(*index))?;
                match bind.values.clone().nth(usize::from(*index))? {
                    None => Some(None),
                    Some(value) => {
                        let as_text = is_text || format == ValueFormat::Text;
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

/// Whether a parameter of the declared type is text that is parsed as type `of`; `None` if it is
/// not certain that its values are keys of type `of`.
fn is_text_for(of: KeyType, declared: u32, is_cast: bool, is_alone: bool) -> Option<bool> {
    match (of, declared) {
        // The server infers the type from the column that the parameter is compared with.
        (_, 0 | UNKNOWN) => is_alone.then_some(false),
        (KeyType::Int, INT2 | INT4 | INT8) => Some(false),
        (KeyType::Text, TEXT | VARCHAR) => Some(false),
        (KeyType::Uuid, UUID) => Some(false),
        (KeyType::Bytea, BYTEA) => Some(false),
        (_, TEXT | VARCHAR) => is_cast.then_some(true),
        _ => None,
    }
}

/// Returns the key of a constant as written in the text.
fn constant(text: &[u8], is_negative: bool, of: KeyType, same_encoding: bool) -> Option<ShardKey> {
    if text.first()?.is_ascii_digit() {
        // Only integer keys can be written as numbers, and a number with a point or an exponent may
        // be rounded.
        let is_plain = of == KeyType::Int && text.iter().all(u8::is_ascii_digit);
        let sign: &[u8] = if is_negative { b"-" } else { b"" };
        return is_plain.then(|| of.parse([sign, text].concat()).ok()).flatten();
    }
    let value = string(text)?;
    let is_same = of != KeyType::Text || same_encoding || value.is_ascii();
    (!is_negative && is_same).then(|| of.parse(&*value).ok()).flatten()
}

/// Returns the value of a single-segment string constant: `'…'`, `E'…'` with only quote and
/// backslash escapes, `$tag$…$tag$`.
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
            // The string continues in another segment, or has an unsupported escape.
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
    fn constants_are_parsed_like_server() {
        let int = |text: &str, negative| constant(text.as_bytes(), negative, KeyType::Int, true);
        assert_eq!(int("42", false), Some(ShardKey::Int(42)));
        assert_eq!(int("9223372036854775808", true), Some(ShardKey::Int(i64::MIN)));
        assert_eq!(int("'-7'", false), Some(ShardKey::Int(-7)));
        assert_eq!(int("$$8$$", false), Some(ShardKey::Int(8)));
        for not in ["4.0", "1e3", "0x10", "1_000", "9223372036854775808", "'a'", "'1'\n'2'", "x'1'"]
        {
            assert_eq!(int(not, false), None, "{not}");
        }
        let text = |text: &str, same| constant(text.as_bytes(), false, KeyType::Text, same);
        let bytes = |text: &str| Some(ShardKey::Bytes(text.as_bytes().to_vec()));
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
    fn parameter_types_determine_key_format() {
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
        fn quoted_strings_round_trip(value in proptest::collection::vec(1_u8.., 0..30)) {
            let doubled = |special: &[u8]| -> Vec<u8> {
                let each = |byte: &u8| if special.contains(byte) { vec![*byte, *byte] } else { vec![*byte] };
                value.iter().flat_map(each).collect()
            };
            let plain = [b"'", &doubled(b"'")[..], b"'"].concat();
            assert_eq!(string(&plain).as_deref(), Some(&value[..]));
            let escaped = [b"E'", &doubled(b"'\\")[..], b"'"].concat();
            assert_eq!(string(&escaped).as_deref(), Some(&value[..]));
        }
    }
}

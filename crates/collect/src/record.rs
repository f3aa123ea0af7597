//! Parses records in the server's text format: `(4711,,"a ""quoted"" word")`. A NULL takes one
//! comma in a record, but four bytes as a column.
//!
//! Source: `record_out` in `rowtypes.c`. The parser works on bytes, so the encoding of a value does
//! not matter.

use std::borrow::Cow;

/// An iterator over the values of a record, from left to right; `None` is NULL. A text that is not
/// in parentheses has no values.
///
/// ```
/// use howdah_collect::RecordFields;
///
/// let mut fields = RecordFields::new(br#"(7,,"say ""hi""")"#);
/// assert_eq!(fields.integer(), Some(7));
/// assert_eq!(fields.value(), None);
/// assert_eq!(fields.value().as_deref(), Some(&br#"say "hi""#[..]));
/// ```
#[derive(Clone, Debug)]
pub struct RecordFields<'a> {
    /// Remaining bytes, from the start of the next value; `None` after the last.
    rest: Option<&'a [u8]>,
}

impl<'a> RecordFields<'a> {
    /// Creates a reader of the values of `record`.
    pub fn new(record: &'a [u8]) -> Self {
        Self { rest: record.strip_prefix(b"(").and_then(|rest| rest.strip_suffix(b")")) }
    }

    /// Advances to the next value and returns it, if it is an integer.
    pub fn integer(&mut self) -> Option<i64> {
        self.value().and_then(|word| parse_integer(&word))
    }

    /// Advances to the next value and returns it, if it is not NULL.
    pub fn value(&mut self) -> Option<Cow<'a, [u8]>> {
        self.next().flatten()
    }
}

impl<'a> Iterator for RecordFields<'a> {
    type Item = Option<Cow<'a, [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.rest.take()?;
        let end = value_end(bytes);
        self.rest = bytes.get(end + 1..);
        let value = &bytes[..end];
        Some(match value {
            b"" => None,
            _ if value.contains(&b'"') => Some(unquoted(value).into()),
            _ => Some(value.into()),
        })
    }
}

/// Returns the end of the value at the start of `bytes`: the next comma outside quotes, or the end.
fn value_end(bytes: &[u8]) -> usize {
    let mut is_quoted = false;
    let is_end = |byte: &u8| {
        is_quoted ^= *byte == b'"';
        *byte == b',' && !is_quoted
    };
    bytes.iter().position(is_end).unwrap_or(bytes.len())
}

/// Removes the quotes around a value and undoubles quotes and backslashes in it.
fn unquoted(value: &[u8]) -> Vec<u8> {
    let inner = value.strip_prefix(b"\"").unwrap_or(value);
    let inner = inner.strip_suffix(b"\"").unwrap_or(inner);
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [byte, more @ ..] = rest {
        rest = match (byte, more) {
            (b'"' | b'\\', [next, more @ ..]) if next == byte => more,
            _ => more,
        };
        bytes.push(*byte);
    }
    bytes
}

/// Parses a decimal integer.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(record: &[u8]) -> Vec<Option<Vec<u8>>> {
        RecordFields::new(record).map(|field| field.map(Cow::into_owned)).collect()
    }

    #[test]
    fn record_out_text_is_parsed() {
        let record = br#"(1,,"",a b,"x,y","(a ""b"" \\c)",)"#;
        let expected: [Option<&[u8]>; 7] =
            [Some(b"1"), None, Some(b""), Some(b"a b"), Some(b"x,y"), Some(br#"(a "b" \c)"#), None];
        assert_eq!(fields(record), expected.map(|field| field.map(<[u8]>::to_vec)));
        assert_eq!(fields(b"4711"), []);
    }

    #[test]
    fn nested_record_is_parsed() {
        let mut outer = RecordFields::new(br#"(7,"(1,""a,b"",""say """"hi"""""")")"#);
        assert_eq!(outer.integer(), Some(7));
        let inner = outer.value().unwrap();
        let mut inner = RecordFields::new(&inner);
        assert_eq!(inner.integer(), Some(1));
        assert_eq!(inner.value().as_deref(), Some(&b"a,b"[..]));
        assert_eq!(inner.value().as_deref(), Some(&br#"say "hi""#[..]));
        assert_eq!(inner.value(), None);
    }

    /// Encodes values in the format of `record_out`.
    fn encode(values: &[Option<Vec<u8>>]) -> Vec<u8> {
        let mut record = vec![b'('];
        for (at, value) in values.iter().enumerate() {
            if at > 0 {
                record.push(b',');
            }
            let Some(value) = value else { continue };
            let is_special = |byte: &u8| b"\"\\(), \t\n\r\x0b\x0c".contains(byte);
            let is_quoted = value.is_empty() || value.iter().any(is_special);
            record.extend(is_quoted.then_some(b'"'));
            for &byte in value {
                record.extend(matches!(byte, b'"' | b'\\').then_some(byte));
                record.push(byte);
            }
            record.extend(is_quoted.then_some(b'"'));
        }
        record.push(b')');
        record
    }

    proptest! {
        #[test]
        fn arbitrary_values_round_trip(
            values in proptest::collection::vec(proptest::option::of(any::<Vec<u8>>()), 1..8),
        ) {
            prop_assert_eq!(fields(&encode(&values)), values);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            prop_assert!(fields(&bytes).len() <= bytes.len() + 1);
        }
    }
}

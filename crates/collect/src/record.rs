//! Records in the server's text form: `(4711,,"a ""quoted"" word")`. A record takes a comma for a value that is
//! not there, where a column takes four bytes.
//!
//! Source: `record_out` in `rowtypes.c`. It goes by bytes, so it does not matter in which encoding a word is.

use std::borrow::Cow;

/// The values of a record, from the left; `None` is NULL. What is no record has none.
///
/// ```
/// use howdah_collect::RecordFields;
///
/// let mut fields = RecordFields::of(br#"(7,,"say ""hi""")"#);
/// assert_eq!(fields.integer(), Some(7));
/// assert_eq!(fields.word(), None);
/// assert_eq!(fields.word().as_deref(), Some(&br#"say "hi""#[..]));
/// ```
#[derive(Clone, Debug)]
pub struct RecordFields<'a> {
    /// What follows, from the first byte of the next value on; `None` behind the last.
    rest: Option<&'a [u8]>,
}

impl<'a> RecordFields<'a> {
    /// Those of a record.
    pub fn of(record: &'a [u8]) -> Self {
        Self { rest: record.strip_prefix(b"(").and_then(|rest| rest.strip_suffix(b")")) }
    }

    /// The next value, if there is one and it is a number.
    pub fn integer(&mut self) -> Option<i64> {
        self.word().and_then(|word| number(&word))
    }

    /// The next value, if there is one that is not NULL.
    pub fn word(&mut self) -> Option<Cow<'a, [u8]>> {
        self.next().flatten()
    }
}

impl<'a> Iterator for RecordFields<'a> {
    type Item = Option<Cow<'a, [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.rest.take()?;
        let end = end(bytes);
        self.rest = bytes.get(end + 1..);
        let value = &bytes[..end];
        Some(match value {
            b"" => None,
            _ if value.contains(&b'"') => Some(unquoted(value).into()),
            _ => Some(value.into()),
        })
    }
}

/// Where the value that `bytes` begin with ends: at the comma behind it, or with them.
fn end(bytes: &[u8]) -> usize {
    let mut is_quoted = false;
    let is_end = |byte: &u8| {
        is_quoted ^= *byte == b'"';
        *byte == b',' && !is_quoted
    };
    bytes.iter().position(is_end).unwrap_or(bytes.len())
}

/// A value without the quotes around it, and with one of each two quotes and backslashes in it.
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

/// The number that `text` is.
pub(crate) fn number(text: &[u8]) -> Option<i64> {
    str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(record: &[u8]) -> Vec<Option<Vec<u8>>> {
        RecordFields::of(record).map(|field| field.map(Cow::into_owned)).collect()
    }

    #[test]
    fn a_record_is_read_as_the_server_writes_it() {
        let record = br#"(1,,"",a b,"x,y","(a ""b"" \\c)",)"#;
        let expected: [Option<&[u8]>; 7] =
            [Some(b"1"), None, Some(b""), Some(b"a b"), Some(b"x,y"), Some(br#"(a "b" \c)"#), None];
        assert_eq!(fields(record), expected.map(|field| field.map(<[u8]>::to_vec)));
        assert_eq!(fields(b"4711"), []);
    }

    #[test]
    fn a_record_in_a_record_comes_out_whole() {
        let mut outer = RecordFields::of(br#"(7,"(1,""a,b"",""say """"hi"""""")")"#);
        assert_eq!(outer.integer(), Some(7));
        let inner = outer.word().unwrap();
        let mut inner = RecordFields::of(&inner);
        assert_eq!(inner.integer(), Some(1));
        assert_eq!(inner.word().as_deref(), Some(&b"a,b"[..]));
        assert_eq!(inner.word().as_deref(), Some(&br#"say "hi""#[..]));
        assert_eq!(inner.word(), None);
    }

    /// What `record_out` makes of values.
    fn written(values: &[Option<Vec<u8>>]) -> Vec<u8> {
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
        fn values_come_back_whatever_they_are(
            values in proptest::collection::vec(proptest::option::of(any::<Vec<u8>>()), 1..8),
        ) {
            prop_assert_eq!(fields(&written(&values)), values);
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            prop_assert!(fields(&bytes).len() <= bytes.len() + 1);
        }
    }
}

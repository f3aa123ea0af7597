//! The values of bound parameters, as `DETAIL` and `CONTEXT` show them.
//!
//! `$1 = '…', $2 = NULL`: every value that is not null stands in quotes, a quote in it is doubled and
//! nothing else is escaped, so a value may hold newlines and even `, $3 = ''x''`.
//!
//! With `log_parameter_max_length` the server cuts a value and puts `...` before the closing quote. Such
//! a value cannot be told from one that ends so by itself, but the limit is the same for all: a
//! longer value that was not cut proves that there is no such limit.
//!
//! Source: `BuildParamLogString` in `params.c`; `appendStringInfoStringQuoted` in `stringinfo.c`.

use howdah_traffic::{Parameter, Text};

/// What one log has shown about the limit of its values.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// Longest value that was surely not cut.
    longest_whole: usize,
    /// Longest value that seems to have been cut, without its dots.
    longest_cut: Option<usize>,
}

impl Limit {
    /// The limit in bytes, as far as it can be told.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.longest_cut.filter(|cut| self.longest_whole <= cut + LONGEST_CHARACTER)
    }

    /// Whether a value is the beginning of a longer one. `value` still has its dots.
    fn is_cut(&mut self, value: &[u8]) -> bool {
        let Some(shown) = value.strip_suffix(b"...").map(<[u8]>::len) else {
            self.longest_whole = self.longest_whole.max(value.len());
            return false;
        };
        // The server cuts before a character that would cross the limit.
        let is_below_limit = shown + LONGEST_CHARACTER < self.longest_whole
            || self.bytes().is_some_and(|limit| shown + LONGEST_CHARACTER < limit);
        if is_below_limit {
            self.longest_whole = self.longest_whole.max(value.len());
            return false;
        }
        self.longest_cut = self.longest_cut.max(Some(shown));
        true
    }
}

/// Bytes of one character less one: how far below the limit a cut may fall.
const LONGEST_CHARACTER: usize = 3;

/// Reads a whole list, or `None` if it is not one. Values are in the order `$1`, `$2`, ….
pub(crate) fn list(text: &[u8], limit: &mut Limit) -> Option<Vec<Parameter>> {
    let mut values = Vec::new();
    let mut rest = text;
    let mut scratch = Vec::new();
    loop {
        let (number, value) = name(rest)?;
        if number != values.len() + 1 {
            return None;
        }
        let (parameter, after) = one(value, limit, &mut scratch)?;
        values.push(parameter);
        match after {
            [] => return Some(values),
            [b',', b' ', next @ ..] => rest = next,
            _ => return None,
        }
    }
}

/// Reads `$7 = ` and gives the number and what follows.
pub(crate) fn name(text: &[u8]) -> Option<(usize, &[u8])> {
    let text = text.strip_prefix(b"$")?;
    let digits = text.iter().take(6).take_while(|byte| byte.is_ascii_digit()).count();
    let number = text[..digits].iter().fold(0, |sum, digit| sum * 10 + usize::from(digit & 0x0f));
    Some((number, text[digits..].strip_prefix(b" = ")?))
}

/// Reads one value and gives what follows it.
pub(crate) fn one<'a>(
    text: &'a [u8],
    limit: &mut Limit,
    scratch: &mut Vec<u8>,
) -> Option<(Parameter, &'a [u8])> {
    if let Some(rest) = text.strip_prefix(b"NULL") {
        return Some((Parameter::Null, rest));
    }
    let quoted = text.strip_prefix(b"'")?;
    let mut from = 0;
    scratch.clear();
    loop {
        let quote = from + memchr::memchr(b'\'', &quoted[from..])?;
        if quoted.get(quote + 1) == Some(&b'\'') {
            scratch.extend_from_slice(&quoted[from..=quote]);
            from = quote + 2;
            continue;
        }
        let value = if from == 0 {
            &quoted[..quote]
        } else {
            scratch.extend_from_slice(&quoted[from..quote]);
            scratch.as_slice()
        };
        let parameter = if limit.is_cut(value) {
            Parameter::Truncated(Text::from(&value[..value.len() - 3]))
        } else {
            Parameter::Value(Text::from(value))
        };
        return Some((parameter, &quoted[quote + 1..]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<Parameter>> {
        list(text.as_bytes(), &mut Limit::default())
    }

    fn value(text: &str) -> Parameter {
        Parameter::Value(text.into())
    }

    #[test]
    fn values_hold_what_looks_like_more_values() {
        let read = read("$1 = '2', $2 = 'o''brien\nnew line\ttab, $3 = ''fake''', $3 = NULL");
        let tricky = value("o'brien\nnew line\ttab, $3 = 'fake'");
        assert_eq!(read, Some(vec![value("2"), tricky, Parameter::Null]));
    }

    #[test]
    fn broken_lists_are_none() {
        for text in
            ["", "$1 = ", "$1 = 'a", "$1 = 'a' $2 = 'b'", "$2 = 'a'", "$1 = 'a', ", "1 = 'a'"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("$1 = ''"), Some(vec![value("")]));
        assert_eq!(read("$1 = ''''"), Some(vec![value("'")]));
    }

    #[test]
    fn cut_values_are_marked_until_a_longer_one_disproves_it() {
        let mut limit = Limit::default();
        let cut = list(b"$1 = '1', $2 = 'xxxxxxxxxxxxxxxxxxxx...'", &mut limit);
        let expected = vec![value("1"), Parameter::Truncated("x".repeat(20).as_str().into())];
        assert_eq!(cut, Some(expected));
        assert_eq!(limit.bytes(), Some(20));
        // Below the limit, dots are only dots.
        assert_eq!(list(b"$1 = 'loading...'", &mut limit), Some(vec![value("loading...")]));
        let long = format!("$1 = '{}'", "y".repeat(30));
        assert!(list(long.as_bytes(), &mut limit).is_some());
        assert_eq!(limit.bytes(), None);
        let dots = list(b"$1 = 'xxxxxxxxxxxxxxxxxxxx...'", &mut limit);
        assert_eq!(dots, Some(vec![value("xxxxxxxxxxxxxxxxxxxx...")]));
    }

    #[test]
    fn the_limit_counts_bytes_before_quotes_are_doubled() {
        let mut limit = Limit::default();
        let text = b"$1 = 'o''brien\nnew line\ttab...'";
        let cut = list(text, &mut limit);
        assert_eq!(cut, Some(vec![Parameter::Truncated("o'brien\nnew line\ttab".into())]));
        assert_eq!(limit.bytes(), Some(20));
    }
}

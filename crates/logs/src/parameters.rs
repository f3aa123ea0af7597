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

use howdah_traffic::{Parameters, Slot};

use crate::pieces::{find_soon, first_of};

/// What one log has shown about the limit of its values.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// Longest value that was surely not cut.
    longest_whole: usize,
    /// Longest value that seems to have been cut, without its dots.
    longest_cut: Option<usize>,
    /// One of them has become longer since somebody asked.
    has_changed: bool,
}

impl Limit {
    /// The limit in bytes, as far as it can be told.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.longest_cut.filter(|cut| self.longest_whole <= cut + LONGEST_CHARACTER)
    }

    /// Whether it may be another one than when this was asked last.
    #[inline]
    pub(crate) fn has_changed(&mut self) -> bool {
        self.has_changed && std::mem::take(&mut self.has_changed)
    }

    /// Whether a value is the beginning of a longer one. `value` still has its dots.
    #[inline]
    fn is_cut(&mut self, value: &[u8]) -> bool {
        let Some(shown) = value.strip_suffix(b"...").map(<[u8]>::len) else {
            if value.len() > self.longest_whole {
                (self.longest_whole, self.has_changed) = (value.len(), true);
            }
            return false;
        };
        self.has_changed = true;
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

/// The values of the list that was read last: where they are in its text, or in a copy of it from the
/// first doubled quote on.
#[derive(Debug, Default)]
pub(crate) struct Values {
    slots: Vec<Slot>,
    /// The text up to the first value with a doubled quote, then the values from there.
    copy: Vec<u8>,
}

impl Values {
    /// Reads a whole list, or `None` if it is not one. Values are in the order `$1`, `$2`, ….
    pub(crate) fn list<'a>(
        &'a mut self,
        text: &'a [u8],
        limit: &mut Limit,
    ) -> Option<Parameters<'a>> {
        self.clear();
        let mut rest = text;
        loop {
            let (number, value) = name(rest)?;
            if number != self.slots.len() + 1 {
                return None;
            }
            let after = match self.plain(text, value, limit) {
                Some(after) => after,
                None => self.one(text, value, limit)?,
            };
            rest = match after {
                [] => return Some(self.flat(text)),
                [b',', b' ', next @ ..] => next,
                _ => return None,
            };
        }
    }

    /// Reads the one value that `text` begins with.
    pub(crate) fn only<'a>(
        &'a mut self,
        text: &'a [u8],
        limit: &mut Limit,
    ) -> Option<Parameters<'a>> {
        self.clear();
        self.one(text, text, limit)?;
        Some(self.flat(text))
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.copy.clear();
        self.copy.shrink_to(COPY_BYTES_KEPT);
    }

    fn flat<'a>(&'a self, text: &'a [u8]) -> Parameters<'a> {
        let bytes = if self.copy.is_empty() { text } else { &self.copy };
        Parameters::Flat { bytes, slots: &self.slots }
    }

    /// Reads a value as most are: with few bytes, no quotes and no dots at its end, in a list without quotes.
    /// Otherwise, nothing is done.
    #[inline]
    fn plain<'a>(&mut self, text: &[u8], rest: &'a [u8], limit: &mut Limit) -> Option<&'a [u8]> {
        let quoted = rest.strip_prefix(b"'")?;
        let word = u64::from_le_bytes(*quoted.first_chunk()?);
        let len = first_of(b'\'', word)?;
        let after = &quoted[len + 1..];
        if after.first() == Some(&b'\'') || !self.copy.is_empty() || len > limit.longest_whole {
            return None;
        }
        if len > 0 && quoted[len - 1] == b'.' {
            return None;
        }
        let start = (text.len() - quoted.len()) as u32;
        self.slots.push(Slot::Value(start, start + len as u32));
        Some(after)
    }

    /// Reads the value at the front of `rest`, which is an end of `text`, and gives what follows it.
    fn one<'a>(&mut self, text: &[u8], rest: &'a [u8], limit: &mut Limit) -> Option<&'a [u8]> {
        let Some(quoted) = rest.strip_prefix(b"'") else {
            self.slots.push(Slot::Null);
            return rest.strip_prefix(b"NULL");
        };
        let start = text.len() - quoted.len();
        let quote = find_soon(b'\'', quoted)?;
        if quoted.get(quote + 1) == Some(&b'\'') {
            return self.escaped(text, quoted, limit);
        }
        let value = &quoted[..quote];
        let start = if self.copy.is_empty() { start } else { self.copy.len() };
        if !self.copy.is_empty() {
            self.copy.extend_from_slice(value);
        }
        self.push(start, value, limit);
        Some(&quoted[quote + 1..])
    }

    /// The same for a value with doubled quotes.
    fn escaped<'a>(
        &mut self,
        text: &[u8],
        quoted: &'a [u8],
        limit: &mut Limit,
    ) -> Option<&'a [u8]> {
        if self.copy.is_empty() {
            // What was found so far stays at its place. There is a quote at least.
            self.copy.extend_from_slice(&text[..text.len() - quoted.len()]);
        }
        let start = self.copy.len();
        let mut from = 0;
        loop {
            let quote = from + memchr::memchr(b'\'', &quoted[from..])?;
            if quoted.get(quote + 1) != Some(&b'\'') {
                self.copy.extend_from_slice(&quoted[from..quote]);
                let value = std::mem::take(&mut self.copy);
                self.push(start, &value[start..], limit);
                self.copy = value;
                return Some(&quoted[quote + 1..]);
            }
            self.copy.extend_from_slice(&quoted[from..=quote]);
            from = quote + 2;
        }
    }

    #[inline]
    fn push(&mut self, start: usize, value: &[u8], limit: &mut Limit) {
        // A record has less than 2³¹ bytes.
        let (from, to) = (start as u32, (start + value.len()) as u32);
        self.slots.push(match limit.is_cut(value) {
            true => Slot::Truncated(from, to - 3),
            false => Slot::Value(from, to),
        });
    }
}

/// A copy that grew beyond this for one huge list is given back afterwards.
const COPY_BYTES_KEPT: usize = 1 << 20;

/// Reads `$7 = ` and gives the number and what follows.
#[inline]
pub(crate) fn name(text: &[u8]) -> Option<(usize, &[u8])> {
    if let [b'$', digit @ b'0'..=b'9', b' ', b'=', b' ', rest @ ..] = text {
        return Some((usize::from(digit & 0x0f), rest));
    }
    let text = text.strip_prefix(b"$")?;
    let digits = text.iter().take(6).take_while(|byte| byte.is_ascii_digit()).count();
    let number = text[..digits].iter().fold(0, |sum, digit| sum * 10 + usize::from(digit & 0x0f));
    Some((number, text[digits..].strip_prefix(b" = ")?))
}

#[cfg(test)]
mod tests {
    use howdah_traffic::Parameter;

    use super::*;

    fn list(text: &[u8], limit: &mut Limit) -> Option<Vec<Parameter>> {
        let mut values = Values::default();
        values.list(text, limit).map(|list| list.iter().map(Parameter::from).collect())
    }

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
    fn values_around_one_with_quotes_are_found() {
        let all = read("$1 = 'a', $2 = NULL, $3 = '''', $4 = 'b', $5 = '', $6 = 'c''d'");
        let expected =
            vec![value("a"), Parameter::Null, value("'"), value("b"), value(""), value("c'd")];
        assert_eq!(all, Some(expected));
        let numbers: Vec<String> = (1..=12).map(|n| format!("${n} = '{n}'")).collect();
        let many: Vec<_> = (1..=12).map(|n| value(&n.to_string())).collect();
        assert_eq!(read(&numbers.join(", ")), Some(many));
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

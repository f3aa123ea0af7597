//! Parses the values of bound parameters in `DETAIL` and `CONTEXT`.
//!
//! In `$1 = '…', $2 = NULL`, every value except NULL is quoted. Quotes in a value are doubled, and
//! nothing else is escaped, so a value may contain newlines and even `, $3 = ''x''`.
//!
//! With `log_parameter_max_length` the server cuts a value and puts `...` before the closing quote.
//! A complete value may also end in dots. But the limit is the same for all values: a longer value
//! that was not cut proves that the limit is higher.
//!
//! Source: `BuildParamLogString` in `params.c`; `appendStringInfoStringQuoted` in `stringinfo.c`.

use howdah_traffic::{ParameterSpan, ParametersRef};

use crate::record::spans::{find_near, position_in_word};

/// An estimate of `log_parameter_max_length` from the values in the log.
#[derive(Debug, Default)]
pub(crate) struct ValueLimit {
    /// Length in bytes of the longest value that was certainly not cut.
    longest_uncut: usize,
    /// Length in bytes, without dots, of the longest value that seems to have been cut.
    longest_cut: Option<usize>,
    /// Whether the estimate may have changed since the last query.
    has_changed: bool,
}

impl ValueLimit {
    /// Returns the estimated limit in bytes; `None` if no value seems to have been cut, or if a
    /// longer value was not cut.
    pub(crate) fn bytes(&self) -> Option<usize> {
        self.longest_cut.filter(|cut| self.longest_uncut <= cut + CHARACTER_BYTES_MAX)
    }

    /// Whether the limit may have changed since the last call.
    #[inline]
    pub(crate) fn has_changed(&mut self) -> bool {
        self.has_changed && std::mem::take(&mut self.has_changed)
    }

    /// Whether a value seems to have been cut. `value` still has its dots. Updates the estimate.
    #[inline]
    fn is_cut(&mut self, value: &[u8]) -> bool {
        let Some(shown) = value.strip_suffix(b"...").map(<[u8]>::len) else {
            if value.len() > self.longest_uncut {
                (self.longest_uncut, self.has_changed) = (value.len(), true);
            }
            return false;
        };
        self.has_changed = true;
        // The server cuts before a character that would cross the limit.
        let is_below_limit = shown + CHARACTER_BYTES_MAX < self.longest_uncut
            || self.bytes().is_some_and(|limit| shown + CHARACTER_BYTES_MAX < limit);
        if is_below_limit {
            self.longest_uncut = self.longest_uncut.max(value.len());
            return false;
        }
        self.longest_cut = self.longest_cut.max(Some(shown));
        true
    }
}

/// Length of the longest character in bytes, less one. The server cuts values between characters,
/// so a cut value may be shorter than the limit by up to this number of bytes.
const CHARACTER_BYTES_MAX: usize = 3;

/// The values of the last parsed list, as offsets in its text or, if a value has a doubled quote,
/// in a copy of the text.
#[derive(Debug, Default)]
pub(crate) struct BoundValues {
    slots: Vec<ParameterSpan>,
    /// The text up to the first value with a doubled quote, then the unescaped values. Empty as
    /// long as no value has a doubled quote.
    copy: Vec<u8>,
}

impl BoundValues {
    /// Parses a whole list, or returns `None` if it is not valid. Values must be in the order `$1`,
    /// `$2`, ….
    pub(crate) fn parse_list<'a>(
        &'a mut self,
        text: &'a [u8],
        limit: &mut ValueLimit,
    ) -> Option<ParametersRef<'a>> {
        self.clear();
        let mut rest = text;
        loop {
            let (number, value) = parse_name(rest)?;
            if number != self.slots.len() + 1 {
                return None;
            }
            let after = match self.parse_short(text, value, limit) {
                Some(after) => after,
                None => self.parse_value(text, value, limit)?,
            };
            rest = match after {
                [] => return Some(self.parameters(text)),
                [b',', b' ', next @ ..] => next,
                _ => return None,
            };
        }
    }

    /// Parses the one value at the front of `text`, and ignores the rest. Returns `None` if it is
    /// not valid.
    pub(crate) fn parse_single<'a>(
        &'a mut self,
        text: &'a [u8],
        limit: &mut ValueLimit,
    ) -> Option<ParametersRef<'a>> {
        self.clear();
        self.parse_value(text, text, limit)?;
        Some(self.parameters(text))
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.copy.clear();
        self.copy.shrink_to(COPY_BYTES_MAX);
    }

    fn parameters<'a>(&'a self, text: &'a [u8]) -> ParametersRef<'a> {
        let bytes = if self.copy.is_empty() { text } else { &self.copy };
        ParametersRef::Flat { bytes, spans: &self.slots }
    }

    /// Parses a typical value: at most seven bytes, no longer than the longest uncut value so far,
    /// without quotes or trailing dots, in a list without doubled quotes so far. Returns `None` for
    /// any other value and leaves the state unchanged.
    #[inline]
    fn parse_short<'a>(
        &mut self,
        text: &[u8],
        rest: &'a [u8],
        limit: &mut ValueLimit,
    ) -> Option<&'a [u8]> {
        let quoted = rest.strip_prefix(b"'")?;
        let word = u64::from_le_bytes(*quoted.first_chunk()?);
        let len = position_in_word(b'\'', word)?;
        let after = &quoted[len + 1..];
        if after.first() == Some(&b'\'') || !self.copy.is_empty() || len > limit.longest_uncut {
            return None;
        }
        if len > 0 && quoted[len - 1] == b'.' {
            return None;
        }
        let start = (text.len() - quoted.len()) as u32;
        self.slots.push(ParameterSpan::Value(start, start + len as u32));
        Some(after)
    }

    /// Parses the value at the front of `rest`, which is a suffix of `text`, and returns the text
    /// after the value.
    fn parse_value<'a>(
        &mut self,
        text: &[u8],
        rest: &'a [u8],
        limit: &mut ValueLimit,
    ) -> Option<&'a [u8]> {
        let Some(quoted) = rest.strip_prefix(b"'") else {
            self.slots.push(ParameterSpan::Null);
            return rest.strip_prefix(b"NULL");
        };
        let start = text.len() - quoted.len();
        let quote = find_near(b'\'', quoted)?;
        if quoted.get(quote + 1) == Some(&b'\'') {
            return self.parse_escaped(text, quoted, limit);
        }
        let value = &quoted[..quote];
        let start = if self.copy.is_empty() { start } else { self.copy.len() };
        if !self.copy.is_empty() {
            self.copy.extend_from_slice(value);
        }
        self.push(start, value, limit);
        Some(&quoted[quote + 1..])
    }

    /// Parses a value with doubled quotes.
    fn parse_escaped<'a>(
        &mut self,
        text: &[u8],
        quoted: &'a [u8],
        limit: &mut ValueLimit,
    ) -> Option<&'a [u8]> {
        if self.copy.is_empty() {
            // Earlier values keep their offsets. The copy is not empty, because it has at least a
            // quote.
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
    fn push(&mut self, start: usize, value: &[u8], limit: &mut ValueLimit) {
        // A record has less than 2³¹ bytes.
        let (from, to) = (start as u32, (start + value.len()) as u32);
        self.slots.push(if limit.is_cut(value) {
            ParameterSpan::Truncated(from, to - 3)
        } else {
            ParameterSpan::Value(from, to)
        });
    }
}

/// Maximum retained capacity; a copy that one huge list made larger is shrunk.
const COPY_BYTES_MAX: usize = 1 << 20;

/// Parses `$7 = ` and returns the number and the rest of the text.
#[inline]
pub(crate) fn parse_name(text: &[u8]) -> Option<(usize, &[u8])> {
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

    fn list(text: &[u8], limit: &mut ValueLimit) -> Option<Vec<Parameter>> {
        let mut values = BoundValues::default();
        values.parse_list(text, limit).map(|list| list.iter().map(Parameter::from).collect())
    }

    fn read(text: &str) -> Option<Vec<Parameter>> {
        list(text.as_bytes(), &mut ValueLimit::default())
    }

    fn value(text: &str) -> Parameter {
        Parameter::Value(text.into())
    }

    #[test]
    fn value_may_look_like_more_values() {
        let read = read("$1 = '2', $2 = 'o''brien\nnew line\ttab, $3 = ''fake''', $3 = NULL");
        let tricky = value("o'brien\nnew line\ttab, $3 = 'fake'");
        assert_eq!(read, Some(vec![value("2"), tricky, Parameter::Null]));
    }

    #[test]
    fn values_around_doubled_quotes_are_found() {
        let all = read("$1 = 'a', $2 = NULL, $3 = '''', $4 = 'b', $5 = '', $6 = 'c''d'");
        let expected =
            vec![value("a"), Parameter::Null, value("'"), value("b"), value(""), value("c'd")];
        assert_eq!(all, Some(expected));
        let numbers: Vec<String> = (1..=12).map(|n| format!("${n} = '{n}'")).collect();
        let many: Vec<_> = (1..=12).map(|n| value(&n.to_string())).collect();
        assert_eq!(read(&numbers.join(", ")), Some(many));
    }

    #[test]
    fn broken_list_is_rejected() {
        for text in
            ["", "$1 = ", "$1 = 'a", "$1 = 'a' $2 = 'b'", "$2 = 'a'", "$1 = 'a', ", "1 = 'a'"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("$1 = ''"), Some(vec![value("")]));
        assert_eq!(read("$1 = ''''"), Some(vec![value("'")]));
    }

    #[test]
    fn cut_values_are_marked_until_longer_value_disproves_limit() {
        let mut limit = ValueLimit::default();
        let cut = list(b"$1 = '1', $2 = 'xxxxxxxxxxxxxxxxxxxx...'", &mut limit);
        let expected = vec![value("1"), Parameter::Truncated("x".repeat(20).as_str().into())];
        assert_eq!(cut, Some(expected));
        assert_eq!(limit.bytes(), Some(20));
        // Below the limit, dots are part of the value.
        assert_eq!(list(b"$1 = 'loading...'", &mut limit), Some(vec![value("loading...")]));
        let long = format!("$1 = '{}'", "y".repeat(30));
        assert!(list(long.as_bytes(), &mut limit).is_some());
        assert_eq!(limit.bytes(), None);
        let dots = list(b"$1 = 'xxxxxxxxxxxxxxxxxxxx...'", &mut limit);
        assert_eq!(dots, Some(vec![value("xxxxxxxxxxxxxxxxxxxx...")]));
    }

    #[test]
    fn limit_counts_bytes_before_doubling_quotes() {
        let mut limit = ValueLimit::default();
        let text = b"$1 = 'o''brien\nnew line\ttab...'";
        let cut = list(text, &mut limit);
        assert_eq!(cut, Some(vec![Parameter::Truncated("o'brien\nnew line\ttab".into())]));
        assert_eq!(limit.bytes(), Some(20));
    }
}

//! Ranges, rows and arrays: elements in brackets.

use std::cmp::Ordering;

/// An element of a range, a row or an array.
struct BracketedElement {
    text: Vec<u8>,
    is_quoted: bool,
}

/// Returns the replacement of a range whose bounds are numbers or times: its bounds stay in order.
/// A JSON array of two such elements stays one.
pub(super) fn redact_range(value: &[u8], redact: &dyn Fn(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
    let (open, close, elements) = split_bracketed(value)?;
    let [low, high] = &elements[..] else { return None };
    if compare(&low.text, &high.text)? == Ordering::Greater {
        return None;
    }
    let mut bounds = [redact(&low.text), redact(&high.text)];
    if compare(&bounds[0], &bounds[1])? == Ordering::Greater {
        bounds.swap(0, 1);
    }
    let mut out = vec![open];
    for (number, (bound, element)) in bounds.iter().zip([low, high]).enumerate() {
        if number > 0 {
            out.push(b',');
        }
        push_element(bound, element.is_quoted, b"\"", &mut out);
    }
    out.push(close);
    Some(out)
}

/// Returns the replacement of a range, a row, a multirange or an array, element by element.
pub(super) fn redact(value: &[u8], redact: &dyn Fn(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
    redact_multirange(value, redact)
        .or_else(|| redact_array(value, redact))
        .or_else(|| redact_row(value, redact))
}

fn redact_row(value: &[u8], redact: &dyn Fn(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
    let (open, close, elements) = split_bracketed(value)?;
    let is_row = open == b'(' && close == b')';
    if !is_row && elements.len() != 2 {
        return None;
    }
    let mut out = vec![open];
    for (number, element) in elements.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        push_element(&redact(&element.text), element.is_quoted, b"\"", &mut out);
    }
    out.push(close);
    Some(out)
}

/// Splits a value such as `[1,5)` or `(1,"a b",)`. Source: `range_parse` in `rangetypes.c`,
/// `record_in` in `rowtypes.c`.
fn split_bracketed(value: &[u8]) -> Option<(u8, u8, Vec<BracketedElement>)> {
    let (&open, rest) = value.split_first()?;
    let (&close, inner) = rest.split_last()?;
    if !b"[(".contains(&open) || !b"])".contains(&close) {
        return None;
    }
    let mut elements = Vec::new();
    let mut element = BracketedElement { text: Vec::new(), is_quoted: false };
    let (mut is_inside, mut at) = (false, 0);
    while let Some(&byte) = inner.get(at) {
        at += 1;
        match byte {
            b'\\' => {
                element.text.push(*inner.get(at)?);
                element.is_quoted = true;
                at += 1;
            }
            b'"' if is_inside && inner.get(at) == Some(&b'"') => {
                element.text.push(b'"');
                at += 1;
            }
            b'"' => {
                is_inside = !is_inside;
                element.is_quoted = true;
            }
            b',' if !is_inside => {
                let next = BracketedElement { text: Vec::new(), is_quoted: false };
                elements.push(std::mem::replace(&mut element, next));
            }
            byte => element.text.push(byte),
        }
    }
    elements.push(element);
    (!is_inside).then_some((open, close, elements))
}

/// Returns the replacement of a list of ranges, such as `{[1,5),[7,9)}`.
fn redact_multirange(value: &[u8], redact: &dyn Fn(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
    let mut rest = value.strip_prefix(b"{")?.strip_suffix(b"}")?;
    let mut out = vec![b'{'];
    loop {
        rest = rest.trim_ascii_start();
        let end = range_len(rest)?;
        out.extend(redact(&rest[..end]));
        rest = rest[end..].trim_ascii_start();
        match rest {
            [] => break,
            [b',', after @ ..] => rest = after,
            _ => return None,
        }
        out.push(b',');
    }
    out.push(b'}');
    Some(out)
}

/// Returns the length of a range at the front of a text.
fn range_len(text: &[u8]) -> Option<usize> {
    if !matches!(text.first()?, b'[' | b'(') {
        return None;
    }
    let mut is_inside = false;
    let mut commas = 0;
    let mut at = 1;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'\\' => at += 1,
            b'"' => is_inside = !is_inside,
            b',' if !is_inside => commas += 1,
            b']' | b')' if !is_inside => return (commas == 1).then_some(at),
            _ => {}
        }
    }
    None
}

/// Redacts `{1,"a b",NULL}`, also with dimensions, as in `[0:1]={1,2}`. Source: `array_in` in
/// `arrayfuncs.c`.
fn redact_array(value: &[u8], redact: &dyn Fn(&[u8]) -> Vec<u8>) -> Option<Vec<u8>> {
    let dimensions = match value.first()? {
        b'[' => memchr::memmem::find(value, b"={")? + 1,
        _ => 0,
    };
    let is_bound = |byte: &u8| byte.is_ascii_digit() || b"[]:=+- ".contains(byte);
    let (head, mut rest) = value.split_at(dimensions);
    if !head.iter().all(is_bound) || !rest.starts_with(b"{") || !rest.ends_with(b"}") {
        return None;
    }
    let mut out = head.to_vec();
    let mut depth = 0_u32;
    while let Some((&byte, after)) = rest.split_first() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1)?,
            b',' | b' ' | b'\n' | b'\t' | b'\r' => {}
            _ if depth == 0 => return None,
            _ => {
                rest = redact_array_element(rest, redact, &mut out)?;
                continue;
            }
        }
        out.push(byte);
        rest = after;
    }
    (depth == 0).then_some(out)
}

/// Redacts the element at the front of a text, and returns the text after it.
fn redact_array_element<'a>(
    text: &'a [u8],
    redact: &dyn Fn(&[u8]) -> Vec<u8>,
    out: &mut Vec<u8>,
) -> Option<&'a [u8]> {
    let is_quoted = text.first() == Some(&b'"');
    let mut element = Vec::new();
    let mut at = usize::from(is_quoted);
    let mut is_escaped = false;
    loop {
        match (text.get(at)?, is_quoted) {
            (b'\\', _) => {
                element.push(*text.get(at + 1)?);
                is_escaped = true;
                at += 2;
                continue;
            }
            (b'"', true) => {
                at += 1;
                break;
            }
            (b',' | b'}', false) => break,
            // An object of JSON, or nested elements that are not separated.
            (b'{' | b'"', false) => return None,
            (byte, _) => element.push(*byte),
        }
        at += 1;
    }
    let rest = &text[at..];
    if !matches!(rest.trim_ascii_start().first()?, b',' | b'}') {
        return None;
    }
    if !is_quoted && !is_escaped && element.trim_ascii().eq_ignore_ascii_case(b"null") {
        out.extend(element);
        return Some(rest);
    }
    let redacted = redact(&element);
    let is_null = redacted.eq_ignore_ascii_case(b"null");
    let is_quoted = is_quoted || is_escaped || is_null;
    push_element(&redacted, is_quoted, b"\\", out);
    Some(rest)
}

/// Appends an element, in quotes if it had them or needs them. `escape` precedes quotes in it.
fn push_element(text: &[u8], is_quoted: bool, escape: &[u8], out: &mut Vec<u8>) {
    if !is_quoted {
        return out.extend(text);
    }
    out.push(b'"');
    for byte in text {
        match byte {
            b'"' => out.extend(escape),
            b'\\' => out.push(b'\\'),
            _ => {}
        }
        out.push(*byte);
    }
    out.push(b'"');
}

/// Compares two numbers or two times; `None` if they are neither.
fn compare(one: &[u8], other: &[u8]) -> Option<Ordering> {
    let (one, other) = (one.trim_ascii(), other.trim_ascii());
    if let (Some(one), Some(other)) = (DecimalBound::parse(one), DecimalBound::parse(other)) {
        return Some(one.cmp(&other));
    }
    let is_time = |text: &[u8]| {
        let is_part = |byte: &u8| byte.is_ascii_digit() || b"-:.+ TZ".contains(byte);
        let is_date = text.len() >= 10 && text[4] == b'-' && text[7] == b'-';
        let is_clock = text.len() >= 5 && text[2] == b':';
        (is_date || is_clock) && text.iter().all(is_part)
    };
    (is_time(one) && is_time(other)).then(|| one.cmp(other))
}

/// A number without an exponent.
struct DecimalBound<'a> {
    is_negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
}

impl<'a> DecimalBound<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let (is_negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] | digits => (false, digits),
        };
        let point = memchr::memchr(b'.', digits).unwrap_or(digits.len());
        let (whole, fraction) = (&digits[..point], digits.get(point + 1..).unwrap_or_default());
        let is_number = !whole.is_empty() && whole.iter().chain(fraction).all(u8::is_ascii_digit);
        let zeros = whole.iter().take_while(|digit| **digit == b'0').count();
        is_number.then_some(Self { is_negative, whole: &whole[zeros..], fraction })
    }

    fn cmp(&self, other: &Self) -> Ordering {
        match (self.is_negative, other.is_negative) {
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }

    fn cmp_magnitude(&self, other: &Self) -> Ordering {
        (self.whole.len(), self.whole, self.fraction).cmp(&(
            other.whole.len(),
            other.whole,
            other.fraction,
        ))
    }
}

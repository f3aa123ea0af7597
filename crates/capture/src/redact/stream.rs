//! [`KeyedStream`]: random characters that depend on the key and the value.

/// A stream of random numbers that depends on the key and the value (SplitMix64, seeded by the
/// HMAC).
pub(super) struct KeyedStream(u64);

/// Replaces the digits of an exponent with zeros if there are more than three. Such an exponent is
/// not valid for any type, so its digits may be a user's value; with zeros, the text stays a valid
/// number. A shorter exponent, as in `1e308` or `1e-324`, is preserved.
pub(super) fn hide_exponent(digits: &mut [u8]) {
    if digits.len() > EXPONENT_DIGITS_MAX {
        digits.iter_mut().filter(|byte| byte.is_ascii_digit()).for_each(|byte| *byte = b'0');
    }
}

const EXPONENT_DIGITS_MAX: usize = 3;

/// Whether an `e` between these bytes is the exponent sign of a number.
fn is_exponent(before: &[u8], after: &[u8]) -> bool {
    let is_number = before.last().is_some_and(u8::is_ascii_digit);
    match after {
        [b'+' | b'-', digit, ..] | [digit, ..] => is_number && digit.is_ascii_digit(),
        [] => false,
    }
}

impl KeyedStream {
    /// Creates the stream of a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number from `low` to `high`, both inclusive.
    pub(super) fn in_range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    pub(super) fn hex(&mut self, byte: u8) -> u8 {
        let digit = self.in_range(0, 15) as usize;
        match byte {
            b'0'..=b'9' | b'a'..=b'f' => b"0123456789abcdef"[digit],
            b'A'..=b'F' => b"0123456789ABCDEF"[digit],
            other => other,
        }
    }

    /// Writes a number from `low` to `high` with as many digits as `out` has bytes.
    pub(super) fn digits_in(&mut self, low: u64, high: u64, out: &mut [u8]) {
        let width = out.len();
        out.copy_from_slice(&format!("{:0width$}", self.in_range(low, high)).into_bytes()[..width]);
    }

    /// Redacts text of no other shape: each run of digits as a number, and
    /// each alphabetic character. If `json`, preserves exponents of up to three digits, escapes
    /// (except the digits of `\u`), and `true`, `false` and `null`.
    pub(super) fn text(&mut self, out: &mut [u8], json: bool) {
        let mut at = 0;
        let mut exponent_end = None;
        while at < out.len() {
            let is_digit = |byte: &u8| byte.is_ascii_digit();
            let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || !byte.is_ascii();
            let run = |belongs: &dyn Fn(&u8) -> bool| {
                out[at..].iter().take_while(|byte| belongs(byte)).count()
            };
            let len = match out[at] {
                byte if is_digit(&byte) => {
                    let len = run(&is_digit);
                    self.number(&mut out[at..at + len]);
                    len
                }
                // An exponent keeps its magnitude.
                b'e' | b'E'
                    if json
                        && exponent_end != Some(at)
                        && is_exponent(&out[..at], &out[at + 1..]) =>
                {
                    let sign = usize::from(matches!(out[at + 1], b'+' | b'-'));
                    let digits = &mut out[at + 1 + sign..];
                    let len = digits.iter().take_while(|byte| is_digit(byte)).count();
                    hide_exponent(&mut digits[..len]);
                    // A number has only one exponent.
                    exponent_end = Some(at + 1 + sign + len);
                    1 + sign + len
                }
                byte if is_letter(&byte) => {
                    let len = run(&is_letter);
                    let word = &mut out[at..at + len];
                    if !(json && matches!(&*word, b"true" | b"false" | b"null")) {
                        word.iter_mut().for_each(|byte| *byte = self.letter(*byte));
                    }
                    len
                }
                // An escape of JSON preserves its first characters.
                b'\\' if json => {
                    let len = if out.get(at + 1) == Some(&b'u') { 6 } else { 2 };
                    let digits = out.iter_mut().skip(at + 2).take(len - 2);
                    // Never four zeros, which PostgreSQL rejects in text.
                    digits.for_each(|byte| *byte = self.in_range(1, 9) as u8 + b'0');
                    len
                }
                _ => 1,
            };
            at += len;
        }
    }

    pub(super) fn letter(&mut self, byte: u8) -> u8 {
        let letter = self.in_range(0, 25) as u8;
        if byte.is_ascii_uppercase() { b'A' + letter } else { b'a' + letter }
    }

    /// Redacts a run of digits. The result has the same number of digits, no leading zero unless
    /// the original had one, and fits into the smallest integer type that holds the original.
    pub(super) fn number(&mut self, out: &mut [u8]) {
        let highest = match std::str::from_utf8(out).ok().and_then(|text| text.parse::<u64>().ok())
        {
            Some(0) if out.len() == 1 => return,
            Some(10_000..=32_767) if out.len() == 5 => b'2',
            Some(1_000_000_000..=2_147_483_647) if out.len() == 10 => b'1',
            // Object and transaction ids have no sign.
            Some(2_147_483_648..=4_294_967_295) if out.len() == 10 => b'3',
            Some(1_000_000_000_000_000_000..=9_223_372_036_854_775_807) if out.len() == 19 => b'8',
            _ => b'9',
        };
        for (at, byte) in out.iter_mut().enumerate() {
            let (low, high) = match at {
                0 if *byte == b'0' => continue,
                0 => (b'1', highest),
                _ => (b'0', b'9'),
            };
            *byte = self.in_range(u64::from(low), u64::from(high)) as u8;
        }
    }
}

//! The fields that framing reads from the text of a message.

use howdah_log_input::LogSeverity;
use howdah_traffic::Hashed;

/// The fields of a message that framing parses. Framing runs on all processors, whereas a single
/// thread processes the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageFields {
    /// The message has none of the fields below, or was not parsed.
    NotRead,
    /// A duration without a text, in µs.
    BareDuration(u64),
    /// The hash of the statement in a `statement:` message.
    Statement(u64),
}

impl MessageFields {
    /// Reads the fields of a message.
    #[inline]
    pub(crate) fn parse(severity: LogSeverity, text: &[u8]) -> Self {
        if severity != LogSeverity::Log {
            return Self::NotRead;
        }
        let Some((word, rest)) = text.split_first_chunk() else { return Self::NotRead };
        match u64::from_le_bytes(*word) {
            DURATION if rest.len() < DURATION_BYTES_MAX && rest.starts_with(b": ") => {
                match parse_millis(&rest[2..]) {
                    Some((micros, b"")) => Self::BareDuration(micros),
                    _ => Self::NotRead,
                }
            }
            STATEMENT if rest.starts_with(b"t: ") => {
                Self::Statement(Hashed::new(&rest[3..]).hash())
            }
            _ => Self::NotRead,
        }
    }
}

/// A message with this many bytes after the keyword, or more, is not parsed as a bare duration,
/// which is shorter.
const DURATION_BYTES_MAX: usize = 32;

/// The first eight bytes of `duration:` and `statement:` messages, as integers for fast comparison.
pub(crate) const DURATION: u64 = u64::from_le_bytes(*b"duration");
pub(crate) const STATEMENT: u64 = u64::from_le_bytes(*b"statemen");

/// Maximum digits before the decimal point of a duration; in microseconds it has three more.
const MILLIS_DIGITS_MAX: usize = 15;

/// Parses `12.345 ms` to microseconds, and returns the text after it.
#[inline]
pub(crate) fn parse_millis(text: &[u8]) -> Option<(u64, &[u8])> {
    let digit = |byte: &u8| Some(byte.wrapping_sub(b'0')).filter(|digit| *digit < 10);
    let (mut whole, mut len) = (0_u64, 0);
    while let Some(next) = text.get(len).and_then(digit) {
        whole = whole * 10 + u64::from(next);
        len += 1;
        // The limit is about thirty thousand years.
        if len > MILLIS_DIGITS_MAX {
            return None;
        }
    }
    let rest = text.get(len..)?;
    let [b'.', a, b, c, b' ', b'm', b's', after @ ..] = rest else { return None };
    let is_whole = len > 0 && [a, b, c].iter().all(|digit| digit.is_ascii_digit());
    let fraction = [a, b, c].iter().fold(0, |sum, digit| sum * 10 + u64::from(**digit & 0x0f));
    is_whole.then_some((whole * 1000 + fraction, after))
}

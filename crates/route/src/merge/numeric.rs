//! [`Numeric`]: exact arithmetic on PostgreSQL's `numeric`, in text and binary format.
//!
//! Source: `numeric_send`, `numeric_recv` and `numeric_out` in `numeric.c`.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

/// Maximum length of a number in text, in bytes. It exceeds the limits of the type: 131,072 digits
/// before the decimal point and 16,383 after it.
const DIGITS_MAX: usize = 150_000;

const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;

/// A value of type `numeric`. A finite value is `unscaled` / 10^`scale`: the scale is the number of
/// digits after the decimal point, including trailing zeros.
#[derive(Clone, Debug)]
pub(super) enum Numeric {
    NegativeInfinity,
    Finite { unscaled: BigInt, scale: u32 },
    Infinity,
    NaN,
}

impl Numeric {
    pub(super) fn read_text(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= DIGITS_MAX)?;
        match text {
            "NaN" => return Some(Self::NaN),
            "Infinity" => return Some(Self::Infinity),
            "-Infinity" => return Some(Self::NegativeInfinity),
            _ => {}
        }
        let (integer, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = [integer.strip_prefix('-').unwrap_or(integer), fraction].concat();
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let magnitude = BigInt::parse_bytes(digits.as_bytes(), 10)?;
        let unscaled = if integer.starts_with('-') { -magnitude } else { magnitude };
        Some(Self::Finite { unscaled, scale: u32::try_from(fraction.len()).ok()? })
    }

    pub(super) fn read_binary(bytes: &[u8]) -> Option<Self> {
        let short = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let (count, weight, sign, scale) =
            (short(0)?, short(2)?.cast_signed(), short(4)?, short(6)?);
        match sign {
            NAN => return Some(Self::NaN),
            INFINITY => return Some(Self::Infinity),
            NEGATIVE_INFINITY => return Some(Self::NegativeInfinity),
            0 | NEGATIVE => {}
            _ => return None,
        }
        if bytes.len() != 8 + 2 * usize::from(count) || scale > 0x3FFF {
            return None;
        }
        let mut digits = String::with_capacity(4 * usize::from(count));
        for at in 0..usize::from(count) {
            let digit = short(8 + 2 * at).filter(|digit| *digit < 10_000)?;
            digits += &format!("{digit:04}");
        }
        // The value is the integer of all digits times 10,000 to this power. Convert it to an
        // integer at the scale.
        let power = i32::from(weight) + 1 - i32::from(count);
        let zeros = 4 * power + i32::from(scale);
        if zeros >= 0 {
            digits.extend(std::iter::repeat_n('0', usize::try_from(zeros).ok()?));
        } else {
            // All digits beyond the scale are zeros.
            digits.truncate(digits.len().saturating_sub(usize::try_from(-zeros).ok()?));
        }
        let digits = if digits.is_empty() { "0" } else { &digits };
        let magnitude = BigInt::parse_bytes(digits.as_bytes(), 10)?;
        let unscaled = if sign == NEGATIVE { -magnitude } else { magnitude };
        Some(Self::Finite { unscaled, scale: scale.into() })
    }

    /// Returns the sum, at the greater of both scales, as in `numeric_add`.
    pub(super) fn plus(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Finite { scale: one, .. }, Self::Finite { scale: two, .. }) => {
                let scale = *one.max(two);
                let unscaled = self.at_scale(scale) + other.at_scale(scale);
                Self::Finite { unscaled, scale }
            }
            (Self::NaN, _) | (_, Self::NaN) => Self::NaN,
            (Self::Infinity, Self::NegativeInfinity) | (Self::NegativeInfinity, Self::Infinity) => {
                Self::NaN
            }
            (Self::Finite { .. }, infinite) | (infinite, _) => infinite.clone(),
        }
    }

    /// Returns the value times ten to the power of `target`, which is not less than the value's own
    /// scale; 0 if the value is not finite.
    fn at_scale(&self, target: u32) -> BigInt {
        match self {
            Self::Finite { unscaled, scale } => {
                unscaled * BigInt::from(10).pow(target.saturating_sub(*scale))
            }
            _ => BigInt::ZERO,
        }
    }

    pub(super) fn write_text(&self) -> Vec<u8> {
        let (unscaled, scale) = match self {
            Self::NaN => return b"NaN".to_vec(),
            Self::Infinity => return b"Infinity".to_vec(),
            Self::NegativeInfinity => return b"-Infinity".to_vec(),
            Self::Finite { unscaled, scale } => (unscaled, *scale as usize),
        };
        let sign = if unscaled.sign() == Sign::Minus { "-" } else { "" };
        let digits = format!("{:0>width$}", unscaled.magnitude().to_string(), width = scale + 1);
        let (integer, fraction) = digits.split_at(digits.len() - scale);
        let point = if scale > 0 { "." } else { "" };
        format!("{sign}{integer}{point}{fraction}").into_bytes()
    }

    /// Encodes the value in binary format; `None` if the type cannot hold it.
    pub(super) fn write_binary(&self) -> Option<Vec<u8>> {
        let special =
            |sign: u16| Some([0, 0, sign, 0].iter().flat_map(|it| it.to_be_bytes()).collect());
        let (unscaled, scale) = match self {
            Self::NaN => return special(NAN),
            Self::Infinity => return special(INFINITY),
            Self::NegativeInfinity => return special(NEGATIVE_INFINITY),
            Self::Finite { unscaled, scale } => (unscaled, *scale),
        };
        // The format has groups of four digits, counted from the decimal point in both directions.
        let padding = (4 - scale % 4) % 4;
        let digits =
            (unscaled.magnitude() * num_bigint::BigUint::from(10_u32).pow(padding)).to_string();
        let lead = (4 - digits.len() % 4) % 4;
        let digits = [&"000"[..lead], &digits].concat();
        let group =
            |four: &[u8]| four.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
        let groups: Vec<u16> = digits.as_bytes().chunks(4).map(group).collect();
        let behind = i32::try_from((scale + padding) / 4).ok()?;
        let mut weight = i32::try_from(groups.len()).ok()? - behind - 1;
        let zeros = groups.iter().take_while(|group| **group == 0).count();
        let end = groups.iter().rposition(|group| *group != 0).map_or(zeros, |last| last + 1);
        let groups = &groups[zeros..end];
        weight = if groups.is_empty() { 0 } else { weight - i32::try_from(zeros).ok()? };
        let sign = if unscaled.sign() == Sign::Minus { NEGATIVE } else { 0 };
        let count = u16::try_from(groups.len()).ok()?;
        let head =
            [count, i16::try_from(weight).ok()?.cast_unsigned(), sign, u16::try_from(scale).ok()?];
        Some(head.iter().chain(groups).flat_map(|short| short.to_be_bytes()).collect())
    }
}

impl Ord for Numeric {
    /// Compares in PostgreSQL's order: NaN equals itself and is greater than all other values.
    fn cmp(&self, other: &Self) -> Ordering {
        let rank = |it: &Self| match it {
            Self::NegativeInfinity => 0,
            Self::Finite { .. } => 1,
            Self::Infinity => 2,
            Self::NaN => 3,
        };
        rank(self).cmp(&rank(other)).then_with(|| match (self, other) {
            (Self::Finite { scale: one, .. }, Self::Finite { scale: two, .. }) => {
                let scale = *one.max(two);
                self.at_scale(scale).cmp(&other.at_scale(scale))
            }
            _ => Ordering::Equal,
        })
    }
}

impl PartialEq for Numeric {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Numeric {}

impl PartialOrd for Numeric {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

//! Formats floating-point numbers like PostgreSQL: the shortest digits that parse back to the same
//! number.
//!
//! Source: `float4out` and `float8out` in `float.c`, `double_to_shortest_decimal_buf` in `d2s.c`. A
//! server with `extra_float_digits` of 0 or less rounds instead.

use std::fmt::LowerExp;

/// Numbers of at least ten to this power are written with an exponent.
const DOUBLE_DIGITS: i32 = 15;
const SINGLE_DIGITS: i32 = 6;

pub(super) fn double(value: f64) -> Vec<u8> {
    written(value, value.is_nan(), value.is_infinite(), DOUBLE_DIGITS)
}

pub(super) fn single(value: f32) -> Vec<u8> {
    written(value, value.is_nan(), value.is_infinite(), SINGLE_DIGITS)
}

fn written(value: impl LowerExp, is_nan: bool, is_infinite: bool, digits_max: i32) -> Vec<u8> {
    let written = format!("{value:e}");
    let (sign, written) = written.strip_prefix('-').map_or(("", &*written), |rest| ("-", rest));
    if is_nan {
        return b"NaN".to_vec();
    }
    if is_infinite {
        return format!("{sign}Infinity").into_bytes();
    }
    let (mantissa, exponent) = written.split_once('e').unwrap_or((written, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if !(-4..digits_max).contains(&exponent) {
        let direction = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{direction}{:02}", exponent.abs()).into_bytes();
    }
    let digits = mantissa.replace('.', "");
    let text = match usize::try_from(exponent + 1) {
        Ok(whole) if whole >= digits.len() => format!("{digits:0<whole$}"),
        Ok(whole) if whole > 0 => format!("{}.{}", &digits[..whole], &digits[whole..]),
        _ => format!("0.{}{digits}", "0".repeat((-exponent - 1).unsigned_abs() as usize)),
    };
    format!("{sign}{text}").into_bytes()
}

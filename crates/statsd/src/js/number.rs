//! [`JsNumber`]: a double formatted like `String(x)`.

use std::fmt;

/// A double, formatted as JavaScript does: the shortest digits that parse back to the same number,
/// an exponent from 1e21 upwards and below 1e-6, `NaN`, `Infinity`, and `0` for minus zero.
///
/// ```
/// use howdah_statsd::js::JsNumber;
///
/// assert_eq!(JsNumber(0.1 + 0.2).to_string(), "0.30000000000000004");
/// assert_eq!(JsNumber(1e21).to_string(), "1e+21");
/// assert_eq!(JsNumber(1e-7).to_string(), "1e-7");
/// ```
///
/// Source: ECMAScript, `Number::toString`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JsNumber(pub f64);

impl fmt::Display for JsNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0;
        if value == 0.0 {
            return f.write_str("0");
        }
        if value.is_nan() {
            return f.write_str("NaN");
        }
        if value.is_infinite() {
            return f.write_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
        }
        // Rust and JavaScript use the same shortest digits, but Rust's default format never has an
        // exponent.
        match value.abs() {
            1e-6..1e21 => write!(f, "{value}"),
            _ => {
                let text = format!("{value:e}");
                match text.split_once('e') {
                    Some((digits, exponent)) if !exponent.starts_with('-') => {
                        write!(f, "{digits}e+{exponent}")
                    }
                    _ => f.write_str(&text),
                }
            }
        }
    }
}

#[test]
fn formatting_matches_node() {
    // Expected values printed by `node -p 'String(x)'`.
    for (value, text) in [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (-1.5, "-1.5"),
        (100.0, "100"),
        (0.000_001, "0.000001"),
        (0.000_000_1, "1e-7"),
        (-1.25e-7, "-1.25e-7"),
        (123_456_789_012_345_680_000.0, "123456789012345680000"),
        (1e21, "1e+21"),
        (-1.5e300, "-1.5e+300"),
        (5e-324, "5e-324"),
        (1.797_693_134_862_315_7e308, "1.7976931348623157e+308"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1.0 / 3.0, "0.3333333333333333"),
        (f64::NAN, "NaN"),
        (f64::NEG_INFINITY, "-Infinity"),
    ] {
        assert_eq!(JsNumber(value).to_string(), text);
    }
}

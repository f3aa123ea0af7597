//! Formats JSON on one line like Perl's `JSON::XS`.

use std::fmt::Write as _;

use super::{JsNumber, JsValue};

/// White space between JSON tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Writes no white space.
    Compact,
    /// Writes a space after each `,` and `:`.
    Spaced,
}

/// Formats a value as JSON. Numbers that JSON cannot express become `null`.
///
/// ```
/// use howdah_statsd::js::{JsValue, Spacing, json};
///
/// let value = JsValue::Object(vec![("a".into(), JsValue::Numbers([1.0, 2.5].into()))]);
/// assert_eq!(json(&value, Spacing::Spaced), r#"{"a": [1, 2.5]}"#);
/// assert_eq!(json(&value, Spacing::Compact), r#"{"a":[1,2.5]}"#);
/// ```
pub fn json(value: &JsValue, spacing: Spacing) -> String {
    let mut out = String::new();
    write(value, spacing, &mut out);
    out
}

impl JsValue {
    /// Converts numbers to strings: Perl's JSON prints a value that was received as text and never
    /// used in a calculation as a string.
    #[must_use]
    pub fn with_text(&self) -> Self {
        let text = |number: f64| Self::Text(JsNumber(number).to_string().into());
        match self {
            Self::Number(number) => text(*number),
            Self::Numbers(numbers) => {
                Self::Array(numbers.iter().map(|number| text(*number)).collect())
            }
            Self::Array(values) => Self::Array(values.iter().map(Self::with_text).collect()),
            Self::Object(entries) => {
                let one = |(key, value): &(Box<str>, Self)| (key.clone(), value.with_text());
                Self::Object(entries.iter().map(one).collect())
            }
            Self::Text(_) | Self::Null => self.clone(),
        }
    }
}

fn write(value: &JsValue, spacing: Spacing, out: &mut String) {
    match value {
        JsValue::Null => out.push_str("null"),
        JsValue::Number(number) => write_number(*number, out),
        JsValue::Text(text) => write_text(text, out),
        JsValue::Numbers(values) => {
            write_list(out, ['[', ']'], spacing, values.iter(), |number, out| {
                write_number(*number, out);
            });
        }
        JsValue::Array(values) => {
            write_list(out, ['[', ']'], spacing, values.iter(), |value, out| {
                write(value, spacing, out);
            });
        }
        JsValue::Object(values) => {
            write_list(out, ['{', '}'], spacing, values.iter(), |(key, value), out| {
                write_text(key, out);
                separate(':', spacing, out);
                write(value, spacing, out);
            });
        }
    }
}

fn write_list<T>(
    out: &mut String,
    [open, close]: [char; 2],
    spacing: Spacing,
    values: impl Iterator<Item = T>,
    write: impl Fn(T, &mut String),
) {
    out.push(open);
    for (at, value) in values.enumerate() {
        if at > 0 {
            separate(',', spacing, out);
        }
        write(value, out);
    }
    out.push(close);
}

fn separate(sign: char, spacing: Spacing, out: &mut String) {
    out.push(sign);
    if spacing == Spacing::Spaced {
        out.push(' ');
    }
}

fn write_number(number: f64, out: &mut String) {
    // Writing into a String cannot fail.
    let _ = if number.is_finite() {
        write!(out, "{}", JsNumber(number))
    } else {
        out.write_str("null")
    };
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        let _ = match char {
            '"' => out.write_str("\\\""),
            '\\' => out.write_str("\\\\"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            '\0'..='\x1f' | '\x7f' => write!(out, "\\u{:04x}", char as u32),
            char => out.write_char(char),
        };
    }
    out.push('"');
}

#[test]
fn written_json_parses() {
    let text: String = ('\0'..='\u{ff}').collect();
    let value = JsValue::Array(vec![
        JsValue::Text(text.as_str().into()),
        JsValue::Number(-0.5),
        JsValue::Number(f64::NAN),
        JsValue::Null,
    ]);
    let read: serde_json::Value =
        serde_json::from_str(&json(&value, Spacing::Spaced)).expect("JSON");
    assert_eq!(read, serde_json::json!([text, -0.5, null, null]));
}

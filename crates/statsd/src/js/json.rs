//! JSON on one line, as Perl's `JSON::XS` writes it.

use std::fmt::Write as _;

use super::{Number, Value};

/// What stands between the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spacing {
    /// Nothing but `,` and `:`.
    Compact,
    /// A blank after each of them.
    Spaced,
}

/// The value as JSON. Numbers that JSON has no word for are `null`.
///
/// ```
/// use howdah_statsd::js::{Spacing, Value, json};
///
/// let value = Value::Object(vec![("a".into(), Value::Numbers([1.0, 2.5].into()))]);
/// assert_eq!(json(&value, Spacing::Spaced), r#"{"a": [1, 2.5]}"#);
/// assert_eq!(json(&value, Spacing::Compact), r#"{"a":[1,2.5]}"#);
/// ```
#[must_use]
pub fn json(value: &Value, spacing: Spacing) -> String {
    let mut out = String::new();
    write(value, spacing, &mut out);
    out
}

impl Value {
    /// The same with numbers as text: Perl's JSON shows a value that came as text, and was never
    /// calculated with, as a string.
    #[must_use]
    pub fn with_text(&self) -> Self {
        let text = |number: f64| Self::Text(Number(number).to_string().into());
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

fn write(value: &Value, spacing: Spacing, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Number(number) => write_number(*number, out),
        Value::Text(text) => write_text(text, out),
        Value::Numbers(values) => {
            write_list(out, ['[', ']'], spacing, values.iter(), |number, out| {
                write_number(*number, out);
            });
        }
        Value::Array(values) => {
            write_list(out, ['[', ']'], spacing, values.iter(), |value, out| {
                write(value, spacing, out);
            });
        }
        Value::Object(values) => {
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
    let _ = match number.is_finite() {
        true => write!(out, "{}", Number(number)),
        false => out.write_str("null"),
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
fn what_is_written_reads_as_json() {
    let text: String = ('\0'..='\u{ff}').collect();
    let value = Value::Array(vec![
        Value::Text(text.as_str().into()),
        Value::Number(-0.5),
        Value::Number(f64::NAN),
        Value::Null,
    ]);
    let read: serde_json::Value =
        serde_json::from_str(&json(&value, Spacing::Spaced)).expect("JSON");
    assert_eq!(read, serde_json::json!([text, -0.5, null, null]));
}

//! JSON as Perl's `JSON::XS` writes it with spaces after `:` and `,`, on one line.

use std::fmt::Write as _;

use super::{Number, Value};

/// The value as JSON. Numbers that JSON has no word for are `null`.
///
/// ```
/// use howdah_statsd::js::{Value, json};
///
/// let value = Value::Object(vec![("a".into(), Value::Numbers([1.0, 2.5].into()))]);
/// assert_eq!(json(&value), r#"{"a": [1, 2.5]}"#);
/// ```
#[must_use]
pub fn json(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Number(number) => write_number(*number, out),
        Value::Text(text) => write_text(text, out),
        Value::Numbers(values) => {
            let each = values.iter();
            write_list(out, ['[', ']'], each, |number, out| write_number(*number, out));
        }
        Value::Array(values) => write_list(out, ['[', ']'], values.iter(), write),
        Value::Object(values) => {
            write_list(out, ['{', '}'], values.iter(), |(key, value), out| {
                write_text(key, out);
                out.push_str(": ");
                write(value, out);
            });
        }
    }
}

fn write_list<T>(
    out: &mut String,
    [open, close]: [char; 2],
    values: impl Iterator<Item = T>,
    write: impl Fn(T, &mut String),
) {
    out.push(open);
    for (at, value) in values.enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write(value, out);
    }
    out.push(close);
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
    let read: serde_json::Value = serde_json::from_str(&json(&value)).expect("JSON");
    assert_eq!(read, serde_json::json!([text, -0.5, null, null]));
}

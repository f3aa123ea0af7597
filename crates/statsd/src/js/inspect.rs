//! Formats plain objects, arrays, numbers and strings like Node's `util.inspect`.
//!
//! A list is on one line if it is short and has at most three levels. Arrays of more than six short
//! entries are arranged in columns; of the entries beyond a hundred, only the number is printed.
//!
//! Source: the behaviour of Node 20, from which the test expectations were recorded.

use std::{fmt::Write as _, sync::Arc};

use super::JsNumber;

/// A JavaScript value, limited to the types in statsd's replies.
#[derive(Clone, Debug, PartialEq)]
pub enum JsValue {
    /// A double, like every number in JavaScript.
    Number(f64),
    /// A string, printed in quotes.
    Text(Box<str>),
    /// JavaScript's `null`, not `undefined`.
    Null,
    /// An array of numbers.
    Numbers(Arc<[f64]>),
    /// An array of values of any type.
    Array(Vec<JsValue>),
    /// An object, with its keys in insertion order.
    Object(Vec<(Box<str>, JsValue)>),
}

/// The options of [`inspect`] for depth and style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InspectOptions {
    /// Nested levels to print; deeper ones are printed as `[Object]` or `[Array]`.
    pub depth: usize,
    /// Whether to use terminal colours.
    pub colors: bool,
}

impl Default for InspectOptions {
    fn default() -> Self {
        Self { depth: 2, colors: false }
    }
}

/// Formats a value like `util.inspect(value, options)`.
///
/// ```
/// use howdah_statsd::js::{InspectOptions, JsValue, inspect};
///
/// let value = JsValue::Object(vec![
///     ("a.b".into(), JsValue::Number(1.5)),
///     ("t".into(), JsValue::Numbers([1.0, 2.0, 3.0].into())),
/// ]);
/// assert_eq!(inspect(&value, InspectOptions::default()), "{ 'a.b': 1.5, t: [ 1, 2, 3 ] }");
/// ```
pub fn inspect(value: &JsValue, options: InspectOptions) -> String {
    let mut writer = InspectWriter { options, indentation: 0, depth_last: 0 };
    writer.value(value, 0).text
}

const BREAK_LENGTH: usize = 80;
const ARRAY_LENGTH_MAX: usize = 100;
/// Maximum nested levels on one line.
const COMPACT: usize = 3;
const SEPARATOR: usize = 2;

struct InspectWriter {
    options: InspectOptions,
    indentation: usize,
    /// The level of the most recently written list.
    depth_last: usize,
}

/// Formatted text and its width in columns, excluding colour codes.
struct InspectedText {
    text: String,
    width: usize,
}

#[derive(Clone, Copy)]
enum InspectStyle {
    Number = 33,
    Text = 32,
    Special = 36,
}

impl InspectWriter {
    fn value(&mut self, value: &JsValue, depth: usize) -> InspectedText {
        match value {
            JsValue::Number(number) if *number == 0.0 && number.is_sign_negative() => {
                self.styled("-0".to_owned(), InspectStyle::Number)
            }
            JsValue::Number(number) => {
                self.styled(JsNumber(*number).to_string(), InspectStyle::Number)
            }
            JsValue::Text(text) => self.styled(quoted(text), InspectStyle::Text),
            JsValue::Null => InspectedText { text: self.bold("null"), width: 4 },
            JsValue::Numbers(values) if values.is_empty() => unstyled("[]".to_owned()),
            JsValue::Array(values) if values.is_empty() => unstyled("[]".to_owned()),
            JsValue::Object(values) if values.is_empty() => unstyled("{}".to_owned()),
            JsValue::Array(_) | JsValue::Numbers(_) if depth > self.options.depth => {
                self.styled("[Array]".to_owned(), InspectStyle::Special)
            }
            JsValue::Object(_) if depth > self.options.depth => {
                self.styled("[Object]".to_owned(), InspectStyle::Special)
            }
            JsValue::Array(values) => {
                let shown = &values[..values.len().min(ARRAY_LENGTH_MAX)];
                self.array(shown, values.len(), depth)
            }
            JsValue::Numbers(values) => {
                let shown = values.iter().take(ARRAY_LENGTH_MAX).copied().map(JsValue::Number);
                self.array(&shown.collect::<Vec<_>>(), values.len(), depth)
            }
            JsValue::Object(values) => self.object(values, depth),
        }
    }

    fn array(&mut self, shown: &[JsValue], length: usize, depth: usize) -> InspectedText {
        self.depth_last = depth;
        let mut entries: Vec<_> = shown.iter().map(|value| self.nested(value, depth)).collect();
        let rest = length - shown.len();
        if rest > 0 {
            let plural = if rest == 1 { "" } else { "s" };
            entries.push(unstyled(format!("... {rest} more item{plural}")));
        }
        let count = entries.len();
        if count > 6 {
            entries = self.columns(entries, shown);
        }
        // Entries arranged in columns are already lines.
        let whole = entries.len() == count;
        self.list(&entries, ['[', ']'], whole, depth)
    }

    fn object(&mut self, values: &[(Box<str>, JsValue)], depth: usize) -> InspectedText {
        self.depth_last = depth;
        let mut entries = Vec::with_capacity(values.len());
        for (key, value) in values {
            let key = if is_identifier(key) {
                unstyled(key.to_string())
            } else {
                self.styled(quoted(key), InspectStyle::Text)
            };
            let value = self.nested(value, depth);
            entries.push(InspectedText {
                text: format!("{}: {}", key.text, value.text),
                width: key.width + 2 + value.width,
            });
        }
        self.list(&entries, ['{', '}'], true, depth)
    }

    fn nested(&mut self, value: &JsValue, depth: usize) -> InspectedText {
        self.indentation += 2;
        let entry = self.value(value, depth + 1);
        self.indentation -= 2;
        entry
    }

    /// Puts entries between braces, on one line if allowed and if they fit.
    fn list(
        &self,
        entries: &[InspectedText],
        braces: [char; 2],
        whole: bool,
        depth: usize,
    ) -> InspectedText {
        let [open, close] = braces;
        let start = entries.len() + self.indentation + 1 + 10;
        let width = entries.iter().map(|entry| entry.width).sum::<usize>() + entries.len() + start;
        let fits = width <= BREAK_LENGTH && entries.iter().all(|entry| !entry.text.contains('\n'));
        let flat = self.depth_last - depth < COMPACT && whole && fits;
        let mut text = String::new();
        text.push(open);
        for (at, entry) in entries.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            // Writing into a String cannot fail.
            let _ = if flat {
                write!(text, "{comma} {}", entry.text)
            } else {
                write!(text, "{comma}\n{:1$}{2}", "", self.indentation + 2, entry.text)
            };
        }
        let _ = if flat {
            write!(text, " {close}")
        } else {
            write!(text, "\n{:1$}{close}", "", self.indentation)
        };
        // The width matters only to the enclosing list, and only if this list is on one line.
        let width = entries.iter().map(|entry| entry.width + SEPARATOR).sum::<usize>() + 2;
        InspectedText { text, width }
    }

    /// Arranges many short entries in columns; each line becomes one entry.
    fn columns(&self, entries: Vec<InspectedText>, values: &[JsValue]) -> Vec<InspectedText> {
        let grouped = entries.len().min(ARRAY_LENGTH_MAX);
        let widths: Vec<_> = entries[..grouped].iter().map(|entry| entry.width).collect();
        let total = widths.iter().map(|width| width + SEPARATOR).sum::<usize>() as f64;
        let widest = widths.iter().copied().max().unwrap_or_default();
        let column = widest + SEPARATOR;
        if column * 3 + self.indentation >= BREAK_LENGTH
            || (total / column as f64 <= 5.0 && widest > 6)
        {
            return entries;
        }
        let bias = (column as f64 - total / entries.len() as f64).sqrt();
        let biased = (column as f64 - 3.0 - bias).max(1.0);
        let square = ((2.5 * biased * grouped as f64).sqrt() / biased + 0.5).floor() as usize;
        let columns =
            square.min((BREAK_LENGTH - self.indentation) / column).min(COMPACT * 4).min(15);
        if columns <= 1 {
            return entries;
        }
        let column_widths: Vec<_> = (0..columns)
            .map(|at| widths.iter().skip(at).step_by(columns).copied().max().unwrap_or_default())
            .collect();
        let right =
            values.iter().take(entries.len()).all(|value| matches!(value, JsValue::Number(_)));
        let mut lines: Vec<_> = entries[..grouped]
            .chunks(columns)
            .map(|line| join_columns(line, &column_widths, right))
            .collect();
        lines.extend(entries.into_iter().skip(grouped));
        lines
    }

    fn bold(&self, text: &str) -> String {
        if self.options.colors { format!("\x1b[1m{text}\x1b[22m") } else { text.to_owned() }
    }

    fn styled(&self, text: String, style: InspectStyle) -> InspectedText {
        let width = text.encode_utf16().count();
        if self.options.colors {
            InspectedText { text: format!("\x1b[{}m{text}\x1b[39m", style as u8), width }
        } else {
            InspectedText { text, width }
        }
    }
}

fn unstyled(text: String) -> InspectedText {
    InspectedText { width: text.encode_utf16().count(), text }
}

fn join_columns(line: &[InspectedText], widths: &[usize], right: bool) -> InspectedText {
    let mut text = String::new();
    let last = line.len() - 1;
    for (at, (entry, width)) in line.iter().zip(widths).enumerate() {
        let padding = width - entry.width;
        let comma = if at == last { "" } else { ", " };
        // Numbers are right-aligned; other values left-aligned, without padding at the end of a
        // line.
        let _ = match (right, at == last) {
            (true, _) => write!(text, "{:padding$}{}{comma}", "", entry.text),
            (false, false) => write!(text, "{}{comma}{:padding$}", entry.text, ""),
            (false, true) => write!(text, "{}", entry.text),
        };
    }
    let width = text.encode_utf16().count();
    InspectedText { text, width }
}

fn is_identifier(key: &str) -> bool {
    let mut chars = key.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns a string literal in single quotes, or in other quotes if that avoids escaping.
fn quoted(text: &str) -> String {
    let quote = match (text.contains('\''), text.contains('"'), text.contains('`')) {
        (true, false, _) => '"',
        (true, true, false) if !text.contains("${") => '`',
        _ => '\'',
    };
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push(quote);
    for char in text.chars() {
        let _ = match char {
            '\n' => literal.write_str("\\n"),
            '\t' => literal.write_str("\\t"),
            '\r' => literal.write_str("\\r"),
            '\x08' => literal.write_str("\\b"),
            '\x0c' => literal.write_str("\\f"),
            '\x0b' => literal.write_str("\\v"),
            '\\' => literal.write_str("\\\\"),
            '\'' if quote == '\'' => literal.write_str("\\'"),
            '\0'..='\x1f' | '\x7f'..='\u{9f}' => write!(literal, "\\x{:02X}", char as u32),
            _ => literal.write_char(char),
        };
    }
    literal.push(quote);
    literal
}

#[cfg(test)]
#[path = "inspect/tests.rs"]
mod tests;

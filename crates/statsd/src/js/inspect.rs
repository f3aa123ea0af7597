//! What Node's `util.inspect` makes of plain objects, arrays, numbers and strings.
//!
//! A list goes on one line while it is short and holds no more than three levels; arrays of more than
//! six entries are set in columns; of more than a hundred, the rest is counted.
//!
//! Source: the behaviour of Node 20, which the tests' expectations come from.

use std::{fmt::Write as _, sync::Arc};

use super::Number;

/// A JavaScript value, as much of one as statsd's replies hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A string.
    Text(Box<str>),
    /// Nothing.
    Null,
    /// An array of numbers.
    Numbers(Arc<[f64]>),
    /// An array.
    Array(Vec<Value>),
    /// An object, its keys in order of insertion.
    Object(Vec<(Box<str>, Value)>),
}

/// How to show a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect {
    /// Levels below the outermost that are shown; deeper ones are `[Object]` or `[Array]`.
    pub depth: usize,
    /// Terminal colours.
    pub colors: bool,
}

impl Default for Inspect {
    fn default() -> Self {
        Self { depth: 2, colors: false }
    }
}

/// `util.inspect(value, options)`.
///
/// ```
/// use howdah_statsd::js::{Inspect, Value, inspect};
///
/// let value = Value::Object(vec![
///     ("a.b".into(), Value::Number(1.5)),
///     ("t".into(), Value::Numbers([1.0, 2.0, 3.0].into())),
/// ]);
/// assert_eq!(inspect(&value, Inspect::default()), "{ 'a.b': 1.5, t: [ 1, 2, 3 ] }");
/// ```
#[must_use]
pub fn inspect(value: &Value, options: Inspect) -> String {
    let mut writer = Writer { options, indentation: 0, depth_last: 0 };
    writer.value(value, 0).text
}

const BREAK_LENGTH: usize = 80;
const ARRAY_LENGTH_MAX: usize = 100;
/// Levels that may share a line.
const COMPACT: usize = 3;
const SEPARATOR: usize = 2;

struct Writer {
    options: Inspect,
    indentation: usize,
    /// The level of the list that was written last.
    depth_last: usize,
}

/// Text and the columns it takes, colours not counted.
struct Entry {
    text: String,
    width: usize,
}

#[derive(Clone, Copy)]
enum Style {
    Number = 33,
    Text = 32,
    Special = 36,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Entry {
        match value {
            Value::Number(number) if *number == 0.0 && number.is_sign_negative() => {
                self.styled("-0".to_owned(), Style::Number)
            }
            Value::Number(number) => self.styled(Number(*number).to_string(), Style::Number),
            Value::Text(text) => self.styled(quoted(text), Style::Text),
            Value::Null => Entry { text: self.bold("null"), width: 4 },
            Value::Numbers(values) if values.is_empty() => plain("[]".to_owned()),
            Value::Array(values) if values.is_empty() => plain("[]".to_owned()),
            Value::Object(values) if values.is_empty() => plain("{}".to_owned()),
            Value::Array(_) | Value::Numbers(_) if depth > self.options.depth => {
                self.styled("[Array]".to_owned(), Style::Special)
            }
            Value::Object(_) if depth > self.options.depth => {
                self.styled("[Object]".to_owned(), Style::Special)
            }
            Value::Array(values) => {
                let shown = &values[..values.len().min(ARRAY_LENGTH_MAX)];
                self.array(shown, values.len(), depth)
            }
            Value::Numbers(values) => {
                let shown = values.iter().take(ARRAY_LENGTH_MAX).copied().map(Value::Number);
                self.array(&shown.collect::<Vec<_>>(), values.len(), depth)
            }
            Value::Object(values) => self.object(values, depth),
        }
    }

    fn array(&mut self, shown: &[Value], length: usize, depth: usize) -> Entry {
        self.depth_last = depth;
        let mut entries: Vec<_> = shown.iter().map(|value| self.nested(value, depth)).collect();
        let rest = length - shown.len();
        if rest > 0 {
            let plural = if rest == 1 { "" } else { "s" };
            entries.push(plain(format!("... {rest} more item{plural}")));
        }
        let count = entries.len();
        if count > 6 {
            entries = self.columns(entries, shown);
        }
        // Entries in columns are lines already.
        let whole = entries.len() == count;
        self.list(&entries, ['[', ']'], whole, depth)
    }

    fn object(&mut self, values: &[(Box<str>, Value)], depth: usize) -> Entry {
        self.depth_last = depth;
        let mut entries = Vec::with_capacity(values.len());
        for (key, value) in values {
            let key = match is_identifier(key) {
                true => plain(key.to_string()),
                false => self.styled(quoted(key), Style::Text),
            };
            let value = self.nested(value, depth);
            entries.push(Entry {
                text: format!("{}: {}", key.text, value.text),
                width: key.width + 2 + value.width,
            });
        }
        self.list(&entries, ['{', '}'], true, depth)
    }

    fn nested(&mut self, value: &Value, depth: usize) -> Entry {
        self.indentation += 2;
        let entry = self.value(value, depth + 1);
        self.indentation -= 2;
        entry
    }

    /// Puts entries between braces, on one line if they fit and may be.
    fn list(&self, entries: &[Entry], braces: [char; 2], whole: bool, depth: usize) -> Entry {
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
            let _ = match flat {
                true => write!(text, "{comma} {}", entry.text),
                false => write!(text, "{comma}\n{:1$}{2}", "", self.indentation + 2, entry.text),
            };
        }
        let _ = match flat {
            true => write!(text, " {close}"),
            false => write!(text, "\n{:1$}{close}", "", self.indentation),
        };
        // The width of a list matters only to the list around it, and there only if it is one line.
        let width = entries.iter().map(|entry| entry.width + SEPARATOR).sum::<usize>() + 2;
        Entry { text, width }
    }

    /// Sets many short entries in columns, one line of them an entry.
    fn columns(&self, entries: Vec<Entry>, values: &[Value]) -> Vec<Entry> {
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
            values.iter().take(entries.len()).all(|value| matches!(value, Value::Number(_)));
        let mut lines: Vec<_> = entries[..grouped]
            .chunks(columns)
            .map(|line| join_columns(line, &column_widths, right))
            .collect();
        lines.extend(entries.into_iter().skip(grouped));
        lines
    }

    fn bold(&self, text: &str) -> String {
        match self.options.colors {
            true => format!("\x1b[1m{text}\x1b[22m"),
            false => text.to_owned(),
        }
    }

    fn styled(&self, text: String, style: Style) -> Entry {
        let width = text.encode_utf16().count();
        match self.options.colors {
            true => Entry { text: format!("\x1b[{}m{text}\x1b[39m", style as u8), width },
            false => Entry { text, width },
        }
    }
}

fn plain(text: String) -> Entry {
    Entry { width: text.encode_utf16().count(), text }
}

fn join_columns(line: &[Entry], widths: &[usize], right: bool) -> Entry {
    let mut text = String::new();
    let last = line.len() - 1;
    for (at, (entry, width)) in line.iter().zip(widths).enumerate() {
        let padding = width - entry.width;
        let comma = if at == last { "" } else { ", " };
        // Numbers stand right; other things left, and the last of a line needs no padding then.
        let _ = match (right, at == last) {
            (true, _) => write!(text, "{:padding$}{}{comma}", "", entry.text),
            (false, false) => write!(text, "{}{comma}{:padding$}", entry.text, ""),
            (false, true) => write!(text, "{}", entry.text),
        };
    }
    let width = text.encode_utf16().count();
    Entry { text, width }
}

fn is_identifier(key: &str) -> bool {
    let mut chars = key.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A string literal: in single quotes, or in others where that saves escaping.
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

//! Which rows to show: a few words that a person types.
//!
//! Words are joined by *and*. `shop` is a text that some cell contains; `user:app` one that this column
//! contains; `state=idle` what this column is; `time>5s` and `rows<100` compare numbers, with `>5s` short
//! for the time; `!` in front turns any of them round; `"two words"` is one. Letters' case does not matter.

use howdah_collect::{Cell, Unit};

use crate::{table::Table, units::parse_span};

/// A condition on rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    terms: Vec<Term>,
}

/// A filter that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseFilterError {
    /// What should be a number is none.
    #[error("{text:?} is no number: write one like 100, 1.5, 500ms, 5s, 2m, 10MB")]
    NotANumber {
        /// What was there.
        text: String,
    },
    /// There is nothing behind the sign.
    #[error("{term:?} says nothing to look for")]
    Empty {
        /// The word.
        term: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    /// A column's name, or the beginning of one.
    column: Option<String>,
    test: Test,
    is_turned: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Contains(String),
    Is(String),
    Above(f64),
    Below(f64),
}

/// The column that a bare `>5s` is about.
const TIME: &str = "time";

impl Filter {
    /// Reads what a person typed.
    ///
    /// # Errors
    ///
    /// A word makes no sense; the error says which.
    pub fn parse(text: &str) -> Result<Self, ParseFilterError> {
        let terms = words(text).iter().map(|word| Term::parse(word)).collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }

    /// Whether all rows pass.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether a row of `table` passes. A term about a column that the table does not have lets none pass.
    pub fn passes(&self, table: &Table, row: &[Cell]) -> bool {
        self.terms.iter().all(|term| term.holds(table, row) != term.is_turned)
    }
}

impl Term {
    fn parse(word: &str) -> Result<Self, ParseFilterError> {
        let (is_turned, rest) = match word.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, word),
        };
        let sign = rest.find([':', '=', '<', '>']);
        let name = sign.map(|at| &rest[..at]).filter(|name| name.bytes().all(is_name));
        let (column, test) = match (name, sign) {
            (Some(name), Some(at)) => {
                let value = &rest[at + 1..];
                if value.is_empty() {
                    return Err(ParseFilterError::Empty { term: word.to_owned() });
                }
                let test = match rest.as_bytes()[at] {
                    b':' => Test::Contains(value.to_lowercase()),
                    b'=' => Test::Is(value.to_lowercase()),
                    b'>' => Test::Above(number(value)?),
                    _ => Test::Below(number(value)?),
                };
                let is_comparison = matches!(test, Test::Above(_) | Test::Below(_));
                match name {
                    "" if is_comparison => (Some(TIME.to_owned()), test),
                    "" => (None, Test::Contains(rest.to_lowercase())),
                    name => (Some(name.to_lowercase()), test),
                }
            }
            _ if rest.is_empty() => return Err(ParseFilterError::Empty { term: word.to_owned() }),
            _ => (None, Test::Contains(rest.to_lowercase())),
        };
        Ok(Self { column, test, is_turned })
    }

    fn holds(&self, table: &Table, row: &[Cell]) -> bool {
        match &self.column {
            None => row.iter().any(|cell| self.test.holds(cell)),
            Some(name) => {
                let exact = table.columns.iter().position(|column| column.name == name);
                let begun = || {
                    table.columns.iter().position(|column| column.name.starts_with(name.as_str()))
                };
                exact
                    .or_else(begun)
                    .is_some_and(|at| row.get(at).is_some_and(|cell| self.test.holds(cell)))
            }
        }
    }
}

impl Test {
    fn holds(&self, cell: &Cell) -> bool {
        let text = || match cell {
            Cell::Text(text) => text.to_lowercase(),
            other => crate::units::shown(other, Unit::Count),
        };
        match self {
            Self::Contains(part) => text().contains(part.as_str()),
            Self::Is(whole) => text() == *whole,
            Self::Above(bound) => cell.number().is_some_and(|value| value > *bound),
            Self::Below(bound) => cell.number().is_some_and(|value| value < *bound),
        }
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A number with a unit: seconds for spans, bytes for sizes.
fn number(text: &str) -> Result<f64, ParseFilterError> {
    let size = |suffix: &str, bytes: f64| {
        text.strip_suffix(suffix)?.parse::<f64>().ok().map(|number| number * bytes)
    };
    parse_span(text)
        .or_else(|| size("kB", 1024.0))
        .or_else(|| size("MB", 1024.0 * 1024.0))
        .or_else(|| size("GB", 1024.0 * 1024.0 * 1024.0))
        .ok_or_else(|| ParseFilterError::NotANumber { text: text.to_owned() })
}

/// The words of a text, with quotes around those that have spaces.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut is_quoted = false;
    for c in text.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            c if c.is_whitespace() && !is_quoted => {
                words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
            }
            c => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table::{Head, Row};

    fn table() -> Table {
        let head = |name, unit| Head::new(name, name, unit, 8, "");
        let row = |user: &str, seconds: f64, query: &str| {
            Row::plain(vec![user.into(), seconds.into(), query.into(), Cell::Null])
        };
        Table {
            columns: vec![
                head("user", Unit::Text),
                head("time", Unit::Seconds),
                head("query", Unit::Text),
                head("none", Unit::Count),
            ],
            rows: vec![
                row("app", 12.0, "SELECT a:b FROM Items"),
                row("app2", 0.5, "select 1"),
                row("backup", 3600.0, "COPY items TO stdout"),
            ],
        }
    }

    fn passing(text: &str) -> Vec<usize> {
        let table = table();
        let filter = Filter::parse(text).unwrap();
        (0..3).filter(|&at| filter.passes(&table, &table.rows[at].cells)).collect()
    }

    #[test]
    fn words_mean_what_people_expect() {
        let cases: [(&str, &[usize]); 14] = [
            ("", &[0, 1, 2]),
            ("items", &[0, 2]),
            ("user:app", &[0, 1]),
            ("user=APP", &[0]),
            ("u:backup", &[2]),
            (">5s", &[0, 2]),
            ("time>1m", &[2]),
            ("<1s", &[1]),
            ("!user:app", &[2]),
            ("items !copy", &[0]),
            ("\"copy items\"", &[2]),
            (":b", &[0]),
            ("none>0", &[]),
            ("nosuch:x", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(passing(text), expected, "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let message = |text| Filter::parse(text).unwrap_err().to_string();
        assert_eq!(message("user:"), "\"user:\" says nothing to look for");
        assert_eq!(
            message(">soon"),
            "\"soon\" is no number: write one like 100, 1.5, 500ms, 5s, 2m, 10MB"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            if let Ok(filter) = Filter::parse(&text) {
                let table = table();
                for row in &table.rows {
                    filter.passes(&table, &row.cells);
                }
            }
        }
    }
}

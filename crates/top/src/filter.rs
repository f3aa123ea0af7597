//! Row filters as typed by users.
//!
//! Terms are combined with AND. `shop` matches rows in which any cell contains it; `user:app`
//! matches if the column `user` contains `app`, and `state=idle` if the column `state` equals
//! `idle`; `time>5s` and `rows<100` compare numbers, with `>5s` short for the time column. A
//! leading `!` negates a term, and `"two words"` is one term. Matching is case-insensitive.

use howdah_collect::{ColumnUnit, ViewCell};

use crate::table::ScreenTable;

/// A condition that rows must satisfy to be displayed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowFilter {
    terms: Vec<FilterTerm>,
}

/// The reason why a text is not a valid filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseFilterError {
    /// A comparison has a value that is not a number.
    #[error("{text:?} is not a number: write one like 100, 1.5, 500ms, 5s, 2m, 10MB")]
    NotANumber {
        /// The text found instead of a number.
        text: String,
    },
    /// A term has no value: nothing follows its operator or `!`.
    #[error("{term:?} has no value: write one after it, as in user=app or time>5s")]
    Empty {
        /// The incomplete term.
        term: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
struct FilterTerm {
    /// A column's name or a prefix of it; `None` for a term that may match any column.
    column: Option<String>,
    condition: FilterCondition,
    is_negated: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum FilterCondition {
    Contains(String),
    Is(String),
    Above(f64),
    Below(f64),
}

/// The column that a bare `>5s` refers to.
const DEFAULT_COLUMN: &str = "time";

impl RowFilter {
    /// Parses a filter.
    ///
    /// # Errors
    ///
    /// A term is invalid; the error names it or its value.
    pub fn parse(text: &str) -> Result<Self, ParseFilterError> {
        let terms = split_quoted(text)
            .iter()
            .map(|word| FilterTerm::parse(word))
            .collect::<Result<_, _>>()?;
        Ok(Self { terms })
    }

    /// Whether the filter matches all rows.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether a row of `table` matches. A term about a column that the table lacks matches no row,
    /// and its negation matches every row.
    pub fn passes(&self, table: &ScreenTable, row: &[ViewCell]) -> bool {
        self.terms.iter().all(|term| term.matches(table, row) != term.is_negated)
    }
}

impl FilterTerm {
    fn parse(word: &str) -> Result<Self, ParseFilterError> {
        let (is_turned, rest) = match word.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, word),
        };
        let sign = rest.find([':', '=', '<', '>']);
        let name = sign.map(|at| &rest[..at]).filter(|name| name.bytes().all(is_name_byte));
        let (column, test) = match (name, sign) {
            (Some(name), Some(at)) => {
                let value = &rest[at + 1..];
                if value.is_empty() {
                    return Err(ParseFilterError::Empty { term: word.to_owned() });
                }
                let test = match rest.as_bytes()[at] {
                    b':' => FilterCondition::Contains(value.to_lowercase()),
                    b'=' => FilterCondition::Is(value.to_lowercase()),
                    b'>' => FilterCondition::Above(number(value)?),
                    _ => FilterCondition::Below(number(value)?),
                };
                let is_comparison =
                    matches!(test, FilterCondition::Above(_) | FilterCondition::Below(_));
                match name {
                    "" if is_comparison => (Some(DEFAULT_COLUMN.to_owned()), test),
                    "" => (None, FilterCondition::Contains(rest.to_lowercase())),
                    name => (Some(name.to_lowercase()), test),
                }
            }
            _ if rest.is_empty() => return Err(ParseFilterError::Empty { term: word.to_owned() }),
            _ => (None, FilterCondition::Contains(rest.to_lowercase())),
        };
        Ok(Self { column, condition: test, is_negated: is_turned })
    }

    fn matches(&self, table: &ScreenTable, row: &[ViewCell]) -> bool {
        match &self.column {
            None => row.iter().any(|cell| self.condition.matches(cell)),
            Some(name) => {
                let exact = table.columns.iter().position(|column| column.name == name);
                let begun = || {
                    table.columns.iter().position(|column| column.name.starts_with(name.as_str()))
                };
                exact
                    .or_else(begun)
                    .is_some_and(|at| row.get(at).is_some_and(|cell| self.condition.matches(cell)))
            }
        }
    }
}

impl FilterCondition {
    fn matches(&self, cell: &ViewCell) -> bool {
        let text = || match cell {
            ViewCell::Text(text) => text.to_lowercase(),
            other => crate::units::format_cell(other, ColumnUnit::Count),
        };
        match self {
            Self::Contains(part) => text().contains(part.as_str()),
            Self::Is(whole) => text() == *whole,
            Self::Above(bound) => cell.number().is_some_and(|value| value > *bound),
            Self::Below(bound) => cell.number().is_some_and(|value| value < *bound),
        }
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Parses a number, which may have a unit. Durations are converted to seconds, and sizes to bytes.
fn number(text: &str) -> Result<f64, ParseFilterError> {
    let size = |suffix: &str, bytes: f64| {
        text.strip_suffix(suffix)?.parse::<f64>().ok().map(|number| number * bytes)
    };
    howdah_settings::parse_seconds(text)
        .or_else(|| size("kB", 1024.0))
        .or_else(|| size("MB", 1024.0 * 1024.0))
        .or_else(|| size("GB", 1024.0 * 1024.0 * 1024.0))
        .ok_or_else(|| ParseFilterError::NotANumber { text: text.to_owned() })
}

/// Splits a text at white space outside double quotes, and removes the quotes.
fn split_quoted(text: &str) -> Vec<String> {
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
    use crate::table::{TableColumn, TableRow};

    fn table() -> ScreenTable {
        let head = |name, unit| TableColumn::new(name, name, unit, 8, "");
        let row = |user: &str, seconds: f64, query: &str| {
            TableRow::from_cells(vec![user.into(), seconds.into(), query.into(), ViewCell::Null])
        };
        ScreenTable {
            columns: vec![
                head("user", ColumnUnit::Text),
                head("time", ColumnUnit::Seconds),
                head("query", ColumnUnit::Text),
                head("none", ColumnUnit::Count),
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
        let filter = RowFilter::parse(text).unwrap();
        (0..3).filter(|&at| filter.passes(&table, &table.rows[at].cells)).collect()
    }

    #[test]
    fn filter_terms_select_expected_rows() {
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
    fn invalid_filter_is_explained() {
        let message = |text| RowFilter::parse(text).unwrap_err().to_string();
        assert_eq!(
            message("user:"),
            "\"user:\" has no value: write one after it, as in user=app or time>5s"
        );
        assert_eq!(
            message(">soon"),
            "\"soon\" is not a number: write one like 100, 1.5, 500ms, 5s, 2m, 10MB"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_filter_text_never_panics(text in "\\PC{0,40}") {
            if let Ok(filter) = RowFilter::parse(&text) {
                let table = table();
                for row in &table.rows {
                    filter.passes(&table, &row.cells);
                }
            }
        }
    }
}

//! Medians and Markdown tables.

/// Median and range of one value over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MedianRange {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl MedianRange {
    /// `None` if there are no values.
    pub(crate) fn from_values(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Self { median, min, max })
    }

    /// The median, followed by `[min–max]` if they differ.
    pub(crate) fn text(&self, decimals: usize) -> String {
        let median = format!("{:.decimals$}", self.median);
        let (min, max) = (format!("{:.decimals$}", self.min), format!("{:.decimals$}", self.max));
        if min == max { median } else { format!("{median} [{min}–{max}]") }
    }
}

/// A Markdown table being built.
#[derive(Debug)]
pub(crate) struct MarkdownTable(String);

impl MarkdownTable {
    pub(crate) fn new(columns: &[&str]) -> Self {
        Self(format!("| {} |\n|{}\n", columns.join(" | "), "---|".repeat(columns.len())))
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: &[String; N]) {
        self.0 += &format!("| {} |\n", cells.join(" | "));
    }

    pub(crate) fn text(self) -> String {
        self.0
    }
}

#[test]
fn even_count_median_is_midpoint() {
    assert_eq!(MedianRange::from_values([4.0, 1.0, 3.0, 2.0]).unwrap().text(1), "2.5 [1.0–4.0]");
    assert_eq!(MedianRange::from_values([7.0]).unwrap().text(0), "7");
    assert_eq!(MedianRange::from_values([]), None);
}

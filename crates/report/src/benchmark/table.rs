//! Results as a table for terminals.

use std::{fmt::Write as _, time::Duration};

use howdah_warm::benchmark::BenchmarkResults;

use super::{
    rows::{FigureCell, figure_rows},
    seconds,
    sentences::{comparison_sentence, headline, host_line, remarks},
};
use crate::text;

/// Renders the verdict, the server, the host, a column per method with medians and ranges, and
/// remarks on the measurements.
pub fn table(results: &BenchmarkResults) -> String {
    let verdict = results.verdict();
    let mut table = String::new();
    let headline = headline(results, &verdict);
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(table, "{headline}");
    for obstacle in verdict.obstacles.iter().skip(1) {
        let _ = writeln!(table, "Not comparable: {obstacle}");
    }
    let comparisons = verdict.comparisons.iter().filter(|_| verdict.obstacles.is_empty());
    for sentence in comparisons.map(|it| comparison_sentence(results, it)) {
        if sentence != headline {
            let _ = writeln!(table, "{sentence}");
        }
    }
    let _ = writeln!(
        table,
        "\nPostgreSQL {}, {} in the cache; steady: {:.0} reads per second, p99 {}",
        results.server,
        text::bytes(results.pages.0 * u64::from(results.pages.1)),
        results.steady,
        seconds(Duration::from_micros(results.steady_p99_us)),
    );
    let _ = writeln!(table, "host: {}", host_line(results));
    for note in &results.notes {
        let _ = writeln!(table, "{note}");
    }
    let runs = text::counted(results.runs.len() as u64, "run");
    let _ = writeln!(table, "\nMedian (smallest – largest) of {runs}");
    write_columns(&mut table, results);
    let remarks = remarks(results, &verdict);
    if !remarks.is_empty() {
        table.push('\n');
    }
    for remark in remarks {
        let _ = writeln!(table, "{remark}");
    }
    table
}

fn write_columns(table: &mut String, results: &BenchmarkResults) {
    let methods = results.method_summaries();
    let rows = figure_rows(results, &methods);
    let print = |cell: &FigureCell| match &cell.range {
        Some(range) => format!("{} ({range})", cell.median),
        None => cell.median.clone(),
    };
    let names = methods.iter().map(|it| it.method.name().to_uppercase());
    let mut lines = vec![("", names.collect::<Vec<_>>())];
    lines.extend(rows.iter().map(|row| (row.label, row.cells.iter().map(print).collect())));
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|(_, cells)| cells.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..methods.len()).map(width).collect();
    let label_width = lines.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    for (label, cells) in &lines {
        let mut line = format!("{label:label_width$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "  {cell:width$}");
        }
        let _ = writeln!(table, "{}", line.trim_end());
    }
}

#[test]
fn table_has_one_column_per_method() {
    insta::assert_snapshot!(table(&super::tests::results()));
}

//! Renders the list of probes.

use std::io::{self, Write};

use howdah_probe::{catalogue::ProbeEntry, doctor::MetricDiagnosis};
use serde_json::json;

use super::rows::{Cell, RowFormat, RowWriter};

const COLUMNS: &[&str] =
    &["probe", "description", "sources", "points", "cost", "source_here", "cost_here", "missing"];

/// Renders probes with the points where they attach, and, for probes diagnosed in `here`, their
/// source and cost on that server, and what is missing.
///
/// # Errors
///
/// The writer fails.
pub fn write_catalogue(
    out: impl Write,
    format: RowFormat,
    entries: &[(&ProbeEntry, Vec<String>)],
    here: &[MetricDiagnosis],
) -> io::Result<()> {
    let here = |entry: &ProbeEntry| here.iter().find(|metric| metric.name == entry.name);
    let mut rows = RowWriter::new(out, format, COLUMNS);
    if !rows.is_table() {
        let mut entries = entries.iter();
        return entries
            .try_for_each(|(entry, points)| rows.write(&cells(entry, points, here(entry))));
    }
    let out = &mut rows.out;
    writeln!(out, "{:<12} {:<18} {:<27} description", "probe", "sources", "cost for the server")?;
    for (entry, points) in entries {
        let (sources, cost) = (sources(entry), entry.cost.to_string());
        writeln!(out, "{:<12} {sources:<18} {cost:<27} {}", entry.name, entry.description)?;
        writeln!(out, "{:<12} at {}", "", points.join(", "))?;
        if let Some(MetricDiagnosis { source, cost, missing, .. }) = here(entry) {
            let source = source.map_or("none", |source| source.as_str());
            let cost = cost.map_or_else(String::new, |cost| format!(", {cost}"));
            let missing =
                missing.as_ref().map_or_else(String::new, |what| format!("; missing: {what}"));
            writeln!(out, "{:<12} here: {source}{cost}{missing}", "")?;
        }
    }
    Ok(())
}

fn sources(entry: &ProbeEntry) -> String {
    entry.sources.iter().map(|source| source.as_str()).collect::<Vec<_>>().join(", ")
}

fn cells(entry: &ProbeEntry, points: &[String], here: Option<&MetricDiagnosis>) -> Vec<Cell> {
    let mut cells = vec![
        ("probe", json!(entry.name)),
        ("description", json!(entry.description)),
        ("sources", json!(sources(entry))),
        ("points", json!(points.join(", "))),
        ("cost", json!(entry.cost.to_string())),
    ];
    if let Some(MetricDiagnosis { source, cost, missing, .. }) = here {
        cells.extend([
            ("source_here", json!(source.map_or("none", |source| source.as_str()))),
            ("cost_here", json!(cost.map(|cost| cost.to_string()))),
            ("missing", json!(missing)),
        ]);
    }
    cells
}

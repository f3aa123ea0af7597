//! `howdah probe list`: lists all probes.

use std::io::Write as _;

use howdah_probe::{
    catalogue::{PROBES, ProbeEntry},
    doctor::{self, MetricDiagnosis},
};
use serde_json::{Value, json};

use super::{
    rows::{RowFormat, RowWriter},
    target::TargetArgs,
};
use crate::{context::CommandContext, outcome::CommandOutcome};

/// List all probes, with their metrics, trace points, sources, and costs for the server.
///
/// If a server is named, shows the points in this server, and the best source and measured cost
/// here; otherwise general information.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: RowFormat,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe list
  howdah probe list --pid 4711 --format ndjson";

const COLUMNS: &[&str] =
    &["probe", "description", "sources", "points", "cost", "source_here", "cost_here", "missing"];

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let found = if args.target.is_named() { Some(args.target.find()?) } else { None };
    let server = found.as_ref().map(|found| &found.server);
    let here = server.map(|server| doctor::diagnose(server).metrics).unwrap_or_default();
    let of = |entry: &ProbeEntry| here.iter().find(|metric| metric.name == entry.name);
    if args.format != RowFormat::Table {
        let mut rows = RowWriter::new(ctx, args.format, COLUMNS);
        for entry in PROBES {
            rows.write(&cells(entry, &entry.points(server), of(entry)))?;
        }
        return Ok(CommandOutcome::Done);
    }
    let mut out = ctx.stdout();
    writeln!(out, "{:<12} {:<18} {:<27} description", "probe", "sources", "cost for the server")?;
    for entry in PROBES {
        let (sources, cost) = (sources(entry), entry.cost.to_string());
        writeln!(out, "{:<12} {sources:<18} {cost:<27} {}", entry.name, entry.description)?;
        writeln!(out, "{:<12} at {}", "", entry.points(server).join(", "))?;
        if let Some(MetricDiagnosis { source, cost, missing, .. }) = of(entry) {
            let source = source.map_or("none", |source| source.as_str());
            let cost = cost.map_or_else(String::new, |cost| format!(", {cost}"));
            let missing =
                missing.as_ref().map_or_else(String::new, |what| format!("; missing: {what}"));
            writeln!(out, "{:<12} here: {source}{cost}{missing}", "")?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn sources(entry: &ProbeEntry) -> String {
    entry.sources.iter().map(|source| source.as_str()).collect::<Vec<_>>().join(", ")
}

fn cells(
    entry: &ProbeEntry,
    points: &[String],
    here: Option<&MetricDiagnosis>,
) -> Vec<(&'static str, Value)> {
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

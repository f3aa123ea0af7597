//! `howdah probe list`: every probe there is.

use std::io::Write as _;

use howdah_probe::{
    catalogue::{ENTRIES, Entry},
    doctor::{self, Figure},
};
use serde_json::{Value, json};

use super::{
    rows::{Format, Rows},
    target::TargetArgs,
};
use crate::{context::Context, outcome::Outcome};

/// Every probe, the figures it gives, where it looks, from which sources, and what that costs the server.
///
/// Of a server that is named: its own points, and the source and cost that are to be had here, measured. Without
/// one: in general.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// A table for a person, or rows
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe list
  howdah probe list --pid 4711 --format ndjson";

const COLUMNS: &[&str] =
    &["probe", "tells", "sources", "points", "cost", "source_here", "cost_here", "missing"];

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let found = match args.target.is_named() {
        true => Some(args.target.find()?),
        false => None,
    };
    let server = found.as_ref().map(|found| &found.server);
    let here = server.map(|server| doctor::diagnose(server).figures).unwrap_or_default();
    let of = |entry: &Entry| here.iter().find(|figure| figure.name == entry.name);
    if args.format != Format::Table {
        let mut rows = Rows::new(ctx, args.format, COLUMNS);
        for entry in ENTRIES {
            rows.write(&cells(entry, &entry.points(server), of(entry)))?;
        }
        return Ok(Outcome::Done);
    }
    let mut out = ctx.stdout();
    writeln!(out, "{:<12} {:<18} {:<27} tells", "probe", "sources", "costs the server")?;
    for entry in ENTRIES {
        let (sources, cost) = (sources(entry), entry.cost.to_string());
        writeln!(out, "{:<12} {sources:<18} {cost:<27} {}", entry.name, entry.tells)?;
        writeln!(out, "{:<12} at {}", "", entry.points(server).join(", "))?;
        if let Some(Figure { source, cost, missing, .. }) = of(entry) {
            let source = source.map_or("none", |source| source.as_str());
            let cost = cost.map_or_else(String::new, |cost| format!(", {cost}"));
            let missing =
                missing.as_ref().map_or_else(String::new, |what| format!("; lacks {what}"));
            writeln!(out, "{:<12} here: {source}{cost}{missing}", "")?;
        }
    }
    Ok(Outcome::Done)
}

fn sources(entry: &Entry) -> String {
    entry.sources.iter().map(|source| source.as_str()).collect::<Vec<_>>().join(", ")
}

fn cells(entry: &Entry, points: &[String], here: Option<&Figure>) -> Vec<(&'static str, Value)> {
    let mut cells = vec![
        ("probe", json!(entry.name)),
        ("tells", json!(entry.tells)),
        ("sources", json!(sources(entry))),
        ("points", json!(points.join(", "))),
        ("cost", json!(entry.cost.to_string())),
    ];
    if let Some(Figure { source, cost, missing, .. }) = here {
        cells.extend([
            ("source_here", json!(source.map_or("none", |source| source.as_str()))),
            ("cost_here", json!(cost.map(|cost| cost.to_string()))),
            ("missing", json!(missing)),
        ]);
    }
    cells
}

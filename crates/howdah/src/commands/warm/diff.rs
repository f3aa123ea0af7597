//! `howdah warm diff`: two images side by side.

use std::{io::Write as _, path::PathBuf};

use howdah_warm::diff::{Known, RelationChange, diff};
use serde::Serialize;

use crate::{
    context::Context,
    format::{self, Format},
    outcome::Outcome,
};

/// Compare two images: which relations' pages left the cache, stayed, came.
///
/// Relations are matched by name, so the images may be of two servers. Exits with 3 if --min-stayed is
/// given and less than that share of the first image is in the second.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The image to compare with
    before: PathBuf,
    /// The image to judge
    after: PathBuf,
    /// Percentage of BEFORE's pages that AFTER has to hold
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..=100))]
    min_stayed: Option<u64>,
    /// How to print it
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
}

/// The document of `--format json`. Counts are pages.
#[derive(Serialize)]
struct Document {
    version: u32,
    left: u64,
    stayed: u64,
    came: u64,
    relations: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    database: String,
    relation: String,
    left: u64,
    stayed: u64,
    came: u64,
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let (before, after) = (super::open(&args.before)?, super::open(&args.after)?);
    let rows: Vec<_> = diff(&before, &after).into_iter().map(row).collect();
    let sum = |count: fn(&Row) -> u64| rows.iter().map(count).sum::<u64>();
    let (left, stayed, came) = (sum(|row| row.left), sum(|row| row.stayed), sum(|row| row.came));
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => {
            writeln!(out, "{:>10} {:>10} {:>10}  RELATION", "LEFT", "STAYED", "CAME")?;
            for Row { database, relation, left, stayed, came } in &rows {
                writeln!(out, "{left:>10} {stayed:>10} {came:>10}  {database} {relation}")?;
            }
            writeln!(out, "{left:>10} {stayed:>10} {came:>10}  in all")?;
        }
        Format::Json => {
            let document = Document { version: 1, left, stayed, came, relations: rows };
            format::write_json(&mut out, &document)?;
        }
    }
    let is_enough = |min: u64| stayed * 100 >= (left + stayed) * min;
    Ok(if args.min_stayed.is_none_or(is_enough) { Outcome::Done } else { Outcome::No })
}

fn row(change: RelationChange) -> Row {
    let RelationChange { database, relation, left, stayed, came } = change;
    let relation = match relation {
        Known::Named(name) => name.to_string(),
        Known::File(file) => {
            format!("(file {} in tablespace {})", file.filenode, file.tablespace)
        }
    };
    Row {
        database: database.unwrap_or_else(|| "(shared)".to_owned()),
        relation,
        left,
        stayed,
        came,
    }
}

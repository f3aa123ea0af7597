//! `howdah warm diff`: compares two images.

use std::{io::Write as _, path::PathBuf};

use howdah_warm::diff::{RelationChange, RelationIdentity, diff};
use serde::Serialize;

use crate::{
    context::CommandContext,
    format::{self, Format},
    outcome::CommandOutcome,
};

/// Compare two images: pages removed from the cache, kept and added, by relation.
///
/// Relations are matched by name, so the images may be from different servers. Exits with 3 if
/// --min-kept is given and a smaller share of the first image is in the second.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The first image
    before: PathBuf,
    /// The second image
    after: PathBuf,
    /// Minimum percentage of BEFORE's pages that AFTER must contain
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(0..=100))]
    min_kept: Option<u64>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
}

/// The document of `--format json`. Counts are in pages.
#[derive(Serialize)]
struct DiffDocument {
    version: u32,
    removed: u64,
    kept: u64,
    added: u64,
    relations: Vec<DiffRow>,
}

#[derive(Serialize)]
struct DiffRow {
    database: String,
    relation: String,
    removed: u64,
    kept: u64,
    added: u64,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let (before, after) = (super::open(&args.before)?, super::open(&args.after)?);
    let rows: Vec<_> = diff(&before, &after).into_iter().map(row).collect();
    let sum = |count: fn(&DiffRow) -> u64| rows.iter().map(count).sum::<u64>();
    let (removed, kept, added) =
        (sum(|row| row.removed), sum(|row| row.kept), sum(|row| row.added));
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => {
            writeln!(out, "{:>10} {:>10} {:>10}  RELATION", "REMOVED", "KEPT", "ADDED")?;
            for DiffRow { database, relation, removed, kept, added } in &rows {
                writeln!(out, "{removed:>10} {kept:>10} {added:>10}  {database} {relation}")?;
            }
            writeln!(out, "{removed:>10} {kept:>10} {added:>10}  total")?;
        }
        Format::Json => {
            let document = DiffDocument { version: 1, removed, kept, added, relations: rows };
            format::write_json(&mut out, &document)?;
        }
    }
    let is_enough = |min: u64| kept * 100 >= (removed + kept) * min;
    Ok(if args.min_kept.is_none_or(is_enough) {
        CommandOutcome::Done
    } else {
        CommandOutcome::CheckFailed
    })
}

fn row(change: RelationChange) -> DiffRow {
    let RelationChange { database, relation, removed, kept, added } = change;
    let relation = match relation {
        RelationIdentity::Named(name) => name.to_string(),
        RelationIdentity::File(file) => {
            format!("(file {} in tablespace {})", file.filenode, file.tablespace)
        }
    };
    DiffRow {
        database: database.unwrap_or_else(|| "(shared)".to_owned()),
        relation,
        removed,
        kept,
        added,
    }
}

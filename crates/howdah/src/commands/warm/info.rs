//! `howdah warm info`: describes an image.

use std::{io::Write as _, path::PathBuf};

use howdah_report::cache::{blocks, image};

use super::selection::SelectionArgs;
use crate::{context::CommandContext, errors, format, outcome::CommandOutcome};

/// Show what an image contains: its server, usage counts and relations.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The image to describe
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: InfoFormat,
    /// List the cached blocks: runs of adjacent pages with the same usage count
    #[arg(long, conflicts_with = "limit")]
    blocks: bool,
    /// Number of relations to show, those with most pages first; 0 for all [default: 20 in a table,
    /// all in JSON]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    #[command(flatten)]
    selection: SelectionArgs,
}

/// Value of `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum InfoFormat {
    /// A table for people
    #[default]
    Table,
    /// One JSON document
    Json,
    /// With --blocks: one JSON document per line
    Ndjson,
}

const TABLE_RELATIONS: usize = 20;

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let mut contents = super::open(&args.image)?;
    if args.blocks {
        // Checks the patterns; the runs are selected while they are written.
        let selection = args.selection.check(&contents)?;
        let mut out = std::io::BufWriter::new(ctx.stdout());
        match args.format {
            InfoFormat::Table => blocks::write_table(&mut out, &contents, &selection)?,
            InfoFormat::Json => blocks::write_document(&mut out, &contents, &selection)?,
            InfoFormat::Ndjson => blocks::write_lines(&mut out, &contents, &selection)?,
        }
        out.flush()?;
        return Ok(CommandOutcome::Done);
    }
    contents = args.selection.select(contents)?.image;
    let mut out = ctx.stdout();
    match args.format {
        InfoFormat::Ndjson => {
            return Err(errors::wrong_usage("--format ndjson needs --blocks"));
        }
        InfoFormat::Table => {
            let limit = super::limit(args.limit, TABLE_RELATIONS);
            write!(out, "{}", image::table(&contents, &args.image, limit))?;
        }
        InfoFormat::Json => {
            let limit = super::limit(args.limit, usize::MAX);
            format::write_json(&mut out, &image::document(&contents, limit))?;
        }
    }
    Ok(CommandOutcome::Done)
}

//! `howdah warm info`: describes an image.

use std::{io::Write as _, path::PathBuf};

use howdah_report::cache::image;

use crate::{
    context::CommandContext,
    format::{self, Format},
    outcome::CommandOutcome,
};

/// Show what an image contains: its server, usage counts and relations.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The image to describe
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Number of relations to show, those with most pages first; 0 for all [default: 20 in a table,
    /// all in JSON]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
}

const TABLE_RELATIONS: usize = 20;

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let contents = super::open(&args.image)?;
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => {
            let limit = super::limit(args.limit, TABLE_RELATIONS);
            write!(out, "{}", image::table(&contents, &args.image, limit))?;
        }
        Format::Json => {
            let limit = super::limit(args.limit, usize::MAX);
            format::write_json(&mut out, &image::document(&contents, limit))?;
        }
    }
    Ok(CommandOutcome::Done)
}

//! `howdah warm import` and `export`: converts images from and to contrib's autoprewarm.

use std::{
    fs::{self, File},
    io::{BufReader, Write as _},
    path::PathBuf,
    time::UNIX_EPOCH,
};

use anyhow::Context as _;
use howdah_warm::{autoprewarm, image::SelectedImage};

use super::selection::SelectionArgs;
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Make an image from autoprewarm.blocks, which contrib's pg_prewarm writes to the data directory.
///
/// The file has no names and no usage counts: all pages count as used once, and belong to relations
/// of the cluster that wrote it. The cluster is identified from the data directory that contains
/// the file.
#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The file autoprewarm.blocks
    #[arg(value_name = "BLOCKS")]
    blocks: PathBuf,
    /// The image to write
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// Page size of the server that wrote it
    #[arg(long, value_name = "BYTES", default_value_t = 8192)]
    page_bytes: u32,
}

/// Write an image as autoprewarm.blocks, for contrib's autoprewarm to load at the next start.
///
/// Put it into the data directory of the stopped server that the image is from, or of a physical
/// copy of it.
#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// The image to convert
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "BLOCKS")]
    output: Option<PathBuf>,
    /// Write at most this many pages, hottest first
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    #[command(flatten)]
    selection: SelectionArgs,
}

pub(super) fn import(args: &ImportArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let shown = args.blocks.display();
    let file = File::open(&args.blocks).with_context(|| format!("cannot read {shown}"))?;
    let changed = file.metadata().and_then(|metadata| metadata.modified());
    let changed = changed.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let taken_at_us = changed.and_then(|since| i64::try_from(since.as_micros()).ok()).unwrap_or(0);
    let mut image = autoprewarm::read(BufReader::new(file), args.page_bytes, taken_at_us)
        .with_context(|| format!("cannot read {shown}"))?;
    let folder = std::path::absolute(&args.blocks)?;
    let folder = folder.parent().unwrap_or(&folder);
    let identifier = autoprewarm::system_identifier(folder)
        .with_context(|| format!("cannot read global/pg_control in {}", folder.display()))?;
    image.origin.system_identifier = identifier.unwrap_or(0);
    super::save(ctx, &image, &args.output, 0)?;
    if identifier.is_none() {
        ctx.report(format_args!(
            "{shown} is not in a data directory, so the image does not record which cluster it is \
            from: load it only into that cluster"
        ));
    }
    Ok(CommandOutcome::Done)
}

pub(super) fn export(args: &ExportArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let SelectedImage { image, .. } = args.selection.select(super::open(&args.image)?)?;
    let pages = match &args.output {
        None => {
            let mut out = ctx.stdout();
            let pages = autoprewarm::write(&image, args.limit, &mut out)?;
            out.flush()?;
            pages
        }
        Some(path) => {
            let failed = || format!("cannot write {}", path.display());
            let file = File::create(path).with_context(failed)?;
            let pages = autoprewarm::write(&image, args.limit, &file).with_context(failed);
            let pages =
                pages.and_then(|pages| file.sync_all().map(|()| pages).with_context(failed));
            pages.inspect_err(|_| {
                // Autoprewarm would report a truncated file as corrupted, so remove it.
                let _ = fs::remove_file(path);
            })?
        }
    };
    ctx.report(format_args!("{pages} pages written for autoprewarm"));
    Ok(CommandOutcome::Done)
}

//! `howdah warm import` and `export`: images from and for contrib's autoprewarm.

use std::{
    fs::{self, File},
    io::{BufReader, Write as _},
    path::PathBuf,
    time::UNIX_EPOCH,
};

use anyhow::Context as _;
use howdah_warm::autoprewarm;

use crate::{context::Context, outcome::Outcome};

/// Make an image from autoprewarm.blocks, which contrib's pg_prewarm writes into the data directory.
///
/// That file has no names and no usage counts: all pages count as used once, and belong to relations of
/// the cluster that wrote it. Which one that is, is read from the data directory around the file.
#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// The file autoprewarm.blocks
    #[arg(value_name = "BLOCKS")]
    blocks: PathBuf,
    /// The image to write
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// Bytes of a page of the server it is from
    #[arg(long, value_name = "BYTES", default_value_t = 8192)]
    page_bytes: u32,
}

/// Write an image as autoprewarm.blocks, for contrib's autoprewarm to load at the next start.
///
/// Put it into the data directory of the stopped server the image is from, or of a physical copy of it.
#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The file to write; without it, standard output
    #[arg(short, long, value_name = "BLOCKS")]
    output: Option<PathBuf>,
    /// Only so many pages, the hottest: autoprewarm itself takes them in the order of the disk
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
}

pub(super) fn import(args: &ImportArgs, ctx: &Context) -> anyhow::Result<Outcome> {
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
        ctx.say(format_args!(
            "{shown} does not lie in a data directory, so the image cannot tell which cluster it is \
             from: load it only there"
        ));
    }
    Ok(Outcome::Done)
}

pub(super) fn export(args: &ExportArgs, ctx: &Context) -> anyhow::Result<Outcome> {
    let image = super::open(&args.image)?;
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
                // A cut file would be refused by autoprewarm as corrupted; none is better.
                let _ = fs::remove_file(path);
            })?
        }
    };
    ctx.say(format_args!("{pages} pages written for autoprewarm"));
    Ok(Outcome::Done)
}

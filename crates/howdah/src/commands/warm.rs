//! `howdah warm`: saves the contents of a server's buffer cache to a file, and loads it into a
//! cache.

mod advise;
mod autoprewarm;
mod benchmark;
mod diff;
mod dry_run;
mod dump;
mod follow;
mod info;
mod load;
mod os_cache;
mod selection;
mod table;
mod warm_endpoint;
mod watch;

use std::path::Path;

use anyhow::Context as _;
use howdah_report::cache::image_size;
use howdah_traffic::Timestamp;
use howdah_warm::{
    CacheImage,
    diff::RelationIdentity,
    image::{BodyError, Generations, ImageError},
    load::RelationOutcome,
};

use crate::{
    context::CommandContext,
    errors::{self, WithHint as _},
    outcome::CommandOutcome,
};

/// Save, inspect and load the contents of a server's buffer cache.
///
/// A cache image lists which pages of which relations were in the cache, their usage counts, and
/// which were dirty. It stores relation names, so it can be compared with that of another server,
/// and loaded there.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: WarmCommand,
}

commands! {
    enum WarmCommand {
        Dump(dump::Args) => dump::run,
        Load(load::Args) => load::run,
        Table(table::Args) => table::run,
        Info(info::Args) => info::run,
        Diff(diff::Args) => diff::run,
        Import(autoprewarm::ImportArgs) => autoprewarm::import,
        Export(autoprewarm::ExportArgs) => autoprewarm::export,
        OsCache(os_cache::Args) => os_cache::run,
        Advise(advise::Args) => advise::run,
        Benchmark(benchmark::Args) => benchmark::run,
        Watch(watch::Args) => watch::run,
        Follow(follow::Args) => follow::run,
    }
}

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    args.command.run(ctx)
}

/// Returns the database and the name of a relation, or what identifies it without.
fn relation_label(relation: &RelationOutcome) -> (String, String) {
    let database = relation.database.clone().unwrap_or_else(|| "(shared)".to_owned());
    let name = match &relation.relation {
        RelationIdentity::Named(name) => name.to_string(),
        RelationIdentity::File(file) => {
            format!("(file {} in tablespace {})", file.filenode, file.tablespace)
        }
    };
    (database, name)
}

/// Opens an image, with hints for common errors.
fn open(path: &Path) -> anyhow::Result<CacheImage> {
    let opened = CacheImage::open(path);
    let hint = match &opened {
        Err(ImageError::Body { source: BodyError::NotAnImage, .. }) => {
            Some("`howdah warm import` reads an autoprewarm.blocks")
        }
        Err(ImageError::Body { source: BodyError::Version { .. }, .. }) => {
            Some("a newer howdah wrote it")
        }
        Err(ImageError::Body { .. }) => {
            Some("with --keep, the previous image is next to it as NAME.1")
        }
        _ => None,
    };
    let opened = opened.context("cannot open the image");
    match hint {
        Some(hint) => opened.hint(hint),
        None => opened,
    }
}

/// Saves an image, and reports what it contains.
fn save(ctx: &CommandContext, image: &CacheImage, path: &Path, keep: u32) -> anyhow::Result<()> {
    image.save(path, Generations(keep)).map_err(|error| {
        errors::with_hint(error.into(), "the previous image, if any, is unchanged")
    })?;
    ctx.report(format_args!("{}: {}", path.display(), summary(image)));
    Ok(())
}

/// Describes an image: its size, time and source.
fn summary(image: &CacheImage) -> String {
    let taken = Timestamp::from_micros(image.origin.taken_at_us);
    format!("{}, {taken}, by {}", image_size(image), image.origin.source.name())
}

/// Returns the maximum number of rows to show: `given`, or else `default`. A given 0 stands for all
/// rows.
fn limit(given: Option<usize>, default: usize) -> usize {
    match given {
        Some(0) => usize::MAX,
        Some(limit) => limit,
        None => default,
    }
}

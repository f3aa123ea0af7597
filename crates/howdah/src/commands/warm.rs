//! `howdah warm`: what is in a server's buffer cache, as a file, and back into a cache.

mod advise;
mod autoprewarm;
mod diff;
mod dump;
mod follow;
mod info;
mod load;
mod prove;
mod table;
mod watch;

use std::path::Path;

use anyhow::Context as _;
use howdah_traffic::Timestamp;
use howdah_warm::{
    CacheImage,
    image::{BodyError, Generations, ImageError, Relation},
};
use indicatif::BinaryBytes;

use crate::{
    context::Context,
    errors::{self, WithHint as _},
    outcome::Outcome,
};

/// Save what is in a server's buffer cache, look at it, load it again.
///
/// An image says which pages of which relations were in the cache, how much each was used, and which
/// were dirty. It names relations, so it can be compared with that of another server, and
/// loaded into it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Dump(dump::Args),
    Load(load::Args),
    Table(table::Args),
    Info(info::Args),
    Diff(diff::Args),
    Import(autoprewarm::ImportArgs),
    Export(autoprewarm::ExportArgs),
    Advise(advise::Args),
    Prove(prove::Args),
    Watch(watch::Args),
    Follow(follow::Args),
}

pub(crate) fn run(args: Args, ctx: &Context) -> anyhow::Result<Outcome> {
    match args.command {
        Command::Dump(args) => dump::run(&args, ctx),
        Command::Load(args) => load::run(&args, ctx),
        Command::Table(args) => table::run(&args, ctx),
        Command::Info(args) => info::run(&args, ctx),
        Command::Diff(args) => diff::run(&args, ctx),
        Command::Import(args) => autoprewarm::import(&args, ctx),
        Command::Export(args) => autoprewarm::export(&args, ctx),
        Command::Advise(args) => advise::run(&args, ctx),
        Command::Prove(args) => prove::run(&args, ctx),
        Command::Watch(args) => watch::run(&args, ctx),
        Command::Follow(args) => follow::run(&args, ctx),
    }
}

/// Opens an image that a person named.
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
            Some("the image before it is beside it, as NAME.1, if --keep was given")
        }
        _ => None,
    };
    let opened = opened.context("cannot open the image");
    match hint {
        Some(hint) => opened.hint(hint),
        None => opened,
    }
}

/// Saves an image, and says so.
fn save(ctx: &Context, image: &CacheImage, path: &Path, keep: u32) -> anyhow::Result<()> {
    image.save(path, Generations(keep)).map_err(|error| {
        errors::with_hint(error.into(), "what was at the place of the image before is untouched")
    })?;
    ctx.say(format_args!("{}: {}", path.display(), summary(image)));
    Ok(())
}

/// How much of which cache, when, from where.
fn summary(image: &CacheImage) -> String {
    let taken = Timestamp::from_micros(image.origin.taken_at_us);
    format!("{}, {taken}, by {}", cached(image), image.origin.source.name())
}

/// How much of which cache.
fn cached(image: &CacheImage) -> String {
    let bytes = |pages| BinaryBytes(pages * u64::from(image.origin.page_bytes));
    let pages = image.page_count();
    let of = match image.origin.buffers {
        0 => String::new(),
        buffers => format!(" of {} buffers", bytes(u64::from(buffers))),
    };
    format!("{pages} pages, {}{of}", bytes(pages))
}

/// A relation's database and name, or what stands for them.
fn names(image: &CacheImage, relation: &Relation) -> (String, String) {
    let file = relation.file;
    let database = match (file.database, image.database_name(file.database)) {
        (_, Some(name)) => name.to_owned(),
        (0, None) => "(shared)".to_owned(),
        (oid, None) => format!("(database {oid})"),
    };
    let name = match &relation.name {
        Some(name) => name.to_string(),
        None => format!("(file {} in tablespace {})", file.filenode, file.tablespace),
    };
    (database, name)
}

/// Rows to show: all of them if 0 was typed.
fn limit(typed: Option<usize>, default: usize) -> usize {
    match typed {
        Some(0) => usize::MAX,
        Some(limit) => limit,
        None => default,
    }
}

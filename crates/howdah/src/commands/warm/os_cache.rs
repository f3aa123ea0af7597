//! `howdah warm os-cache`: saves and restores the operating system's page cache of a server's
//! files.

use std::{
    io::Write as _,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
};

use anyhow::{Context as _, bail};
use howdah_connect::{Client, ConnectTarget};
use howdah_warm::{
    CacheImage,
    dump::{self, NamingError},
    image::{ForkBlocks, SelectedImage},
    load::{self, LoadObserver, LoadOptions},
    os_cache::{self, FileGeometry, OsCacheError, RestoreReport},
};
use indicatif::{BinaryBytes, ProgressBar};
use serde::Serialize;

use super::{relation_label, selection::SelectionArgs};
use crate::{
    connection::ConnectionArgs,
    context::CommandContext,
    errors::{self, WithHint as _},
    format::{self, Format},
    outcome::CommandOutcome,
    progress::Total,
    values::{DATA_RATE_MAX, data_rate},
};

/// Save and restore the operating system's page cache of a server's files.
///
/// PostgreSQL reads through this cache, which is usually larger than its own. Both commands run on
/// the server's host, while the server runs or is stopped. They are what pgfincore calls snapshot
/// and restore.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: OsCacheCommand,
}

commands! {
    enum OsCacheCommand {
        Dump(OsCacheDumpArgs) => dump_os_cache,
        Load(OsCacheLoadArgs) => load_os_cache,
    }
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    args.command.run(ctx)
}

/// Save which pages of a server's files the operating system has cached.
///
/// Reads no data, so the cache stays as it is. Runs as the server's OS user or root: the operating
/// system shows what is cached only to the owner of a file. With a server to ask, the image has the
/// names of relations; with only --data-dir, it can be restored by file numbers.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = DUMP_EXAMPLES)]
struct OsCacheDumpArgs {
    /// The server on this host: a URI, a keyword string or a database name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// The image to write
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// The server's data directory; without URI, the server is not connected to
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const DUMP_EXAMPLES: &str = "\
Examples:
  howdah warm os-cache dump postgresql:///shop -o files.cache
  howdah warm os-cache dump --data-dir /var/lib/postgresql/17/main -o files.cache";

/// Read the pages of an image into the operating system's page cache, in disk order.
///
/// Needs only permission to read the server's files. Any image can be loaded, also one of a
/// server's own cache. With a server to ask, relations are found as by `howdah warm load`, renamed
/// and rewritten ones, too; with only --data-dir, by their file numbers, so the image must be
/// from this cluster.
///
/// Exits with 0 if enough of the image is cached at the end, or if the operating system does not
/// show that because the files belong to another user, and with 3 if it is less than
/// --min-resident.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = LOAD_EXAMPLES)]
struct OsCacheLoadArgs {
    /// The image to load
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The server on this host: a URI, a keyword string or a database name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// The server's data directory; without URI, the server is not connected to
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Maximum rate of reading, per second
    #[arg(long, value_name = "SIZE", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: Option<u64>,
    /// Minimum percentage of the image that must be cached at the end
    #[arg(long, value_name = "PERCENT", default_value_t = 90,
        value_parser = clap::value_parser!(u64).range(0..=100))]
    min_resident: u64,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const LOAD_EXAMPLES: &str = "\
Examples:
  howdah warm os-cache load files.cache postgresql:///shop --max-rate 200MB
  howdah warm os-cache load files.cache --data-dir /var/lib/postgresql/17/main";

/// A server's files, and the server if it is to be queried.
struct ServerFiles {
    data_dir: PathBuf,
    geometry: FileGeometry,
    target: Option<ConnectTarget>,
}

impl ServerFiles {
    /// Finds the files by the options of a command. A server is queried unless only a data
    /// directory is given.
    fn find(
        server: Option<&str>,
        connection: &ConnectionArgs,
        data_dir: Option<&PathBuf>,
    ) -> anyhow::Result<Self> {
        if let Some(data_dir) = data_dir
            && server.is_none()
            && !connection.names_a_server()
        {
            let geometry = FileGeometry::default();
            return Ok(Self { data_dir: data_dir.clone(), geometry, target: None });
        }
        let target = connection.target(server)?;
        let mut client = Client::connect(&target.with_application_name("howdah warm"))?;
        let geometry = dump::file_geometry(&mut client)?;
        let data_dir = match data_dir {
            Some(data_dir) => data_dir.clone(),
            None => dump::local_server(&mut client)
                .map_err(anyhow::Error::from)
                .and_then(|server| Ok(server.data_dir()?))
                .context("cannot find the server's data directory")
                .hint("run on the server's host as its OS user, or give --data-dir")?,
        };
        Ok(Self { data_dir, geometry, target: Some(target) })
    }
}

fn dump_os_cache(args: &OsCacheDumpArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let files =
        ServerFiles::find(args.server.as_deref(), &args.connection, args.data_dir.as_ref())?;
    let interrupted = ctx.interrupted();
    let should_continue = || !interrupted.load(Ordering::Relaxed);
    let taken = os_cache::snapshot(&files.data_dir, files.geometry, &should_continue);
    let mut taken = taken.map_err(not_visible)?;
    if !should_continue() {
        bail!("interrupted: no image was written");
    }
    match &files.target {
        Some(target) => {
            let unnamed = dump::name_relations(&mut taken.image, target).map_err(naming_error)?;
            for (database, failure) in unnamed {
                ctx.report(format_args!(
                    "cannot read the names of relations in database {database}: {failure}"
                ));
            }
        }
        None => ctx.report("without a server to ask, the image has no names of relations"),
    }
    let SelectedImage { image, .. } = args.selection.select(taken.image)?;
    super::save(ctx, &image, &args.output, 0)?;
    let page_bytes = u64::from(files.geometry.page_bytes);
    ctx.report(format_args!("{} files, {}", taken.files, BinaryBytes(taken.pages * page_bytes)));
    Ok(CommandOutcome::Done)
}

fn not_visible(error: OsCacheError) -> anyhow::Error {
    match error.source.kind() {
        std::io::ErrorKind::PermissionDenied => {
            errors::with_hint(error.into(), "run as the server's OS user or as root")
        }
        _ => error.into(),
    }
}

fn naming_error(error: NamingError) -> anyhow::Error {
    match &error {
        NamingError::OtherCluster { .. } => {
            errors::with_hint(error.into(), "--data-dir belongs to another server than the URI")
        }
        _ => error.into(),
    }
}

/// The document of `os-cache load --format json`. Counts are in pages.
#[derive(Serialize)]
struct OsCacheLoadDocument {
    version: u32,
    page_bytes: u32,
    seconds: f64,
    /// Share of the pages that are cached at the end, 0 to 1; null if that is not visible.
    share: Option<f64>,
    requested: u64,
    resident_before: Option<u64>,
    resident: Option<u64>,
    missing: u64,
    beyond_end: u64,
    not_found: u64,
    not_selected: u64,
}

fn load_os_cache(args: &OsCacheLoadArgs, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let SelectedImage { image, not_selected } = args.selection.select(super::open(&args.image)?)?;
    let files =
        ServerFiles::find(args.server.as_deref(), &args.connection, args.data_dir.as_ref())?;
    if files.geometry.page_bytes != image.origin.page_bytes {
        bail!(
            "the image has pages of {} bytes, the server has pages of {} bytes",
            image.origin.page_bytes,
            files.geometry.page_bytes
        );
    }
    let progress = RestoreProgress {
        bar: ctx.progress(Total::Count(0), "reading"),
        interrupted: ctx.interrupted(),
    };
    let located = locate(ctx, &image, &files, &progress)?;
    let restored = os_cache::restore(
        &located.blocks,
        &files.data_dir,
        files.geometry,
        args.max_rate,
        &progress,
    );
    progress.bar.finish_and_clear();
    let restored = restored?;
    let share = total_share(&restored, &located);
    let mut out = ctx.stdout();
    match args.format {
        Format::Json => {
            let document = OsCacheLoadDocument {
                version: 1,
                page_bytes: image.origin.page_bytes,
                seconds: restored.elapsed.as_secs_f64(),
                share,
                requested: restored.requested,
                resident_before: restored.resident_before,
                resident: restored.resident,
                missing: restored.missing,
                beyond_end: restored.beyond_end + located.beyond_end,
                not_found: located.not_found,
                not_selected,
            };
            format::write_json(&mut out, &document)?;
        }
        Format::Table => {
            let size = |pages: u64| BinaryBytes(pages * u64::from(image.origin.page_bytes));
            let seconds = restored.elapsed.as_secs_f64();
            writeln!(out, "requested  {} in {seconds:.1} s", size(restored.requested))?;
            for (what, pages) in [
                ("before    ", restored.resident_before.unwrap_or(0)),
                ("missing   ", restored.missing),
                ("beyond end", restored.beyond_end + located.beyond_end),
                ("not found ", located.not_found),
                ("unselected", not_selected),
            ] {
                if pages > 0 {
                    writeln!(out, "{what} {}", size(pages))?;
                }
            }
            if let (Some(share), Some(resident)) = (share, restored.resident) {
                writeln!(out, "{:.1} % is cached ({resident} pages)", share * 100.0)?;
            }
        }
    }
    drop(out);
    if let Some((path, error)) = &restored.first_missing {
        ctx.report(format_args!("missing files, the first: {}: {error}", path.display()));
    }
    if share.is_none() {
        ctx.report("how much is cached is shown only to the files' owner; all pages were read");
    }
    if restored.is_cut_short {
        return Err(errors::with_hint(
            anyhow::anyhow!("interrupted before all pages were read"),
            "run the same command again to continue",
        ));
    }
    let is_enough = share.is_none_or(|share| share * 100.0 >= args.min_resident as f64);
    Ok(if is_enough { CommandOutcome::Done } else { CommandOutcome::CheckFailed })
}

/// Blocks of the present files, and the numbers of pages that are not among them.
struct LocatedPages {
    blocks: Vec<ForkBlocks>,
    not_found: u64,
    beyond_end: u64,
}

/// Maximum number of relations whose problems are reported one by one.
const PROBLEMS_MAX: usize = 20;

/// Returns the share of the image that is cached, with pages that were not found.
fn total_share(restored: &RestoreReport, located: &LocatedPages) -> Option<f64> {
    let expected = restored.requested - restored.beyond_end + located.not_found;
    let share = |resident: u64| (resident as f64 / expected as f64).min(1.0);
    restored.resident.map(|resident| if expected == 0 { 1.0 } else { share(resident) })
}

fn locate(
    ctx: &CommandContext,
    image: &CacheImage,
    files: &ServerFiles,
    observer: &dyn LoadObserver,
) -> anyhow::Result<LocatedPages> {
    let Some(target) = &files.target else {
        let found = howdah_warm::autoprewarm::system_identifier(&files.data_dir)?;
        let expected = image.origin.system_identifier;
        if let Some(found) = found.filter(|found| expected != 0 && *found != expected) {
            return Err(anyhow::anyhow!(
                "the image is from cluster {expected}, but {} is cluster {found}",
                files.data_dir.display()
            ))
            .hint("give the server's URI, to find relations by their names");
        }
        let blocks = os_cache::blocks_by_file(image);
        return Ok(LocatedPages { blocks, not_found: 0, beyond_end: 0 });
    };
    let options = LoadOptions::default();
    let (blocks, outcomes) = load::locate_blocks(image, target, &options, observer)?;
    let mut located = LocatedPages { blocks, not_found: 0, beyond_end: 0 };
    let identifier = howdah_warm::autoprewarm::system_identifier(&files.data_dir)?;
    let is_same_cluster = identifier.is_some_and(|it| it == image.origin.system_identifier);
    let mut problems = 0;
    for (relation, outcome) in image.relations.iter().zip(&outcomes) {
        // A database that allows no connections, as template0, can have no rewritten relations.
        if is_same_cluster && matches!(outcome.problem, Some(load::RelationProblem::Closed)) {
            located.blocks.extend(os_cache::blocks_of(relation));
            continue;
        }
        located.not_found += outcome.pages.not_found;
        located.beyond_end += outcome.pages.beyond_end;
        if let Some(problem) = &outcome.problem {
            problems += 1;
            if problems <= PROBLEMS_MAX {
                let (database, relation) = relation_label(outcome);
                ctx.report(format_args!("{database} {relation}: {problem}"));
            }
        }
    }
    if problems > PROBLEMS_MAX {
        ctx.report(format_args!("{} more relations have problems", problems - PROBLEMS_MAX));
    }
    Ok(located)
}

/// Observer that shows the progress of reading on the terminal.
struct RestoreProgress {
    bar: ProgressBar,
    interrupted: Arc<AtomicBool>,
}

impl LoadObserver for RestoreProgress {
    fn planned(&self, pages: u64) {
        self.bar.set_length(pages);
    }

    fn progressed(&self, pages: u64) {
        self.bar.inc(pages);
    }

    fn should_stop(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

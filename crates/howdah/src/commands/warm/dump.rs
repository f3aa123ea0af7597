//! `howdah warm dump`: saves the current contents of a server's cache to an image.

use std::{path::PathBuf, time::Instant};

use howdah_warm::{
    dump::{self, DumpError, DumpOptions, DumpResult, DumpSource, NotLocal},
    image::SelectedImage,
    metrics::{WarmMetrics, server_label},
};

use super::selection::SelectionArgs;
use crate::{
    connection::ConnectionArgs,
    context::CommandContext,
    errors::{self},
    metrics::MetricsArgs,
    outcome::CommandOutcome,
};

/// Save the current contents of a server's buffer cache.
///
/// On the server's host, as its OS user or root, the shared memory is read from outside: no locks,
/// and no work for the server. Otherwise the extension pg_buffercache is used, which must exist in
/// the database.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: a URI, a keyword string or a database name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// The file to write; an existing image is replaced only when the new one is complete
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// Number of older images to keep, as IMAGE.1, IMAGE.2, …
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    keep: u32,
    /// Where to read the cached pages from
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: PageSourceArg,
    /// Do not save keys of rows, by which pages are found again in rewritten and copied tables
    #[arg(long)]
    no_keys: bool,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm dump postgresql://localhost/shop -o shop.cache
  howdah warm dump -h db1 -d shop -o shop.cache --source pg_buffercache --keep 3";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PageSourceArg {
    /// Shared memory if readable, else pg_buffercache
    #[default]
    Best,
    /// The server's shared memory, from outside
    Memory,
    /// The extension pg_buffercache
    #[value(name = "pg_buffercache")]
    PgBuffercache,
}

impl From<PageSourceArg> for DumpSource {
    fn from(source: PageSourceArg) -> Self {
        match source {
            PageSourceArg::Best => Self::Best,
            PageSourceArg::Memory => Self::Memory,
            PageSourceArg::PgBuffercache => Self::PgBuffercache,
        }
    }
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let target = args.connection.target(args.server.as_deref())?;
    let _metrics = args.metrics.serve(ctx)?;
    let warm_metrics = WarmMetrics::new(ctx.registry(), &server_label(&target));
    let started_at = Instant::now();
    let source = args.source.into();
    let options = DumpOptions { source, row_keys: !args.no_keys, known: None };
    let dumped = dump::dump(&target, options).map_err(dump_error).and_then(|dumped| {
        report_gaps(ctx, &dumped);
        let SelectedImage { image, not_selected } = args.selection.select(dumped.image)?;
        super::save(ctx, &image, &args.output, args.keep)?;
        if not_selected > 0 {
            ctx.report(format_args!("{not_selected} other pages not selected"));
        }
        Ok(image)
    });
    let image = dumped.inspect_err(|_| warm_metrics.record_dump_failure())?;
    warm_metrics.record_dump(started_at.elapsed(), image.page_count(), image.origin.taken_at_us);
    Ok(CommandOutcome::Done)
}

pub(super) fn report_gaps(ctx: &CommandContext, dumped: &DumpResult) {
    if let Some(reason) = &dumped.not_from_memory {
        ctx.report(format_args!(
            "using pg_buffercache, because shared memory was not read: {reason}"
        ));
    }
    for (database, failure) in &dumped.unnamed {
        ctx.report(format_args!(
            "cannot read the names of relations in database {database}: {failure}"
        ));
    }
    if dumped.in_transition > 0 {
        ctx.report(format_args!(
            "buffers left out, because they were being replaced: {}",
            dumped.in_transition
        ));
    }
}

/// Adds a hint to an error that has a known remedy.
pub(super) fn dump_error(error: DumpError) -> anyhow::Error {
    let hint = match &error {
        DumpError::PgBuffercache { source, not_from_memory, .. } => match source.sqlstate() {
            Some("42P01") => Some(format!(
                "run CREATE EXTENSION pg_buffercache in that database{}",
                else_memory(not_from_memory.as_deref())
            )),
            Some("42501") => Some(format!(
                "run GRANT pg_monitor for the role{}",
                else_memory(not_from_memory.as_deref())
            )),
            _ => None,
        },
        DumpError::Memory(NotLocal::Elsewhere) => {
            Some("run on the server's host, or use --source pg_buffercache".to_owned())
        }
        _ => None,
    };
    match hint {
        Some(hint) => errors::with_hint(error.into(), hint),
        None => error.into(),
    }
}

fn else_memory(reason: Option<&NotLocal>) -> String {
    match reason {
        None => String::new(),
        Some(reason) => format!("; shared memory was not read because {reason}"),
    }
}

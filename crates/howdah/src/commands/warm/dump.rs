//! `howdah warm dump`: what is in a server's cache now, into an image.

use std::{path::PathBuf, time::Instant};

use howdah_warm::{
    dump::{self, Choice, DumpError, Dumped, NotLocal},
    metrics::{Numbers, name_of},
};

use crate::{
    connection::ConnectionArgs,
    context::Context,
    errors::{self},
    metrics::MetricsArgs,
    outcome::Outcome,
};

/// Save what is in a server's buffer cache now.
///
/// On the server's own host, as its user or root, the server's memory is read from outside: no lock, no
/// work for the server. Else the extension pg_buffercache is asked, which the database has to have.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: a URI, a keyword string, or a database's name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// The file to write; what is there stays until the new image is whole
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// How many older images to keep, as IMAGE.1, IMAGE.2, …
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    keep: u32,
    /// Where the pages are read
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: Source,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm dump postgresql://localhost/shop -o shop.cache
  howdah warm dump -h db1 -d shop -o shop.cache --source pg_buffercache --keep 3";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Source {
    /// Memory if it can be read, else pg_buffercache
    #[default]
    Best,
    /// The server's memory, from outside
    Memory,
    /// The extension pg_buffercache
    #[value(name = "pg_buffercache")]
    PgBuffercache,
}

impl From<Source> for Choice {
    fn from(source: Source) -> Self {
        match source {
            Source::Best => Self::Best,
            Source::Memory => Self::Memory,
            Source::PgBuffercache => Self::PgBuffercache,
        }
    }
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let target = args.connection.target(args.server.as_deref())?;
    let _metrics = args.metrics.serve(ctx)?;
    let numbers = Numbers::new(ctx.registry(), &name_of(&target));
    let began = Instant::now();
    let dumped = dump::dump(&target, args.source.into()).map_err(explained).and_then(|dumped| {
        say_what_is_missing(ctx, &dumped);
        super::save(ctx, &dumped.image, &args.output, args.keep)?;
        Ok(dumped)
    });
    let Dumped { image, .. } = dumped.inspect_err(|_| numbers.dump_failed())?;
    numbers.dumped(began.elapsed(), image.page_count(), image.origin.taken_at_us);
    Ok(Outcome::Done)
}

pub(super) fn say_what_is_missing(ctx: &Context, dumped: &Dumped) {
    if let Some(reason) = &dumped.not_from_memory {
        ctx.say(format_args!("pg_buffercache was asked, memory was not read: {reason}"));
    }
    for (database, failure) in &dumped.unnamed {
        ctx.say(format_args!("relations of database {database} are without names: {failure}"));
    }
    if dumped.unfinished > 0 {
        ctx.say(format_args!(
            "{} buffers were just changing hands and are left out",
            dumped.unfinished
        ));
    }
}

/// The error, with what to do about it.
pub(super) fn explained(error: DumpError) -> anyhow::Error {
    let hint = match &error {
        DumpError::PgBuffercache { source, not_from_memory, .. } => match source.sqlstate() {
            Some("42P01") => Some(format!(
                "CREATE EXTENSION pg_buffercache in that database{}",
                else_memory(not_from_memory.as_deref())
            )),
            Some("42501") => Some(format!(
                "GRANT pg_monitor to the role{}",
                else_memory(not_from_memory.as_deref())
            )),
            _ => None,
        },
        DumpError::Memory(NotLocal::Elsewhere) => {
            Some("run on the server's host, or take --source pg_buffercache".to_owned())
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
        Some(reason) => format!("; its memory was not read because {reason}"),
    }
}

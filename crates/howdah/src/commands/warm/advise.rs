//! `howdah warm advise`: reports the contents of a server's cache, which relations would fit, and
//! the cost of its memory.

use std::io::Write as _;

use howdah_report::cache::advice;
use howdah_warm::advise::advise;

use super::dump::{PageSourceArg, dump_error, report_gaps};
use crate::{connection::ConnectionArgs, context::CommandContext, format, outcome::CommandOutcome};

/// Show what fills a server's buffer cache, what would fit, and the overhead of its memory.
///
/// Changes nothing. Pages and usage counts are read as by `howdah warm dump`; sizes of relations
/// that are not cached are as of the last VACUUM or ANALYZE.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: a URI, a keyword string or a database name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: AdviceFormat,
    /// Number of relations in each list; 0 for all [default: 15 in a table, all in JSON]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Where to read the cached pages from
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: PageSourceArg,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm advise postgresql://localhost/shop
  howdah warm advise -h db1 -d shop --format json";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum AdviceFormat {
    /// A table for people
    #[default]
    Table,
    /// One JSON document
    Json,
}

const TABLE_RELATIONS: usize = 15;

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let target = args.connection.target(args.server.as_deref())?;
    let found = advise(&target, args.source.into()).map_err(dump_error)?;
    report_gaps(ctx, &found.dumped);
    let mut out = ctx.stdout();
    match args.format {
        AdviceFormat::Table => {
            let limit = super::limit(args.limit, TABLE_RELATIONS);
            write!(out, "{}", advice::table(&found, target.database(), limit))?;
        }
        AdviceFormat::Json => {
            let limit = super::limit(args.limit, usize::MAX);
            format::write_json(&mut out, &advice::document(&found, limit))?;
        }
    }
    Ok(CommandOutcome::Done)
}

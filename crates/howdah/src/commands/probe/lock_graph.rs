//! `howdah probe lock-graph`: shows which sessions wait for which locks, and for whom.

use anyhow::Context as _;
use howdah_collect::MonitorConnection;
use howdah_probe::{RelationNames, by_sql::LockGraph};
use howdah_report::probe::{RowFormat, write_lock_dot, write_lock_graph};

use super::target::TargetArgs;
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Show which sessions wait for which locks now, and which sessions block them.
///
/// Prints a tree: each waiting session is below one that blocks it, with the lock that it waits
/// for, down to the row, and how long. Reads system views only.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: GraphFormat,
}

/// Value of `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum GraphFormat {
    /// A tree for people
    #[default]
    Tree,
    /// The language of Graphviz: `| dot -Tsvg > locks.svg`
    Dot,
    /// One JSON document per session and line
    Ndjson,
    /// Comma-separated values with a header
    Csv,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe lock-graph postgresql://localhost/shop
  howdah probe lock-graph postgresql://localhost/shop --format dot | dot -Tsvg > locks.svg";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let (target, client) = args.target.session()?;
    let mut server = MonitorConnection::connect(&target)
        .with_context(|| format!("cannot query {target} by SQL"))?;
    let mut names = RelationNames::new(Some((target, client)));
    let graph = LockGraph::read(&mut server, &mut names).context("cannot read the locks")?;
    let out = ctx.output();
    match args.format {
        GraphFormat::Dot => write_lock_dot(out, &graph)?,
        GraphFormat::Tree => write_lock_graph(out, RowFormat::Table, &graph)?,
        GraphFormat::Ndjson => write_lock_graph(out, RowFormat::Ndjson, &graph)?,
        GraphFormat::Csv => write_lock_graph(out, RowFormat::Csv, &graph)?,
    }
    Ok(CommandOutcome::Done)
}

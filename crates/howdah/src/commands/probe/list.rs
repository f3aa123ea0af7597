//! `howdah probe list`: lists all probes.

use howdah_probe::{catalogue::PROBES, doctor};
use howdah_report::probe::write_catalogue;

use super::{common::RowFormatArg, target::TargetArgs};
use crate::{context::CommandContext, outcome::CommandOutcome};

/// List all probes, with their metrics, trace points, sources, and costs for the server.
///
/// If a server is named, shows the points in this server, and the best source and measured cost
/// here; otherwise general information.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: RowFormatArg,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe list
  howdah probe list --pid 4711 --format ndjson";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let found = if args.target.is_named() { Some(args.target.find()?) } else { None };
    let server = found.as_ref().map(|found| &found.server);
    let here = server.map(|server| doctor::diagnose(server).metrics).unwrap_or_default();
    let entries: Vec<_> = PROBES.iter().map(|entry| (entry, entry.points(server))).collect();
    write_catalogue(ctx.output(), args.format.into(), &entries, &here)?;
    Ok(CommandOutcome::Done)
}

//! `howdah probe doctor`: shows what can be measured, from which source, and what is missing.

use std::io::Write as _;

use howdah_inspect::{ExecutableState, RunningServer};
use howdah_probe::{
    doctor::{self, ProbeDiagnosis},
    patched_code,
};

use super::target::TargetArgs;
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Show what can be measured on this server, from which source, and what is missing for a better
/// one.
///
/// Attaches nothing to the server and changes nothing, unless --clear is given.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Remove breakpoints that a killed tracer has left in the server's code
    #[arg(long)]
    clear: bool,
}

/// Maximum number of patched symbols to list.
const NAMED_MAX: usize = 8;

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let found = args.target.find()?;
    let server = &found.server;
    let ProbeDiagnosis { kernel, capabilities, metrics, .. } = doctor::diagnose(server);
    let mut out = ctx.stdout();
    let postmaster = server.postmaster();
    writeln!(out, "server      PostgreSQL {}, postmaster {}", server.major(), postmaster.pid())?;
    writeln!(out, "data        {}", server.data_dir()?.display())?;
    let state = match postmaster.executable_state()? {
        ExecutableState::InPlace => "",
        ExecutableState::Replaced => "  (the file has been replaced since: it was upgraded)",
        ExecutableState::Deleted => "  (the file no longer exists: it was upgraded)",
    };
    writeln!(out, "binary      {}{state}", postmaster.executable_path()?.display())?;
    let build_id =
        server.binary().build_id().map_or_else(|| "none".to_owned(), ToString::to_string);
    writeln!(out, "build id    {build_id}")?;
    let markers = server.binary().usdt_probes().len();
    let built = if markers == 0 { " (built without --enable-dtrace)" } else { "" };
    if args.clear {
        patched_code::clear_breakpoints(server)?;
    }
    writeln!(out, "code        {}", state_of_code(server)?)?;
    writeln!(out, "probes      {markers} USDT probes{built}")?;
    writeln!(out, "kernel      {kernel}")?;
    let may = if capabilities.may_trace() {
        "can run BPF programs".to_owned()
    } else {
        format!("cannot run BPF programs: missing {}", capabilities.missing())
    };
    writeln!(out, "privileges  {may}")?;
    writeln!(out, "\n{:<12} {:<7} {:<15} missing", "metric", "source", "cost")?;
    for metric in metrics {
        let source = metric.source.map_or("none", |source| source.as_str());
        let cost = metric.cost.map_or_else(|| "-".to_owned(), |cost| cost.to_string());
        let missing = metric.missing.unwrap_or_default();
        writeln!(out, "{:<12} {source:<7} {cost:<15} {missing}", metric.name)?;
    }
    Ok(CommandOutcome::Done)
}

/// Describes breakpoints in the server's code, and their consequences.
fn state_of_code(server: &RunningServer) -> anyhow::Result<String> {
    let places = patched_code::patched_symbols(server)?;
    if places.is_empty() {
        return Ok("unmodified".to_owned());
    }
    let mut named: Vec<_> = places.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if places.len() > NAMED_MAX {
        named.push(format!("{} more", places.len() - NAMED_MAX));
    }
    Ok(format!(
        "breakpoints at {}\n            \
         of an attached tracer; if none is attached, of one that was killed, and each hit costs\n            \
         time until the server restarts, or until `probe doctor --clear`",
        named.join(", ")
    ))
}

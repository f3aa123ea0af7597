//! `howdah probe doctor`: what can be measured here, by what, and what is missing.

use std::io::Write as _;

use howdah_inspect::{ExecutableState, Server};
use howdah_probe::{
    altered,
    doctor::{self, Diagnosis},
};

use super::target::TargetArgs;
use crate::{context::Context, outcome::Outcome};

/// What can be measured on this server, from which source, and what is missing for a better one.
///
/// Attaches nothing to the server and changes nothing, unless told to clear it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Take out breakpoints that a killed tracer has left in the server's code
    #[arg(long)]
    clear: bool,
}

/// Most altered places that are named.
const NAMED_MAX: usize = 8;

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let found = args.target.find()?;
    let server = &found.server;
    let Diagnosis { kernel, capabilities, figures, .. } = doctor::diagnose(server);
    let mut out = ctx.stdout();
    let postmaster = server.postmaster();
    writeln!(out, "server      PostgreSQL {}, postmaster {}", server.major(), postmaster.pid())?;
    writeln!(out, "data        {}", server.data_dir()?.display())?;
    let state = match postmaster.executable_state()? {
        ExecutableState::InPlace => "",
        ExecutableState::Replaced => "  (the file there is another one by now: it was upgraded)",
        ExecutableState::Deleted => "  (the file is not there any more: it was upgraded)",
    };
    writeln!(out, "binary      {}{state}", postmaster.executable_path()?.display())?;
    let build_id =
        server.binary().build_id().map_or_else(|| "none".to_owned(), ToString::to_string);
    writeln!(out, "build id    {build_id}")?;
    let markers = server.binary().markers().len();
    let built = if markers == 0 { " (built without --enable-dtrace)" } else { "" };
    if args.clear {
        altered::clear(server)?;
    }
    writeln!(out, "code        {}", state_of_code(server)?)?;
    writeln!(out, "markers     {markers} places{built}")?;
    writeln!(out, "kernel      {kernel}")?;
    let may = match capabilities.may_trace() {
        true => "may run programs in the kernel".to_owned(),
        false => format!("may not run programs in the kernel: needs {}", capabilities.missing()),
    };
    writeln!(out, "we          {may}")?;
    writeln!(out, "\n{:<12} {:<7} {:<15} what is missing", "figure", "source", "cost")?;
    for figure in figures {
        let source = figure.source.map_or("none", |source| source.as_str());
        let cost = figure.cost.map_or_else(|| "-".to_owned(), |cost| cost.to_string());
        let missing = figure.missing.unwrap_or_default();
        writeln!(out, "{:<12} {source:<7} {cost:<15} {missing}", figure.name)?;
    }
    Ok(Outcome::Done)
}

/// Whether there are breakpoints in the server's code, and what that means.
fn state_of_code(server: &Server) -> anyhow::Result<String> {
    let places = altered::places(server)?;
    if places.is_empty() {
        return Ok("as in the file".to_owned());
    }
    let mut named: Vec<_> = places.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if places.len() > NAMED_MAX {
        named.push(format!("{} more", places.len() - NAMED_MAX));
    }
    Ok(format!(
        "breakpoints at {}\n            \
         of a tracer that is attached; if none is, of one that was killed while it attached, and each \
         hit costs\n            until the server starts again, or until `probe doctor --clear`",
        named.join(", ")
    ))
}

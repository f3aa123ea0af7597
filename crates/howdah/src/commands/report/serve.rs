//! `howdah report serve`: pages with the reports of past rehearsals.

use std::{io::Write as _, net::SocketAddr, path::PathBuf};

use howdah_http::server::{PageAccess, PageServerError};
use howdah_rehearse::{ReportServer, ReportServerError};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    context::CommandContext, errors::WithHint as _, notify::service_state, outcome::CommandOutcome,
    values,
};

/// Serve the reports of past rehearsals as web pages on this machine.
///
/// Lists the rehearsals in a folder and its subfolders, the newest first, with their verdicts, and
/// serves their reports. Only files that `howdah rehearse` writes as reports are served, never
/// runs or captures, and symbolic links are not followed. Ctrl-C and SIGTERM end it.
///
/// All users of this machine can read the pages, without authentication. Requests that web pages of
/// other sites cause are refused.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Folder with output folders of `howdah rehearse`, or one of them
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0",
          value_parser = values::listen_address)]
    listen: SocketAddr,
    /// Allow a --listen address that other machines can reach: everyone there can read the reports
    #[arg(long)]
    allow_remote: bool,
    /// Serve requests to this host name, as from a reverse proxy; repeatable
    #[arg(long, value_name = "NAME")]
    host_name: Vec<String>,
}

const EXAMPLES: &str = "\
Examples:
  howdah report serve rehearsals
  howdah report serve rehearsals --listen 127.0.0.1:8080";

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    // Handlers are installed before the address is known, so that no early signal is missed.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let access = PageAccess { allow_remote: args.allow_remote, host_names: args.host_name.clone() };
    let server = ReportServer::start(args.folder.clone(), args.listen, &access);
    let server = match server {
        Err(error @ ReportServerError::Server(PageServerError::NotLoopback(_))) => {
            Err(error).hint("--allow-remote allows it, without any authentication")?
        }
        Err(error @ ReportServerError::Server(_)) => {
            Err(error).hint("--listen 127.0.0.1:0 picks a free port")?
        }
        server => server?,
    };
    let mut out = ctx.stdout();
    writeln!(out, "http://{}/", server.address())?;
    out.finish()?;
    tracing::info!(address = %server.address(), "serving reports");
    service_state("READY=1");
    signals.forever().next();
    service_state("STOPPING=1");
    drop(server);
    Ok(CommandOutcome::Done)
}

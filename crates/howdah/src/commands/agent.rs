//! `howdah agent`: serves figures of a server's processes to `howdah top` on another host.

use std::{net::SocketAddr, path::PathBuf};

use anyhow::Context as _;
use howdah_http::server::{MutualTls, PageServerError};
use howdah_top::host::agent::{AgentServer, AgentServerError};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use super::probe::target::TargetArgs;
use crate::{
    context::CommandContext, errors::WithHint as _, notify::service_state, outcome::CommandOutcome,
    values,
};

/// Serve CPU, memory and disk figures of a server to `howdah top` on another host.
///
/// Runs on the server's host, as the server's OS user or as root, and only reads: `howdah top
/// --agent URL` then shows the same columns and header figures as for a server on its own host. The
/// figures are numbers of the server's processes and of the host: no statements, no command lines,
/// and nothing about other processes. The server is found again after a restart.
///
/// By default, only programs on this host can connect, as through an SSH tunnel. On any other
/// address, --tls-cert, --tls-key and --tls-client-ca are required: clients then need a certificate
/// of that CA. Ctrl-C and SIGTERM end it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES,
          mut_arg("server", |arg| arg.help("The server: a URI, a keyword string or a database name")))]
pub(crate) struct Args {
    /// Address to listen on; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9190",
          value_parser = values::listen_address)]
    listen: SocketAddr,
    /// The agent's certificate, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_client_ca"])]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_client_ca"])]
    tls_key: Option<PathBuf>,
    /// The CA whose certificates clients need
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah agent --data-dir /var/lib/postgresql/18/main
  ssh -L 9190:127.0.0.1:9190 db1   # then: howdah top -h db1 --agent http://127.0.0.1:9190
  howdah agent --data-dir /var/lib/postgresql/18/main --listen 10.0.0.5:9190 \\
    --tls-cert agent.crt --tls-key agent.key --tls-client-ca clients-ca.crt";

pub(crate) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    // Handlers are installed before the address is known, so that no early signal is missed.
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let tls = args.mutual_tls()?;
    let server = args.target.find()?.server;
    let agent = match AgentServer::start(server, args.listen, tls.as_ref()) {
        Err(error @ AgentServerError::Http(PageServerError::NotLoopback(_))) => Err(error).hint(
            "serve other machines with --tls-cert, --tls-key and --tls-client-ca, or listen \
                on 127.0.0.1 and connect through an SSH tunnel",
        )?,
        Err(error @ AgentServerError::Http(_)) => {
            Err(error).hint("--listen 127.0.0.1:0 picks a free port")?
        }
        agent => agent?,
    };
    let scheme = if tls.is_some() { "https" } else { "http" };
    ctx.announce(format_args!("agent: {scheme}://{}", agent.address()));
    tracing::info!(address = %agent.address(), tls = tls.is_some(), "serving figures");
    service_state("READY=1");
    signals.forever().next();
    service_state("STOPPING=1");
    drop(agent);
    Ok(CommandOutcome::Done)
}

impl Args {
    fn mutual_tls(&self) -> anyhow::Result<Option<MutualTls>> {
        let files = (&self.tls_cert, &self.tls_key, &self.tls_client_ca);
        let (Some(certificate), Some(key), Some(client_ca)) = files else { return Ok(None) };
        let tls = MutualTls::load(certificate, key, client_ca);
        tls.context("cannot set up TLS").map(Some)
    }
}

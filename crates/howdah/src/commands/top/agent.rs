//! Options for figures of servers on other hosts, from agents there.

use std::path::PathBuf;

use anyhow::Context as _;
use howdah_http::client::EndpointTls;
use howdah_top::host::AgentEndpoint;

use crate::errors::{self, WithHint as _};

/// Agents, and how they are authenticated.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Agent")]
pub(super) struct AgentArgs {
    /// `howdah agent` on the server's host, for figures of its processes: http://127.0.0.1:PORT
    /// through a tunnel, or https://HOST:PORT; repeatable, the first for the first server
    #[arg(long, value_name = "URL")]
    agent: Vec<String>,
    /// The CA of the agents' certificates, instead of the system's
    #[arg(long, value_name = "FILE")]
    agent_ca: Option<PathBuf>,
    /// The certificate with which agents know this client
    #[arg(long, value_name = "FILE", requires = "agent_key")]
    agent_cert: Option<PathBuf>,
    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires = "agent_cert")]
    agent_key: Option<PathBuf>,
}

impl AgentArgs {
    /// Returns the agents, the first for the first of the servers.
    pub(super) fn endpoints(&self, servers: usize) -> anyhow::Result<Vec<AgentEndpoint>> {
        if self.agent.len() > servers {
            return Err(errors::wrong_usage("there are more --agent options than servers"));
        }
        let identity = self.agent_cert.clone().zip(self.agent_key.clone());
        let tls = EndpointTls { ca_file: self.agent_ca.clone(), identity };
        let has_tls = tls.ca_file.is_some() || tls.identity.is_some();
        if has_tls && !self.agent.iter().any(|url| url.starts_with("https:")) {
            return Err(errors::wrong_usage(
                "--agent-ca, --agent-cert and --agent-key apply to an --agent https://HOST:PORT",
            ));
        }
        let endpoint = |url: &String| {
            AgentEndpoint::new(url, &tls)
                .context("invalid value of --agent, or of its certificates")
                .hint("write --agent http://127.0.0.1:9190, or https://HOST:9190 with --agent-cert")
        };
        self.agent.iter().map(endpoint).collect()
    }
}

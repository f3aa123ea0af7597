//! `-h -p -U -d` and a connection string: how every command is told of a server.

use anyhow::Context as _;
use howdah_connect::{Client, ConnectError, ConnectFailure, Environment, Target, Words};

use crate::errors::WithHint as _;

/// The words of psql. Flatten into `Args` of a command that has `disable_help_flag`, for `-h` is the
/// host here as it is there.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArgs {
    /// Host name, address or socket directory of the server
    #[arg(short = 'h', long, value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// Port of the server
    #[arg(short, long, value_name = "PORT")]
    pub(crate) port: Option<String>,
    /// Role to log in as
    #[arg(short = 'U', long, value_name = "ROLE")]
    pub(crate) username: Option<String>,
    /// Database, or a connection string
    #[arg(short, long, value_name = "NAME")]
    pub(crate) dbname: Option<String>,
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub(crate) help: Option<bool>,
}

impl ConnectionArgs {
    /// Whether one of them says which server is meant.
    pub(crate) fn names_a_server(&self) -> bool {
        self.host.is_some() || self.port.is_some() || self.dbname.is_some()
    }

    /// Resolves them, together with a connection string, as libpq would.
    pub(crate) fn target(&self, conninfo: Option<&str>) -> anyhow::Result<Target> {
        self.target_in(conninfo, &Environment::from_process())
    }

    /// The same in an environment that somebody added to.
    pub(crate) fn target_in(
        &self,
        conninfo: Option<&str>,
        environment: &Environment,
    ) -> anyhow::Result<Target> {
        let words = Words {
            conninfo: conninfo.map(str::to_owned),
            host: self.host.clone(),
            port: self.port.clone(),
            user: self.username.clone(),
            database: self.dbname.clone(),
        };
        let target = Target::resolve(&words, environment)
            .context("cannot make sense of the connection settings")?;
        for warning in target.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(target)
    }
}

/// Connects, or says which server could not be reached and what to look at.
pub(crate) fn connect(target: &Target) -> anyhow::Result<Client> {
    let connected = Client::connect(target);
    let hint = connected.as_ref().err().and_then(advice);
    let connected = connected.with_context(|| format!("cannot connect to {target}"));
    match hint {
        Some(hint) => connected.hint(hint),
        None => connected,
    }
}

/// What to look at, if the failure tells.
fn advice(error: &ConnectError) -> Option<&'static str> {
    let ConnectError::Failed { failures } = error else { return None };
    if let Some(code) = error.sqlstate() {
        return Some(match code {
            // invalid_password, and what pg_hba.conf refuses or a role may not.
            "28P01" => "is the password in ~/.pgpass or PGPASSWORD the one of this role?",
            "28000" => "does pg_hba.conf let this role in from here, and may it log in?",
            "3D000" => "name a database that is there, by -d or in the connection string",
            "42501" => "the role needs the right to CONNECT to this database",
            "53300" => "the server has no connection left: see max_connections",
            "57P03" => "the server is starting or stopping: try again in a moment",
            _ => return None,
        });
    }
    Some(match &failures.last()?.cause {
        ConnectFailure::Lookup { .. } => {
            "is the host name right, and does this machine resolve it?"
        }
        ConnectFailure::Unreachable(_) | ConnectFailure::TimedOut { .. } => {
            "is the server running there, and does it listen on this address and port?"
        }
        ConnectFailure::Protocol(_) => "give the password in ~/.pgpass or PGPASSWORD",
        ConnectFailure::LoginRefused(_) => "require_auth and channel_binding say what is allowed",
        ConnectFailure::Negotiation(_) | ConnectFailure::Handshake(_) => {
            "sslmode and sslrootcert say what is wanted of TLS"
        }
        _ => return None,
    })
}

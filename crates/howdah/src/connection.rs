//! Options that name a server in every command: `-h -p -U -d` and a connection string.

use anyhow::Context as _;
use howdah_connect::{
    Client, ConnParams, ConnectError, ConnectFailure, ConnectTarget, Environment,
};

use crate::errors::WithHint as _;

/// Connection options named as in psql. Flatten into the `Args` of a command with
/// `disable_help_flag`, because `-h` is the host, as in psql.
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
    /// Whether any option names a server.
    pub(crate) fn names_a_server(&self) -> bool {
        self.host.is_some() || self.port.is_some() || self.dbname.is_some()
    }

    /// Resolves the options, together with a connection string, as libpq does.
    pub(crate) fn target(&self, conninfo: Option<&str>) -> anyhow::Result<ConnectTarget> {
        self.target_with_environment(conninfo, &Environment::from_process())
    }

    /// Like [`Self::target`], with the given environment.
    pub(crate) fn target_with_environment(
        &self,
        conninfo: Option<&str>,
        environment: &Environment,
    ) -> anyhow::Result<ConnectTarget> {
        let params = ConnParams {
            conninfo: conninfo.map(str::to_owned),
            host: self.host.clone(),
            port: self.port.clone(),
            user: self.username.clone(),
            database: self.dbname.clone(),
        };
        let target =
            ConnectTarget::resolve(&params, environment).context("invalid connection settings")?;
        for warning in target.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(target)
    }
}

/// Connects; an error names the server and hints at what to check.
pub(crate) fn connect(target: &ConnectTarget) -> anyhow::Result<Client> {
    let connected = Client::connect(target);
    let hint = connected.as_ref().err().and_then(connect_hint);
    let connected = connected.with_context(|| format!("cannot connect to {target}"));
    match hint {
        Some(hint) => connected.hint(hint),
        None => connected,
    }
}

/// Returns a hint on what to check, for failures with a known cause.
fn connect_hint(error: &ConnectError) -> Option<&'static str> {
    let ConnectError::Failed { failures } = error else { return None };
    if let Some(code) = error.sqlstate() {
        return Some(match code {
            // invalid_password; 28000 and 42501 are refused by pg_hba.conf or for missing
            // privileges.
            "28P01" => "check that ~/.pgpass or PGPASSWORD has the password of this role",
            "28000" => {
                "check that pg_hba.conf allows this role from this host, and that the role has LOGIN"
            }
            "3D000" => "name an existing database with -d or in the connection string",
            "42501" => "the role needs the CONNECT privilege on this database",
            "53300" => "the server has no free connection slots: see max_connections",
            "57P03" => "the server is starting or shutting down: try again in a moment",
            _ => return None,
        });
    }
    Some(match &failures.last()?.cause {
        ConnectFailure::Lookup { .. } => {
            "check the host name, and that this machine can resolve it"
        }
        ConnectFailure::Unreachable(_) | ConnectFailure::TimedOut { .. } => {
            "check that the server is running there and listening on this address and port"
        }
        ConnectFailure::Protocol(_) => "provide the password in ~/.pgpass or PGPASSWORD",
        ConnectFailure::LoginRefused(_) => "require_auth and channel_binding set what is allowed",
        ConnectFailure::Negotiation(_) | ConnectFailure::Handshake(_) => {
            "sslmode and sslrootcert set what is required of TLS"
        }
        _ => return None,
    })
}

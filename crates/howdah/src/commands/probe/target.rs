//! Finds the server to probe, and opens a session for relation names.

use std::path::PathBuf;

use anyhow::Context as _;
use howdah_connect::{Client, ConnectTarget};
use howdah_inspect::{ContainerId, InspectError, ProcessError, RunningServer};
use howdah_warm::dump::{NotLocal, local_server};

use super::source::SourceName;
use crate::{
    connection::{self, ConnectionArgs},
    errors::{self, WithHint as _},
};

/// Names a server: by one of its processes, its data directory, its container, or a connection.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::commands) struct TargetArgs {
    /// The server: a URI, a keyword string or a database name; enables relation names
    #[arg(value_name = "URI", conflicts_with_all = ["pid", "data_dir", "container"])]
    server: Option<String>,
    /// Any process of the server
    #[arg(long, value_name = "PID", conflicts_with_all = ["data_dir", "container"])]
    pid: Option<u32>,
    /// The server's data directory
    #[arg(long, value_name = "DIR", conflicts_with = "container")]
    data_dir: Option<PathBuf>,
    /// The server's container: its ID, or the first twelve digits of it
    #[arg(long, value_name = "ID")]
    container: Option<ContainerId>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// A server whose processes are on this host.
#[derive(Debug)]
pub(in crate::commands) struct LocalServer {
    pub(in crate::commands) server: RunningServer,
    /// A session for looking up relation names; `None` if no connection was named.
    pub(super) session: Option<(ConnectTarget, Client)>,
}

/// A server, and the way in which a probe can access it.
#[derive(Debug)]
pub(super) enum ServerAccess {
    /// The server's processes are accessible.
    Local(Box<LocalServer>),
    /// The server is probed by SQL: this was requested, or its processes are not accessible.
    Sql(SqlTarget),
}

/// A server that is probed by SQL.
#[derive(Debug)]
pub(super) struct SqlTarget {
    pub(super) target: Box<ConnectTarget>,
    /// The reason why the server's processes are not accessed.
    pub(super) reason: String,
}

impl TargetArgs {
    /// Whether any option names a server.
    pub(super) fn is_named(&self) -> bool {
        self.server.is_some()
            || self.pid.is_some()
            || self.data_dir.is_some()
            || self.container.is_some()
            || self.connection.names_a_server()
    }

    /// Whether the server is named by a connection rather than by its processes.
    pub(super) fn is_connection(&self) -> bool {
        self.pid.is_none() && self.data_dir.is_none() && self.container.is_none()
    }

    /// Finds the server's processes; an error if they are not on this host or not accessible.
    pub(in crate::commands) fn find(&self) -> anyhow::Result<LocalServer> {
        match self.by_process() {
            Some(opened) => {
                let hint = opened.as_ref().err().and_then(inspect_hint);
                let opened = opened.context("cannot inspect the server");
                let server = match hint {
                    Some(hint) => opened.hint(hint)?,
                    None => opened?,
                };
                Ok(LocalServer { server, session: None })
            }
            None => {
                let (target, mut client) = self.connect()?;
                let server = local_server(&mut client).map_err(not_local_error)?;
                Ok(LocalServer { server, session: Some((target, client)) })
            }
        }
    }

    /// Finds the server's processes, unless the source is [`SourceName::Sql`]. If they are not
    /// accessible, falls back to SQL, provided that a connection was named and the source is
    /// [`SourceName::Best`].
    pub(super) fn reach(&self, source: SourceName) -> anyhow::Result<ServerAccess> {
        let is_by_process =
            self.pid.is_some() || self.data_dir.is_some() || self.container.is_some();
        if is_by_process {
            return match source {
                SourceName::Sql => Err(errors::wrong_usage("--source sql requires a URI")),
                _ => Ok(ServerAccess::Local(Box::new(self.find()?))),
            };
        }
        let (target, mut client) = self.connect()?;
        if source == SourceName::Sql {
            return Ok(ServerAccess::Sql(SqlTarget {
                target: Box::new(target),
                reason: "--source sql".to_owned(),
            }));
        }
        match local_server(&mut client) {
            Ok(server) => {
                let session = Some((target, client));
                Ok(ServerAccess::Local(Box::new(LocalServer { server, session })))
            }
            Err(error) if source == SourceName::Best => {
                let reason = match error {
                    NotLocal::Elsewhere => ELSEWHERE.to_owned(),
                    error => format!("{:#}", anyhow::Error::from(error)),
                };
                Ok(ServerAccess::Sql(SqlTarget { target: Box::new(target), reason }))
            }
            Err(error) => Err(not_local_error(error)),
        }
    }

    fn by_process(&self) -> Option<Result<RunningServer, InspectError>> {
        match (self.pid, &self.data_dir, &self.container) {
            (Some(pid), ..) => Some(RunningServer::from_pid(pid)),
            (_, Some(data_dir), _) => Some(RunningServer::in_data_dir(data_dir)),
            (.., Some(container)) => Some(RunningServer::in_container(container)),
            (None, None, None) => None,
        }
    }

    /// Connects to the server, which must be named by a connection.
    pub(super) fn session(&self) -> anyhow::Result<(ConnectTarget, Client)> {
        if self.is_connection() {
            return self.connect();
        }
        Err(errors::wrong_usage(
            "locks are read over SQL: name the server by a URI instead of a process, directory or container",
        ))
    }

    fn connect(&self) -> anyhow::Result<(ConnectTarget, Client)> {
        let target = self.connection.target(self.server.as_deref())?;
        let client = connection::connect(&target)?;
        Ok((target, client))
    }
}

const ELSEWHERE: &str = "the server runs on another host, or in a container";

fn not_local_error(error: NotLocal) -> anyhow::Error {
    match error {
        NotLocal::Elsewhere => errors::with_hint(
            error.into(),
            "run probes on the server's host, in its process namespace; use --pid, --data-dir or \
            --container to probe a server in a container from the host",
        ),
        _ => error.into(),
    }
}

fn inspect_hint(error: &InspectError) -> Option<&'static str> {
    match error {
        InspectError::Process(ProcessError::Denied { .. })
            if rustix::process::geteuid().is_root() =>
        {
            Some("root lacks CAP_SYS_PTRACE here: removed by a container or a security module")
        }
        InspectError::Process(ProcessError::Denied { .. } | ProcessError::LockFile { .. }) => {
            Some("run as the server's OS user or as root")
        }
        InspectError::Process(ProcessError::NotPostgres { .. }) => Some(
            "the first line of postmaster.pid in the data directory is the postmaster's process id",
        ),
        _ => None,
    }
}

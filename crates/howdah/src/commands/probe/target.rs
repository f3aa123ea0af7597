//! Which server is meant, and the session by which its relations have names.

use std::path::PathBuf;

use anyhow::Context as _;
use howdah_connect::{Client, Target};
use howdah_inspect::{ContainerId, Error, ProcessError, Server};
use howdah_warm::dump::{NotLocal, local_server};

use super::watch::SourceName;
use crate::{
    connection::{self, ConnectionArgs},
    errors::{self, WithHint as _},
};

/// How a server is named: by one of its processes, by its data directory, or by a connection.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TargetArgs {
    /// The server: a URI, a keyword string, or a database's name. With it, relations have names
    #[arg(value_name = "URI", conflicts_with_all = ["pid", "data_dir", "container"])]
    server: Option<String>,
    /// Any process of the server
    #[arg(long, value_name = "PID", conflicts_with_all = ["data_dir", "container"])]
    pid: Option<u32>,
    /// The server's data directory
    #[arg(long, value_name = "DIR", conflicts_with = "container")]
    data_dir: Option<PathBuf>,
    /// The container that the server runs in: its id, or the first twelve digits of it
    #[arg(long, value_name = "ID")]
    container: Option<ContainerId>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// The server, found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) server: Server,
    /// Where relations can be asked for.
    pub(super) session: Option<(Target, Client)>,
}

/// A server, as near as one could come to it.
#[derive(Debug)]
pub(super) enum Reached {
    /// Its processes are here.
    Inside(Box<Found>),
    /// It can only be asked.
    Outside(Outside),
}

/// A server that is asked by SQL.
#[derive(Debug)]
pub(super) struct Outside {
    pub(super) target: Box<Target>,
    /// Why it is not looked at itself.
    pub(super) reason: String,
}

impl TargetArgs {
    /// Whether some server is named.
    pub(super) fn is_named(&self) -> bool {
        self.server.is_some()
            || self.pid.is_some()
            || self.data_dir.is_some()
            || self.container.is_some()
            || self.connection.names_a_server()
    }

    /// The server's processes.
    pub(super) fn find(&self) -> anyhow::Result<Found> {
        match self.by_process() {
            Some(opened) => {
                let hint = opened.as_ref().err().and_then(advice);
                let opened = opened.context("cannot look at the server");
                let server = match hint {
                    Some(hint) => opened.hint(hint)?,
                    None => opened?,
                };
                Ok(Found { server, session: None })
            }
            None => {
                let (target, mut client) = self.connect()?;
                let server = local_server(&mut client).map_err(explained)?;
                Ok(Found { server, session: Some((target, client)) })
            }
        }
    }

    /// The server's processes, or a session where it has none here and the source may be any.
    pub(super) fn reach(&self, source: SourceName) -> anyhow::Result<Reached> {
        let is_by_process =
            self.pid.is_some() || self.data_dir.is_some() || self.container.is_some();
        if is_by_process {
            return match source {
                SourceName::Sql => {
                    Err(errors::wrong_usage("--source sql: name the server by a URI"))
                }
                _ => Ok(Reached::Inside(Box::new(self.find()?))),
            };
        }
        let (target, mut client) = self.connect()?;
        if source == SourceName::Sql {
            return Ok(Reached::Outside(Outside {
                target: Box::new(target),
                reason: "--source sql".to_owned(),
            }));
        }
        match local_server(&mut client) {
            Ok(server) => {
                let session = Some((target, client));
                Ok(Reached::Inside(Box::new(Found { server, session })))
            }
            Err(error) if source == SourceName::Best => {
                let reason = match error {
                    NotLocal::Elsewhere => ELSEWHERE.to_owned(),
                    error => format!("{:#}", anyhow::Error::from(error)),
                };
                Ok(Reached::Outside(Outside { target: Box::new(target), reason }))
            }
            Err(error) => Err(explained(error)),
        }
    }

    fn by_process(&self) -> Option<Result<Server, Error>> {
        match (self.pid, &self.data_dir, &self.container) {
            (Some(pid), ..) => Some(Server::with_process(pid)),
            (_, Some(data_dir), _) => Some(Server::in_data_dir(data_dir)),
            (.., Some(container)) => Some(Server::in_container(container)),
            (None, None, None) => None,
        }
    }

    fn connect(&self) -> anyhow::Result<(Target, Client)> {
        let target = self.connection.target(self.server.as_deref())?;
        let client = connection::connect(&target)?;
        Ok((target, client))
    }
}

const ELSEWHERE: &str = "the server runs on another host, or in a container";

fn explained(error: NotLocal) -> anyhow::Error {
    match error {
        NotLocal::Elsewhere => errors::with_hint(
            error.into(),
            "probes run on the server's own host, in its process namespace; with --pid, --data-dir or \
             --container a container's server can be named from the host",
        ),
        _ => error.into(),
    }
}

fn advice(error: &Error) -> Option<&'static str> {
    match error {
        Error::Process(ProcessError::Denied { .. }) if rustix::process::geteuid().is_root() => {
            Some(
                "root lacks CAP_SYS_PTRACE over it here: a container or a security module takes that away",
            )
        }
        Error::Process(ProcessError::Denied { .. }) => Some("run as the server's user, or as root"),
        Error::Process(ProcessError::NotPostgres { .. }) => Some(
            "the first line of postmaster.pid in the data directory is a process of the server",
        ),
        _ => None,
    }
}

//! The state of one lab, as stored in the state directory.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::{
    cluster::{self, Cluster},
    postmaster,
    version::Version,
};

/// A named cluster that can outlive the process that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lab {
    /// The lab's name.
    pub name: String,
    /// The server's version.
    pub version: Version,
    /// The directory of the server's programs.
    pub bin_dir: PathBuf,
    /// The port in the socket's name and, if the server listens there, on 127.0.0.1.
    pub port: u16,
    /// Whether the server listens on 127.0.0.1.
    #[serde(default)]
    pub is_on_tcp: bool,
    /// The file with the password for TCP, in the format of `~/.pgpass`; see [`Cluster::passfile`].
    #[serde(default)]
    pub passfile: Option<PathBuf>,
    /// The directory of the lab's files. The socket is elsewhere if its path would be too long.
    pub dir: PathBuf,
    /// The server's data directory.
    pub data_dir: PathBuf,
    /// The directory of the unix socket.
    pub socket_dir: PathBuf,
    /// The name of the primary, if the lab is a standby.
    pub standby_of: Option<String>,
    /// Start time, in seconds since 1970.
    pub started_s: u64,
    /// Files and directories to remove when the lab is stopped; does not include [`Lab::dir`] if
    /// that is kept.
    pub remove: Vec<PathBuf>,
    /// The process whose end stops the lab; `None` after [`super::StartedLab::leave_running`] or a
    /// restart.
    #[serde(default)]
    pub(crate) owner: Option<Process>,
    /// Time at which the start of another lab first found the server down, in seconds since 1970;
    /// `None` if it was not found down.
    #[serde(default)]
    pub(crate) down_since_s: Option<u64>,
}

impl Lab {
    pub(crate) fn from_cluster(cluster: &Cluster, standby_of: Option<String>) -> Self {
        Self {
            name: cluster.name().to_owned(),
            version: cluster.binaries().version().clone(),
            bin_dir: cluster.binaries().dir().to_owned(),
            port: cluster.port(),
            is_on_tcp: cluster.is_on_tcp(),
            passfile: cluster.passfile(),
            dir: cluster.dir().to_owned(),
            data_dir: cluster.data_dir().to_owned(),
            socket_dir: cluster.socket_dir().to_owned(),
            standby_of,
            started_s: now_s(),
            remove: cluster.removed_paths().to_vec(),
            owner: None,
            down_since_s: None,
        }
    }

    /// Returns a connection URI for the superuser, without a password: see [`Cluster::uri`].
    pub fn uri(&self, database: &str) -> String {
        if self.is_on_tcp {
            cluster::tcp_uri(self.port, database, self.passfile.as_deref())
        } else {
            cluster::socket_uri(&self.socket_dir, self.port, database)
        }
    }

    /// Returns the postmaster's process id; `None` while the server is down.
    pub fn pid(&self) -> Option<u32> {
        postmaster::running(&self.data_dir)
    }
}

/// The current state of a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabState {
    /// A process is starting the lab.
    Starting {
        /// The lab's name.
        name: String,
    },
    /// The lab's server runs.
    Running(Lab),
    /// The lab's server is down: it crashed, or was stopped by means other than
    /// [`super::Labs::stop`].
    Down(Lab),
}

impl LabState {
    /// Returns the lab's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Starting { name } => name,
            Self::Running(lab) | Self::Down(lab) => &lab.name,
        }
    }
}

/// Returns the current time in seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The content of a lab's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum LabEntry {
    Starting { maker: Process },
    Running(Box<Lab>),
}

impl LabEntry {
    /// Creates the entry of a lab that the calling process is starting.
    pub(crate) fn starting() -> Self {
        Self::Starting { maker: Process::ours() }
    }
}

/// A process, identified by its id and start time, because ids are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pid: u32,
    started_ticks: u64,
}

impl Process {
    pub(crate) fn ours() -> Self {
        let pid = std::process::id();
        Self { pid, started_ticks: postmaster::started_ticks(pid).unwrap_or_default() }
    }

    pub(crate) fn is_alive(self) -> bool {
        postmaster::is_alive(self.pid)
            && postmaster::started_ticks(self.pid) == Some(self.started_ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_process_id_is_not_alive() {
        let ours = Process::ours();
        assert!(ours.is_alive());
        assert!(!Process { started_ticks: ours.started_ticks + 1, ..ours }.is_alive());
    }
}

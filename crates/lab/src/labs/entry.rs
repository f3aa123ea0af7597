//! What the state directory says about one lab.

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

/// A named cluster that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lab {
    /// Its name.
    pub name: String,
    /// The server's version.
    pub version: Version,
    /// The directory of its programs.
    pub bin_dir: PathBuf,
    /// The number in the socket's name, and the port of 127.0.0.1 if it listens there.
    pub port: u16,
    /// Whether it listens on 127.0.0.1.
    #[serde(default)]
    pub is_on_tcp: bool,
    /// The file with the password for TCP, in the form of `~/.pgpass`.
    #[serde(default)]
    pub passfile: Option<PathBuf>,
    /// The directory of all its files.
    pub dir: PathBuf,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The directory of the unix socket.
    pub socket_dir: PathBuf,
    /// The lab whose standby it is.
    pub standby_of: Option<String>,
    /// When it was started, in seconds since 1970.
    pub started_s: u64,
    /// What is removed when it is stopped; without [`Lab::dir`] when that is to be kept.
    pub remove: Vec<PathBuf>,
    /// The process with which it ends, if it was not left to run by itself.
    #[serde(default)]
    pub(crate) owner: Option<Process>,
    /// When its server was first found down, in seconds since 1970; nothing while it runs.
    #[serde(default)]
    pub(crate) down_since_s: Option<u64>,
}

impl Lab {
    pub(crate) fn of(cluster: &Cluster, standby_of: Option<String>) -> Self {
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
            remove: cluster.removed_at_end().to_vec(),
            owner: None,
            down_since_s: None,
        }
    }

    /// A connection URI for the superuser, without a password: see [`Cluster::uri`].
    pub fn uri(&self, database: &str) -> String {
        match self.is_on_tcp {
            true => cluster::tcp_uri(self.port, database, self.passfile.as_deref()),
            false => cluster::socket_uri(&self.socket_dir, self.port, database),
        }
    }

    /// The postmaster's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        postmaster::running(&self.data_dir)
    }
}

/// What a name stands for at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabState {
    /// Somebody is starting it.
    Starting {
        /// Its name.
        name: String,
    },
    /// It runs.
    Running(Lab),
    /// Its server does not run: it crashed, or was stopped by other means than [`super::Labs::stop`].
    Down(Lab),
}

impl LabState {
    /// The lab's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Starting { name } => name,
            Self::Running(lab) | Self::Down(lab) => &lab.name,
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The content of a lab's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum Entry {
    Starting { maker: Process },
    Running(Box<Lab>),
}

impl Entry {
    /// This process has begun to start it.
    pub(crate) fn starting() -> Self {
        Self::Starting { maker: Process::ours() }
    }
}

/// A process, told from later ones with its number by when it was started.
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
    fn a_process_with_our_number_that_started_at_another_time_is_dead() {
        let ours = Process::ours();
        assert!(ours.is_alive());
        assert!(!Process { started_ticks: ours.started_ticks + 1, ..ours }.is_alive());
    }
}

//! Finds the processes of a container by the names of their control groups.
//!
//! Docker, containerd, CRI-O and podman give every container an id of 64 hexadecimal digits and a
//! control group whose name contains it. No container daemon is queried: read access to the host's
//! `/proc` is enough.
//!
//! | runtime | a line of `/proc/PID/cgroup` |
//! |---|---|
//! | docker, systemd | `0::/system.slice/docker-ID.scope` |
//! | docker, cgroupfs | `12:memory:/docker/ID` |
//! | containerd (Kubernetes) | `0::/kubepods.slice/…/cri-containerd-ID.scope` |
//! | CRI-O | `0::/kubepods.slice/…/crio-ID.scope` |
//! | podman | `0::/machine.slice/libpod-ID.scope/container` |
//! | Kubernetes, cgroupfs | `11:cpu:/kubepods/burstable/podUID/ID` |

use std::{fmt, fs, str::FromStr};

use crate::{
    error::{InspectError, ProcessError},
    process::OsProcess,
    server::RunningServer,
};

/// The id of a container, or a prefix of at least 12 digits, as shown by `docker ps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerId(Box<str>);

/// The error for a text that is not a container id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a container id has 12 to 64 hexadecimal digits; `docker ps --no-trunc` shows it")]
pub struct ContainerIdError;

/// The number of digits that `docker ps` shows; fewer could be ambiguous.
const DIGITS_MIN: usize = 12;
const DIGITS: usize = 64;

impl FromStr for ContainerId {
    type Err = ContainerIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_id = (DIGITS_MIN..=DIGITS).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id { Ok(Self(text.to_ascii_lowercase().into())) } else { Err(ContainerIdError) }
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ContainerId {
    /// Whether one of a process's control groups, in the format of `/proc/PID/cgroup`, is the
    /// container's.
    fn is_in(&self, groups: &str) -> bool {
        let names = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        names.flat_map(|path| path.split('/')).any(|name| {
            // An id is an unbroken run of hexadecimal digits, delimited by other characters.
            name.split(|c: char| !c.is_ascii_hexdigit())
                .any(|digits| digits.len() == DIGITS && digits.starts_with(&*self.0))
        })
    }

    /// Finds the processes with a control group of the container.
    fn processes(&self) -> Result<Vec<OsProcess>, ProcessError> {
        let all = fs::read_dir("/proc");
        let all = all.map_err(|source| ProcessError::Proc { path: "/proc".into(), source })?;
        let pids = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_in = |process: &OsProcess| {
            fs::read_to_string(process.file("cgroup")).is_ok_and(|groups| self.is_in(&groups))
        };
        Ok(pids.filter_map(|pid| OsProcess::from_pid(pid).ok()).filter(is_in).collect())
    }
}

impl RunningServer {
    /// Finds the server that runs in a container, from the container's host.
    ///
    /// # Errors
    ///
    /// No process is in the container, none of its processes is a PostgreSQL server that can be
    /// inspected, or there are several servers.
    pub fn in_container(container: &ContainerId) -> Result<Self, InspectError> {
        let processes = container.processes()?;
        if processes.is_empty() {
            return Err(ProcessError::NoContainer { container: container.to_string() }.into());
        }
        // Skip further processes of a server that was already found.
        let mut servers: Vec<Self> = Vec::new();
        let mut denied = None;
        for process in &processes {
            let is_known = servers.iter().any(|server| {
                process.runs_same_binary(server.postmaster()).unwrap_or(false)
                    && process.working_dir().ok() == server.data_dir().ok()
            });
            if is_known {
                continue;
            }
            match Self::from_pid(process.pid()) {
                Ok(server) => servers.push(server),
                Err(error @ InspectError::Process(ProcessError::Denied { .. })) => {
                    denied = Some(error);
                }
                Err(_) => {}
            }
        }
        let container = container.to_string();
        match (servers.len(), denied) {
            (1, _) => Ok(servers.remove(0)),
            (0, Some(error)) => Err(error),
            (0, None) => {
                let processes = processes.len();
                Err(ProcessError::NoServerInContainer { container, processes }.into())
            }
            _ => {
                let pids = servers.iter().map(|server| server.postmaster().pid()).collect();
                Err(ProcessError::SeveralServers { container, pids }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4c01db0b339c7d2a6f0d2b6ab4c8e01f1a2b3c4d5e6f708192a3b4c5d6e7f809";

    fn id(text: &str) -> ContainerId {
        text.parse().expect("valid container id")
    }

    /// Contents of `/proc/PID/cgroup` as the runtimes create them.
    #[test]
    fn cgroups_of_every_runtime_are_recognised() {
        for groups in [
            format!("0::/system.slice/docker-{ID}.scope\n"),
            format!("12:memory:/docker/{ID}\n11:cpu,cpuacct:/docker/{ID}\n0::/\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod\
                 8dbc2c6c_35dd_4f33_a3a4_f58bfa3a5c1d.slice/cri-containerd-{ID}.scope\n"
            ),
            format!("0::/kubepods.slice/kubepods-podf8a_1.slice/crio-{ID}.scope/container\n"),
            format!("0::/machine.slice/libpod-{ID}.scope/container\n"),
            format!(
                "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope\n"
            ),
            format!("11:cpu:/kubepods/burstable/pod8dbc2c6c-35dd-4f33-a3a4-f58bfa3a5c1d/{ID}\n"),
            format!("0::/../docker-{ID}.scope/init\n"),
        ] {
            assert!(id(ID).is_in(&groups), "{groups}");
            assert!(id(&ID[..12]).is_in(&groups), "{groups}");
            assert!(!id(&ID[1..13]).is_in(&groups), "{groups}");
        }
    }

    #[test]
    fn other_cgroups_match_no_container() {
        for groups in [
            "",
            "0::/\n",
            "0::/system.slice/postgresql@15-main.service\n",
            "0::/user.slice/user-0.slice/session-4c01db0b339c.scope\n",
            "4c01db0b339c\n",
        ] {
            assert!(!id(&ID[..12]).is_in(groups), "{groups}");
        }
    }

    #[test]
    fn container_id_needs_12_to_64_hex_digits() {
        for text in ["", "4c01db0b339", "postgres-prod", "4c01db0b339g", &"a".repeat(65)] {
            assert_eq!(text.parse::<ContainerId>(), Err(ContainerIdError), "{text}");
        }
        assert_eq!(id("4C01DB0B339C").to_string(), "4c01db0b339c");
    }
}

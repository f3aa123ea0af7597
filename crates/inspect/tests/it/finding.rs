//! Servers found, and things that are no servers.

use std::{fs, process::Command};

use howdah_inspect::{Error, ExecutableState, Process, ProcessError, Server};

use crate::support::{cluster, session};

#[test]
fn a_backend_leads_to_its_postmaster() {
    let Some(cluster) = cluster("backend") else { return };
    let client = session(&cluster);
    let backend = u32::try_from(client.process_id().unwrap()).unwrap();
    let server = Server::with_process(backend).unwrap();
    assert_eq!(Some(server.postmaster().pid()), cluster.pid());
    assert_eq!(server.data_dir().unwrap(), fs::canonicalize(cluster.data_dir()).unwrap());
    assert_eq!(server.lock_file().unwrap().port, cluster.port());
    assert_eq!(server.postmaster().executable_state().unwrap(), ExecutableState::InPlace);
    assert!(server.postmaster().children().unwrap().iter().any(|child| child.pid() == backend));
    assert!(server.binary().build_id().is_some_and(|id| id.to_string().len() >= 16));
}

#[test]
fn a_server_that_stopped_is_gone_and_not_zero() {
    let Some(mut cluster) = cluster("stopped") else { return };
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    let buffers = server.buffers().unwrap();
    cluster.stop().unwrap();
    assert!(matches!(buffers.read(), Err(Error::Memory(_))));
    let error = Server::in_data_dir(cluster.data_dir()).unwrap_err();
    assert!(matches!(error, Error::Process(ProcessError::NotRunning { .. })), "{error}");
}

#[test]
fn a_pid_file_left_by_a_crash_does_not_name_a_stranger() {
    let dir = tempfile::tempdir().unwrap();
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(dir.path().join("postmaster.pid"), format!("{}\n", stranger.id())).unwrap();
    let error = Server::in_data_dir(dir.path()).unwrap_err();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    let Error::Process(ProcessError::Stale { pid, .. }) = error else { panic!("{error}") };
    assert_eq!(pid, stranger.id());
}

#[test]
fn what_is_no_server_is_called_so() {
    let own = std::process::id();
    let error = Server::with_process(own).unwrap_err();
    assert!(matches!(error, Error::Process(ProcessError::NotPostgres { .. })), "{error}");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("postmaster.pid"), "soon\n").unwrap();
    let error = Server::in_data_dir(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Process(ProcessError::Unreadable { .. })), "{error}");
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert!(matches!(Process::of(child.id()), Err(ProcessError::Gone { .. })));
}

//! Finds running servers and rejects everything else.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use howdah_inspect::{ExecutableState, InspectError, OsProcess, ProcessError, RunningServer};

use crate::support::{cluster, session};

#[test]
fn backend_pid_resolves_to_its_postmaster() {
    let Some(cluster) = cluster("backend") else { return };
    let client = session(&cluster);
    let backend = u32::try_from(client.process_id().unwrap()).unwrap();
    let server = RunningServer::from_pid(backend).unwrap();
    assert_eq!(Some(server.postmaster().pid()), cluster.pid());
    assert_eq!(server.data_dir().unwrap(), fs::canonicalize(cluster.data_dir()).unwrap());
    assert_eq!(server.lock_file().unwrap().port, cluster.port());
    assert_eq!(server.postmaster().executable_state().unwrap(), ExecutableState::InPlace);
    assert!(server.postmaster().children().unwrap().iter().any(|child| child.pid() == backend));
    assert!(server.binary().build_id().is_some_and(|id| id.to_string().len() >= 16));
}

#[test]
fn reading_a_stopped_server_is_an_error() {
    let Some(mut cluster) = cluster("stopped") else { return };
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let buffers = server.buffers().unwrap();
    cluster.stop().unwrap();
    assert!(matches!(buffers.read(), Err(InspectError::Memory(_))));
    let error = RunningServer::in_data_dir(cluster.data_dir()).unwrap_err();
    assert!(matches!(error, InspectError::Process(ProcessError::NotRunning { .. })), "{error}");
}

#[test]
fn stale_postmaster_pid_of_another_process_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let mut stranger = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(dir.path().join("postmaster.pid"), format!("{}\n", stranger.id())).unwrap();
    let error = RunningServer::in_data_dir(dir.path()).unwrap_err();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    let InspectError::Process(ProcessError::Stale { pid, .. }) = error else { panic!("{error}") };
    assert_eq!(pid, stranger.id());
}

#[test]
fn other_processes_and_files_are_rejected() {
    let own = std::process::id();
    let error = RunningServer::from_pid(own).unwrap_err();
    assert!(matches!(error, InspectError::Process(ProcessError::NotPostgres { .. })), "{error}");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("postmaster.pid"), "soon\n").unwrap();
    let error = RunningServer::in_data_dir(dir.path()).unwrap_err();
    assert!(matches!(error, InspectError::Process(ProcessError::Unreadable { .. })), "{error}");
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert!(matches!(OsProcess::from_pid(child.id()), Err(ProcessError::Gone { .. })));
}

/// A minimal 32-bit program: one segment, whose code waits for signals forever.
fn program_32_bit() -> Vec<u8> {
    // mov $29, %eax (pause); int $0x80; jmp to the beginning.
    const CODE: [u8; 9] = [0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7];
    const BASE: u32 = 0x0804_8000;
    const HEADERS: u32 = 52 + 32;
    let mut bytes = b"\x7fELF\x01\x01\x01".to_vec();
    bytes.resize(16, 0);
    // An executable (2) for the 80386 (3).
    for half in [2_u16, 3] {
        bytes.extend(half.to_le_bytes());
    }
    // Version, entry point, program headers after this header, no sections, no flags.
    for word in [1, BASE + HEADERS, 52, 0, 0] {
        bytes.extend(word.to_le_bytes());
    }
    // Sizes and counts of headers: 52 bytes, one program header of 32 bytes, no sections.
    for half in [52_u16, 32, 1, 40, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    let whole = HEADERS + CODE.len() as u32;
    // PT_LOAD (1) from offset 0, readable and executable (5), page-aligned.
    for word in [1, 0, BASE, BASE, whole, whole, 5, 0x1000] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(CODE);
    bytes
}

#[test]
fn process_of_32_bits_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("postgres");
    fs::write(&path, program_32_bit()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let mut process = match Command::new(&path).spawn() {
        Ok(process) => process,
        Err(error) => {
            eprintln!("skipped: this kernel does not run 32-bit programs: {error}");
            return;
        }
    };
    let error = RunningServer::from_pid(process.id()).unwrap_err().to_string();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(error.contains("is built for 32 bits; only x86-64"), "{error}");
}

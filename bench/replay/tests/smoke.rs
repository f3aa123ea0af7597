//! The bare sender and the bare responder understand each other, and the capture has the statements
//! that the bare sender sends. Nothing here depends on times.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use howdah_dataset::Capture;
use howdah_traffic::Kind;

const TOOL: &str = env!("CARGO_BIN_EXE_howdah-bench-replay");
const SCHEDULE: [&str; 6] = ["--sessions", "4", "--rate", "1000", "--seconds", "0.2"];

/// A process that ends with the test.
struct Responder(Child);

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sender_gets_reply_to_each_captured_statement() {
    let folder = tempfile::tempdir().unwrap();
    // No session is relayed, so there need not be a server.
    let mut command = Command::new(TOOL);
    command.arg("respond").arg(folder.path().join("no-server")).stdout(Stdio::piped());
    let mut responder = Responder(command.spawn().unwrap());
    let mut port = String::new();
    BufReader::new(responder.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let address = format!("127.0.0.1:{}", port.trim());

    let sent = Command::new(TOOL).args(["send", &address]).args(SCHEDULE).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    let sent: serde_json::Value = serde_json::from_slice(&sent.stdout).unwrap();

    let capture = folder.path().join("capture");
    let written = Command::new(TOOL).arg("capture").arg(&capture).args(SCHEDULE).output().unwrap();
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let events = Capture::open(&capture).unwrap().events();
    let executions = events
        .filter(|event| event.as_ref().is_ok_and(|event| event.action.kind() == Kind::Execute));
    // Each session's first execution prepares the statement, for which the sender does not execute.
    let expected = u64::try_from(executions.count()).unwrap() - 4;
    assert!(expected > 100, "{expected}");
    assert_eq!(sent["statements"], expected);
}

//! The audit log of signals: one line per signal with time, sender, target, reason and outcome.
//!
//! The file is opened before anything is displayed. Each line is a JSON document. All lines of an
//! action are written by a single write, so that several programs can share the file.

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use howdah_collect::{SignalAction, SignalOutcome, SignalTarget};
use jiff::Timestamp;
use serde_json::json;

use crate::signal_plan::PlannedSignal;

/// A file to which outcomes of signals are appended.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    file: File,
    /// Name of the operating system account that sends the signals.
    os_user: String,
}

/// The reason why the audit log cannot be opened or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to the audit log {}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

impl Audit {
    /// Opens the file for appending, and creates it if it does not exist. `os_user` is the
    /// operating system account that sends the signals.
    ///
    /// # Errors
    ///
    /// The file cannot be opened for writing.
    pub fn open(path: &Path, os_user: impl Into<String>) -> Result<Self, AuditError> {
        let opened = howdah_files::options().append(true).create(true).open(path);
        let file = opened.map_err(|source| AuditError { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file, os_user: os_user.into() })
    }

    /// Appends a line with the outcome of each signal to sessions of one server.
    ///
    /// # Errors
    ///
    /// The file cannot be written. This does not undo the signals.
    pub(crate) fn write(
        &self,
        server: &str,
        role: &str,
        action: SignalAction,
        planned: &[PlannedSignal],
        results: &[(SignalTarget, Result<SignalOutcome, String>)],
    ) -> Result<(), AuditError> {
        let mut lines = String::new();
        for (planned, (signal_target, result)) in planned.iter().zip(results) {
            let (end, message) = match result {
                Ok(SignalOutcome::Sent) => ("sent", None),
                Ok(SignalOutcome::Gone) => ("gone", None),
                Ok(SignalOutcome::NotSent) => ("not sent", None),
                Ok(SignalOutcome::Refused { message, .. }) => ("refused", Some(message)),
                Err(message) => ("unknown", Some(message)),
            };
            let document = json!({
                "time": format!("{:.6}", Timestamp::now()), "os_user": self.os_user, "server": server, "role": role,
                "action": action.as_str(), "pid": signal_target.pid, "session": planned.session, "reason": planned.reason,
                "query": planned.query, "result": end, "message": message,
            });
            lines.push_str(&document.to_string());
            lines.push('\n');
        }
        let written = (&self.file).write_all(lines.as_bytes());
        written.map_err(|source| AuditError { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn each_signal_is_one_audit_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signals");
        let signal_target = |pid| SignalTarget { pid, started_us: 1, query_started_us: None };
        let planned = |pid| PlannedSignal {
            target: signal_target(pid),
            session: format!("{pid} app@shop"),
            reason: "runs for 1m40s".to_owned(),
            query: "select 1".to_owned(),
        };
        let refused =
            SignalOutcome::Refused { message: "no".to_owned(), sqlstate: "42501".to_owned() };
        let results =
            [(signal_target(1), Ok(SignalOutcome::Sent)), (signal_target(2), Ok(refused))];
        let audit = Audit::open(&path, "anna").unwrap();
        audit
            .write("db1", "dba", SignalAction::Cancel, &[planned(1), planned(2)], &results)
            .unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> =
            written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["os_user"], &lines[0]["role"]), (&"anna".into(), &"dba".into()));
        assert_eq!((&lines[0]["pid"], &lines[0]["result"]), (&1.into(), &"sent".into()));
        assert_eq!(lines[0]["reason"], "runs for 1m40s");
        assert_eq!((&lines[1]["result"], &lines[1]["message"]), (&"refused".into(), &"no".into()));
        let error = Audit::open(Path::new("/nowhere/signals"), "anna").unwrap_err();
        assert_eq!(error.to_string(), "cannot write to the audit log /nowhere/signals");
        let full = Audit::open(Path::new("/dev/full"), "anna").unwrap();
        assert!(
            full.write("db1", "dba", SignalAction::Cancel, &[planned(1)], &results[..1]).is_err()
        );
    }
}

//! A line for each signal: when, who sent it, to whom, why, and what became of it.
//!
//! The file is opened before anything is shown, and its lines are one write each, so several programs can
//! share it. A line is a JSON document.

use std::{
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use howdah_collect::{Action, SignalTarget, Signalled};
use jiff::Timestamp;
use serde_json::json;

use crate::kill::Listed;

/// A file that signals are written to.
#[derive(Debug)]
pub struct Audit {
    path: PathBuf,
    file: File,
    /// Who sits in front of the screen.
    person: String,
}

/// A file of signals that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write signals to {}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

impl Audit {
    /// Opens it, at its end; makes it if it is not there. `person` is who sends the signals.
    ///
    /// # Errors
    ///
    /// It cannot be opened for writing.
    pub fn open(path: &Path, person: impl Into<String>) -> Result<Self, AuditError> {
        let opened = howdah_files::options().append(true).create(true).open(path);
        let file = opened.map_err(|source| AuditError { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), file, person: person.into() })
    }

    /// Writes what became of signals to a server, a line each.
    ///
    /// # Errors
    ///
    /// The file cannot be written. The signals were sent.
    pub(crate) fn write(
        &self,
        server: &str,
        role: &str,
        action: Action,
        listed: &[Listed],
        results: &[(SignalTarget, Result<Signalled, String>)],
    ) -> Result<(), AuditError> {
        let mut lines = String::new();
        for (listed, (suspect, result)) in listed.iter().zip(results) {
            let (end, message) = match result {
                Ok(Signalled::Sent) => ("sent", None),
                Ok(Signalled::Gone) => ("gone", None),
                Ok(Signalled::NotSent) => ("not sent", None),
                Ok(Signalled::Refused { message, .. }) => ("refused", Some(message)),
                Err(message) => ("unknown", Some(message)),
            };
            let document = json!({
                "time": format!("{:.6}", Timestamp::now()), "person": self.person, "server": server, "role": role,
                "action": action.as_str(), "pid": suspect.pid, "who": listed.who, "why": listed.why,
                "query": listed.query, "result": end, "message": message,
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
    fn each_signal_is_a_line_that_says_who_why_and_what_became_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signals");
        let suspect = |pid| SignalTarget { pid, started_us: 1, query_started_us: None };
        let listed = |pid| Listed {
            suspect: suspect(pid),
            who: format!("{pid} app@shop"),
            why: "runs for 1m40s".to_owned(),
            query: "select 1".to_owned(),
        };
        let refused = Signalled::Refused { message: "no".to_owned(), sqlstate: "42501".to_owned() };
        let results = [(suspect(1), Ok(Signalled::Sent)), (suspect(2), Ok(refused))];
        let audit = Audit::open(&path, "anna").unwrap();
        audit.write("db1", "dba", Action::Cancel, &[listed(1), listed(2)], &results).unwrap();
        let written = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> =
            written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["person"], &lines[0]["role"]), (&"anna".into(), &"dba".into()));
        assert_eq!((&lines[0]["pid"], &lines[0]["result"]), (&1.into(), &"sent".into()));
        assert_eq!(lines[0]["why"], "runs for 1m40s");
        assert_eq!((&lines[1]["result"], &lines[1]["message"]), (&"refused".into(), &"no".into()));
        let error = Audit::open(Path::new("/nowhere/signals"), "anna").unwrap_err();
        assert_eq!(error.to_string(), "cannot write signals to /nowhere/signals");
        let full = Audit::open(Path::new("/dev/full"), "anna").unwrap();
        assert!(full.write("db1", "dba", Action::Cancel, &[listed(1)], &results[..1]).is_err());
    }
}

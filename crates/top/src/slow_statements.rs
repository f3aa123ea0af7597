//! Detects statements that run longer than a threshold, and logs each once.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use howdah_collect::{Activity, BackendState, BackendType};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::json;

/// A statement that has run for longer than the threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowStatement {
    /// Name of the server.
    pub server: String,
    /// Database of the session.
    pub database: String,
    /// Role of the session.
    pub user: String,
    /// Process id of the session's backend.
    pub pid: i32,
    /// Time that the statement had run when it was sampled, in seconds.
    pub seconds: f64,
    /// Time of the sample by the server's clock, in microseconds since 1970.
    pub sampled_us: i64,
    /// The statement, on one line.
    pub query: String,
}

/// Detects slow statements in consecutive samples of one server.
///
/// A statement is reported once, in the first sample in which it exceeds the threshold, including
/// the very first sample. Statements are identified by pid, session start and statement start, so
/// that a reused pid or the next statement of a session counts as new. Parallel workers are not
/// reported in addition to their leader, nor are walsenders, which run forever.
#[derive(Clone, Debug)]
pub struct SlowStatementDetector {
    server: String,
    threshold: Duration,
    reported: HashSet<(i32, i64, i64)>,
}

impl SlowStatementDetector {
    /// Creates a detector for one server that has not reported any statement yet.
    pub fn new(server: impl Into<String>, threshold: Duration) -> Self {
        Self { server: server.into(), threshold, reported: HashSet::new() }
    }

    /// Returns statements above the threshold that have not been reported yet.
    pub fn detect(&mut self, activity: &Activity) -> Vec<SlowStatement> {
        let mut running = HashSet::new();
        let mut found = Vec::new();
        for backend in &activity.backends {
            let works =
                matches!(backend.state, Some(BackendState::Active | BackendState::FastPath));
            let counts =
                !matches!(backend.kind, Some(BackendType::ParallelWorker | BackendType::WalSender));
            let seconds = backend.duration(activity.taken_us).unwrap_or(0.0);
            let Some(begun) = backend.query_started_us.filter(|_| works && counts) else {
                continue;
            };
            if seconds <= self.threshold.as_secs_f64() {
                continue;
            }
            let key = (backend.pid, backend.started_us, begun);
            running.insert(key);
            if !self.reported.contains(&key) {
                let word =
                    |word: &Option<std::sync::Arc<str>>| word.as_deref().unwrap_or("-").to_owned();
                found.push(SlowStatement {
                    server: self.server.clone(),
                    database: word(&backend.database),
                    user: word(&backend.user),
                    pid: backend.pid,
                    seconds,
                    sampled_us: activity.taken_us,
                    query: backend
                        .query
                        .as_ref()
                        .map(howdah_collect::SqlText::one_line)
                        .unwrap_or_default(),
                });
            }
        }
        // An ended statement cannot come back, so the set is never larger than the number of
        // sessions.
        self.reported = running;
        found
    }
}

/// Format of the slow statement log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlowLogFormat {
    /// pgtop's format: local time, server, database, user, pid, seconds, statement, separated by
    /// tabs.
    #[default]
    Pgtop,
    /// One JSON document per line.
    Json,
}

/// The slow statement log. If the file could not be opened, each slow statement causes another
/// attempt.
#[derive(Debug)]
pub struct SlowLog {
    path: PathBuf,
    file: io::Result<File>,
    format: SlowLogFormat,
    zone: TimeZone,
}

/// The reason why the slow statement log cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write slow statements to {}", path.display())]
pub struct SlowLogError {
    path: PathBuf,
    source: io::Error,
}

impl SlowLog {
    /// Opens the file for appending, and creates it if it does not exist. If that fails,
    /// [`SlowLog::problem`] returns the reason.
    pub fn open(path: &Path, format: SlowLogFormat) -> Self {
        Self {
            path: path.to_owned(),
            file: Self::open_file(path),
            format,
            zone: TimeZone::system(),
        }
    }

    fn open_file(path: &Path) -> io::Result<File> {
        howdah_files::options().append(true).create(true).open(path)
    }

    /// Returns the reason why the file could not be opened, in one sentence; `None` if it is open.
    pub fn problem(&self) -> Option<String> {
        let error = self.file.as_ref().err()?;
        Some(format!("cannot write slow statements to {}: {error}", self.path.display()))
    }

    /// Appends one statement with a single write, so that several programs can share the file.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or written. The statement is lost.
    pub fn write(&mut self, slow: &SlowStatement) -> Result<(), SlowLogError> {
        let line = match self.format {
            SlowLogFormat::Pgtop => pgtop_line(slow, &self.zone),
            SlowLogFormat::Json => json_line(slow),
        };
        if self.file.is_err() {
            self.file = Self::open_file(&self.path);
        }
        let written = match &mut self.file {
            Ok(file) => file.write_all(line.as_bytes()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        written.map_err(|source| SlowLogError { path: self.path.clone(), source })
    }
}

fn pgtop_line(slow: &SlowStatement, zone: &TimeZone) -> String {
    let SlowStatement { server, database, user, pid, seconds, query, .. } = slow;
    let seen =
        Timestamp::from_microsecond(slow.sampled_us).unwrap_or_default().to_zoned(zone.clone());
    let seen = seen.strftime("%a %b %e %H:%M:%S %Y");
    format!("{seen}\t{server}\t{database}\t{user}\t{pid}\t{seconds:.0}\t{query}\n")
}

fn json_line(slow: &SlowStatement) -> String {
    let SlowStatement { server, database, user, pid, seconds, query, .. } = slow;
    let seen = Timestamp::from_microsecond(slow.sampled_us).unwrap_or_default();
    let document = json!({
        "seen": format!("{seen:.6}"), "server": server, "database": database, "user": user, "pid": pid,
        "seconds": seconds, "query": query,
    });
    format!("{document}\n")
}

#[cfg(test)]
mod tests {
    use howdah_collect::{BackendActivity, SqlText};

    use super::*;

    fn backend(pid: i32, begun: i64) -> BackendActivity {
        BackendActivity {
            pid,
            started_us: 1,
            user: Some("app".into()),
            database: Some("shop".into()),
            kind: Some(BackendType::Client),
            state: Some(BackendState::Active),
            query_started_us: Some(begun * 1_000_000),
            query: Some(SqlText::new(b"select\n\t1", None, None)),
            ..BackendActivity::default()
        }
    }

    fn detected_pids(
        detector: &mut SlowStatementDetector,
        now: i64,
        backends: Vec<BackendActivity>,
    ) -> Vec<i32> {
        let activity = Activity { taken_us: now * 1_000_000, backends };
        detector.detect(&activity).iter().map(|slow| slow.pid).collect()
    }

    fn detector() -> SlowStatementDetector {
        SlowStatementDetector::new("db1", Duration::from_secs(60))
    }

    #[test]
    fn slow_statement_is_reported_once() {
        let mut detector = detector();
        assert_eq!(detected_pids(&mut detector, 100, vec![backend(1, 50)]), [0; 0]);
        assert_eq!(detected_pids(&mut detector, 111, vec![backend(1, 50)]), [1]);
        assert_eq!(detected_pids(&mut detector, 200, vec![backend(1, 50)]), [0; 0]);
        // The next statement of the same process, and the same start time in another session.
        assert_eq!(detected_pids(&mut detector, 300, vec![backend(1, 201)]), [1]);
        let another = BackendActivity { started_us: 2, ..backend(1, 201) };
        assert_eq!(detected_pids(&mut detector, 301, vec![another]), [1]);
    }

    #[test]
    fn statement_slow_before_first_sample_is_reported() {
        assert_eq!(detected_pids(&mut detector(), 1000, vec![backend(1, 5)]), [1]);
    }

    #[test]
    fn idle_sessions_helpers_and_walsenders_are_not_slow() {
        let backends = vec![
            BackendActivity {
                state: Some(BackendState::Idle),
                state_changed_us: Some(0),
                ..backend(1, 5)
            },
            BackendActivity { kind: Some(BackendType::ParallelWorker), ..backend(2, 5) },
            BackendActivity { kind: Some(BackendType::WalSender), ..backend(3, 5) },
        ];
        assert_eq!(detected_pids(&mut detector(), 1000, backends), [0; 0]);
    }

    #[test]
    fn log_lines_are_written_in_both_formats() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgtop.log");
        let activity =
            Activity { taken_us: 1_700_000_000_000_000, backends: vec![backend(7, 1_699_999_900)] };
        let slow = detector().detect(&activity).remove(0);
        for format in [SlowLogFormat::Pgtop, SlowLogFormat::Json] {
            SlowLog::open(&path, format).write(&slow).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = written.lines().collect();
        let fields: Vec<&str> = lines[0].split('\t').collect();
        assert_eq!(fields[1..], ["db1", "shop", "app", "7", "100", "select 1"]);
        let line = pgtop_line(&slow, &TimeZone::UTC);
        assert!(line.starts_with("Tue Nov 14 22:13:20 2023\t"), "{line}");
        let document: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!((&document["pid"], &document["query"]), (&7.into(), &"select 1".into()));
        assert_eq!(document["seen"], "2023-11-14T22:13:20.000000Z");
    }

    #[test]
    fn unwritable_log_is_named_and_retried() {
        let activity = Activity { taken_us: 1_000_000_000, backends: vec![backend(7, 1)] };
        let slow = detector().detect(&activity).remove(0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/pgtop.log");
        let mut log = SlowLog::open(&path, SlowLogFormat::Pgtop);
        let named = format!("cannot write slow statements to {}", path.display());
        assert!(log.problem().unwrap().starts_with(&named));
        assert_eq!(log.write(&slow).unwrap_err().to_string(), named);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        log.write(&slow).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        let mut full = SlowLog::open(Path::new("/dev/full"), SlowLogFormat::Pgtop);
        assert!(full.write(&slow).is_err());
    }
}

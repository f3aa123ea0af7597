//! Statements that run longer than a threshold: each told once, and where to.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use howdah_collect::{Activity, Kind, State};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::json;

/// A statement that has just been found to be slow.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowStatement {
    /// What its server is called.
    pub server: String,
    /// Its database.
    pub database: String,
    /// Its role.
    pub user: String,
    /// The process.
    pub pid: i32,
    /// How long it had run when it was seen, in seconds.
    pub seconds: f64,
    /// When it was seen, by the server's clock, in microseconds since 1970.
    pub seen_us: i64,
    /// The statement, on one line.
    pub query: String,
}

/// Finds slow statements in one reading after another of one server.
///
/// A statement is told once, the first time it is seen above the threshold; one that was slow before the
/// first reading is told in that. A statement is one by process, start of session and start of statement, so
/// a process that is given to another session, or runs another statement, is told anew. Helpers of a parallel
/// query are not told beside their leader, nor are walsenders, which run for ever.
#[derive(Clone, Debug)]
pub struct Watcher {
    server: String,
    threshold: Duration,
    told: HashSet<(i32, i64, i64)>,
}

impl Watcher {
    /// A watcher that has seen nothing.
    pub fn new(server: impl Into<String>, threshold: Duration) -> Self {
        Self { server: server.into(), threshold, told: HashSet::new() }
    }

    /// The statements that are above the threshold now and have not been told of.
    pub fn look(&mut self, activity: &Activity) -> Vec<SlowStatement> {
        let mut running = HashSet::new();
        let mut found = Vec::new();
        for backend in &activity.backends {
            let works = matches!(backend.state, Some(State::Active | State::FastPath));
            let counts = !matches!(backend.kind, Some(Kind::ParallelWorker | Kind::WalSender));
            let seconds = backend.duration(activity.taken_us).unwrap_or(0.0);
            let Some(begun) = backend.query_started_us.filter(|_| works && counts) else {
                continue;
            };
            if seconds <= self.threshold.as_secs_f64() {
                continue;
            }
            let key = (backend.pid, backend.started_us, begun);
            running.insert(key);
            if !self.told.contains(&key) {
                let word =
                    |word: &Option<std::sync::Arc<str>>| word.as_deref().unwrap_or("-").to_owned();
                found.push(SlowStatement {
                    server: self.server.clone(),
                    database: word(&backend.database),
                    user: word(&backend.user),
                    pid: backend.pid,
                    seconds,
                    seen_us: activity.taken_us,
                    query: backend
                        .query
                        .as_ref()
                        .map(howdah_collect::SqlText::one_line)
                        .unwrap_or_default(),
                });
            }
        }
        // What runs no more cannot come again, so there are never more than sessions.
        self.told = running;
        found
    }
}

/// The form of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// pgtop's: local time, host, database, user, pid, seconds, statement, with tabs between.
    #[default]
    Pgtop,
    /// A JSON document a line.
    Json,
}

/// A file that slow statements are appended to. One that cannot be opened is tried again with each of them.
#[derive(Debug)]
pub struct SlowLog {
    path: PathBuf,
    file: io::Result<File>,
    format: LogFormat,
    zone: TimeZone,
}

/// A log that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write slow statements to {}", path.display())]
pub struct SlowLogError {
    path: PathBuf,
    source: io::Error,
}

impl SlowLog {
    /// Opens it, at its end; makes it if it is not there.
    pub fn open(path: &Path, format: LogFormat) -> Self {
        Self { path: path.to_owned(), file: Self::file(path), format, zone: TimeZone::system() }
    }

    fn file(path: &Path) -> io::Result<File> {
        howdah_files::options().append(true).create(true).open(path)
    }

    /// Why it cannot be written, if that is known.
    pub fn trouble(&self) -> Option<String> {
        let error = self.file.as_ref().err()?;
        Some(format!("cannot write slow statements to {}: {error}", self.path.display()))
    }

    /// Appends one statement, in one write, so that several programs can share a file.
    ///
    /// # Errors
    ///
    /// The file cannot be written. The statement is in the error's hands: it is lost.
    pub fn write(&mut self, slow: &SlowStatement) -> Result<(), SlowLogError> {
        let line = match self.format {
            LogFormat::Pgtop => pgtop_line(slow, &self.zone),
            LogFormat::Json => json_line(slow),
        };
        if self.file.is_err() {
            self.file = Self::file(&self.path);
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
    let seen = Timestamp::from_microsecond(slow.seen_us).unwrap_or_default().to_zoned(zone.clone());
    let seen = seen.strftime("%a %b %e %H:%M:%S %Y");
    format!("{seen}\t{server}\t{database}\t{user}\t{pid}\t{seconds:.0}\t{query}\n")
}

fn json_line(slow: &SlowStatement) -> String {
    let SlowStatement { server, database, user, pid, seconds, query, .. } = slow;
    let seen = Timestamp::from_microsecond(slow.seen_us).unwrap_or_default();
    let document = json!({
        "seen": format!("{seen:.6}"), "server": server, "database": database, "user": user, "pid": pid,
        "seconds": seconds, "query": query,
    });
    format!("{document}\n")
}

#[cfg(test)]
mod tests {
    use howdah_collect::{Backend, SqlText};

    use super::*;

    fn backend(pid: i32, begun: i64) -> Backend {
        Backend {
            pid,
            started_us: 1,
            user: Some("app".into()),
            database: Some("shop".into()),
            kind: Some(Kind::Client),
            state: Some(State::Active),
            query_started_us: Some(begun * 1_000_000),
            query: Some(SqlText::new(b"select\n\t1", None, None)),
            ..Backend::default()
        }
    }

    fn look(watcher: &mut Watcher, now: i64, backends: Vec<Backend>) -> Vec<i32> {
        let activity = Activity { taken_us: now * 1_000_000, backends };
        watcher.look(&activity).iter().map(|slow| slow.pid).collect()
    }

    fn watcher() -> Watcher {
        Watcher::new("db1", Duration::from_secs(60))
    }

    #[test]
    fn a_statement_is_told_once() {
        let mut watcher = watcher();
        assert_eq!(look(&mut watcher, 100, vec![backend(1, 50)]), [0; 0]);
        assert_eq!(look(&mut watcher, 111, vec![backend(1, 50)]), [1]);
        assert_eq!(look(&mut watcher, 200, vec![backend(1, 50)]), [0; 0]);
        // The same process with its next statement, and the same statement's start of another session.
        assert_eq!(look(&mut watcher, 300, vec![backend(1, 201)]), [1]);
        let another = Backend { started_us: 2, ..backend(1, 201) };
        assert_eq!(look(&mut watcher, 301, vec![another]), [1]);
    }

    #[test]
    fn what_was_slow_before_the_first_reading_is_told() {
        assert_eq!(look(&mut watcher(), 1000, vec![backend(1, 5)]), [1]);
    }

    #[test]
    fn idle_sessions_helpers_and_walsenders_are_not_slow() {
        let backends = vec![
            Backend { state: Some(State::Idle), state_changed_us: Some(0), ..backend(1, 5) },
            Backend { kind: Some(Kind::ParallelWorker), ..backend(2, 5) },
            Backend { kind: Some(Kind::WalSender), ..backend(3, 5) },
        ];
        assert_eq!(look(&mut watcher(), 1000, backends), [0; 0]);
    }

    #[test]
    fn a_log_has_a_line_for_each_in_both_forms() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pgtop.log");
        let activity =
            Activity { taken_us: 1_700_000_000_000_000, backends: vec![backend(7, 1_699_999_900)] };
        let slow = watcher().look(&activity).remove(0);
        for format in [LogFormat::Pgtop, LogFormat::Json] {
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
    fn a_log_that_cannot_be_written_is_named_and_tried_again() {
        let activity = Activity { taken_us: 1_000_000_000, backends: vec![backend(7, 1)] };
        let slow = watcher().look(&activity).remove(0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing/pgtop.log");
        let mut log = SlowLog::open(&path, LogFormat::Pgtop);
        let named = format!("cannot write slow statements to {}", path.display());
        assert!(log.trouble().unwrap().starts_with(&named));
        assert_eq!(log.write(&slow).unwrap_err().to_string(), named);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        log.write(&slow).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
        let mut full = SlowLog::open(Path::new("/dev/full"), LogFormat::Pgtop);
        assert!(full.write(&slow).is_err());
    }
}

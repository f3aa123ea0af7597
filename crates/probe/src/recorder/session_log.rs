//! The recorder's knowledge of the server's sessions: the reports of the [`SessionMonitor`], the
//! statements whose texts the file has, and how long no transaction has committed.

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::ConnectTarget;

use super::{
    record::{FlightRecord, RecordedSecond},
    session_monitor::{SessionMonitor, SessionReport, SessionSample},
    session_records::{RecordedCounters, RecordedSessions, StatementText},
    trigger::sessions,
};

/// Sessions and counters of the server; always empty without a connection.
#[derive(Debug, Default)]
pub(super) struct SessionLog {
    monitor: Option<SessionMonitor>,
    texts: HashMap<u64, RecordedText>,
    stall: CommitStall,
    standby_lag: Option<Duration>,
}

/// A statement whose text is in the file.
#[derive(Debug)]
struct RecordedText {
    statement: Arc<StatementText>,
    /// Number of bytes recorded before the text was.
    position: u64,
    used_at: Instant,
}

/// Reports since the last call, as records.
#[derive(Debug, Default)]
pub(super) struct SessionRecords {
    /// Records, with the time that they belong to. A text precedes the sessions that use it.
    pub(super) records: Vec<(Instant, FlightRecord)>,
    pub(super) notes: Vec<String>,
    /// Relations whose names may not be known.
    pub(super) relations: Vec<(u32, u32)>,
    /// The process id of the monitor's own session, if it has a new one.
    pub(super) own_session: Option<u32>,
}

/// Measures how long no transaction has committed although sessions wait.
#[derive(Clone, Copy, Debug, Default)]
struct CommitStall {
    /// Commits per second outside of stalls, as a moving average.
    usual: f64,
    stopped: Duration,
}

/// Maximum number of statements whose texts may be repeated.
const TEXTS_MAX: usize = 4096;
/// Time since the last use of a text after which it is not repeated for an episode, which begins
/// half a minute before its trigger.
const EPISODE_TEXT_AGE: Duration = Duration::from_secs(35);

impl SessionLog {
    /// Starts reading the sessions of the server at `target`.
    pub(super) fn start(target: Option<ConnectTarget>) -> io::Result<Self> {
        let monitor = target.map(SessionMonitor::start).transpose()?;
        Ok(Self { monitor, ..Self::default() })
    }

    pub(super) fn is_connected_by_uri(&self) -> bool {
        self.monitor.is_some()
    }

    /// Returns the reports since the last call. `position` is the number of bytes recorded so far,
    /// and `repeat_bytes` the number of bytes after which a text is recorded again.
    pub(super) fn drain(
        &mut self,
        second: Option<&RecordedSecond>,
        position: u64,
        repeat_bytes: u64,
    ) -> SessionRecords {
        let mut output = SessionRecords::default();
        let reports: Vec<_> = self.monitor.iter().flat_map(SessionMonitor::reports).collect();
        for report in reports {
            match report {
                SessionReport::Connected(pid) => output.own_session = Some(pid),
                SessionReport::Note(text) => {
                    self.stall = CommitStall::default();
                    self.standby_lag = None;
                    output.notes.push(text);
                }
                SessionReport::Sample(sample) => {
                    let waiting = second.map_or(0.0, |second| {
                        sessions(second, |class, event| {
                            class != "CPU*" && event != "Timeout:PgSleep"
                        })
                    });
                    self.stall.observe(&sample.counters, waiting);
                    self.standby_lag = sample.counters.replay_lag_ms.map(Duration::from_millis);
                    self.add_sample(*sample, position, repeat_bytes, &mut output);
                }
                SessionReport::Circle { at, circles, statements } => {
                    self.add_texts(at, statements, position, repeat_bytes, &mut output);
                    output.add_relations(&circles.sessions);
                    output.records.push((at, FlightRecord::WaitCircle(circles)));
                }
            }
        }
        output
    }

    fn add_sample(
        &mut self,
        sample: SessionSample,
        position: u64,
        repeat_bytes: u64,
        output: &mut SessionRecords,
    ) {
        let SessionSample { at, counters, sessions, statements } = sample;
        output.records.push((at, FlightRecord::Counters(counters)));
        self.add_texts(at, statements, position, repeat_bytes, output);
        if let Some(sessions) = sessions {
            output.add_relations(&sessions);
            output.records.push((at, FlightRecord::Sessions(sessions)));
        }
    }

    /// Records the texts that the file does not have, or not recently.
    fn add_texts(
        &mut self,
        at: Instant,
        statements: Vec<Arc<StatementText>>,
        position: u64,
        repeat_bytes: u64,
        output: &mut SessionRecords,
    ) {
        for statement in statements {
            let known = self.texts.get_mut(&statement.id);
            if let Some(known) = known
                && position.saturating_sub(known.position) < repeat_bytes
            {
                known.used_at = at;
                continue;
            }
            if self.texts.len() >= TEXTS_MAX {
                self.texts.clear();
            }
            output.records.push((at, FlightRecord::StatementText((*statement).clone())));
            self.texts.insert(statement.id, RecordedText { statement, position, used_at: at });
        }
    }

    /// Returns the texts that an episode needs because they were used shortly before its trigger,
    /// and makes all others be recorded again when they are used.
    pub(super) fn texts_for_episode(&mut self, now: Instant) -> Vec<FlightRecord> {
        let texts = std::mem::take(&mut self.texts).into_values();
        let is_recent =
            |text: &RecordedText| now.saturating_duration_since(text.used_at) < EPISODE_TEXT_AGE;
        texts
            .filter(is_recent)
            .map(|text| FlightRecord::StatementText((*text.statement).clone()))
            .collect()
    }

    /// Returns how long no transaction has committed although sessions wait; `None` if unknown.
    pub(super) fn commits_stopped(&self) -> Option<Duration> {
        self.monitor.as_ref().map(|_| self.stall.stopped)
    }

    pub(super) fn standby_lag(&self) -> Option<Duration> {
        self.standby_lag
    }
}

impl SessionRecords {
    fn add_relations(&mut self, sessions: &RecordedSessions) {
        self.relations.extend(sessions.rows.iter().filter_map(|row| row.relation));
    }
}

/// Minimum usual number of commits per second for which their absence means something.
const COMMITS_MIN: f64 = 5.0;
/// Share of the usual commits, or their number per second, below which they count as stopped: a
/// session of another monitor may still commit.
const STOPPED_SHARE: f64 = 0.05;
const STOPPED_RATE: f64 = 1.5;

impl CommitStall {
    /// Adds a sample. `waiting` is the average number of sessions that waited in the last second.
    fn observe(&mut self, counters: &RecordedCounters, waiting: f64) {
        if counters.elapsed_us == 0 {
            return;
        }
        let elapsed = Duration::from_micros(counters.elapsed_us);
        let rate = counters.commits as f64 / elapsed.as_secs_f64();
        if self.usual >= COMMITS_MIN
            && rate <= STOPPED_RATE.max(self.usual * STOPPED_SHARE)
            && waiting >= 0.9
        {
            self.stopped = self.stopped.saturating_add(elapsed);
        } else {
            self.stopped = Duration::ZERO;
            self.usual = if self.usual == 0.0 { rate } else { 0.9 * self.usual + 0.1 * rate };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::session_records::{RecordedSession, RecordedSessions};

    #[test]
    fn commits_stop_only_while_sessions_wait() {
        let mut stall = CommitStall::default();
        let mut observe = |commits, waiting| {
            let counters =
                RecordedCounters { elapsed_us: 1_000_000, commits, ..RecordedCounters::default() };
            stall.observe(&counters, waiting);
            stall.stopped.as_secs()
        };
        assert_eq!(
            [(100, 2.0), (90, 2.0), (0, 0.1)].map(|(n, waiting)| observe(n, waiting)),
            [0; 3]
        );
        let stopped = [(100, 2.0), (2, 8.0), (0, 8.0), (0, 8.0), (70, 3.0), (0, 8.0)];
        assert_eq!(stopped.map(|(n, waiting)| observe(n, waiting)), [0, 1, 2, 3, 0, 1]);
    }

    fn sample(at: Instant, text: &str) -> SessionSample {
        let statement = Arc::new(StatementText::new(text, false));
        let row = RecordedSession { statement: statement.id, ..RecordedSession::default() };
        let sessions = RecordedSessions { rows: vec![row], ..RecordedSessions::default() };
        let counters = RecordedCounters::default();
        SessionSample { at, counters, sessions: Some(sessions), statements: vec![statement] }
    }

    #[test]
    fn texts_are_repeated_as_the_ring_advances_and_for_episodes() {
        let mut log = SessionLog::default();
        let start = Instant::now();
        let texts = |log: &mut SessionLog, after_s, text, position| {
            let mut output = SessionRecords::default();
            let at = start + Duration::from_secs(after_s);
            log.add_sample(sample(at, text), position, 1000, &mut output);
            let is_text = |(_, record): &&(Instant, FlightRecord)| {
                matches!(record, FlightRecord::StatementText(_))
            };
            output.records.iter().filter(is_text).count()
        };
        assert_eq!(texts(&mut log, 0, "a", 0), 1);
        assert_eq!(texts(&mut log, 1, "a", 999), 0);
        assert_eq!(texts(&mut log, 2, "a", 1000), 1);
        assert_eq!(texts(&mut log, 60, "b", 1100), 1);
        let repeated = log.texts_for_episode(start + Duration::from_secs(61));
        assert_eq!(repeated, [FlightRecord::StatementText(StatementText::new("b", false))]);
        assert_eq!(texts(&mut log, 62, "b", 1200), 1);
    }
}

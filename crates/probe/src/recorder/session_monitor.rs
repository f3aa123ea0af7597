//! Reads sessions and counters over SQL, once a second, in a separate thread: a stalled server may
//! not respond, which must not delay sampling.
//!
//! Cost to the server: one statement of about a millisecond per second if all sessions idle. If
//! some do not, a second one lists them. Four more run only with a reason: locks while a session
//! waits for one, prepared transactions while one of them blocks a session, temporary files while
//! a statement has run for a second, the slowest standby while it lags. Blockers are requested only
//! for sessions that wait for a lock. While some do, the list is read more often:
//!
//! The server ends a deadlock when one of its sessions has waited for `deadlock_timeout`, a second
//! by default, and the last of them may have begun to wait shortly before. So the sessions that are
//! not idle are listed up to four times a second, with the same statement, while one has waited for
//! a lock for at least 0.2 s, but not for long, to see whether it becomes a part of a circle. This
//! takes at most 2 % of one session's time, and stops while very many sessions wait. A circle is
//! reported only if a second list, 20 ms later, has it, too: see [`super::wait_circles`].

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_collect::{
    Activity, BackendActivity, BackendState, BackendType, Blocker, CollectError, MissingPrivilege,
    MonitorConnection, OWN_COMMENT, PreparedTransaction, ServerVitals, SlowestStandby, WaitedLock,
};
use howdah_connect::ConnectTarget;

use super::{
    session_records::{
        BLOCKERS_MAX, MemberWait, RecordedCircles, RecordedCounters, RecordedSession,
        RecordedSessions, SESSIONS_MAX, SessionGroup, StatementText,
    },
    wait_circles::{confirmed_members, member_wait, members_of_circles},
};

/// Reads a server's sessions until it is dropped.
#[derive(Debug)]
pub(super) struct SessionMonitor {
    reports: Receiver<SessionReport>,
    /// Dropped to end the thread, which may be waiting for the server and is not joined.
    _stop: Sender<()>,
}

/// A message from the thread.
#[derive(Debug)]
pub(super) enum SessionReport {
    /// The process id of the thread's own session, in the server's namespace.
    Connected(u32),
    /// A sample, taken about every second.
    Sample(Box<SessionSample>),
    /// Sessions that wait in a circle.
    Circle { at: Instant, circles: RecordedCircles, statements: Vec<Arc<StatementText>> },
    /// Sessions can no longer be read, or can be again.
    Note(String),
}

/// One sample of the server. The times of its records are not set.
#[derive(Debug)]
pub(super) struct SessionSample {
    /// Time at which the sample was requested.
    pub(super) at: Instant,
    pub(super) counters: RecordedCounters,
    /// `None` if there is nothing to record.
    pub(super) sessions: Option<RecordedSessions>,
    /// The texts of the statements in `sessions`.
    pub(super) statements: Vec<Arc<StatementText>>,
}

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of lists of sessions between two samples, which look for circles of waits.
const CIRCLE_INTERVAL: Duration = Duration::from_millis(250);
/// Ages of a wait, in microseconds, from and below which circles are looked for. A session that has
/// waited longer has already looked for a deadlock, so a circle that it becomes a part of lasts
/// until a later session does, which the next sample sees.
const CIRCLE_WAIT_US: i64 = 200_000;
const LONG_WAIT_US: i64 = 1_500_000;
/// Pause after such a list, as a multiple of the time that the server took for it.
const CIRCLE_PAUSES: u32 = 50;
/// Maximum number of waiting sessions with which circles are looked for between two samples, or
/// confirmed.
const CIRCLE_WAITERS_MAX: usize = 64;
/// Time from the list that has a circle to the one that confirms it.
const CONFIRM_DELAY: Duration = Duration::from_millis(20);
/// Time after which a circle that has not changed is reported again.
const CIRCLE_REPEAT_INTERVAL: Duration = Duration::from_millis(900);
/// Time from a failed connection to the next attempt.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of queued reports; further ones are dropped, and the next one covers their time.
const QUEUE_DEPTH: usize = 64;
/// Maximum number of statements whose texts are retained. Their keys are as long as the server's
/// `track_activity_query_size`.
const STATEMENTS_MAX: usize = 2000;
/// Maximum length of the part of a statement that is normalized, in bytes.
const STATEMENT_INPUT_MAX: usize = 8 << 10;
/// Run time from which a statement may have temporary files of interest.
const LONG_STATEMENT_US: i64 = 1_000_000;
/// Change in the number of sessions from which groups of sessions are recorded.
const CLIENTS_CHANGE_MIN: u64 = 10;
/// Maximum number of recorded groups of sessions.
const GROUPS_MAX: usize = 8;
/// Time from the end of a `CHECKPOINT` to the sample in which the server has counted it.
const REQUEST_AGE_US: i64 = 3_000_000;
/// Type of the process that replays the WAL.
const STARTUP: &str = "startup";
/// Lag of a standby from which it is recorded, as time or as WAL.
const LAG_RECORDED: Duration = Duration::from_secs(1);
const LAG_BYTES_RECORDED: u64 = 16 << 20;
/// Maximum number of the thread's own commits that the server may have yet to count.
const UNCOUNTED_MAX: u64 = 20;
/// Longest time that the rows of a sample stand for, however long ago the previous one was taken.
const ROW_TIME_MAX: Duration = Duration::from_secs(5);

impl SessionMonitor {
    /// Starts the thread, which connects to `target`.
    pub(super) fn start(target: ConnectTarget) -> io::Result<Self> {
        let (sender, reports) = sync_channel(QUEUE_DEPTH);
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new().name("recorder-sessions".to_owned()).spawn(move || {
            SessionReader::new(target).run(&sender, &stopped);
        })?;
        Ok(Self { reports, _stop: stop })
    }

    /// Returns the reports since the last call.
    pub(super) fn reports(&self) -> impl Iterator<Item = SessionReport> {
        self.reports.try_iter()
    }
}

/// The state of the thread.
struct SessionReader {
    target: ConnectTarget,
    server: Option<MonitorConnection>,
    statements: HashMap<Arc<str>, Arc<StatementText>>,
    baseline: Option<CounterBaseline>,
    /// Number of clients when groups were last recorded.
    grouped_clients: u64,
    may_list_temp_files: bool,
    circle_search: CircleSearch,
}

/// The search for circles of waits.
#[derive(Default)]
struct CircleSearch {
    /// Time from the latest list of sessions to the next one that looks for circles, unless a
    /// sample is due earlier; `None` without a reason to look.
    pause: Option<Duration>,
    /// The members of the circles that were reported last, and when.
    reported: Option<(HashSet<MemberWait>, Instant)>,
}

/// The previous sample of the counters.
struct CounterBaseline {
    at: Instant,
    vitals: ServerVitals,
    /// Commits of the thread itself that are to be subtracted: each of its statements is a
    /// transaction. The server counts them up to a second late, so those that it had not counted
    /// yet are carried over.
    own_commits: u64,
    /// Time since which the slowest standby has replayed nothing of the WAL that there is.
    replayed_at: Instant,
}

impl SessionReader {
    fn new(target: ConnectTarget) -> Self {
        Self {
            target,
            server: None,
            statements: HashMap::new(),
            baseline: None,
            grouped_clients: 0,
            may_list_temp_files: true,
            circle_search: CircleSearch::default(),
        }
    }

    fn run(mut self, reports: &SyncSender<SessionReport>, stop: &Receiver<()>) {
        let mut due = Instant::now();
        let mut trouble = None;
        loop {
            let sampled = self.sample(reports);
            let now = Instant::now();
            let (report, next) = match sampled {
                Ok(sample) => {
                    if trouble.take().is_some() {
                        send(reports, SessionReport::Note("sessions are read again".to_owned()));
                    }
                    (Some(SessionReport::Sample(Box::new(sample))), SAMPLE_INTERVAL)
                }
                Err(error) => {
                    if error.is_fatal() {
                        self.server = None;
                        self.baseline = None;
                    }
                    let text = format!("sessions are not read: {error}");
                    let is_new = trouble.is_none();
                    trouble = Some(());
                    (is_new.then_some(SessionReport::Note(text)), RECONNECT_INTERVAL)
                }
            };
            if let Some(report) = report
                && !send(reports, report)
            {
                return;
            }
            // Samples that were missed are not made up for.
            due = (due + next).max(now);
            if !self.wait_until(due, reports, stop) {
                return;
            }
        }
    }

    /// Waits for the next sample, and meanwhile looks for circles if there is a reason. Returns
    /// whether to go on.
    fn wait_until(
        &mut self,
        due: Instant,
        reports: &SyncSender<SessionReport>,
        stop: &Receiver<()>,
    ) -> bool {
        loop {
            let left = due.saturating_duration_since(Instant::now());
            let pause = self.circle_search.pause.take().filter(|pause| *pause < left);
            if !matches!(stop.recv_timeout(pause.unwrap_or(left)), Err(RecvTimeoutError::Timeout)) {
                return false;
            }
            if pause.is_none() {
                return true;
            }
            // After an error the next sample reports it.
            if let Ok(Some(circle)) = self.find_circles()
                && !send(reports, circle)
            {
                return false;
            }
        }
    }

    /// Lists the sessions that are not idle, and returns those that wait in circles; `None` without
    /// such sessions.
    fn find_circles(&mut self) -> Result<Option<SessionReport>, CollectError> {
        let Some(server) = &mut self.server else { return Ok(None) };
        let start = Instant::now();
        let activity = server.activity(false)?;
        let elapsed = start.elapsed();
        self.count_own_commit();
        let (circle, more) = self.confirm_circles(&activity)?;
        self.circle_search.pause =
            pause_before_circles(&activity).filter(|pause| *pause == CIRCLE_INTERVAL);
        self.circle_search.extend_pause(elapsed + more);
        Ok(circle)
    }

    /// If sessions wait in circles, lists them again, and returns the circles that are still the
    /// same, unless they were reported shortly before; and the time that the server took.
    fn confirm_circles(
        &mut self,
        activity: &Activity,
    ) -> Result<(Option<SessionReport>, Duration), CollectError> {
        let suspects = match waiting(activity).count() {
            0..=CIRCLE_WAITERS_MAX => members_of_circles(activity),
            _ => Vec::new(),
        };
        let Some(server) = self.server.as_mut().filter(|_| !suspects.is_empty()) else {
            self.circle_search.reported = None;
            return Ok((None, Duration::ZERO));
        };
        if self.circle_search.has_reported(&suspects) {
            return Ok((None, Duration::ZERO));
        }
        thread::sleep(CONFIRM_DELAY);
        let at = Instant::now();
        let later = server.activity(false)?;
        let taken_us = later.taken_us;
        let members = confirmed_members(&suspects, later);
        let is_new = !members.is_empty() && !self.circle_search.has_reported(&members);
        let locks = if is_new { server.waited_locks()? } else { Vec::new() };
        let elapsed = at.elapsed();
        self.count_own_commit();
        if !is_new {
            return Ok((None, elapsed));
        }
        self.count_own_commit();
        let waits: HashMap<u32, MemberWait> =
            members.iter().map(member_wait).map(|wait| (wait.pid, wait)).collect();
        self.circle_search.reported = Some((waits.values().copied().collect(), at));
        let details = SampleDetails { locks, ..SampleDetails::default() };
        let mut statements = Vec::new();
        let members = Activity { taken_us, backends: members };
        let sessions = self.sessions(&members, &details, &mut statements);
        let waits = sessions.rows.iter().filter_map(|row| waits.get(&row.pid).copied()).collect();
        let circles = RecordedCircles { sessions, taken_us, waits };
        Ok((Some(SessionReport::Circle { at, circles, statements }), elapsed))
    }

    fn count_own_commit(&mut self) {
        if let Some(baseline) = &mut self.baseline {
            baseline.own_commits += 1;
        }
    }

    fn sample(
        &mut self,
        reports: &SyncSender<SessionReport>,
    ) -> Result<SessionSample, CollectError> {
        let server = match &mut self.server {
            Some(server) => server,
            none => {
                let mut server = MonitorConnection::connect(&self.target)?;
                // A statement has the same text however long it has run.
                server.request_full_texts();
                let pid = u32::try_from(server.info().backend.pid).unwrap_or(0);
                send(reports, SessionReport::Connected(pid));
                let missing = server.privileges().missing(server.info().version);
                let hidden =
                    missing.iter().find(|missing| missing.what == MissingPrivilege::SESSIONS);
                if let Some(MissingPrivilege { remedy, .. }) = hidden {
                    let text = format!(
                        "statements and states of other roles' sessions are hidden: {remedy}"
                    );
                    send(reports, SessionReport::Note(text));
                }
                self.may_list_temp_files = true;
                none.insert(server)
            }
        };
        let at = Instant::now();
        let vitals = server.vitals()?;
        let replayed_at = self
            .baseline
            .as_ref()
            .filter(|before| {
                vitals.replay_lag_bytes.is_some_and(|bytes| bytes > 0)
                    && before.vitals.replayed_lsn == vitals.replayed_lsn
            })
            .map_or(at, |before| before.replayed_at);
        let (mut counters, elapsed, uncounted) = self.baseline.take().map_or_else(
            || (counters(&vitals, None), SAMPLE_INTERVAL, 0),
            |baseline| {
                let elapsed = at.saturating_duration_since(baseline.at);
                let commits = vitals.commits.saturating_sub(baseline.vitals.commits);
                let uncounted = baseline.own_commits.saturating_sub(commits).min(UNCOUNTED_MAX);
                (counters(&vitals, Some((&baseline, elapsed))), elapsed, uncounted)
            },
        );
        let is_lagging = add_replay_stop(&mut counters, at.saturating_duration_since(replayed_at));
        // This statement, and those that the server has not counted yet.
        let mut own_commits = 1 + uncounted;
        let has_changed = vitals.clients.abs_diff(self.grouped_clients) >= CLIENTS_CHANGE_MIN
            || counters.sessions_started >= CLIENTS_CHANGE_MIN;
        let (busy, clients) = (vitals.busy, vitals.clients);
        self.baseline = Some(CounterBaseline { at, vitals, own_commits, replayed_at });
        let mut sample = SessionSample { at, counters, sessions: None, statements: Vec::new() };
        self.circle_search.pause = None;
        let has_requests = counters.requested_checkpoints > 0;
        if busy == 0 && !has_changed && !is_lagging && !has_requests {
            self.circle_search.reported = None;
            return Ok(sample);
        }
        // A session that requested a checkpoint may idle again.
        let start = Instant::now();
        let mut activity = server.activity(has_requests)?;
        let listing_time = start.elapsed();
        own_commits += 1;
        let is_replay = |backend: &&mut BackendActivity| {
            backend.kind.as_ref().is_some_and(|kind| kind.as_str() == STARTUP)
                && backend.wait.as_ref().is_some_and(|wait| &*wait.class == "Lock")
        };
        if let Some(replay) = activity.backends.iter_mut().find(is_replay) {
            let blockers = server.replay_blockers()?;
            replay.blockers.extend(blockers.into_iter().map(Blocker::Process));
            own_commits += 1;
        }
        let is_blocked = |backend: &BackendActivity| {
            !backend.blockers.is_empty()
                || backend.wait.as_ref().is_some_and(|wait| &*wait.class == "Lock")
        };
        let requested_since_us =
            has_requests.then(|| activity.taken_us.saturating_sub(REQUEST_AGE_US));
        let mut details =
            SampleDetails { requested_since_us, is_lagging, ..SampleDetails::default() };
        if is_lagging {
            details.standby = server.slowest_standby()?;
            own_commits += 1;
        }
        if activity.backends.iter().any(is_blocked) {
            details.locks = server.waited_locks()?;
            own_commits += 1;
        }
        let is_prepared = |backend: &BackendActivity| backend.blockers.contains(&Blocker::Prepared);
        if activity.backends.iter().any(is_prepared) {
            details.prepared = server.prepared_transactions()?;
            own_commits += 1;
        }
        let is_long = |backend: &BackendActivity| {
            backend.state == Some(BackendState::Active)
                && backend.kind != Some(BackendType::WalSender)
                && backend
                    .query_started_us
                    .is_some_and(|us| activity.taken_us - us >= LONG_STATEMENT_US)
        };
        if self.may_list_temp_files && activity.backends.iter().any(is_long) {
            own_commits += 1;
            match server.temp_files() {
                Ok(files) => details.temp_files = files,
                Err(error) if error.is_fatal() => return Err(error),
                // The role may not list them.
                Err(_) => self.may_list_temp_files = false,
            }
        }
        if let Some(baseline) = &mut self.baseline {
            baseline.own_commits = own_commits;
        }
        if has_changed {
            self.grouped_clients = clients;
        }
        // A failed connection is found by the next sample.
        if let Ok((circle, more)) = self.confirm_circles(&activity) {
            self.circle_search.pause = pause_before_circles(&activity);
            self.circle_search.extend_pause(listing_time + more);
            circle.map(|circle| send(reports, circle));
        }
        let elapsed = elapsed.min(ROW_TIME_MAX);
        let mut sessions = self.sessions(&activity, &details, &mut sample.statements);
        if has_changed {
            add_groups(&mut sessions, &activity, elapsed);
        }
        sessions.elapsed_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        sample.sessions =
            Some(sessions).filter(|all| !all.rows.is_empty() || !all.groups.is_empty());
        Ok(sample)
    }

    /// Selects and converts the sessions to record.
    fn sessions(
        &mut self,
        activity: &Activity,
        details: &SampleDetails,
        statements: &mut Vec<Arc<StatementText>>,
    ) -> RecordedSessions {
        let blockers: HashSet<Blocker> =
            activity.backends.iter().flat_map(|backend| backend.blockers.iter().copied()).collect();
        let is_blocker =
            |backend: &BackendActivity| blockers.contains(&Blocker::Process(backend.pid));
        let mut selected: Vec<(bool, &BackendActivity)> = activity
            .backends
            .iter()
            .map(|backend| (is_blocker(backend), backend))
            .filter(|(is_blocker, backend)| *is_blocker || is_recorded(backend, details))
            .collect();
        selected.sort_by_key(|(is_blocker, backend)| {
            let is_idle = !backend.is_working();
            (!is_blocker, backend.blockers.is_empty(), is_idle, backend.since_us())
        });
        let prepared = if details.prepared.is_empty() { 0 } else { 1 };
        let room = SESSIONS_MAX - prepared;
        let omitted = selected.len().saturating_sub(room);
        selected.truncate(room);
        let mut sessions =
            RecordedSessions { omitted: omitted as u64, ..RecordedSessions::default() };
        sessions.index_of("");
        if let Some(transaction) = details.prepared.first() {
            let row = prepared_row(&mut sessions, transaction, activity.taken_us, statements);
            sessions.rows.push(row);
        }
        for (_, backend) in selected {
            let mut row = session_row(&mut sessions, backend, activity.taken_us, details);
            let standby = details.standby.as_ref().filter(|standby| standby.pid == backend.pid);
            let text = match standby {
                Some(standby) => Some(standby_text(standby)),
                None => self.statement(backend),
            };
            if let Some(text) = text {
                row.statement = text.id;
                if !statements.iter().any(|known| known.id == text.id) {
                    statements.push(text);
                }
            }
            sessions.rows.push(row);
        }
        sessions
    }

    /// Returns the text of a session's statement without literals; `None` if it is not visible.
    fn statement(&mut self, backend: &BackendActivity) -> Option<Arc<StatementText>> {
        let query = backend.query.as_ref().filter(|_| backend.is_readable)?;
        if query.as_str().is_empty() {
            return None;
        }
        // The server's description of an autovacuum worker is not SQL, and has no literals.
        if backend.kind == Some(BackendType::AutovacuumWorker) {
            return Some(Arc::new(StatementText::new(query.as_str(), query.is_truncated)));
        }
        if let Some(text) = self.statements.get(query.as_str()) {
            return Some(Arc::clone(text));
        }
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        let mut end = query.as_str().len().min(STATEMENT_INPUT_MAX);
        while !query.as_str().is_char_boundary(end) {
            end -= 1;
        }
        let is_truncated = query.is_truncated || end < query.as_str().len();
        let text = Arc::new(StatementText::from_sql(&query.as_str()[..end], is_truncated));
        if query.as_str().len() <= STATEMENT_INPUT_MAX {
            self.statements.insert(query.to_shared(), Arc::clone(&text));
        }
        Some(text)
    }
}

/// Data requested beside the list of sessions.
#[derive(Default)]
struct SampleDetails {
    locks: Vec<WaitedLock>,
    prepared: Vec<PreparedTransaction>,
    temp_files: Vec<(i32, u64)>,
    /// The slowest standby, while it lags.
    standby: Option<SlowestStandby>,
    /// If a checkpoint was requested since the previous sample: the time since when a session that
    /// idles may have waited for it.
    requested_since_us: Option<i64>,
    /// Whether a standby lags, or the server itself is one that does.
    is_lagging: bool,
}

impl CircleSearch {
    /// Makes the pause long enough after lists for which the server took `elapsed`.
    fn extend_pause(&mut self, elapsed: Duration) {
        self.pause = self.pause.map(|pause| pause.max(elapsed * CIRCLE_PAUSES));
    }

    /// Whether circles with these members were reported last, and not long before.
    fn has_reported(&self, members: &[BackendActivity]) -> bool {
        self.reported.as_ref().is_some_and(|(reported, at)| {
            at.elapsed() < CIRCLE_REPEAT_INTERVAL
                && reported.len() == members.len()
                && members.iter().all(|member| reported.contains(&member_wait(member)))
        })
    }
}

/// Returns the sessions that wait for others.
fn waiting(activity: &Activity) -> impl Iterator<Item = &BackendActivity> {
    activity.backends.iter().filter(|backend| !backend.blockers.is_empty())
}

/// Returns the time after which to look for circles: [`CIRCLE_INTERVAL`] if a session has waited
/// for a while, the time until then if one has only begun to wait. `None` if none waits, all have
/// waited long, or too many wait.
fn pause_before_circles(activity: &Activity) -> Option<Duration> {
    let began_us = |backend: &BackendActivity| member_wait(backend).blocked_us;
    let ages =
        waiting(activity).filter_map(began_us).map(|us| activity.taken_us.saturating_sub(us));
    let age = ages.filter(|age| *age < LONG_WAIT_US).max()?;
    if waiting(activity).count() > CIRCLE_WAITERS_MAX {
        return None;
    }
    let left_us = (CIRCLE_WAIT_US - age.max(0)).max(0).cast_unsigned();
    Some(if left_us == 0 { CIRCLE_INTERVAL } else { Duration::from_micros(left_us) })
}

/// Queues a report; returns whether the recorder still receives them.
fn send(reports: &SyncSender<SessionReport>, report: SessionReport) -> bool {
    !matches!(reports.try_send(report), Err(TrySendError::Disconnected(_)))
}

/// Returns the growth of the counters since the baseline.
fn counters(
    vitals: &ServerVitals,
    since: Option<(&CounterBaseline, Duration)>,
) -> RecordedCounters {
    let present = RecordedCounters {
        clients: vitals.clients,
        replay_lag_bytes: vitals.replay_lag_bytes,
        replay_lag_ms: vitals.replay_lag_seconds.map(|seconds| (seconds * 1000.0).max(0.0) as u64),
        ..RecordedCounters::default()
    };
    let Some((CounterBaseline { vitals: before, own_commits, .. }, elapsed)) = since else {
        return present;
    };
    // A smaller number means that the statistics were reset.
    if vitals.commits < before.commits || vitals.temp_bytes < before.temp_bytes {
        return present;
    }
    let growth = |count: fn(&ServerVitals) -> u64| count(vitals).saturating_sub(count(before));
    RecordedCounters {
        elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        commits: growth(|vitals| vitals.commits).saturating_sub(*own_commits),
        rollbacks: growth(|vitals| vitals.rollbacks),
        deadlocks: growth(|vitals| vitals.deadlocks),
        temp_files: growth(|vitals| vitals.temp_files),
        temp_bytes: growth(|vitals| vitals.temp_bytes),
        sessions_started: growth(|vitals| vitals.sessions_started.unwrap_or(0)),
        timed_checkpoints: growth(|vitals| vitals.timed_checkpoints),
        requested_checkpoints: growth(|vitals| vitals.requested_checkpoints),
        ..present
    }
}

/// Takes the time for which a standby has replayed nothing as its lag, if the server measured less:
/// PostgreSQL measures the lag when something is replayed. Returns whether the lag is considerable.
fn add_replay_stop(counters: &mut RecordedCounters, stopped: Duration) -> bool {
    let stopped_ms = u64::try_from(stopped.as_millis()).unwrap_or(u64::MAX);
    if stopped >= LAG_RECORDED {
        counters.replay_lag_ms = counters.replay_lag_ms.max(Some(stopped_ms));
    }
    let bytes = counters.replay_lag_bytes.unwrap_or(0);
    let is_late =
        counters.replay_lag_ms.is_some_and(|ms| u128::from(ms) >= LAG_RECORDED.as_millis());
    bytes > 0 && is_late || bytes >= LAG_BYTES_RECORDED
}

/// Describes why a standby lags, as far as the primary can tell.
fn standby_text(standby: &SlowestStandby) -> Arc<StatementText> {
    let text = if standby.flush_lag_bytes * 2 < standby.replay_lag_bytes {
        "it has received the WAL, but does not replay it"
    } else {
        "it does not receive the WAL as fast as it is written"
    };
    Arc::new(StatementText::new(text, false))
}

/// Whether a session's present or last statement is `CHECKPOINT`.
fn has_requested_checkpoint(backend: &BackendActivity) -> bool {
    let query = backend.query.as_ref().map_or("", |query| query.as_str().trim_start());
    query.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("checkpoint"))
}

/// Whether a session executes or executed a statement of this program, such as a lookup of names.
fn is_own(backend: &BackendActivity) -> bool {
    backend.query.as_ref().is_some_and(|query| query.as_str().ends_with(OWN_COMMENT))
}

/// Whether a session is recorded although it blocks none: a client's session or a worker that is
/// not idle, and any process that waits for a lock. This program's sessions only if they wait for a
/// lock. Besides, sessions that may have requested the
/// latest checkpoint, and the processes that send or replay the WAL late.
fn is_recorded(backend: &BackendActivity, details: &SampleDetails) -> bool {
    let is_idle = matches!(
        backend.state,
        None | Some(BackendState::Idle | BackendState::Disabled | BackendState::Starting)
    );
    match &backend.kind {
        Some(BackendType::AutovacuumWorker | BackendType::ParallelWorker) => true,
        Some(BackendType::Client) => {
            !is_idle && !is_own(backend)
                || !backend.blockers.is_empty()
                || details.requested_since_us.is_some_and(|since_us| {
                    backend.since_us().is_some_and(|us| us >= since_us)
                        && has_requested_checkpoint(backend)
                })
        }
        Some(BackendType::WalSender) => {
            details.standby.as_ref().is_some_and(|standby| standby.pid == backend.pid)
                || !backend.blockers.is_empty()
        }
        Some(BackendType::Other(name)) if &**name == STARTUP => details.is_lagging,
        _ => !backend.blockers.is_empty(),
    }
}

fn session_row(
    sessions: &mut RecordedSessions,
    backend: &BackendActivity,
    now_us: i64,
    details: &SampleDetails,
) -> RecordedSession {
    let number = |pid: i32| u32::try_from(pid).unwrap_or(0);
    let age_ms = |since_us: i64| now_us.saturating_sub(since_us).max(0).cast_unsigned() / 1000;
    let lock = details.locks.iter().find(|lock| lock.pid == backend.pid);
    let client = backend.client_name().unwrap_or_default();
    let blockers = backend.blockers.iter().map(|blocker| match blocker {
        Blocker::Process(pid) => number(*pid),
        Blocker::Prepared => 0,
    });
    let temp_bytes = details.temp_files.iter().find(|(pid, _)| *pid == backend.pid);
    RecordedSession {
        pid: number(backend.pid),
        leader: backend.leader.filter(|leader| *leader != backend.pid).map_or(0, number),
        kind: sessions.index_of(backend.kind.as_ref().map_or("", BackendType::as_str)),
        database: sessions.index_of(backend.database.as_deref().unwrap_or_default()),
        user: sessions.index_of(backend.user.as_deref().unwrap_or_default()),
        application: sessions.index_of(backend.application.as_deref().unwrap_or_default()),
        client: sessions.index_of(client),
        state: sessions.index_of(backend.state.map_or("", BackendState::as_str)),
        wait: sessions
            .index_of(&backend.wait.as_ref().map(ToString::to_string).unwrap_or_default()),
        statement: 0,
        age_ms: backend.since_us().map_or(0, age_ms),
        transaction_ms: backend.transaction_started_us.map(age_ms),
        blockers: blockers.take(BLOCKERS_MAX).collect(),
        lock: lock.map(|lock| (sessions.index_of(&lock.kind), sessions.index_of(&lock.mode))),
        relation: lock.and_then(|lock| lock.relation),
        temp_bytes: temp_bytes.map_or(0, |(_, bytes)| *bytes),
    }
}

/// Returns a row for the oldest prepared transaction. Which one blocks a session is not known.
fn prepared_row(
    sessions: &mut RecordedSessions,
    transaction: &PreparedTransaction,
    now_us: i64,
    statements: &mut Vec<Arc<StatementText>>,
) -> RecordedSession {
    let text = format!("prepared transaction '{}'", transaction.gid);
    let text = Arc::new(StatementText::new(&text, false));
    let age_ms = now_us.saturating_sub(transaction.prepared_us).max(0).cast_unsigned() / 1000;
    let row = RecordedSession {
        kind: sessions.index_of("prepared transaction"),
        database: sessions.index_of(&transaction.database),
        user: sessions.index_of(&transaction.owner),
        statement: text.id,
        age_ms,
        transaction_ms: Some(age_ms),
        ..RecordedSession::default()
    };
    statements.push(text);
    row
}

/// Adds the largest groups of client sessions.
fn add_groups(sessions: &mut RecordedSessions, activity: &Activity, elapsed: Duration) {
    let since_us =
        activity.taken_us.saturating_sub(i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX));
    let mut groups: HashMap<_, SessionGroup> = HashMap::new();
    for backend in activity.backends.iter().filter(|backend| backend.may_be_client()) {
        let group = groups
            .entry((&backend.user, &backend.database, &backend.application, &backend.client))
            .or_default();
        group.sessions += 1;
        group.started += u64::from(backend.started_us >= since_us);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_unstable_by_key(|(_, group)| std::cmp::Reverse((group.started, group.sessions)));
    groups.truncate(GROUPS_MAX);
    for ((user, database, application, client), group) in groups {
        let mut index =
            |name: &Option<Arc<str>>| sessions.index_of(name.as_deref().unwrap_or_default());
        let group = SessionGroup {
            user: index(user),
            database: index(database),
            application: index(application),
            client: index(client),
            ..group
        };
        sessions.groups.push(group);
    }
}

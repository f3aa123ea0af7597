//! Tests with recordings of a minute that have sessions and counters.

use super::*;
use crate::{
    analysis::summary::{RecordingSummary, summarize},
    recorder::{
        FlightRecord, FlightRecording, HostPressure, NamedRelation, SessionGroup, StatementText,
        SweepTotals, WaitRow, WaitSamples,
    },
};

const START_US: i64 = 1_414_072_716_000_000;
const UPDATE: &str = "update pgbench_branches set bbalance = bbalance + ? where bid = ?";
const LOCK: &str = "lock table pgbench_branches in access exclusive mode";

/// A session of a sample, in terms of texts.
#[derive(Clone, Default)]
struct Session {
    pid: u32,
    leader: u32,
    kind: &'static str,
    user: &'static str,
    application: &'static str,
    state: &'static str,
    wait: &'static str,
    statement: &'static str,
    age_s: u64,
    transaction_s: Option<u64>,
    blockers: Vec<u32>,
    temp_bytes: u64,
}

/// A client that executes a statement of this age.
fn active(pid: u32, statement: &'static str, wait: &'static str, age_s: u64) -> Session {
    Session {
        pid,
        kind: "client backend",
        user: "app",
        application: "pgbench",
        state: "active",
        wait,
        statement,
        age_s,
        transaction_s: Some(age_s),
        ..Session::default()
    }
}

/// Sessions that wait for a lock of `blocker`, each also for those ahead of it.
fn waiting(pids: std::ops::Range<u32>, blocker: u32, age_s: u64) -> Vec<Session> {
    let first = pids.start;
    pids.map(|pid| Session {
        blockers: [blocker].into_iter().chain(first..pid).collect(),
        ..active(pid, UPDATE, "Lock:relation", age_s)
    })
    .collect()
}

/// A recording of a minute. The closures return the events, sessions and counters of a second.
struct Minute<'a> {
    events: &'a dyn Fn(i64) -> Vec<(&'static str, u64)>,
    sessions: &'a dyn Fn(i64) -> Vec<Session>,
    counters: &'a dyn Fn(i64) -> RecordedCounters,
}

fn calm_events(_: i64) -> Vec<(&'static str, u64)> {
    vec![("CPU*", 100), ("IO:WALSync", 18)]
}

fn calm_sessions(_: i64) -> Vec<Session> {
    vec![active(21, UPDATE, "", 0), active(22, UPDATE, "IO:WALSync", 0)]
}

fn calm_counters(_: i64) -> RecordedCounters {
    RecordedCounters { commits: 100, clients: 8, ..RecordedCounters::default() }
}

const CALM: Minute<'static> =
    Minute { events: &calm_events, sessions: &calm_sessions, counters: &calm_counters };

impl Minute<'_> {
    fn recording(&self) -> FlightRecording {
        let mut records = vec![FlightRecord::NamedRelation(NamedRelation {
            database: 5,
            relation: 7,
            name: "shop.public.pgbench_branches".to_owned(),
        })];
        for index in 0..60 {
            let at_us = START_US + index * 1_000_000;
            let row = |(event, samples): (&str, u64)| WaitRow {
                group: TimeCategory::Database,
                kind: "client backend".to_owned(),
                class: event.split(':').next().unwrap_or_default().to_owned(),
                event: event.to_owned(),
                samples,
            };
            let rows = (self.events)(index).into_iter().map(row).collect();
            records.push(FlightRecord::Second(RecordedSecond {
                at_us,
                elapsed_us: 1_000_000,
                waits: WaitSamples { rounds: 100, rows },
                ..RecordedSecond::default()
            }));
            let counters = (self.counters)(index);
            let end_us = at_us + 900_000;
            records.push(FlightRecord::Counters(RecordedCounters {
                at_us: end_us,
                elapsed_us: 1_000_000,
                ..counters
            }));
            let mut sessions = sessions_record((self.sessions)(index), &mut records);
            sessions.at_us = end_us;
            if counters.sessions_started > 0 {
                let (user, application) = (sessions.index_of("web"), sessions.index_of("php"));
                let started = counters.sessions_started;
                let group = SessionGroup { user, application, started, ..SessionGroup::default() };
                sessions.groups.push(group);
            }
            records.push(FlightRecord::Sessions(sessions));
        }
        FlightRecording { records, ..FlightRecording::default() }
    }

    fn summary(&self) -> RecordingSummary {
        summarize(&RecordingWindow::from_recording(&self.recording()))
    }
}

fn sessions_record(rows: Vec<Session>, records: &mut Vec<FlightRecord>) -> RecordedSessions {
    let mut sessions = RecordedSessions { elapsed_us: 1_000_000, ..RecordedSessions::default() };
    sessions.index_of("");
    for session in rows {
        let mut statement = 0;
        if !session.statement.is_empty() {
            let text = StatementText::new(session.statement, false);
            statement = text.id;
            records.push(FlightRecord::StatementText(text));
        }
        let row = RecordedSession {
            pid: session.pid,
            leader: session.leader,
            kind: sessions.index_of(session.kind),
            user: sessions.index_of(session.user),
            application: sessions.index_of(session.application),
            client: sessions.index_of("10.0.0.7"),
            state: sessions.index_of(session.state),
            wait: sessions.index_of(session.wait),
            statement,
            age_ms: session.age_s * 1000,
            transaction_ms: session.transaction_s.map(|age_s| age_s * 1000),
            relation: (!session.blockers.is_empty()).then_some((5, 7)),
            blockers: session.blockers,
            temp_bytes: session.temp_bytes,
            ..RecordedSession::default()
        };
        sessions.rows.push(row);
    }
    sessions
}

/// Seconds 20 to 28 of a minute, in which a lock stops everything.
fn is_stalled(index: i64) -> bool {
    (20..29).contains(&index)
}

/// Returns how long a second of the stall is after its start.
fn stall_age(index: i64) -> u64 {
    (index - 19).cast_unsigned()
}

fn stalled_events(index: i64) -> Vec<(&'static str, u64)> {
    if is_stalled(index) {
        vec![("Lock:relation", 800), ("Timeout:PgSleep", 100)]
    } else {
        calm_events(index)
    }
}

fn stalled_counters(index: i64) -> RecordedCounters {
    let commits = if is_stalled(index) { 1 } else { 100 };
    RecordedCounters { commits, ..calm_counters(index) }
}

/// A minute in which `blocker` blocks eight sessions.
fn stall(blocker: &Session) -> RecordingSummary {
    stall_with(blocker, &stalled_counters)
}

/// A minute in which `blocker` blocks eight sessions, with other counters.
fn stall_with(blocker: &Session, counters: &dyn Fn(i64) -> RecordedCounters) -> RecordingSummary {
    let sessions = |index: i64| {
        if !is_stalled(index) {
            return calm_sessions(index);
        }
        let age_s = stall_age(index);
        let blocker = Session { transaction_s: Some(age_s), age_s, ..blocker.clone() };
        [vec![blocker.clone()], waiting(31..39, blocker.pid, age_s)].concat()
    };
    Minute { events: &stalled_events, sessions: &sessions, counters }.summary()
}

#[test]
fn stopped_commits_name_their_root_blocker() {
    let blocker = Session {
        user: "bob",
        application: "psql",
        wait: "Timeout:PgSleep",
        ..active(4711, LOCK, "", 0)
    };
    let summary = stall(&blocker);
    assert_eq!(
        summary.headline,
        "Commits stopped for 9 s: 8 sessions waited for a lock on shop.public.pgbench_branches held \
         by pid 4711 (`lock table pgbench_branches in access exclusive mode`, psql, user bob, \
         10.0.0.7)"
    );
    let finding = &summary.findings[0];
    assert!(finding.evidence.contains("most of them for Lock:relation"), "{finding:?}");
    assert!(finding.evidence.contains("100 commits a second usually"), "{finding:?}");
    let [culprit] = &finding.culprits[..] else { panic!("{finding:?}") };
    assert_eq!((culprit.pid, culprit.sessions), (Some(4711), 8));
    // Eight sessions for nine seconds, each of them for this root only.
    assert!((culprit.time_s - 72.0).abs() < 8.1, "{culprit:?}");
    assert_eq!(finding.span.map(|span| span.from_us), Some(START_US + 20_000_000));
}

#[test]
fn early_commit_leaves_the_stall_in_the_headline() {
    // Another session commits two seconds before the lock is released.
    let counters = |index: i64| {
        let is_over = is_stalled(index) && !is_stalled(index + 2);
        if is_over { calm_counters(index) } else { stalled_counters(index) }
    };
    let blocker = Session { application: "psql", ..active(4711, LOCK, "", 0) };
    let headline = stall_with(&blocker, &counters).headline;
    assert!(headline.starts_with("Commits stopped for 7 s: 8 sessions waited"), "{headline}");
}

#[test]
fn blockers_of_each_kind_are_described() {
    let idle = Session { state: "idle in transaction", ..active(7, "update t set a = ?", "", 0) };
    let text = stall(&idle).headline;
    assert!(text.contains("held by pid 7 (`update t set a = ?`, pgbench, user app, 10.0.0.7, idle in transaction for 9 s)"), "{text}");
    let vacuum = "autovacuum: VACUUM public.t (to prevent wraparound)";
    let worker = Session {
        kind: "autovacuum worker",
        user: "",
        application: "",
        ..active(8, vacuum, "", 0)
    };
    let text = stall(&worker).headline;
    assert!(text.contains(&format!("held by autovacuum worker 8 (`{vacuum}`")), "{text}");
    let prepared = Session {
        kind: "prepared transaction",
        state: "",
        user: "bob",
        ..active(0, "prepared transaction 'tx-1'", "", 0)
    };
    let text = stall(&prepared).headline;
    assert!(text.ends_with("held by prepared transaction 'tx-1' (user bob)"), "{text}");
}

#[test]
fn stop_without_blocker_names_what_is_waited_for() {
    let events = |index: i64| {
        if is_stalled(index) {
            vec![("LWLock:WALWrite", 600), ("IO:WALSync", 100)]
        } else {
            calm_events(index)
        }
    };
    let sessions = |index: i64| {
        if !is_stalled(index) {
            return calm_sessions(index);
        }
        (31..37).map(|pid| active(pid, "commit", "LWLock:WALWrite", stall_age(index))).collect()
    };
    let summary =
        Minute { events: &events, sessions: &sessions, counters: &stalled_counters }.summary();
    assert_eq!(
        summary.headline,
        "Commits stopped for 9 s: up to 7.0 sessions waited for the WAL to be written to disk \
         (IO:WALSync, LWLock:WALWrite); most of the time in pids 31, 32, 33 and 3 more (`commit`, \
         pgbench, user app, 10.0.0.7)"
    );
    let culprit = &summary.findings[0].culprits[0];
    assert_eq!((culprit.role, &*culprit.statement), (CulpritRole::Statement, "commit"));
    assert_eq!(culprit.sessions, 6);
    // Without counters, the absence of running sessions is reported.
    let none = |_: i64| RecordedCounters::default();
    let summary = Minute { events: &events, sessions: &sessions, counters: &none }.summary();
    assert!(summary.headline.starts_with("No session ran for 9 s while up to 7.0"), "{summary:#?}");
}

#[test]
fn short_blockers_are_no_culprits() {
    // Contention for a row: each session blocks the others for a moment.
    let events = |_: i64| vec![("CPU*", 50), ("Lock:tuple", 300)];
    let sessions = |index: i64| {
        let first = 31 + u32::try_from(index % 4).unwrap();
        let root = Session { transaction_s: Some(0), ..active(first, UPDATE, "", 0) };
        [vec![root], waiting(50..54, first, 0)].concat()
    };
    let summary = Minute { events: &events, sessions: &sessions, ..CALM }.summary();
    assert!(summary.headline.contains("waits for Lock:tuple"), "{summary:#?}");
    let roles: Vec<_> = summary.findings[0].culprits.iter().map(|culprit| culprit.role).collect();
    assert_eq!(roles, [CulpritRole::Statement], "{summary:#?}");
}

#[test]
fn lasting_blocker_of_one_session_is_found() {
    let sessions = |index: i64| {
        let age_s = index.cast_unsigned();
        let blocker = Session {
            state: "idle in transaction",
            transaction_s: Some(age_s),
            ..active(7, "select * from t for update", "Client:ClientRead", age_s)
        };
        [vec![blocker], waiting(31..32, 7, age_s), calm_sessions(index)].concat()
    };
    let events = |_: i64| vec![("CPU*", 500), ("Lock:relation", 80)];
    let summary = Minute { events: &events, sessions: &sessions, ..CALM }.summary();
    assert!(
        summary.headline.starts_with("Pid 7 (`select * from t for update`")
            && summary
                .headline
                .ends_with("blocked another session on shop.public.pgbench_branches"),
        "{summary:#?}"
    );
}

const REPORT: &str = "select count(*) from orders a, orders b";

/// A minute in which one query runs for 30 s, with a parallel worker.
fn runaway(temp_bytes: u64) -> RecordingSummary {
    let runs = |index: i64| (25..55).contains(&index);
    let events = |index: i64| {
        let mut events = calm_events(index);
        if runs(index) {
            events = vec![("CPU*", 200), ("IO:DataFileRead", 150)];
        }
        events
    };
    let sessions = |index: i64| {
        let mut all = calm_sessions(index);
        if runs(index) {
            let age_s = (index - 24).cast_unsigned();
            let wait = if index % 2 == 0 { "IO:DataFileRead" } else { "" };
            let query = Session {
                user: "bob",
                application: "psql",
                temp_bytes,
                ..active(4711, REPORT, wait, age_s)
            };
            let worker =
                Session { pid: 4712, leader: 4711, kind: "parallel worker", ..query.clone() };
            all.extend([query, worker]);
        }
        all
    };
    Minute { events: &events, sessions: &sessions, ..CALM }.summary()
}

#[test]
fn runaway_query_is_named_and_explains_its_reads() {
    let summary = runaway(0);
    assert_eq!(
        summary.headline,
        "One query ran for 30 s and took 57 % of database time: pid 4711 \
         (`select count(*) from orders a, orders b`, psql, user bob, 10.0.0.7)"
    );
    assert!(
        !summary.findings.iter().any(|finding| finding.text.contains("DataFileRead")),
        "{summary:#?}"
    );
    let with_files = runaway(300_000_000).headline;
    assert!(
        with_files.contains("of database time and 300 MB of temporary files: pid 4711"),
        "{with_files}"
    );
}

#[test]
fn query_that_mostly_waits_is_no_runaway() {
    let sessions = |index: i64| {
        let mut all = calm_sessions(index);
        all.push(active(4711, REPORT, "Client:ClientWrite", index.cast_unsigned()));
        all
    };
    let summary = Minute { sessions: &sessions, ..CALM }.summary();
    assert!(!summary.headline.contains("4711"), "{summary:#?}");
}

#[test]
fn connection_storm_names_its_client() {
    let counters = |index: i64| {
        let sessions_started = if (30..36).contains(&index) { 120 } else { 2 };
        RecordedCounters { sessions_started, ..calm_counters(index) }
    };
    let summary = Minute { counters: &counters, ..CALM }.summary();
    assert_eq!(
        summary.headline,
        "720 sessions connected within 6 s, up to 120 a second (60x as many as usual), most of php, \
         user web"
    );
    let steady = |index: i64| RecordedCounters { sessions_started: 120, ..calm_counters(index) };
    let summary = Minute { counters: &steady, ..CALM }.summary();
    assert!(!summary.headline.contains("connected"), "{summary:#?}");
}

#[test]
fn temporary_files_name_their_query() {
    let counters = |index: i64| {
        let temp_bytes = if index == 34 { 400_000_000 } else { 1000 };
        RecordedCounters { temp_bytes, temp_files: 1, ..calm_counters(index) }
    };
    let sessions = |index: i64| {
        let mut all = calm_sessions(index);
        if (30..34).contains(&index) {
            let age_s = (index - 29).cast_unsigned();
            let temp_bytes = 100_000_000 * age_s;
            all.push(Session {
                temp_bytes,
                ..active(4711, "select * from t order by a", "", age_s)
            });
        }
        all
    };
    let summary = Minute { counters: &counters, sessions: &sessions, ..CALM }.summary();
    assert_eq!(
        summary.headline,
        "400 MB of temporary files were written, most of pid 4711 (`select * from t order by a`, \
         pgbench, user app, 10.0.0.7)"
    );
    let usual = |index: i64| RecordedCounters { temp_bytes: 50_000_000, ..calm_counters(index) };
    let summary = Minute { counters: &usual, ..CALM }.summary();
    assert!(!summary.headline.contains("temporary files"), "{summary:#?}");
}

#[test]
fn lagging_standby_is_found_and_explains_sync_rep() {
    let counters = |index: i64| {
        let replay_lag_ms = if (30..45).contains(&index) { 1000 * (index - 29) } else { 20 };
        RecordedCounters {
            replay_lag_ms: Some(replay_lag_ms.cast_unsigned()),
            replay_lag_bytes: Some(if replay_lag_ms > 20 { 90_000_000 } else { 1000 }),
            ..calm_counters(index)
        }
    };
    let summary = Minute { counters: &counters, ..CALM }.summary();
    assert_eq!(summary.headline, "The slowest standby lags up to 15 s (90 MB of WAL)");
    let events = |index: i64| {
        let mut events = calm_events(index);
        events.extend((30..45).contains(&index).then_some(("IPC:SyncRep", 500)));
        events
    };
    let summary = Minute { counters: &counters, events: &events, ..CALM }.summary();
    assert!(summary.headline.starts_with("IPC:SyncRep appears for 15 s"), "{summary:#?}");
    assert!(
        summary.findings[0].evidence.ends_with("the slowest standby lagged up to 15.0 s"),
        "{summary:#?}"
    );
}

#[test]
fn repeated_requested_checkpoints_are_found() {
    let counters = |index: i64| {
        let requested_checkpoints = u64::from(index % 15 == 5);
        RecordedCounters { requested_checkpoints, ..calm_counters(index) }
    };
    let summary = Minute { counters: &counters, ..CALM }.summary();
    assert_eq!(
        summary.headline,
        format!(
            "4 checkpoints were requested within 45 s, most likely by the amount of WAL, which pid \
             21 (`{UPDATE}`, pgbench, user app, 10.0.0.7) may have written"
        )
    );
    let sessions = |index: i64| {
        let mut all = calm_sessions(index);
        if index % 15 == 5 {
            // It idles again when it is sampled.
            let cron =
                Session { application: "cron", user: "bob", ..active(4711, "checkpoint", "", 0) };
            all.push(Session { state: "idle", ..cron });
        }
        all
    };
    let summary = Minute { counters: &counters, sessions: &sessions, ..CALM }.summary();
    assert_eq!(
        summary.headline,
        "4 checkpoints were requested within 45 s by pid 4711 (`checkpoint`, cron, user bob, 10.0.0.7)"
    );
    let two = |index: i64| {
        let requested_checkpoints = u64::from(index % 40 == 5);
        RecordedCounters { requested_checkpoints, ..calm_counters(index) }
    };
    assert!(Minute { counters: &two, ..CALM }.summary().findings.is_empty());
}

#[test]
fn calm_minute_has_no_finding() {
    let summary = CALM.summary();
    assert_eq!((summary.headline.as_str(), summary.findings.len()), ("Nothing stands out", 0));
}

#[test]
fn busy_autovacuum_is_a_culprit_of_reads() {
    let late = |index: i64| (30..40).contains(&index);
    let events = |index: i64| {
        let mut events = calm_events(index);
        events.extend(late(index).then_some(("IO:DataFileRead", 400)));
        events
    };
    let sessions = |index: i64| {
        let mut all = calm_sessions(index);
        if late(index) {
            all.extend((31..35).map(|pid| active(pid, "select ?", "IO:DataFileRead", 0)));
            let vacuum = "autovacuum: VACUUM public.orders";
            let kind = "autovacuum worker";
            all.push(Session { kind, user: "", ..active(8, vacuum, "IO:DataFileRead", 9) });
        }
        all
    };
    let summary = Minute { events: &events, sessions: &sessions, ..CALM }.summary();
    assert!(summary.headline.starts_with("IO:DataFileRead appears for 10 s"), "{summary:#?}");
    let lines: Vec<_> = summary.findings[0].culprits.iter().map(Culprit::line).collect();
    assert!(lines[0].contains("`select ?`"), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.starts_with("autovacuum worker 8 (`autovacuum: VACUUM")),
        "{lines:?}"
    );
}

#[test]
fn lag_names_the_standby_or_the_session_for_which_replay_waits() {
    let counters = |index: i64| RecordedCounters {
        replay_lag_bytes: Some(5_000_000),
        replay_lag_ms: (30..45).contains(&index).then(|| 1000 * (index - 29).cast_unsigned()),
        ..calm_counters(index)
    };
    let with = |session: Session| {
        let sessions = move |index: i64| [calm_sessions(index), vec![session.clone()]].concat();
        Minute { counters: &counters, sessions: &sessions, ..CALM }.summary().headline
    };
    let text = "it has received the WAL, but does not replay it";
    let sender = Session { application: "replica", kind: "walsender", ..active(99, text, "", 60) };
    assert_eq!(
        with(sender),
        format!("Standby replica (walsender 99, 10.0.0.7) lags up to 15 s (5 MB of WAL): {text}")
    );
    let startup = |wait| Session { kind: "startup", state: "", ..active(98, "", wait, 60) };
    let headline = with(startup("IPC:RecoveryPause"));
    assert_eq!(headline, "This standby lags up to 15 s (5 MB of WAL): replay is paused");
    let headline = with(startup("IPC:RecoveryConflictSnapshot"));
    assert!(
        headline.contains("replay waits (IPC:RecoveryConflictSnapshot), most likely for pid 2"),
        "{headline}"
    );
}

#[test]
fn short_stall_of_a_busy_host_is_a_remark() {
    let events = |index: i64| match index {
        30 | 31 => vec![("LWLock:BufferContent", 150)],
        _ => calm_events(index),
    };
    let mut recording = Minute { events: &events, ..CALM }.recording();
    let headline = |recording: &FlightRecording| {
        summarize(&RecordingWindow::from_recording(recording)).headline
    };
    assert!(headline(&recording).starts_with("No session ran for 2 s"), "{}", headline(&recording));
    recording.records.extend((0..60).map(|index| {
        let at_us = START_US + index * 1_000_000;
        FlightRecord::Pressure(HostPressure { at_us, cpu: Some(9_500), ..HostPressure::default() })
    }));
    assert_eq!(headline(&recording), "Nothing stands out");
    let summary = summarize(&RecordingWindow::from_recording(&recording));
    assert!(summary.remarks.iter().any(|remark| remark.contains("processes of the host")));
}

#[test]
fn replaced_buffers_name_the_statement_that_reads() {
    let mut recording = Minute {
        events: &|index| if is_stalled(index) { vec![("CPU*", 500)] } else { calm_events(index) },
        sessions: &|index| {
            if is_stalled(index) {
                (31..35).map(|pid| active(pid, REPORT, "", 0)).collect()
            } else {
                calm_sessions(index)
            }
        },
        ..CALM
    }
    .recording();
    for record in &mut recording.records {
        if let FlightRecord::Second(second) = record {
            let allocations =
                if is_stalled((second.at_us - START_US) / 1_000_000) { 4000 } else { 50 };
            second.sweep = Some(SweepTotals {
                buffers: 4096,
                examined: allocations * 3,
                allocations,
                ..SweepTotals::default()
            });
        }
    }
    let summary = summarize(&RecordingWindow::from_recording(&recording));
    assert_eq!(
        summary.headline,
        format!(
            "The whole buffer cache was replaced 8.8 times within 9 s (0.1 times usually); most of \
             the time in pids 31, 32, 33 and 1 more (`{REPORT}`, pgbench, user app, 10.0.0.7)"
        )
    );
}

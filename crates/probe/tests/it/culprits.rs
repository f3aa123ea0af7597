//! Recordings of servers in trouble, whose headlines must name the session that causes it.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget};
use howdah_inspect::RunningServer;
use howdah_lab::{Cluster, skip_without_postgres, wait_for, wait_until};
use howdah_probe::{
    RelationNamer,
    analysis::{RecordingSummary, RecordingWindow, TimeDimension, database_time_by, summarize},
    live::{RecordingLimits, record},
    recorder::{
        FlightRecord, FlightRecorder, FlightRecording, RecorderOptions, Thresholds, TriggerKind,
        TriggerSetting,
    },
};

use crate::support::{TIMEOUT, connect_target, number, pid, session};

/// Debian's server, and the newest.
const MAJORS: [u32; 2] = [15, 18];
/// Seconds of usual load before and after the trouble.
const CALM_S: usize = 14;
/// Seconds of trouble.
const TROUBLE_S: usize = 8;

/// A server under a light load that is being recorded.
struct RecordedServer<'a> {
    cluster: &'a Cluster,
    path: PathBuf,
}

impl RecordedServer<'_> {
    fn session(&self) -> Client {
        session(self.cluster)
    }

    /// Waits until as many more seconds are recorded.
    fn wait_seconds(&self, count: usize) {
        let enough = recorded_seconds(&self.path) + count;
        wait_until("recorded seconds", TIMEOUT, || recorded_seconds(&self.path) >= enough);
    }
}

fn recorded_seconds(path: &Path) -> usize {
    let is_second = |record: &&FlightRecord| matches!(record, FlightRecord::Second(_));
    FlightRecording::open(path)
        .map_or(0, |recording| recording.records.iter().filter(is_second).count())
}

/// Records servers with a light load, runs `trouble` on each, and passes its result to `check`.
fn on_each<T: Send>(
    test: &str,
    settings: &[(&str, &str)],
    trouble: impl Fn(&RecordedServer<'_>) -> T + Sync,
    check: impl Fn(T, &RecordingSummary, &RecordingWindow),
) {
    let check = |result, recording: &FlightRecording| {
        let window = RecordingWindow::from_recording(recording);
        check(result, &summarize(&window), &window);
    };
    on_each_as("postgres", test, settings, &[], trouble, check);
}

/// As [`on_each`], as another role and with triggers; passes the recording to `check`.
fn on_each_as<T: Send>(
    role: &str,
    test: &str,
    settings: &[(&str, &str)],
    triggers: &[&str],
    trouble: impl Fn(&RecordedServer<'_>) -> T + Sync,
    check: impl Fn(T, &FlightRecording),
) {
    let mut thresholds = Thresholds::NONE;
    triggers.iter().for_each(|trigger| thresholds.set(trigger.parse::<TriggerSetting>().unwrap()));
    for major in MAJORS {
        let builder = Cluster::builder().major(major).setting("shared_buffers", "32MB");
        let builder = settings.iter().fold(builder, |to, (name, value)| to.setting(*name, *value));
        let Some(cluster) = skip_without_postgres(&format!("{test} on {major}"), builder.start())
        else {
            continue;
        };
        session(&cluster)
            .query(
                "CREATE TABLE accounts (id int PRIMARY KEY, balance int, pad text); \
                 INSERT INTO accounts SELECT n, 0, repeat('x', 500) FROM generate_series(1, 4000) n; \
                 CREATE ROLE bob SUPERUSER; CREATE ROLE plain LOGIN",
            )
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        let target = connect_target(&cluster).with_user(role);
        let result = record_trouble(&cluster, target, &path, thresholds, &trouble);
        check(result, &FlightRecording::open(&path).unwrap());
    }
}

fn record_trouble<T: Send>(
    cluster: &Cluster,
    target: ConnectTarget,
    path: &Path,
    thresholds: Thresholds,
    trouble: &(impl Fn(&RecordedServer<'_>) -> T + Sync),
) -> T {
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let options = RecorderOptions { thresholds, ..RecorderOptions::default() };
    let mut recorder =
        FlightRecorder::start(&server, path, options, Some(target.clone()), Instant::now())
            .unwrap();
    let namer = RelationNamer::start((target, session(cluster))).unwrap();
    let stop = Arc::<AtomicBool>::default();
    let limits = RecordingLimits {
        duration: Some(Duration::from_secs(240)),
        until_server_stops: true,
        stop: Arc::clone(&stop),
    };
    let result = thread::scope(|scope| {
        for client in 1..=4 {
            let stop = &stop;
            scope.spawn(move || {
                let mut session = session(cluster);
                session.query("SET application_name = 'shop'").unwrap();
                let sql = format!("UPDATE accounts SET balance = balance + 1 WHERE id = {client}");
                while !stop.load(Ordering::Relaxed) {
                    session.query(&sql).unwrap();
                    // The load is light: it has a rate.
                    thread::park_timeout(Duration::from_millis(25));
                }
            });
        }
        let recorded = RecordedServer { cluster, path: path.to_owned() };
        let troubled = scope.spawn({
            let stop = &stop;
            move || {
                let _stop_at_end = StopAtEnd(stop);
                recorded.wait_seconds(CALM_S);
                let result = trouble(&recorded);
                recorded.wait_seconds(CALM_S / 2);
                result
            }
        });
        record(&mut recorder, Some(&namer), &limits, |_| Ok(())).unwrap();
        troubled.join().unwrap()
    });
    let totals = recorder.finish("enough", Instant::now());
    assert_eq!((totals.trouble, totals.lost.records), (None, 0));
    result
}

/// Stops the recorder and the load, also when a thread panics.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The holder of the lock also makes one session wait that another one waits for.
#[test]
fn headline_names_the_root_of_a_lock_chain() {
    on_each(
        "a lock chain",
        &[],
        |server| {
            let mut holder = server.session();
            holder.query("SET ROLE bob; SET application_name = 'psql'").unwrap();
            holder.query("BEGIN; LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE").unwrap();
            let mut middle = server.session();
            middle.query("CREATE TABLE other ()").unwrap();
            middle.query("BEGIN; LOCK TABLE other").unwrap();
            thread::scope(|scope| {
                scope.spawn(|| middle.query("SELECT 'secret' FROM accounts; COMMIT").unwrap());
                scope.spawn(|| server.session().query("SELECT * FROM other").unwrap());
                server.wait_seconds(TROUBLE_S);
                holder.query("COMMIT").unwrap();
            });
            pid(&holder)
        },
        |pid, summary, window| {
            let headline = &summary.headline;
            assert!(headline.starts_with("Commits stopped for "), "{summary:#?}");
            let held = format!(
                "sessions waited for a lock on postgres.public.accounts held by pid {pid} (`begin; lock \
                 table accounts in access exclusive mode`, psql, user "
            );
            assert!(headline.contains(&held), "{headline}");
            assert!(headline.contains("idle in transaction for "), "{headline}");
            // Four clients, the middle of the chain, and its victim.
            assert!(headline.contains(": 6 sessions"), "{headline}");
            let by = database_time_by(window);
            let names = |dimension| -> Vec<_> {
                by[&dimension].iter().filter_map(|share| share.name.clone()).collect()
            };
            assert!(
                names(TimeDimension::Statement)
                    .contains(&"update accounts set balance = balance + ? where id = ?".to_owned()),
                "{by:#?}"
            );
            assert!(names(TimeDimension::Application).contains(&"shop".to_owned()), "{by:#?}");
            assert_eq!(names(TimeDimension::Database), ["postgres"]);
            assert!(!format!("{:?}", window.sessions).contains("secret"));
        },
    );
}

#[test]
fn headline_names_an_idle_transaction() {
    on_each(
        "an idle transaction",
        &[],
        |server| {
            let mut holder = server.session();
            holder.query("BEGIN; UPDATE accounts SET balance = 0 WHERE id < 100").unwrap();
            server.wait_seconds(TROUBLE_S);
            holder.query("COMMIT").unwrap();
            pid(&holder)
        },
        |pid, summary, _| {
            let headline = &summary.headline;
            assert!(headline.starts_with("Commits stopped for "), "{summary:#?}");
            let held = format!(
                "4 sessions waited for a lock on postgres.public.accounts held by pid {pid} (`begin; \
                 update accounts set balance = ? where id < ?`"
            );
            assert!(headline.contains(&held), "{headline}");
            assert!(headline.contains("idle in transaction for "), "{headline}");
        },
    );
}

#[test]
fn headline_names_a_prepared_transaction() {
    on_each(
        "a prepared transaction",
        &[("max_prepared_transactions", "2")],
        |server| {
            let mut holder = server.session();
            holder.query("BEGIN; UPDATE accounts SET balance = 0 WHERE id < 100").unwrap();
            holder.query("PREPARE TRANSACTION 'tx-1'").unwrap();
            server.wait_seconds(TROUBLE_S);
            holder.query("ROLLBACK PREPARED 'tx-1'").unwrap();
        },
        |(), summary, _| {
            assert!(
                summary.headline.contains(
                    "a lock on postgres.public.accounts held by prepared transaction 'tx-1' (user "
                ),
                "{summary:#?}"
            );
        },
    );
}

#[test]
fn headline_names_a_runaway_query() {
    on_each(
        "a runaway query",
        &[],
        |server| {
            let mut session = server.session();
            session.query("SET statement_timeout = '15s'").unwrap();
            let sql = "SELECT count(*) FROM generate_series(1, 1e9) a, generate_series(1, 9) b";
            assert!(session.query(sql).is_err(), "the query is cancelled");
            pid(&session)
        },
        |pid, summary, _| {
            let headline = &summary.headline;
            assert!(headline.starts_with("One query ran for 1"), "{summary:#?}");
            assert!(
                headline.contains(&format!(": pid {pid} (`select count(*) from")),
                "{headline}"
            );
        },
    );
}

#[test]
fn headline_names_a_query_with_temporary_files() {
    on_each(
        "temporary files",
        &[],
        |server| {
            let mut session = server.session();
            session
                .query("SET work_mem = '64kB'; SET max_parallel_workers_per_gather = 0")
                .unwrap();
            let sql = "SELECT count(*) FROM (SELECT md5(n::text) || repeat('x', 200) AS pad \
                       FROM generate_series(1, 1000000) n ORDER BY 1 OFFSET 0) sorted";
            session.query(sql).unwrap();
            pid(&session)
        },
        |pid, summary, _| {
            let headline = &summary.headline;
            assert!(headline.contains("B of temporary files"), "{summary:#?}");
            assert!(
                headline.contains(&format!("pid {pid} (`select count(*) from (select md5")),
                "{headline}"
            );
        },
    );
}

#[test]
fn headline_names_a_connection_storm() {
    on_each(
        "a connection storm",
        &[],
        |server| {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            server.session().query("SET application_name = 'php'").unwrap();
                        }
                    });
                }
                server.wait_seconds(TROUBLE_S);
                over.store(true, Ordering::Relaxed);
            });
        },
        |(), summary, _| {
            assert!(summary.headline.contains(" sessions connected within "), "{summary:#?}");
        },
    );
}

/// A VACUUM blocks an ALTER TABLE, which blocks all others.
#[test]
fn headline_names_an_autovacuum_worker() {
    let settings = [
        ("autovacuum_naptime", "1s"),
        ("autovacuum_vacuum_cost_delay", "100ms"),
        ("autovacuum_vacuum_cost_limit", "1"),
        // A session that waits for an autovacuum worker otherwise cancels it after a second.
        ("deadlock_timeout", "60s"),
    ];
    on_each(
        "an autovacuum worker",
        &settings,
        |server| {
            let mut session = server.session();
            session.query("UPDATE accounts SET balance = 1 WHERE id > 10").unwrap();
            let worker = "SELECT coalesce(max(pid), 0) FROM pg_stat_activity \
                          WHERE backend_type = 'autovacuum worker' AND query LIKE '%accounts%'";
            let pid = wait_for("an autovacuum worker", TIMEOUT, || {
                Some(number(&mut session, worker)).filter(|pid| *pid != 0)
            });
            thread::scope(|scope| {
                let alter = "ALTER TABLE accounts ADD extra int";
                scope.spawn(|| server.session().query(alter).unwrap());
                server.wait_seconds(TROUBLE_S);
                session.query(&format!("SELECT pg_terminate_backend({pid})")).unwrap();
            });
            pid
        },
        |pid, summary, _| {
            let headline = &summary.headline;
            let held = format!(
                "a lock on postgres.public.accounts held by autovacuum worker {pid} (`autovacuum: \
                 VACUUM "
            );
            assert!(headline.contains(&held), "{summary:#?}");
        },
    );
}

#[test]
fn light_load_has_no_headline() {
    on_each(
        "a light load",
        &[],
        |server| server.wait_seconds(TROUBLE_S),
        |(), summary, window| {
            assert!(summary.headline.starts_with("Nothing stands out"), "{summary:#?}");
            let commits: u64 = window.counters.iter().map(|of| of.commits).sum();
            assert!(commits > 100, "{:?}", window.counters);
            // The recorder's own session is not among them.
            let applications: Vec<_> =
                window.sessions.iter().flat_map(|sessions| &sessions.names).collect();
            assert!(!applications.iter().any(|name| name.contains("howdah")), "{applications:?}");
        },
    );
}

/// Locks a table for as long as the trouble lasts.
fn lock_table(server: &RecordedServer<'_>) -> u32 {
    let mut holder = server.session();
    holder.query("BEGIN; LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE").unwrap();
    server.wait_seconds(TROUBLE_S);
    holder.query("COMMIT").unwrap();
    pid(&holder)
}

/// A role without grants sees the blockers, but neither states nor statements.
#[test]
fn role_without_grants_sees_the_blocker() {
    on_each_as("plain", "a role without grants", &[], &[], lock_table, |pid, recording| {
        let window = RecordingWindow::from_recording(recording);
        let summary = summarize(&window);
        let held =
            format!("4 sessions waited for a lock on postgres.public.accounts held by pid {pid} (");
        assert!(summary.headline.starts_with("Commits stopped for "), "{summary:#?}");
        assert!(summary.headline.contains(&held), "{}", summary.headline);
        let hint = |text: &str| text.contains("GRANT pg_monitor TO \"plain\"");
        assert!(window.notes.iter().any(|note| hint(&note.text)), "{:?}", window.notes);
    });
}

/// The episode of a trigger has the statement of the blocker, although it began before.
#[test]
fn lock_triggers_fire_and_retain_statements() {
    for (trigger, kind) in
        [("locks=3", TriggerKind::Locks), ("commits-stopped=3s", TriggerKind::CommitsStopped)]
    {
        on_each_as("postgres", trigger, &[], &[trigger], lock_table, |pid, recording| {
            let window = RecordingWindow::from_episode(recording, 0).unwrap();
            let fired: Vec<_> = window.crossings.iter().map(|fired| fired.kind).collect();
            assert_eq!(fired, [kind]);
            let summary = summarize(&window);
            let held =
                format!("held by pid {pid} (`begin; lock table accounts in access exclusive mode`");
            assert!(summary.headline.contains(&held), "{summary:#?}");
        });
    }
}

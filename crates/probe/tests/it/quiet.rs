//! Recordings of servers under ordinary loads, which must have no headline.
//!
//! The tests record a few servers for half a minute. `make quiet` records more of them for longer:
//! `HOWDAH_QUIET_SERVERS` and `HOWDAH_QUIET_SECONDS`.

use std::{
    env, fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_probe::{
    analysis::{RecordingWindow, summarize},
    recorder::FlightRecording,
};

use crate::{
    culprits::{MAJORS, StopAtEnd, recorded},
    support::{connect_target, session},
};

/// An ordinary load. All of them are light: many servers share two processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrdinaryLoad {
    /// No session but idle ones.
    Idle,
    /// Reads of single rows.
    SelectOnly,
    /// Transactions like those of TPC-B.
    TpcB,
    /// The same, with a checkpoint every half minute.
    Checkpoints,
    /// Changes of many rows, which autovacuum cleans up every few seconds.
    Autovacuum,
    /// A web application: short transactions, new sessions, and now and then a report.
    Web,
}

const LOADS: [OrdinaryLoad; 6] = [
    OrdinaryLoad::TpcB,
    OrdinaryLoad::Idle,
    OrdinaryLoad::Autovacuum,
    OrdinaryLoad::Web,
    OrdinaryLoad::SelectOnly,
    OrdinaryLoad::Checkpoints,
];
/// Sessions per server.
const SESSIONS: u64 = 2;
/// Time from the end of a transaction to the start of the next.
const THINK_TIME: Duration = Duration::from_millis(60);
const SERVERS: usize = 2;
const SECONDS: u64 = 25;

impl fmt::Display for OrdinaryLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl OrdinaryLoad {
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Checkpoints => &[("checkpoint_timeout", "30s")],
            Self::Autovacuum => &[
                ("autovacuum_naptime", "5s"),
                ("autovacuum_vacuum_scale_factor", "0.01"),
                ("autovacuum_analyze_scale_factor", "0.01"),
            ],
            _ => &[],
        }
    }

    /// Executes one transaction, the `number`th of its session.
    fn transaction(self, cluster: &Cluster, client: &mut Client, number: u64) {
        let id = number * 7919 % 4000 + 1;
        let tpc_b = format!(
            "BEGIN; UPDATE accounts SET balance = balance + 1 WHERE id = {id}; \
             SELECT balance FROM accounts WHERE id = {id}; \
             UPDATE tellers SET balance = balance + 1 WHERE id = {}; \
             UPDATE branches SET balance = balance + 1 WHERE id = 1; \
             INSERT INTO history VALUES ({id}, 1, now()); END",
            id % 10 + 1
        );
        let sql = match self {
            Self::Idle => return,
            Self::SelectOnly => format!("SELECT balance FROM accounts WHERE id = {id}"),
            Self::TpcB | Self::Checkpoints => tpc_b,
            Self::Autovacuum if number.is_multiple_of(50) => {
                "UPDATE accounts SET balance = balance + 1 WHERE id % 4 = 0".to_owned()
            }
            Self::Autovacuum => tpc_b,
            Self::Web if number.is_multiple_of(100) => {
                "SELECT balance % 10, count(*), max(pad) FROM accounts GROUP BY 1".to_owned()
            }
            Self::Web => tpc_b,
        };
        if self == Self::Web && number.is_multiple_of(25) {
            *client = shop_session(cluster);
        }
        client.query(&sql).unwrap();
    }
}

/// A session with a different application name from the recorder.
fn shop_session(cluster: &Cluster) -> Client {
    let mut client = session(cluster);
    client.query("SET application_name = 'shop'").unwrap();
    client
}

fn number_in(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().map_or(default, |text| text.parse().unwrap())
}

#[test]
fn ordinary_load_has_no_headline() {
    let servers = number_in("HOWDAH_QUIET_SERVERS", SERVERS as u64) as usize;
    let seconds = number_in("HOWDAH_QUIET_SECONDS", SECONDS);
    let headlines: Vec<String> = thread::scope(|scope| {
        let record = |index: usize| {
            // The second server of a load has the other major.
            let major = MAJORS[(index + index / LOADS.len()) % MAJORS.len()];
            let load = LOADS[index % LOADS.len()];
            record_quietly(load, major, Duration::from_secs(seconds))
        };
        let all: Vec<_> = (0..servers).map(|index| scope.spawn(move || record(index))).collect();
        all.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(
        headlines.is_empty(),
        "{} of {servers} servers:\n{}",
        headlines.len(),
        headlines.join("\n")
    );
}

/// Records a server; returns its summary if it has a headline.
fn record_quietly(load: OrdinaryLoad, major: u32, time: Duration) -> Option<String> {
    let name = format!("{load} on PostgreSQL {major}");
    let builder = Cluster::builder().major(major).setting("shared_buffers", "16MB");
    let settings = load.settings().iter();
    let builder = settings.fold(builder, |builder, (name, value)| builder.setting(*name, *value));
    let cluster = skip_without_postgres(&name, builder.start())?;
    session(&cluster)
        .query(
            "CREATE TABLE accounts (id int PRIMARY KEY, balance int, pad text); \
             INSERT INTO accounts SELECT n, 0, repeat('x', 84) FROM generate_series(1, 4000) n; \
             CREATE TABLE tellers AS SELECT n AS id, 0 AS balance FROM generate_series(1, 10) n; \
             CREATE TABLE branches AS SELECT 1 AS id, 0 AS balance; \
             CREATE TABLE history (account int, delta int, at timestamptz)",
        )
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let (stop, transactions) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _stop_at_end = StopAtEnd(&stop);
        for number in 0..SESSIONS {
            let (cluster, stop, transactions) = (&cluster, &stop, &transactions);
            scope.spawn(move || {
                let mut client = shop_session(cluster);
                for number in (number * 1000..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    load.transaction(cluster, &mut client, number);
                    transactions.fetch_add(1, Ordering::Relaxed);
                    thread::park_timeout(THINK_TIME);
                }
            });
        }
        recorded(&cluster, connect_target(&cluster), &path, &[], |server| server.record_for(time));
    });
    let window = RecordingWindow::from_recording(&FlightRecording::open(&path).unwrap());
    let (summary, transactions) = (summarize(&window), transactions.into_inner());
    eprintln!("{name}: {transactions} transactions: {}", summary.headline);
    let commits: u64 = window.counters.iter().map(|of| of.commits).sum();
    assert!(load == OrdinaryLoad::Idle || commits > time.as_secs(), "{commits} commits");
    // The recorder's own session is not among them.
    let mut names = window.sessions.iter().flat_map(|sessions| &sessions.names);
    assert!(!names.any(|name| name.contains("howdah")), "{:?}", window.sessions);
    (!summary.findings.is_empty()).then(|| format!("{name}: {summary:#?}"))
}

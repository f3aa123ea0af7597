//! Recordings of servers in trouble, whose headlines must name the session that causes it.
//!
//! A server is recorded while it has one trouble after another, with calm in between; each is
//! analysed with the calm before and after it. The calm before a trouble has a random length, which
//! a failing test prints. Servers of both majors are recorded at the same time.

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use howdah_connect::{Client, ConnectTarget};
use howdah_inspect::RunningServer;
use howdah_lab::{Builder, Cluster, skip_without_postgres, wait_for, wait_until};
use howdah_probe::{
    RelationNamer,
    analysis::{
        RecordingSummary, RecordingWindow, TimeDimension, TimeSpan, database_time_by, summarize,
    },
    live::{RecordingLimits, record},
    recorder::{
        FlightRecorder, FlightRecording, RecorderOptions, Thresholds, TriggerKind, TriggerSetting,
    },
};

use crate::support::{TIMEOUT, connect_target, number, pid, session};

/// Debian's server, and the newest.
pub(crate) const MAJORS: [u32; 2] = [15, 18];
/// Time of usual load before and after a trouble.
const CALM: Duration = Duration::from_secs(6);
/// Maximum length of more calm before a trouble, in milliseconds.
const RANDOM_CALM_MS: u64 = 1500;
/// Time of trouble.
const TROUBLE: Duration = Duration::from_secs(6);
/// The sessions of a recorder are sampled once a second.
const SAMPLE_INTERVAL_US: i64 = 1_000_000;

/// A trouble in the life of a server.
struct RecordedTrouble {
    name: &'static str,
    /// Causes and ends it; returns the process id of its culprit, or 0.
    cause: fn(&RecordedServer<'_>) -> u32,
    /// Checks the summary of the trouble with the calm around it.
    check: fn(u32, &RecordingSummary, &RecordingWindow),
}

/// A server under a light load that is being recorded.
pub(crate) struct RecordedServer<'a> {
    cluster: &'a Cluster,
    path: PathBuf,
}

impl RecordedServer<'_> {
    fn session(&self) -> Client {
        session(self.cluster)
    }

    /// Lets the recorder record for this long.
    pub(crate) fn record_for(&self, time: Duration) {
        let end = Instant::now() + time;
        let path = self.path.display();
        wait_until(&format!("more of {path}"), time + TIMEOUT, || Instant::now() >= end);
    }
}

fn now_us() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// Starts a server of each major as `configure` says, with a light load, and runs `test` on each
/// at the same time.
fn on_each(
    name: &str,
    configure: impl Fn(u32, Builder) -> Builder + Sync,
    setup: &str,
    test: impl Fn(u32, &Cluster) + Sync,
) {
    thread::scope(|scope| {
        for major in MAJORS {
            let (configure, test) = (&configure, &test);
            scope.spawn(move || {
                let builder = Cluster::builder().major(major).setting("shared_buffers", "32MB");
                let builder = configure(major, builder);
                let Some(cluster) =
                    skip_without_postgres(&format!("{name} on {major}"), builder.start())
                else {
                    return;
                };
                let mut client = session(&cluster);
                client
                    .query(
                        "CREATE TABLE accounts (id int PRIMARY KEY, balance int, pad text); \
                         INSERT INTO accounts SELECT n, 0, repeat('x', 500) \
                         FROM generate_series(1, 4000) n; \
                         CREATE ROLE bob SUPERUSER; CREATE ROLE plain LOGIN",
                    )
                    .unwrap();
                if !setup.is_empty() {
                    client.query(setup).unwrap();
                }
                drop(client);
                with_light_load(&cluster, || test(major, &cluster));
            });
        }
    });
}

/// Records a server of each major through these troubles.
fn troubles(
    name: &str,
    configure: impl Fn(u32, Builder) -> Builder + Sync,
    setup: &str,
    troubles: &[RecordedTrouble],
) {
    on_each(name, configure, setup, |major, cluster| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rec");
        let target = connect_target(cluster);
        let spans = recorded(cluster, target, &path, &[], |server| {
            let (mut spans, mut least) = (Vec::new(), CALM);
            for trouble in troubles {
                server.record_for(random_calm().max(least));
                let (from_us, begin) = (now_us(), Instant::now());
                let culprit = (trouble.cause)(server);
                spans.push((culprit, TimeSpan { from_us, to_us: now_us() }));
                // A trouble on a slow machine may take longer, but must not become what is usual.
                least = CALM.max(begin.elapsed());
            }
            server.record_for(least);
            spans
        });
        let recording = FlightRecording::open(&path).unwrap();
        for (index, (trouble, (culprit, span))) in troubles.iter().zip(&spans).enumerate() {
            let before = index.checked_sub(1).map_or(0, |before| spans[before].1.to_us);
            let after = spans.get(index + 1).map_or(i64::MAX, |(_, after)| after.from_us);
            let around =
                TimeSpan { from_us: before + 2 * SAMPLE_INTERVAL_US, to_us: after - 200_000 };
            let window = RecordingWindow::from_span(&recording, around);
            eprintln!(
                "{} on PostgreSQL {major}, {} ms after the start of the recording, for {} ms",
                trouble.name,
                (span.from_us - RecordingWindow::from_recording(&recording).span().from_us) / 1000,
                (span.to_us - span.from_us) / 1000
            );
            (trouble.check)(*culprit, &summarize(&window), &window);
        }
    });
}

/// Returns the length of the calm before a trouble.
fn random_calm() -> Duration {
    let random = RandomState::new().hash_one(now_us());
    CALM + Duration::from_millis(random % RANDOM_CALM_MS)
}

/// Executes small transactions in four sessions while `work` runs.
fn with_light_load(cluster: &Cluster, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop_at_end = StopAtEnd(&stop);
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
        work();
    });
}

/// Records a server to `path` while `work` runs.
pub(crate) fn recorded<T>(
    cluster: &Cluster,
    target: ConnectTarget,
    path: &Path,
    triggers: &[&str],
    work: impl FnOnce(&RecordedServer<'_>) -> T,
) -> T {
    let mut thresholds = Thresholds::NONE;
    triggers.iter().for_each(|trigger| thresholds.set(trigger.parse::<TriggerSetting>().unwrap()));
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let options = RecorderOptions { thresholds, ..RecorderOptions::default() };
    let mut recorder =
        FlightRecorder::start(&server, path, options, Some(target.clone()), Instant::now())
            .unwrap();
    let namer = RelationNamer::start((target, session(cluster))).unwrap();
    let stop = Arc::<AtomicBool>::default();
    let limits =
        RecordingLimits { duration: None, until_server_stops: true, stop: Arc::clone(&stop) };
    thread::scope(|scope| {
        let recording = scope.spawn(move || {
            record(&mut recorder, Some(&namer), &limits, |_| Ok(())).unwrap();
            recorder.finish("enough", Instant::now())
        });
        let result = {
            let _stop_at_end = StopAtEnd(&stop);
            work(&RecordedServer { cluster, path: path.to_owned() })
        };
        let totals = recording.join().unwrap();
        assert_eq!((totals.trouble, totals.lost.records), (None, 0));
        result
    })
}

/// Sets a flag, also when a thread panics.
pub(crate) struct StopAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs SQL repeatedly in so many sessions for as long as a trouble lasts.
fn repeat_in_sessions(server: &RecordedServer<'_>, sessions: usize, settings: &str, sql: &str) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop_at_end = StopAtEnd(&stop);
        for _ in 0..sessions {
            scope.spawn(|| {
                let mut session = server.session();
                session.query(settings).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    session.query(sql).unwrap();
                }
            });
        }
        server.record_for(TROUBLE);
    });
}

/// Changes a setting of a server that is running.
fn set(server: &RecordedServer<'_>, setting: &str) {
    let mut session = server.session();
    session.query(&format!("ALTER SYSTEM {setting}")).unwrap();
    session.query("SELECT pg_reload_conf()").unwrap();
}

fn assert_names(headline: &str, parts: &[&str]) {
    for part in parts {
        assert!(headline.contains(part), "no {part:?} in {headline:?}");
    }
}

#[test]
fn headline_names_those_who_block_others() {
    let configure = |_, builder: Builder| {
        builder
            .setting("max_prepared_transactions", "2")
            // A session that waits for an autovacuum worker otherwise cancels it after a second.
            .setting("deadlock_timeout", "60s")
    };
    troubles(
        "blockers",
        configure,
        "",
        &[LOCK_CHAIN, IDLE_TRANSACTION, PREPARED_TRANSACTION, AUTOVACUUM_WORKER],
    );
}

/// The holder of the lock also makes one session wait that another one waits for.
const LOCK_CHAIN: RecordedTrouble = RecordedTrouble {
    name: "a lock chain",
    cause: |server| {
        let mut holder = server.session();
        holder.query("SET ROLE bob; SET application_name = 'psql'").unwrap();
        holder.query("BEGIN; LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE").unwrap();
        let mut middle = server.session();
        middle.query("CREATE TABLE other ()").unwrap();
        middle.query("BEGIN; LOCK TABLE other").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| middle.query("SELECT 'secret' FROM accounts; COMMIT").unwrap());
            scope.spawn(|| server.session().query("SELECT * FROM other").unwrap());
            server.record_for(TROUBLE);
            holder.query("COMMIT").unwrap();
        });
        pid(&holder)
    },
    check: |pid, summary, window| {
        let headline = &summary.headline;
        assert!(headline.starts_with("Commits stopped for "), "{summary:#?}");
        let held = format!(
            "sessions waited for a lock on postgres.public.accounts held by pid {pid} (`begin; lock \
             table accounts in access exclusive mode`, psql, user "
        );
        // Four clients, the middle of the chain, and its victim.
        assert_names(headline, &[&held, "idle in transaction for ", ": 6 sessions"]);
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
};

const IDLE_TRANSACTION: RecordedTrouble = RecordedTrouble {
    name: "an idle transaction",
    cause: |server| {
        let mut holder = server.session();
        holder.query("BEGIN; UPDATE accounts SET balance = 0 WHERE id < 100").unwrap();
        server.record_for(TROUBLE);
        holder.query("COMMIT").unwrap();
        pid(&holder)
    },
    check: |pid, summary, _| {
        let headline = &summary.headline;
        assert!(headline.starts_with("Commits stopped for "), "{summary:#?}");
        let held = format!(
            "4 sessions waited for a lock on postgres.public.accounts held by pid {pid} (`begin; \
             update accounts set balance = ? where id < ?`"
        );
        assert_names(headline, &[&held, "idle in transaction for "]);
    },
};

const PREPARED_TRANSACTION: RecordedTrouble = RecordedTrouble {
    name: "a prepared transaction",
    cause: |server| {
        let mut holder = server.session();
        holder.query("BEGIN; UPDATE accounts SET balance = 0 WHERE id < 100").unwrap();
        holder.query("PREPARE TRANSACTION 'tx-1'").unwrap();
        server.record_for(TROUBLE);
        holder.query("ROLLBACK PREPARED 'tx-1'").unwrap();
        0
    },
    check: |_, summary, _| {
        let held = "a lock on postgres.public.accounts held by prepared transaction 'tx-1' (user ";
        assert!(summary.headline.contains(held), "{summary:#?}");
    },
};

/// A VACUUM blocks an ALTER TABLE, which blocks all others.
const AUTOVACUUM_WORKER: RecordedTrouble = RecordedTrouble {
    name: "an autovacuum worker",
    cause: |server| {
        for setting in ["naptime = '1s'", "vacuum_cost_delay = '100ms'", "vacuum_cost_limit = 1"] {
            set(server, &format!("SET autovacuum_{setting}"));
        }
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
            server.record_for(TROUBLE);
            session.query(&format!("SELECT pg_terminate_backend({pid})")).unwrap();
        });
        set(server, "RESET ALL");
        pid
    },
    check: |pid, summary, _| {
        let held = format!(
            "a lock on postgres.public.accounts held by autovacuum worker {pid} (`autovacuum: VACUUM "
        );
        assert!(summary.headline.contains(&held), "{summary:#?}");
    },
};

#[test]
fn headline_names_those_who_take_resources() {
    // Larger than the buffer cache.
    let setup = "CREATE TABLE big AS SELECT n AS id, repeat('x', 1000) AS pad \
                 FROM generate_series(1, 100000) n; ALTER TABLE big ADD PRIMARY KEY (id); \
                 ANALYZE big";
    let setup = &format!("SET max_parallel_maintenance_workers = 0; {setup}");
    troubles(
        "load",
        |_, builder| builder,
        setup,
        &[
            TEMPORARY_FILES,
            RUNAWAY_QUERY,
            CONNECTION_STORM,
            BUFFER_THRASH,
            REQUESTED_CHECKPOINTS,
            CHECKPOINTS_BY_WAL,
        ],
    );
}

const RUNAWAY_QUERY: RecordedTrouble = RecordedTrouble {
    name: "a runaway query",
    cause: |server| {
        let mut session = server.session();
        session.query("SET statement_timeout = '12s'").unwrap();
        let sql = "SELECT count(*) FROM generate_series(1, 1e9) a, generate_series(1, 9) b";
        assert!(session.query(sql).is_err(), "the query is cancelled");
        pid(&session)
    },
    check: |pid, summary, _| {
        let headline = &summary.headline;
        assert!(headline.starts_with("One query ran for 1"), "{summary:#?}");
        assert_names(headline, &[&format!(": pid {pid} (`select count(*) from")]);
    },
};

const TEMPORARY_FILES: RecordedTrouble = RecordedTrouble {
    name: "temporary files",
    cause: |server| {
        let mut session = server.session();
        session.query("SET work_mem = '64kB'; SET max_parallel_workers_per_gather = 0").unwrap();
        let sql = "SELECT count(*) FROM (SELECT md5(n::text) || repeat('x', 200) AS pad \
                   FROM generate_series(1, 1000000) n ORDER BY 1 OFFSET 0) sorted";
        session.query(sql).unwrap();
        pid(&session)
    },
    check: |pid, summary, _| {
        let headline = &summary.headline;
        assert!(headline.contains("B of temporary files"), "{summary:#?}");
        assert_names(headline, &[&format!("pid {pid} (`select count(*) from (select md5")]);
    },
};

const CONNECTION_STORM: RecordedTrouble = RecordedTrouble {
    name: "a connection storm",
    cause: |server| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop_at_end = StopAtEnd(&over);
            for _ in 0..8 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        server.session().query("SET application_name = 'php'").unwrap();
                    }
                });
            }
            server.record_for(TROUBLE);
        });
        0
    },
    check: |_, summary, _| {
        assert!(summary.headline.contains(" sessions connected within "), "{summary:#?}");
    },
};

/// Reads at random from a table that is larger than the buffer cache.
const BUFFER_THRASH: RecordedTrouble = RecordedTrouble {
    name: "a thrashing buffer cache",
    cause: |server| {
        let settings = "SET enable_seqscan = off; SET enable_hashjoin = off; \
                        SET enable_mergejoin = off; SET application_name = 'report'";
        let sql = "SELECT sum(length(pad)) FROM (SELECT (random() * 99999)::int AS id \
                   FROM generate_series(1, 500) OFFSET 0) r JOIN big USING (id)";
        repeat_in_sessions(server, 4, settings, sql);
        0
    },
    check: |_, summary, window| {
        let headline = &summary.headline;
        assert!(headline.starts_with("The whole buffer cache was replaced "), "{summary:#?}");
        let parts = ["most of the time in pids ", "(`select sum(length(pad)) from", ", report, "];
        assert_names(headline, &parts);
        let pids = &summary.findings[0].culprits[0].pids;
        assert!((3..=4).contains(&pids.len()), "{pids:?} in {:#?}", window.sessions);
    },
};

const REQUESTED_CHECKPOINTS: RecordedTrouble = RecordedTrouble {
    name: "requested checkpoints",
    cause: |server| {
        let mut session = server.session();
        session.query("SET application_name = 'cron'").unwrap();
        let end = Instant::now() + TROUBLE;
        while Instant::now() < end {
            session.query("CHECKPOINT").unwrap();
            server.record_for(Duration::from_millis(300));
        }
        pid(&session)
    },
    check: |pid, summary, _| {
        let what = " checkpoints were requested within ";
        assert!(summary.headline.contains(what), "{summary:#?}");
        assert_names(&summary.headline, &[&format!(" s by pid {pid} (`checkpoint`, cron, ")]);
    },
};

const CHECKPOINTS_BY_WAL: RecordedTrouble = RecordedTrouble {
    name: "checkpoints by the amount of WAL",
    cause: |server| {
        set(server, "SET max_wal_size = '32MB'");
        let mut session = server.session();
        session.query("CREATE TABLE bulk (id int, pad text)").unwrap();
        let sql = "INSERT INTO bulk SELECT n, repeat('y', 1000) FROM generate_series(1, 20000) n; \
                   TRUNCATE bulk";
        let end = Instant::now() + TROUBLE;
        while Instant::now() < end {
            session.query(sql).unwrap();
        }
        set(server, "RESET ALL");
        pid(&session)
    },
    check: |pid, summary, _| {
        let by = " checkpoints were requested within ";
        assert!(summary.headline.contains(by), "{summary:#?}");
        let main = format!(
            ", most likely by the amount of WAL, which pid {pid} (`insert into bulk select n, repeat("
        );
        assert_names(&summary.headline, &[&main, " may have written"]);
    },
};

/// Delays what servers do with files while a file of this name exists in a folder.
const SLOW_DISK: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void delay(const char *what, long ms) {
    char path[4096];
    int error = errno;
    snprintf(path, sizeof path, "%s/%s", getenv("SLOW_DISK"), what);
    if (access(path, F_OK) == 0) {
        struct timespec rest = { ms / 1000, ms % 1000 * 1000000 };
        while (nanosleep(&rest, &rest) == -1 && errno == EINTR);
    }
    errno = error;
}

static void delay_extension(int fd, off_t offset) {
    struct stat file;
    if (fstat(fd, &file) == 0 && offset >= file.st_size) delay("extend", 40);
}

int fdatasync(int fd) {
    delay("sync", 1500);
    return syscall(SYS_fdatasync, fd);
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    delay_extension(fd, offset);
    return syscall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    delay_extension(fd, offset);
    return syscall(SYS_pwrite64, fd, bytes, length, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    delay_extension(fd, offset);
    return syscall(SYS_pwritev, fd, parts, count, offset, 0);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t offset) __attribute__((alias("pwrite")));
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t offset) __attribute__((alias("pwritev")));
int posix_fallocate64(int fd, off_t offset, off_t length) __attribute__((alias("posix_fallocate")));
"#;

/// Compiles [`SLOW_DISK`].
fn compile_slow_disk(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("slow-disk.c"), folder.join("slow-disk.so"));
    fs::write(&source, SLOW_DISK).unwrap();
    let compiler = Command::new("cc")
        .args(["-O", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&compiler.stderr);
    assert!(compiler.status.success(), "{errors}");
    library
}

/// Makes a folder of programs that load [`SLOW_DISK`] into the server, which reads `folder`.
fn slow_programs(major: u32, folder: &Path, library: &Path) -> Option<PathBuf> {
    let usual = skip_without_postgres("slow disks", Cluster::builder().major(major).start())?;
    let (bin_dir, programs) = (usual.binaries().dir(), folder.join("bin"));
    fs::create_dir(&programs).unwrap();
    for program in ["postgres", "initdb"] {
        let preload = if program == "postgres" {
            format!("env SLOW_DISK='{}' LD_PRELOAD='{}' ", folder.display(), library.display())
        } else {
            String::new()
        };
        let path = programs.join(program);
        let script =
            format!("#!/bin/sh\nexec {preload}'{}' \"$@\"\n", bin_dir.join(program).display());
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    Some(programs)
}

#[test]
fn headline_names_slow_disks() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = compile_slow_disk(folder.path());
    let configure = |major: u32, builder: Builder| {
        // Each server has its own switches.
        let folder = folder.path().join(major.to_string());
        fs::create_dir(&folder).unwrap();
        let builder = builder.setting("fsync", "on").setting("wal_sync_method", "fdatasync");
        // Programs of a major that is not there: the test skips it.
        match slow_programs(major, &folder, &library) {
            Some(programs) => {
                builder.bin_dir(programs).setting("howdah.slow_disk", folder.to_str().unwrap())
            }
            None => builder,
        }
    };
    troubles("slow disks", configure, "CREATE TABLE grown (pad text)", &[WAL_STALL, EXTENSION]);
}

/// Runs `work` while a file of the [slow disk](SLOW_DISK) exists.
fn while_slow(server: &RecordedServer<'_>, what: &str, work: impl FnOnce()) {
    let folder = server.session().one_value("SHOW howdah.slow_disk").unwrap().unwrap();
    let switch = Path::new(&*folder).join(what);
    fs::write(&switch, "").unwrap();
    work();
    fs::remove_file(&switch).unwrap();
}

const WAL_STALL: RecordedTrouble = RecordedTrouble {
    name: "a stall of the WAL",
    cause: |server| {
        while_slow(server, "sync", || server.record_for(TROUBLE + Duration::from_secs(2)));
        0
    },
    check: |_, summary, _| {
        let headline = &summary.headline;
        // A group of commits may follow each sync.
        assert!(headline.contains(" for the WAL to be written to disk ("), "{summary:#?}");
        let parts = [
            ":WALS",
            ", which pid",
            "(`update accounts set balance = balance + ? where id = ?`, shop, user ",
        ];
        assert_names(&headline.replace("WalS", "WALS"), &parts);
    },
};

/// Sessions insert into one table whose file grows slowly.
const EXTENSION: RecordedTrouble = RecordedTrouble {
    name: "contention for an extension",
    cause: |server| {
        let sql = "INSERT INTO grown SELECT repeat('x', 2000) FROM generate_series(1, 25)";
        while_slow(server, "extend", || {
            repeat_in_sessions(server, 6, "SET application_name = 'import'", sql);
        });
        0
    },
    check: |_, summary, _| {
        let headline = &summary.headline;
        // A surge of the event, or seconds in which no session ran while they waited for it.
        assert!(headline.contains("Lock:extend "), "{summary:#?}");
        let parts = [
            " postgres.public.grown; most of the time in pids ",
            "(`insert into grown select repeat(",
            ", import, ",
        ];
        assert_names(headline, &parts);
    },
};

/// A session of the standby prevents the replay of an ALTER TABLE. The primary knows which standby
/// lags, the standby because of whom.
#[test]
fn headline_names_the_standby_that_lags_and_the_session_that_delays_it() {
    on_each(
        "a standby",
        |_, builder| builder,
        "",
        |major, primary| {
            let builder = Cluster::builder()
                .standby_of(primary)
                .name("replica")
                .setting("max_standby_streaming_delay", "-1");
            let Some(standby) = skip_without_postgres("a standby", builder.start()) else { return };
            let folder = tempfile::tempdir().unwrap();
            let [on_primary, on_standby] = ["a.rec", "b.rec"].map(|name| folder.path().join(name));
            let calm = random_calm();
            let target = connect_target(primary);
            let pid = recorded(primary, target, &on_primary, &[], |server| {
                let target = connect_target(&standby);
                recorded(&standby, target, &on_standby, &[], |replica| {
                    server.record_for(calm);
                    let mut reader = replica.session();
                    reader.query("BEGIN; SELECT count(*) FROM accounts").unwrap();
                    server.session().query("ALTER TABLE accounts ADD extra int").unwrap();
                    server.record_for(TROUBLE + Duration::from_secs(3));
                    reader.query("COMMIT").unwrap();
                    server.record_for(CALM);
                    pid(&reader)
                })
            });
            eprintln!("PostgreSQL {major}, after {calm:?}");
            let summary = |path: &Path| {
                let recording = FlightRecording::open(path).unwrap();
                summarize(&RecordingWindow::from_recording(&recording))
            };
            let summary_of_primary = summary(&on_primary);
            let headline = &summary_of_primary.headline;
            assert!(headline.starts_with("Standby replica (walsender "), "{summary_of_primary:#?}");
            assert_names(
                headline,
                &[" lags up to ", ": it has received the WAL, but does not replay it"],
            );
            let summary_of_standby = summary(&on_standby);
            let headline = &summary_of_standby.headline;
            assert!(headline.starts_with("This standby lags up to "), "{summary_of_standby:#?}");
            let held = format!(
                ": replay waits for a lock on postgres.public.accounts held by pid {pid} (`begin; select \
             count(*) from accounts`"
            );
            assert_names(headline, &[&held, "idle in transaction for "]);
        },
    );
}

/// Locks a table for as long as a trouble lasts.
fn lock_table(server: &RecordedServer<'_>) -> u32 {
    server.record_for(random_calm());
    let mut holder = server.session();
    holder.query("BEGIN; LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE").unwrap();
    server.record_for(TROUBLE);
    holder.query("COMMIT").unwrap();
    server.record_for(CALM);
    pid(&holder)
}

/// A role without grants sees the blockers, but neither states nor statements.
fn check_without_grants(cluster: &Cluster) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let target = connect_target(cluster).with_user("plain");
    let pid = recorded(cluster, target, &path, &[], lock_table);
    let window = RecordingWindow::from_recording(&FlightRecording::open(&path).unwrap());
    let summary = summarize(&window);
    // "Commits stopped", or on a slow machine, which commits little, "Lock:relation appears".
    let held = format!(" for a lock on postgres.public.accounts held by pid {pid} (");
    assert!(summary.headline.contains(&held), "{summary:#?}");
    let hint = |text: &str| text.contains("GRANT pg_monitor TO \"plain\"");
    assert!(window.notes.iter().any(|note| hint(&note.text)), "{:?}", window.notes);
}

/// The episode of a trigger has the statement of the blocker, although it began before.
fn check_trigger(cluster: &Cluster, trigger: &str, kind: TriggerKind) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.rec");
    let pid = recorded(cluster, connect_target(cluster), &path, &[trigger], lock_table);
    let recording = FlightRecording::open(&path).unwrap();
    let window = RecordingWindow::from_episode(&recording, 0).unwrap();
    let fired: Vec<_> = window.crossings.iter().map(|fired| fired.kind).collect();
    assert_eq!(fired, [kind]);
    let summary = summarize(&window);
    let held = format!("held by pid {pid} (`begin; lock table accounts in access exclusive mode`");
    assert!(summary.headline.contains(&held), "{summary:#?}");
}

#[test]
fn triggers_and_roles_without_grants_see_the_blocker() {
    let start = |name: &str, check: &(dyn Fn(&Cluster) + Sync)| {
        on_each(name, |_, builder| builder, "", |_, cluster| check(cluster));
    };
    thread::scope(|scope| {
        scope.spawn(|| start("a role without grants", &check_without_grants));
        for (trigger, kind) in
            [("locks=3", TriggerKind::Locks), ("commits-stopped=3s", TriggerKind::CommitsStopped)]
        {
            scope.spawn(move || {
                start(trigger, &|cluster: &Cluster| check_trigger(cluster, trigger, kind));
            });
        }
    });
}

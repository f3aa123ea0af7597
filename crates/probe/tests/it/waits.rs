//! Compares samples with the server's own views.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_inspect::RunningServer;
use howdah_lab::{Cluster, wait_for, wait_until};
use howdah_probe::{
    SampleError,
    by_sql::IdentityMonitor,
    live::{MemoryWaits, WaitSource as _},
    waits::{
        Class, ProcessKind, Profile, ProfileRow, QueryOptions, SamplerOptions, SessionDimension,
        TickSchedule, WaitEventNames, WaitSampler,
    },
};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat},
    process::{Gid, Pid, Signal, Uid, kill_process},
    thread::{set_thread_res_gid, set_thread_res_uid},
};

use crate::support::{
    TIMEOUT, cluster, connect_target, on_every_major_with, pid, run_in_background, session,
};

/// A sampler that lists processes in every round.
fn open(server: &RunningServer) -> WaitSampler {
    let options = SamplerOptions { listing_interval: Duration::ZERO, ..SamplerOptions::default() };
    WaitSampler::open(server, options).unwrap()
}

/// The kind and wait event of each process, as `pg_stat_activity` spells them.
fn sampled_waits(sampler: &mut WaitSampler) -> BTreeMap<u32, (String, String)> {
    let round = sampler.sample(Instant::now()).unwrap();
    let spelled = round.observations().map(|seen| {
        let event = match seen.event.class() {
            Class::NoWait => String::new(),
            _ => seen.event.to_string(),
        };
        (seen.backend.pid, (seen.backend.kind.name().to_owned(), event))
    });
    spelled.collect()
}

fn pg_stat_activity_waits(client: &mut Client) -> BTreeMap<u32, (String, String)> {
    let sql = "SELECT pid, backend_type, coalesce(wait_event_type || ':' || wait_event, '')
        FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
    let rows = client.query(sql).unwrap().remove(0).rows;
    let text = |row: usize, column| rows[row].text(column).unwrap().into_owned();
    (0..rows.len())
        .map(|row| (text(row, 0).parse().unwrap(), (text(row, 1), text(row, 2))))
        .collect()
}

/// Compares all processes, each at a moment when its wait did not change.
fn assert_agreement(sampler: &mut WaitSampler, client: &mut Client, context: &str) {
    let own = pid(client);
    let mut compared = BTreeSet::new();
    wait_until(&format!("{context}: a comparison of every process"), TIMEOUT, || {
        let before = sampled_waits(sampler);
        let reported = pg_stat_activity_waits(client);
        let mut after = sampled_waits(sampler);
        after.remove(&own);
        for (pid, seen) in &after {
            // A wait that was the same before and after may still have differed in between; then it
            // is compared later.
            if before.get(pid) == Some(seen) && reported.get(pid) == Some(seen) {
                compared.insert(*pid);
            }
        }
        after.keys().eq(reported.keys()) && after.keys().all(|pid| compared.contains(pid))
    });
    assert!(compared.len() >= 4, "{context}: {compared:?}");
}

/// Makes sessions wait for known events, and returns the event of each.
fn provoke(cluster: &Cluster, holder: &mut Client) -> Vec<(u32, &'static str)> {
    let sql = "CREATE TABLE held (n int); CREATE TABLE rows (n int); INSERT INTO rows VALUES (1);
        BEGIN; LOCK TABLE held; UPDATE rows SET n = 2; SELECT pg_advisory_lock(7)";
    for sql in sql.split(';') {
        holder.query(sql).unwrap();
    }
    let wait = |sql| run_in_background(cluster, sql).0;
    vec![
        (pid(holder), "Client:ClientRead"),
        (wait("SELECT pg_sleep(600)"), "Timeout:PgSleep"),
        (wait("SELECT count(*) FROM held"), "Lock:relation"),
        (wait("UPDATE rows SET n = 3"), "Lock:transactionid"),
        (wait("SELECT pg_advisory_lock(7)"), "Lock:advisory"),
    ]
}

#[test]
fn samples_agree_with_system_views_on_every_major() {
    // A name that looks like the end of a process title.
    let settings =
        [("cluster_name", "a b [local]: c"), ("shared_preload_libraries", "pg_stat_statements")];
    on_every_major_with(&settings, "waits", |cluster, server| {
        check_pg_stat_activity(cluster, server);
        check_lwlock_and_unreported_wait(cluster, server);
        let own = WaitEventNames::for_major(server.major()).unwrap().iter().count();
        let named = WaitEventNames::for_server(server).unwrap();
        let of_extensions: Vec<_> =
            named.iter().filter(|name| name.1 == "pg_stat_statements").collect();
        assert_eq!(of_extensions, [(Class::LwLock, "pg_stat_statements")]);
        assert_eq!(named.iter().count(), own + 1);
        let spelled = |id: u32| named.decode(0x0100_0000 | id).to_string();
        assert_eq!((0..300).filter(|&id| spelled(id) == "LWLock:pg_stat_statements").count(), 1);
        if server.major() >= 17 {
            check_pg_wait_events(cluster, server);
        }
    });
}

fn check_pg_stat_activity(cluster: &Cluster, server: &RunningServer) {
    let context = format!("PostgreSQL {}", server.major());
    let mut sampler = open(server);
    let (mut asking, mut holder) = (session(cluster), session(cluster));
    for (pid, event) in provoke(cluster, &mut holder) {
        wait_for(&format!("{context}: {event}"), TIMEOUT, || {
            (sampled_waits(&mut sampler).get(&pid)?.1 == event).then_some(())
        });
    }
    assert_agreement(&mut sampler, &mut asking, &context);
    let round = sampler.sample(Instant::now()).unwrap();
    let own = round.observations().find(|seen| seen.backend.pid == pid(&asking)).unwrap();
    let user = asking.one_value("SELECT current_user").unwrap();
    assert_eq!(own.backend.user.as_deref(), user.as_deref());
    assert_eq!(own.backend.database.as_deref(), Some("postgres"));
}

/// A pipe in place of `postgresql.auto.conf`: its readers block until this is dropped.
struct BlockedConfigFile {
    file: PathBuf,
    pipe: PathBuf,
}

impl BlockedConfigFile {
    fn create(cluster: &Cluster) -> Self {
        let file = cluster.data_dir().join("postgresql.auto.conf");
        let pipe = cluster.data_dir().join("stopper");
        fs::remove_file(&file).unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        fs::hard_link(&pipe, &file).unwrap();
        Self { file, pipe }
    }
}

impl Drop for BlockedConfigFile {
    fn drop(&mut self) {
        // First prevent further readers. Then a writer that writes nothing releases the blocked
        // ones, which even a shutdown could not. Opening fails if none is reading, and then none is
        // blocked.
        fs::remove_file(&self.file).unwrap();
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        drop(rustix::fs::open(&self.pipe, flags, Mode::empty()));
    }
}

/// `ALTER SYSTEM` reads its file under a lock. So the first session is in a wait that the server
/// does not report, and the second waits for the lock.
fn check_lwlock_and_unreported_wait(cluster: &Cluster, server: &RunningServer) {
    let mut sampler = open(server);
    let stopper = BlockedConfigFile::create(cluster);
    let sql = "ALTER SYSTEM SET log_statement = 'none'";
    let alters = [run_in_background(cluster, sql), run_in_background(cluster, sql)];
    let mut sleeping = 0;
    wait_for(
        &format!("PostgreSQL {}: CPU* that sleeps, and LWLock:AutoFile", server.major()),
        TIMEOUT,
        || {
            let round = sampler.sample(Instant::now()).unwrap();
            sleeping += round.checks().sleeping;
            let is_altering = |pid| alters.iter().any(|(altering, _)| *altering == pid);
            let altering = round.observations().filter(|seen| is_altering(seen.backend.pid));
            let events: BTreeSet<_> = altering.map(|seen| seen.event.to_string()).collect();
            (sleeping > 0 && events.iter().eq(["CPU*", "LWLock:AutoFile"])).then_some(())
        },
    );
    drop(stopper);
    for (_, altering) in alters {
        altering.join().unwrap();
    }
}

fn check_pg_wait_events(cluster: &Cluster, server: &RunningServer) {
    let sql = "SELECT type, name FROM pg_wait_events WHERE type <> 'InjectionPoint'";
    let rows = session(cluster).query(sql).unwrap().remove(0).rows;
    let text = |row: usize, column| rows[row].text(column).unwrap().into_owned();
    let reported: BTreeSet<_> = (0..rows.len()).map(|row| (text(row, 0), text(row, 1))).collect();
    let names = WaitEventNames::for_major(server.major()).unwrap();
    let known = names.iter().map(|(class, name)| (class.name().to_owned(), name.to_owned()));
    assert_eq!(known.collect::<BTreeSet<_>>(), reported, "PostgreSQL {}", server.major());
}

#[test]
fn statements_of_active_backends_are_read() {
    let Some(cluster) = cluster("statements") else { return };
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let normalise = |text: &str| text.replace("600", "?");
    let queries = QueryOptions { normalise: Box::new(normalise), ..QueryOptions::default() };
    let options = SamplerOptions { queries: Some(queries), ..SamplerOptions::default() };
    let (sleeper, _thread) =
        run_in_background(&cluster, "SELECT pg_sleep(600) /* for M\u{fc}ller */");
    let idle = session(&cluster);
    let mut sampler = WaitSampler::open(&server, options).unwrap();
    let id = wait_for("a statement", TIMEOUT, || {
        let round = sampler.sample(Instant::now()).unwrap();
        let find = |pid| round.observations().find(|seen| seen.backend.pid == pid);
        let idle = find(pid(&idle))?;
        if idle.event.class() != Class::Client {
            return None;
        }
        assert_eq!(idle.query, None);
        // The statement is set before the backend sleeps.
        let asleep = find(sleeper).filter(|seen| seen.event.to_string() == "Timeout:PgSleep")?;
        asleep.query
    });
    assert_eq!(sampler.query(id), Some("SELECT pg_sleep(?) /* for M\u{fc}ller */"));
    let mut profile = Profile::default();
    profile.add(&sampler.sample(Instant::now()).unwrap());
    profile.add(&sampler.sample(Instant::now()).unwrap());
    let rows = profile.total().rows;
    let row = rows.iter().find(|row| row.query == Some(id)).unwrap();
    assert_eq!(
        (row.kind, row.event.to_string()),
        (ProcessKind::Client, "Timeout:PgSleep".to_owned())
    );
    assert_eq!((row.samples, row.share), (2, Some(1.0)));
}

/// Samples of memory are joined with the identity of sessions over SQL, also of sessions that start
/// and that change their application name meanwhile.
#[test]
fn samples_have_the_labels_of_their_sessions() {
    let Some(cluster) = cluster("labels") else { return };
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let mut client = session(&cluster);
    client
        .query("CREATE ROLE ann LOGIN")
        .and_then(|_| client.query("CREATE DATABASE shop"))
        .unwrap();
    let session_as = |application: &str| {
        let uri = cluster.uri("shop").replace("//postgres@", "//ann@");
        let separator = if uri.contains('?') { '&' } else { '?' };
        let uri = format!("{uri}{separator}application_name={application}");
        let words = ConnParams::from_conninfo(uri);
        let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
        Client::connect(&target).unwrap()
    };
    let sleep =
        |mut client: Client| thread::spawn(move || drop(client.query("SELECT pg_sleep(600)")));
    let _first = sleep(session_as("first"));
    let all = SessionDimension::ALL.to_vec();
    let identities = IdentityMonitor::start(&connect_target(&cluster), all).unwrap();
    assert_eq!(identities.hidden(), None);
    let mut waits = {
        let sampler = WaitSampler::open(&server, SamplerOptions::default()).unwrap();
        MemoryWaits::new(sampler, &server, Some(identities)).unwrap()
    };
    let mut profile = Profile::default();
    let mut samples = |waits: &mut MemoryWaits, application: &str| {
        wait_until(application, TIMEOUT, || {
            waits.sample(&mut profile).unwrap();
            let rows = profile.total().rows;
            let of = |row: &ProfileRow| {
                let label = waits.label(row.session?)?;
                let values = SessionDimension::ALL.map(|dimension| label.value(dimension));
                let [user, database, found, client] = values;
                (found == Some(application)).then(|| {
                    assert_eq!((user, database), (Some("ann"), Some("shop")));
                    assert!(client.is_some());
                    (row.event.to_string(), row.samples)
                })
            };
            let found: Vec<_> = rows.iter().filter_map(of).collect();
            found.iter().any(|(event, samples)| event == "Timeout:PgSleep" && *samples > 3)
        });
    };
    samples(&mut waits, "first");
    let mut later = session_as("later");
    later.query("SELECT 1").unwrap();
    let later = sleep(later);
    samples(&mut waits, "later");
    let mut renamed = session_as("old");
    renamed.query("SET application_name = 'new'").unwrap();
    let renamed = sleep(renamed);
    samples(&mut waits, "new");
    drop((later, renamed));
}

#[test]
fn sampling_a_restarted_server_is_an_error() {
    let Some(mut cluster) = cluster("restart") else { return };
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let mut every_time = open(&server);
    let mut rarely = WaitSampler::open(&server, SamplerOptions::default()).unwrap();
    let begin = Instant::now();
    for sampler in [&mut every_time, &mut rarely] {
        assert!(sampler.sample(begin).unwrap().counts().processes >= 4);
    }
    cluster.restart().unwrap();
    for sampler in [&mut every_time, &mut rarely] {
        let error = sampler.sample(begin).unwrap_err();
        let SampleError::ServerStopped { pid } = error else { panic!("{error}") };
        assert_eq!(pid, server.postmaster().pid());
    }
}

#[test]
fn new_processes_are_sampled_after_a_crash() {
    let Some(cluster) = cluster("crash") else { return };
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let mut sampler = open(&server);
    let victim = session(&cluster);
    let before: BTreeSet<_> = sampled_waits(&mut sampler).into_keys().collect();
    assert!(before.contains(&pid(&victim)));
    kill_process(Pid::from_raw(victim.process_id().unwrap()).unwrap(), Signal::KILL).unwrap();
    wait_for("new processes", TIMEOUT, || {
        let after = sampled_waits(&mut sampler);
        let has = |kind: ProcessKind| after.values().any(|seen| seen.0 == kind.name());
        let is_new = after.keys().all(|pid| !before.contains(pid));
        (is_new && has(ProcessKind::Checkpointer) && has(ProcessKind::WalWriter)).then_some(())
    });
    assert_agreement(&mut sampler, &mut session(&cluster), "after a crash");
}

/// The kernel checks the credentials of the thread, so a thread can act as another user.
fn as_user<T: Send>(uid: u32, gid: u32, act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let acting = scope.spawn(|| {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            act()
        });
        acting.join().unwrap()
    })
}

#[test]
fn other_users_get_permission_hint() {
    let Some(cluster) = cluster("users") else { return };
    let owner = fs::metadata(cluster.data_dir()).unwrap();
    if owner.uid() == rustix::process::getuid().as_raw() {
        // All tests run as the server's user, so another user to test with is not available.
        let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
        assert!(sampled_waits(&mut open(&server)).len() >= 4);
        return;
    }
    let processes = as_user(owner.uid(), owner.gid(), || {
        let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
        sampled_waits(&mut open(&server)).len()
    });
    assert!(processes >= 4);
    let postmaster = cluster.pid().unwrap();
    let seen_before = RunningServer::from_pid(postmaster).unwrap();
    let stranger = owner.uid() + 1;
    let words = as_user(stranger, stranger, || {
        let finding = RunningServer::from_pid(postmaster).unwrap_err();
        let opening = WaitSampler::open(&seen_before, SamplerOptions::default()).unwrap_err();
        [finding.to_string(), opening.to_string()]
    });
    assert!(words.iter().all(|words| words.contains("CAP_SYS_PTRACE")), "{words:?}");
}

#[test]
fn one_second_profile_adds_up() {
    let Some(cluster) = cluster("profile") else { return };
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let (_, _thread) = run_in_background(&cluster, "SELECT pg_sleep(600)");
    let mut sampler = WaitSampler::open(&server, SamplerOptions::default()).unwrap();
    let mut profile = Profile::default();
    let begin = Instant::now();
    let mut pace = TickSchedule::new(begin, Duration::from_millis(1));
    let mut last = begin;
    while last - begin < Duration::from_secs(1) {
        thread::sleep(pace.next_tick_at().saturating_duration_since(Instant::now()));
        last = Instant::now();
        pace.advance(last);
        profile.add(&sampler.sample(last).unwrap());
    }
    let report = profile.total();
    assert_eq!(
        report.rounds + pace.missed(),
        u64::try_from((last - begin).as_millis()).unwrap() + 1
    );
    assert!(report.elapsed <= last - begin);
    assert_eq!(report.uncounted, 0);
    let cost = sampler.cost();
    assert_eq!(cost.rounds, report.rounds);
    assert!(cost.listings >= 2 && cost.listings <= 11, "{cost:?}");
    assert!(!cost.cpu.is_zero());
    let asleep = report.rows.iter().find(|row| row.event.to_string() == "Timeout:PgSleep").unwrap();
    assert!(asleep.processes > 0.0 && asleep.processes <= 1.0);
}

//! Samples beside what the server itself says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;
use howdah_inspect::Server;
use howdah_lab::Cluster;
use howdah_probe::{
    SampleError,
    waits::{Class, Kind, Names, Options, Pace, Profile, QueryOptions, Sampler},
};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mknodat},
    process::{Gid, Pid, Signal, Uid, kill_process},
    thread::{set_thread_res_gid, set_thread_res_uid},
};

use crate::support::{cluster, meanwhile, on_every_major_with, pid, session, until};

/// A sampler that looks for processes every time.
fn open(server: &Server) -> Sampler {
    let options = Options { listing_interval: Duration::ZERO, ..Options::default() };
    Sampler::open(server, options).unwrap()
}

/// What each process is, and what it waits for, as `pg_stat_activity` would spell it.
fn seen(sampler: &mut Sampler) -> BTreeMap<u32, (String, String)> {
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

fn told(client: &mut Client) -> BTreeMap<u32, (String, String)> {
    let sql = "SELECT pid, backend_type, coalesce(wait_event_type || ':' || wait_event, '')
        FROM pg_stat_activity WHERE pid <> pg_backend_pid()";
    let rows = client.query(sql).unwrap().remove(0).rows;
    let text = |row: usize, column| rows[row].text(column).unwrap().into_owned();
    (0..rows.len())
        .map(|row| (text(row, 0).parse().unwrap(), (text(row, 1), text(row, 2))))
        .collect()
}

/// Compares all processes, each in a moment in which it waited for one thing only.
fn agree(sampler: &mut Sampler, client: &mut Client, context: &str) {
    let own = pid(client);
    let mut compared = BTreeSet::new();
    until(&format!("{context}: every process to be at rest once"), || {
        let before = seen(sampler);
        let told = told(client);
        let mut after = seen(sampler);
        after.remove(&own);
        for (pid, seen) in &after {
            // What was the same before and after may have been another meanwhile: then later.
            if before.get(pid) == Some(seen) && told.get(pid) == Some(seen) {
                compared.insert(*pid);
            }
        }
        (after.keys().eq(told.keys()) && after.keys().all(|pid| compared.contains(pid)))
            .then_some(())
    });
    assert!(compared.len() >= 4, "{context}: {compared:?}");
}

/// Makes sessions wait in ways that are known, and gives what each has to be seen at.
fn provoke(cluster: &Cluster, holder: &mut Client) -> Vec<(u32, &'static str)> {
    let sql = "CREATE TABLE held (n int); CREATE TABLE rows (n int); INSERT INTO rows VALUES (1);
        BEGIN; LOCK TABLE held; UPDATE rows SET n = 2; SELECT pg_advisory_lock(7)";
    for sql in sql.split(';') {
        holder.query(sql).unwrap();
    }
    let wait = |sql| meanwhile(cluster, sql).0;
    vec![
        (pid(holder), "Client:ClientRead"),
        (wait("SELECT pg_sleep(600)"), "Timeout:PgSleep"),
        (wait("SELECT count(*) FROM held"), "Lock:relation"),
        (wait("UPDATE rows SET n = 3"), "Lock:transactionid"),
        (wait("SELECT pg_advisory_lock(7)"), "Lock:advisory"),
    ]
}

#[test]
fn every_major_is_seen_as_it_sees_itself() {
    // A name that looks like the end of a title.
    let settings =
        [("cluster_name", "a b [local]: c"), ("shared_preload_libraries", "pg_stat_statements")];
    on_every_major_with(&settings, "waits", |cluster, server| {
        waits_are_those_of_pg_stat_activity(cluster, server);
        a_lightweight_lock_and_a_wait_that_is_not_reported(cluster, server);
        let own = Names::of(server.major()).unwrap().iter().count();
        let named = Names::of_server(server).unwrap();
        let of_extensions: Vec<_> =
            named.iter().filter(|name| name.1 == "pg_stat_statements").collect();
        assert_eq!(of_extensions, [(Class::LwLock, "pg_stat_statements")]);
        assert_eq!(named.iter().count(), own + 1);
        let spelled = |id: u32| named.decode(0x0100_0000 | id).to_string();
        assert_eq!((0..300).filter(|&id| spelled(id) == "LWLock:pg_stat_statements").count(), 1);
        if server.major() >= 17 {
            names_are_those_of_pg_wait_events(cluster, server);
        }
    });
}

fn waits_are_those_of_pg_stat_activity(cluster: &Cluster, server: &Server) {
    let context = format!("PostgreSQL {}", server.major());
    let mut sampler = open(server);
    let (mut asking, mut holder) = (session(cluster), session(cluster));
    for (pid, event) in provoke(cluster, &mut holder) {
        until(&format!("{context}: {event}"), || {
            (seen(&mut sampler).get(&pid)?.1 == event).then_some(())
        });
    }
    agree(&mut sampler, &mut asking, &context);
    let round = sampler.sample(Instant::now()).unwrap();
    let own = round.observations().find(|seen| seen.backend.pid == pid(&asking)).unwrap();
    let user = asking.one_value("SELECT current_user").unwrap();
    assert_eq!(own.backend.user.as_deref(), user.as_deref());
    assert_eq!(own.backend.database.as_deref(), Some("postgres"));
}

/// A pipe in the place of `postgresql.auto.conf`: who reads it waits until this is dropped.
struct Stopper {
    file: PathBuf,
    pipe: PathBuf,
}

impl Stopper {
    fn on(cluster: &Cluster) -> Self {
        let file = cluster.data_dir().join("postgresql.auto.conf");
        let pipe = cluster.data_dir().join("stopper");
        fs::remove_file(&file).unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        fs::hard_link(&pipe, &file).unwrap();
        Self { file, pipe }
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        // Nobody else shall begin to read it. A writer that writes nothing lets go who does: no shutdown
        // could. Without a reader opening fails, and nobody is to be let go.
        fs::remove_file(&self.file).unwrap();
        let flags = OFlags::WRONLY | OFlags::NONBLOCK;
        drop(rustix::fs::open(&self.pipe, flags, Mode::empty()));
    }
}

/// `ALTER SYSTEM` reads its file under a lock. So who came first is in a wait that the server does not
/// report, and who came second waits for the lock.
fn a_lightweight_lock_and_a_wait_that_is_not_reported(cluster: &Cluster, server: &Server) {
    let mut sampler = open(server);
    let stopper = Stopper::on(cluster);
    let sql = "ALTER SYSTEM SET log_statement = 'none'";
    let alters = [meanwhile(cluster, sql), meanwhile(cluster, sql)];
    let mut sleeping = 0;
    until(&format!("PostgreSQL {}: CPU* that sleeps, and LWLock:AutoFile", server.major()), || {
        let round = sampler.sample(Instant::now()).unwrap();
        sleeping += round.checks().sleeping;
        let is_altering = |pid| alters.iter().any(|(altering, _)| *altering == pid);
        let altering = round.observations().filter(|seen| is_altering(seen.backend.pid));
        let events: BTreeSet<_> = altering.map(|seen| seen.event.to_string()).collect();
        (sleeping > 0 && events.iter().eq(["CPU*", "LWLock:AutoFile"])).then_some(())
    });
    drop(stopper);
    for (_, altering) in alters {
        altering.join().unwrap();
    }
}

fn names_are_those_of_pg_wait_events(cluster: &Cluster, server: &Server) {
    let sql = "SELECT type, name FROM pg_wait_events WHERE type <> 'InjectionPoint'";
    let rows = session(cluster).query(sql).unwrap().remove(0).rows;
    let text = |row: usize, column| rows[row].text(column).unwrap().into_owned();
    let told: BTreeSet<_> = (0..rows.len()).map(|row| (text(row, 0), text(row, 1))).collect();
    let names = Names::of(server.major()).unwrap();
    let known = names.iter().map(|(class, name)| (class.name().to_owned(), name.to_owned()));
    assert_eq!(known.collect::<BTreeSet<_>>(), told, "PostgreSQL {}", server.major());
}

#[test]
fn statements_of_active_backends_are_read() {
    let Some(cluster) = cluster("statements") else { return };
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    let normalise = |text: &str| text.replace("600", "?");
    let queries = QueryOptions { normalise: Box::new(normalise), ..QueryOptions::default() };
    let options = Options { queries: Some(queries), ..Options::default() };
    let (sleeper, _thread) = meanwhile(&cluster, "SELECT pg_sleep(600) /* for M\u{fc}ller */");
    let idle = session(&cluster);
    let mut sampler = Sampler::open(&server, options).unwrap();
    let id = until("a statement", || {
        let round = sampler.sample(Instant::now()).unwrap();
        let find = |pid| round.observations().find(|seen| seen.backend.pid == pid);
        let idle = find(pid(&idle))?;
        if idle.event.class() != Class::Client {
            return None;
        }
        assert_eq!(idle.query, None);
        // It has its statement before it sleeps.
        let asleep = find(sleeper).filter(|seen| seen.event.to_string() == "Timeout:PgSleep")?;
        asleep.query
    });
    assert_eq!(sampler.query(id), Some("SELECT pg_sleep(?) /* for M\u{fc}ller */"));
    let mut profile = Profile::default();
    profile.add(&sampler.sample(Instant::now()).unwrap());
    profile.add(&sampler.sample(Instant::now()).unwrap());
    let rows = profile.total().rows;
    let row = rows.iter().find(|row| row.query == Some(id)).unwrap();
    assert_eq!((row.kind, row.event.to_string()), (Kind::Client, "Timeout:PgSleep".to_owned()));
    assert_eq!((row.samples, row.share), (2, Some(1.0)));
}

#[test]
fn a_server_that_ended_is_no_number() {
    let Some(mut cluster) = cluster("restart") else { return };
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    let mut every_time = open(&server);
    let mut rarely = Sampler::open(&server, Options::default()).unwrap();
    let begin = Instant::now();
    for sampler in [&mut every_time, &mut rarely] {
        assert!(sampler.sample(begin).unwrap().counts().processes >= 4);
    }
    cluster.restart().unwrap();
    for sampler in [&mut every_time, &mut rarely] {
        let error = sampler.sample(begin).unwrap_err();
        let SampleError::Ended { pid } = error else { panic!("{error}") };
        assert_eq!(pid, server.postmaster().pid());
    }
}

#[test]
fn after_a_crash_the_new_processes_are_sampled() {
    let Some(cluster) = cluster("crash") else { return };
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    let mut sampler = open(&server);
    let victim = session(&cluster);
    let before: BTreeSet<_> = seen(&mut sampler).into_keys().collect();
    assert!(before.contains(&pid(&victim)));
    kill_process(Pid::from_raw(victim.process_id().unwrap()).unwrap(), Signal::KILL).unwrap();
    until("new processes", || {
        let after = seen(&mut sampler);
        let has = |kind: Kind| after.values().any(|seen| seen.0 == kind.name());
        let is_new = after.keys().all(|pid| !before.contains(pid));
        (is_new && has(Kind::Checkpointer) && has(Kind::WalWriter)).then_some(())
    });
    agree(&mut sampler, &mut session(&cluster), "after a crash");
}

/// The kernel judges a thread by its own ids, so a thread can stand for another user.
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
fn the_servers_own_user_may_and_a_stranger_is_told_what_is_missing() {
    let Some(cluster) = cluster("users") else { return };
    let owner = fs::metadata(cluster.data_dir()).unwrap();
    if owner.uid() == rustix::process::getuid().as_raw() {
        // All tests run as the server's own user then; who else there is cannot be had.
        let server = Server::in_data_dir(cluster.data_dir()).unwrap();
        assert!(seen(&mut open(&server)).len() >= 4);
        return;
    }
    let processes = as_user(owner.uid(), owner.gid(), || {
        let server = Server::in_data_dir(cluster.data_dir()).unwrap();
        seen(&mut open(&server)).len()
    });
    assert!(processes >= 4);
    let postmaster = cluster.pid().unwrap();
    let seen_before = Server::with_process(postmaster).unwrap();
    let stranger = owner.uid() + 1;
    let words = as_user(stranger, stranger, || {
        let finding = Server::with_process(postmaster).unwrap_err();
        let opening = Sampler::open(&seen_before, Options::default()).unwrap_err();
        [finding.to_string(), opening.to_string()]
    });
    assert!(words.iter().all(|words| words.contains("CAP_SYS_PTRACE")), "{words:?}");
}

#[test]
fn a_profile_of_a_second_adds_up() {
    let Some(cluster) = cluster("profile") else { return };
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    let (_, _thread) = meanwhile(&cluster, "SELECT pg_sleep(600)");
    let mut sampler = Sampler::open(&server, Options::default()).unwrap();
    let mut profile = Profile::default();
    let begin = Instant::now();
    let mut pace = Pace::new(begin, Duration::from_millis(1));
    let mut last = begin;
    while last - begin < Duration::from_secs(1) {
        thread::sleep(pace.due().saturating_duration_since(Instant::now()));
        last = Instant::now();
        pace.reached(last);
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

//! Durations of calls, told by programs in the kernel, beside what sessions do.

use std::{
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;
use howdah_inspect::Process;
use howdah_lab::Cluster;
use howdah_probe::{
    durations::{Call, Durations, Figure, Subject},
    stacks::{CodeNames, StackEnd},
    waits::{Class, Options, Sampler},
};

use crate::support::{may_trace, number, on_every_major, session, until};

/// The calls of one backend while `act` is done by it.
fn calls(
    durations: &mut Durations,
    client: &mut Client,
    act: impl FnOnce(&mut Client),
) -> Vec<Call> {
    let pid = number(client, "SELECT pg_backend_pid()");
    durations.drain(|_| {});
    act(client);
    let mut calls = Vec::new();
    durations.drain(|call| {
        if call.pid == pid {
            calls.push(call);
        }
    });
    calls
}

fn of<'a>(calls: &'a [Call], operation: &'a str) -> impl Iterator<Item = &'a Call> {
    calls.iter().filter(move |call| call.operation == operation)
}

/// Waits until a session waits for a lock.
fn until_blocked(client: &mut Client) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while number(client, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 0 {
        assert!(Instant::now() < deadline, "nobody waits");
        thread::yield_now();
    }
}

#[test]
fn a_wait_for_a_lock_is_as_long_as_it_was() {
    if !may_trace("lock waits") {
        return;
    }
    on_every_major("lock waits", |cluster, server| {
        let mut holder = session(cluster);
        holder.query("CREATE TABLE locked (id int)").unwrap();
        let relation = number(&mut holder, "SELECT 'locked'::regclass::oid");
        let mut durations = Durations::attach(server, Figure::Locks).unwrap();
        let mut waiter = session(cluster);
        let mut at_least = Duration::ZERO;
        let calls = calls(&mut durations, &mut waiter, |waiter| {
            holder.query("BEGIN; LOCK TABLE locked").unwrap();
            thread::scope(|scope| {
                scope.spawn(|| waiter.query("SELECT * FROM locked").unwrap());
                until_blocked(&mut session(cluster));
                let seen = Instant::now();
                thread::sleep(Duration::from_millis(30));
                at_least = seen.elapsed();
                holder.query("COMMIT").unwrap();
            });
        });
        let [call] = calls[..] else { panic!("{calls:?}") };
        let Subject::Lock(tag) = call.subject else { panic!("{call:?}") };
        assert_eq!((tag.kind, tag.relation.unwrap().1), ("relation", relation));
        assert!(call.duration >= at_least, "{call:?} {at_least:?}");
        assert_eq!(durations.lost().unwrap(), 0);
    });
}

/// The stack of who waits: whole where the build keeps frame pointers, and else as much as can be believed.
#[test]
fn a_long_wait_has_a_stack() {
    if !may_trace("stacks") {
        return;
    }
    on_every_major("stacks", |cluster, server| {
        let mut holder = session(cluster);
        holder.query("CREATE TABLE locked (id int)").unwrap();
        let least = Duration::from_millis(20);
        let mut durations =
            Durations::attach_with_stacks(server, Figure::Locks, Some(least)).unwrap();
        let mut waiter = session(cluster);
        let calls = calls(&mut durations, &mut waiter, |waiter| {
            holder.query("BEGIN; LOCK TABLE locked").unwrap();
            thread::scope(|scope| {
                scope.spawn(|| waiter.query("SELECT * FROM locked").unwrap());
                until_blocked(&mut session(cluster));
                thread::sleep(least);
                holder.query("COMMIT").unwrap();
            });
        });
        let [call] = calls[..] else { panic!("{calls:?}") };
        let addresses = durations.addresses(call.stack.expect("it was long enough"));
        let stack = CodeNames::default().stack(call.pid, &addresses);
        // One that has ended is named by what all processes of the server have.
        drop(waiter);
        until("the session's end", || Process::of(call.pid).is_err().then_some(()));
        assert_eq!(CodeNames::of_server(server).stack(call.pid, &addresses), stack);
        let gone = CodeNames::default().stack(call.pid, &addresses);
        assert_eq!(gone.end, StackEnd::Gone);
        let names: Vec<_> =
            stack.frames.iter().filter_map(|place| place.function.as_deref()).collect();
        assert!(!names.is_empty(), "{stack:?}");
        let has_frame_pointers = !server.binary().markers().is_empty();
        if has_frame_pointers {
            assert_eq!(stack.end, StackEnd::Whole, "{stack}");
            for function in ["LockAcquireExtended", "PostgresMain", "main"] {
                assert!(names.contains(&function), "{stack}");
            }
        } else {
            // `WaitOnLock` alone is sure.
            assert!(stack.end != StackEnd::Whole && stack.end.remark().is_some(), "{stack}");
            assert!(names[0].contains("WaitOnLock"), "{stack}");
        }
    });
}

/// Sessions that commit at once wait for each other's WAL.
fn commit_together(cluster: &Cluster) -> Vec<u32> {
    thread::scope(|scope| {
        let sessions = (0..8).map(|_| {
            scope.spawn(|| {
                let mut client = session(cluster);
                for _ in 0..150 {
                    client.query("INSERT INTO t VALUES (1)").unwrap();
                }
                number(&mut client, "SELECT pg_backend_pid()")
            })
        });
        let sessions: Vec<_> = sessions.collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    })
}

#[test]
fn lightweight_locks_are_told_by_tranche() {
    if !may_trace("lightweight locks") {
        return;
    }
    on_every_major("lightweight locks", |cluster, server| {
        session(cluster).query("CREATE TABLE t (id int)").unwrap();
        let mut durations = Durations::attach(server, Figure::LwLocks).unwrap();
        let mut sampler = Sampler::open(server, Options::default()).unwrap();
        let mut sampled = std::collections::HashMap::<String, u32>::new();
        let begin = Instant::now();
        let pids = thread::scope(|scope| {
            let work = scope.spawn(|| commit_together(cluster));
            while !work.is_finished() {
                let round = sampler.sample(Instant::now()).unwrap();
                for seen in round.observations() {
                    if seen.event.class() == Class::LwLock {
                        *sampled.entry(seen.event.name()).or_default() += 1;
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
            work.join().unwrap()
        });
        let elapsed = begin.elapsed();
        let mut told = std::collections::HashMap::<String, u32>::new();
        let mut waited = std::collections::HashMap::<u32, Duration>::new();
        durations.drain(|call| {
            let Subject::Wait(event) = call.subject else { panic!("{call:?}") };
            assert_eq!((event.class(), call.operation), (Class::LwLock, "lwlock"));
            *told.entry(event.name()).or_default() += 1;
            *waited.entry(call.pid).or_default() += call.duration;
        });
        let major = server.major();
        assert!(told.contains_key("WALWrite"), "{major}: {told:?}, samples {sampled:?}");
        assert!(waited.values().all(|waited| *waited <= elapsed), "{waited:?} in {elapsed:?}");
        assert!(pids.iter().any(|pid| waited.contains_key(pid)), "{pids:?} {waited:?}");
        // What was seen again and again cannot have been missed.
        let often = sampled.iter().filter(|(_, samples)| **samples >= 20);
        for (tranche, samples) in often {
            assert!(told.contains_key(tranche), "{major}: {tranche} {samples} {told:?}");
        }
        assert_eq!(durations.lost().unwrap(), 0);
    });
}

#[test]
fn statements_inside_of_functions_count_once_also_after_an_error() {
    if !may_trace("query durations") {
        return;
    }
    on_every_major("query durations", |cluster, server| {
        let mut client = session(cluster);
        let make = "CREATE FUNCTION inner_ones() RETURNS int LANGUAGE plpgsql AS $$
            BEGIN FOR i IN 1..10 LOOP PERFORM count(*) FROM pg_class; END LOOP; RETURN 1; END $$;
            CREATE FUNCTION fails() RETURNS int LANGUAGE plpgsql AS $$
            BEGIN PERFORM 1 / count(*) FROM pg_class WHERE false; RETURN 1; END $$";
        client.query(make).unwrap();
        let mut durations = Durations::attach(server, Figure::Queries).unwrap();
        let told = calls(&mut durations, &mut client, |client| {
            client.query("SELECT inner_ones()").unwrap();
        });
        assert_eq!(of(&told, "execute").count(), 1, "{} calls on {}", told.len(), server.major());
        // Plans of inner statements are made while the outer one is executed: each counts.
        assert!(of(&told, "plan").count() >= 2, "{} calls on {}", told.len(), server.major());
        let told = calls(&mut durations, &mut client, |client| {
            client.query("SELECT fails()").unwrap_err();
            client.query("SELECT inner_ones()").unwrap();
        });
        assert_eq!(of(&told, "execute").count(), 1, "{} calls on {}", told.len(), server.major());
    });
}

#[test]
fn reads_and_writes_name_their_file() {
    if !may_trace("io durations") {
        return;
    }
    on_every_major("io durations", |cluster, server| {
        let mut client = session(cluster);
        client.query("CREATE TABLE filled (pad text)").unwrap();
        let filled = number(&mut client, "SELECT pg_relation_filenode('filled')");
        let mut durations = Durations::attach(server, Figure::Io).unwrap();
        let fill = "INSERT INTO filled SELECT repeat('x', 900) FROM generate_series(1, 9000)";
        let told = calls(&mut durations, &mut client, |client| {
            client.query(fill).unwrap();
        });
        let is_filled = |call: &&Call| match call.subject {
            Subject::File { filenode, .. } => filenode == filled,
            _ => false,
        };
        assert!(
            of(&told, "extend").any(|call| is_filled(&call)),
            "{} calls on {}",
            told.len(),
            server.major()
        );
        // More than fits: what was filled first has to be read again.
        restart_cold(cluster, &mut client);
        let told = calls(&mut durations, &mut client, |client| {
            client.query("SELECT count(*) FROM filled").unwrap();
        });
        let reads = told.iter().filter(|call| call.operation.ends_with("read"));
        assert!(
            reads.filter(|call| is_filled(call)).count() > 0,
            "{} calls on {}",
            told.len(),
            server.major()
        );
    });
}

/// Drives all pages of before out of the cache.
fn restart_cold(cluster: &Cluster, client: &mut Client) {
    let drive =
        "CREATE TABLE driver AS SELECT repeat('y', 900) AS pad FROM generate_series(1, 40000);
        UPDATE driver SET pad = pad || 'z'; CHECKPOINT";
    session(cluster).query(drive).unwrap();
    client.query("SELECT count(*) FROM driver").unwrap();
}

#[test]
fn commits_and_sorts_are_told() {
    if !may_trace("wal and sort durations") {
        return;
    }
    on_every_major("wal and sort durations", |cluster, server| {
        let mut client = session(cluster);
        client.query("CREATE TABLE t (id int)").unwrap();
        let mut wal = Durations::attach(server, Figure::Wal).unwrap();
        let told = calls(&mut wal, &mut client, |client| {
            client.query("INSERT INTO t VALUES (1)").unwrap();
        });
        assert!(of(&told, "flush").count() >= 1, "{} calls on {}", told.len(), server.major());
        let mut sorts = Durations::attach(server, Figure::Sorts).unwrap();
        client.query("SET work_mem = '64kB'").unwrap();
        let told = calls(&mut sorts, &mut client, |client| {
            let sort = "SELECT n FROM generate_series(1, 50000) n ORDER BY md5(n::text) LIMIT 1 OFFSET 49000";
            client.query(sort).unwrap();
        });
        assert!(of(&told, "sort").count() >= 1, "{} calls on {}", told.len(), server.major());
        let spilt =
            number(&mut client, "SELECT count(*) FROM pg_stat_database WHERE temp_bytes > 0");
        assert!(
            of(&told, "spill").count() >= 1 || spilt == 0,
            "{} calls on {}",
            told.len(),
            server.major()
        );
    });
}

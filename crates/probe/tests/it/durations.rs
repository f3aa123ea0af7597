//! Compares call durations reported by BPF programs with what sessions do.

use std::{
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;
use howdah_inspect::OsProcess;
use howdah_lab::{Cluster, wait_until};
use howdah_probe::{
    durations::{Call, CallDurations, CallSubject, ProbeMetric},
    stacks::{StackEnd, Symbolizer},
    waits::{Class, SamplerOptions, WaitSampler},
};

use crate::support::{TIMEOUT, may_trace, number, on_every_major, session};

/// The calls of one backend while it runs `act`.
fn calls(
    durations: &mut CallDurations,
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

fn with_operation<'a>(calls: &'a [Call], operation: &'a str) -> impl Iterator<Item = &'a Call> {
    calls.iter().filter(move |call| call.operation == operation)
}

/// Waits until a session is blocked by a lock.
fn wait_until_blocked(client: &mut Client) {
    wait_until("a blocked session", TIMEOUT, || {
        number(client, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0
    });
}

#[test]
fn lock_wait_duration_is_measured() {
    if !may_trace("lock waits") {
        return;
    }
    on_every_major("lock waits", |cluster, server| {
        let mut holder = session(cluster);
        holder.query("CREATE TABLE locked (id int)").unwrap();
        let relation = number(&mut holder, "SELECT 'locked'::regclass::oid");
        let mut durations = CallDurations::attach(server, ProbeMetric::Locks).unwrap();
        let mut waiter = session(cluster);
        let mut at_least = Duration::ZERO;
        let calls = calls(&mut durations, &mut waiter, |waiter| {
            holder.query("BEGIN; LOCK TABLE locked").unwrap();
            thread::scope(|scope| {
                scope.spawn(|| waiter.query("SELECT * FROM locked").unwrap());
                wait_until_blocked(&mut session(cluster));
                let seen = Instant::now();
                // The length of the lock wait to be measured.
                thread::sleep(Duration::from_millis(30));
                at_least = seen.elapsed();
                holder.query("COMMIT").unwrap();
            });
        });
        let [call] = calls[..] else { panic!("{calls:?}") };
        let CallSubject::Lock(tag) = call.subject else { panic!("{call:?}") };
        assert_eq!((tag.kind, tag.relation.unwrap().1), ("relation", relation));
        assert!(call.duration >= at_least, "{call:?} {at_least:?}");
        assert_eq!(durations.lost_events().unwrap(), 0);
    });
}

/// The stack of a waiter is complete if the build has frame pointers, otherwise as far as it is
/// reliable.
#[test]
fn long_lock_wait_has_a_stack() {
    if !may_trace("stacks") {
        return;
    }
    on_every_major("stacks", |cluster, server| {
        let mut holder = session(cluster);
        holder.query("CREATE TABLE locked (id int)").unwrap();
        let least = Duration::from_millis(20);
        let mut durations =
            CallDurations::attach_with_stacks(server, ProbeMetric::Locks, Some(least)).unwrap();
        let mut waiter = session(cluster);
        let calls = calls(&mut durations, &mut waiter, |waiter| {
            holder.query("BEGIN; LOCK TABLE locked").unwrap();
            thread::scope(|scope| {
                scope.spawn(|| waiter.query("SELECT * FROM locked").unwrap());
                wait_until_blocked(&mut session(cluster));
                // Make the lock wait long enough for a stack.
                thread::sleep(least);
                holder.query("COMMIT").unwrap();
            });
        });
        let [call] = calls[..] else { panic!("{calls:?}") };
        let addresses = durations.addresses(call.stack.expect("call was long enough"));
        let stack = Symbolizer::default().resolve(call.pid, &addresses);
        // A process that has exited is resolved with the postmaster's code map.
        drop(waiter);
        wait_until("the session's end", TIMEOUT, || OsProcess::from_pid(call.pid).is_err());
        assert_eq!(Symbolizer::for_server(server).resolve(call.pid, &addresses), stack);
        let gone = Symbolizer::default().resolve(call.pid, &addresses);
        assert_eq!(gone.end, StackEnd::ProcessGone);
        let names: Vec<_> =
            stack.frames.iter().filter_map(|place| place.function.as_deref()).collect();
        assert!(!names.is_empty(), "{stack:?}");
        let has_frame_pointers = !server.binary().usdt_probes().is_empty();
        if has_frame_pointers {
            assert_eq!(stack.end, StackEnd::Complete, "{stack}");
            for function in ["LockAcquireExtended", "PostgresMain", "main"] {
                assert!(names.contains(&function), "{stack}");
            }
        } else {
            // Only `WaitOnLock` is certain.
            assert!(
                stack.end != StackEnd::Complete && stack.end.explanation().is_some(),
                "{stack}"
            );
            assert!(names[0].contains("WaitOnLock"), "{stack}");
        }
    });
}

/// Commits in several sessions at once, which wait for each other's WAL; returns their process ids.
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
fn lwlock_waits_are_reported_by_tranche() {
    if !may_trace("lightweight locks") {
        return;
    }
    on_every_major("lightweight locks", |cluster, server| {
        session(cluster).query("CREATE TABLE t (id int)").unwrap();
        let mut durations = CallDurations::attach(server, ProbeMetric::LwLocks).unwrap();
        let mut sampler = WaitSampler::open(server, SamplerOptions::default()).unwrap();
        let mut sampled = std::collections::HashMap::<String, u32>::new();
        let start = Instant::now();
        let pids = thread::scope(|scope| {
            let work = scope.spawn(|| commit_together(cluster));
            while !work.is_finished() {
                let round = sampler.sample(Instant::now()).unwrap();
                for seen in round.observations() {
                    if seen.event.class() == Class::LwLock {
                        *sampled.entry(seen.event.name()).or_default() += 1;
                    }
                }
                // The sampling interval.
                thread::sleep(Duration::from_millis(1));
            }
            work.join().unwrap()
        });
        let elapsed = start.elapsed();
        let mut reported = std::collections::HashMap::<String, u32>::new();
        let mut waited = std::collections::HashMap::<u32, Duration>::new();
        durations.drain(|call| {
            let CallSubject::Wait(event) = call.subject else { panic!("{call:?}") };
            assert_eq!((event.class(), call.operation), (Class::LwLock, "lwlock"));
            *reported.entry(event.name()).or_default() += 1;
            *waited.entry(call.pid).or_default() += call.duration;
        });
        let major = server.major();
        assert!(reported.contains_key("WALWrite"), "{major}: {reported:?}, samples {sampled:?}");
        assert!(waited.values().all(|waited| *waited <= elapsed), "{waited:?} in {elapsed:?}");
        assert!(pids.iter().any(|pid| waited.contains_key(pid)), "{pids:?} {waited:?}");
        // A wait that was sampled many times must have been traced.
        let often = sampled.iter().filter(|(_, samples)| **samples >= 20);
        for (tranche, samples) in often {
            assert!(reported.contains_key(tranche), "{major}: {tranche} {samples} {reported:?}");
        }
        assert_eq!(durations.lost_events().unwrap(), 0);
    });
}

#[test]
fn nested_statements_count_once_even_after_errors() {
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
        let mut durations = CallDurations::attach(server, ProbeMetric::Queries).unwrap();
        let reported = calls(&mut durations, &mut client, |client| {
            client.query("SELECT inner_ones()").unwrap();
        });
        assert_eq!(
            with_operation(&reported, "execute").count(),
            1,
            "{} calls on {}",
            reported.len(),
            server.major()
        );
        // Inner statements are planned while the outer one is executed: each counts.
        assert!(
            with_operation(&reported, "plan").count() >= 2,
            "{} calls on {}",
            reported.len(),
            server.major()
        );
        let reported = calls(&mut durations, &mut client, |client| {
            client.query("SELECT fails()").unwrap_err();
            client.query("SELECT inner_ones()").unwrap();
        });
        assert_eq!(
            with_operation(&reported, "execute").count(),
            1,
            "{} calls on {}",
            reported.len(),
            server.major()
        );
    });
}

#[test]
fn io_calls_name_their_relation_file() {
    if !may_trace("io durations") {
        return;
    }
    on_every_major("io durations", |cluster, server| {
        let mut client = session(cluster);
        client.query("CREATE TABLE filled (pad text)").unwrap();
        let filled = number(&mut client, "SELECT pg_relation_filenode('filled')");
        let mut durations = CallDurations::attach(server, ProbeMetric::Io).unwrap();
        let fill = "INSERT INTO filled SELECT repeat('x', 900) FROM generate_series(1, 9000)";
        let reported = calls(&mut durations, &mut client, |client| {
            client.query(fill).unwrap();
        });
        let is_filled = |call: &&Call| match call.subject {
            CallSubject::File { filenode, .. } => filenode == filled,
            _ => false,
        };
        assert!(
            with_operation(&reported, "extend").any(|call| is_filled(&call)),
            "{} calls on {}",
            reported.len(),
            server.major()
        );
        // More than fits into the cache: the first pages have to be read again.
        evict_pages(cluster, &mut client);
        let reported = calls(&mut durations, &mut client, |client| {
            client.query("SELECT count(*) FROM filled").unwrap();
        });
        let reads = reported.iter().filter(|call| call.operation.ends_with("read"));
        assert!(
            reads.filter(|call| is_filled(call)).count() > 0,
            "{} calls on {}",
            reported.len(),
            server.major()
        );
    });
}

/// Evicts all earlier pages from the cache.
fn evict_pages(cluster: &Cluster, client: &mut Client) {
    let drive =
        "CREATE TABLE driver AS SELECT repeat('y', 900) AS pad FROM generate_series(1, 40000);
        UPDATE driver SET pad = pad || 'z'; CHECKPOINT";
    session(cluster).query(drive).unwrap();
    client.query("SELECT count(*) FROM driver").unwrap();
}

#[test]
fn wal_flushes_and_sorts_are_reported() {
    if !may_trace("wal and sort durations") {
        return;
    }
    on_every_major("wal and sort durations", |cluster, server| {
        let mut client = session(cluster);
        client.query("CREATE TABLE t (id int)").unwrap();
        let mut wal = CallDurations::attach(server, ProbeMetric::Wal).unwrap();
        let reported = calls(&mut wal, &mut client, |client| {
            client.query("INSERT INTO t VALUES (1)").unwrap();
        });
        assert!(
            with_operation(&reported, "flush").count() >= 1,
            "{} calls on {}",
            reported.len(),
            server.major()
        );
        let mut sorts = CallDurations::attach(server, ProbeMetric::Sorts).unwrap();
        client.query("SET work_mem = '64kB'").unwrap();
        let reported = calls(&mut sorts, &mut client, |client| {
            let sort = "SELECT n FROM generate_series(1, 50000) n ORDER BY md5(n::text) LIMIT 1 OFFSET 49000";
            client.query(sort).unwrap();
        });
        assert!(
            with_operation(&reported, "sort").count() >= 1,
            "{} calls on {}",
            reported.len(),
            server.major()
        );
        let spilt =
            number(&mut client, "SELECT count(*) FROM pg_stat_database WHERE temp_bytes > 0");
        assert!(
            with_operation(&reported, "spill").count() >= 1 || spilt == 0,
            "{} calls on {}",
            reported.len(),
            server.major()
        );
    });
}

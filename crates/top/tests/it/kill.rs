//! Signals reach exactly the planned sessions, under load.

use std::{
    collections::BTreeSet,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc::channel},
    thread::JoinHandle,
    time::Duration,
};

use howdah_collect::{SignalAction, SignalOutcome};
use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, client_tool, skip_without_postgres};
use howdah_top::{
    Poolers, ServerHealth, ServerSnapshot,
    interactive::send_signals,
    sampler::{SampleRequest, ServerSampler, WatchTarget},
    signal_plan::{KILL_THRESHOLD_MIN, SignalPlan, SignalPolicy},
    table::RowId,
};

fn target(cluster: &Cluster) -> ConnectTarget {
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    ConnectTarget::resolve(&words, &Environment::empty()).unwrap()
}

/// Sessions that run a statement until it is ended, and the error they got.
struct Sleepers {
    pids: BTreeSet<i32>,
    ends: Vec<JoinHandle<String>>,
}

impl Sleepers {
    fn start(target: &ConnectTarget, count: usize) -> Self {
        let mut pids = BTreeSet::new();
        let sleep = |_| {
            let mut client = Client::connect(target).unwrap();
            pids.insert(client.process_id().unwrap());
            std::thread::spawn(move || {
                client.query("SELECT pg_sleep(600)").map(drop).unwrap_err().to_string()
            })
        };
        let ends = (0..count).map(sleep).collect();
        Self { pids, ends }
    }

    fn join(self) -> Vec<String> {
        self.ends.into_iter().map(|end| end.join().unwrap()).collect()
    }
}

/// Ordinary load of many sessions; `None` without pgbench.
struct PgbenchLoad(Child);

impl PgbenchLoad {
    fn start(cluster: &Cluster) -> Option<Self> {
        let pgbench = client_tool("pgbench")?;
        let port = cluster.port().to_string();
        let server = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
        let made = Command::new(&pgbench).args(server).args(["-i", "-q", "postgres"]).output();
        assert!(made.unwrap().status.success());
        let load = ["-S", "-n", "-c", "20", "-j", "2", "-T", "600", "postgres"];
        let mut command = Command::new(&pgbench);
        command.args(server).args(load).stdout(Stdio::null()).stderr(Stdio::null());
        Some(Self(command.spawn().unwrap()))
    }
}

impl Drop for PgbenchLoad {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Samples the server until `wanted` returns true.
fn wait_for_snapshot(
    target: &ConnectTarget,
    wanted: impl Fn(&ServerSnapshot) -> bool,
) -> ServerSnapshot {
    let (sender, updates) = channel();
    let what = SampleRequest {
        interval: Duration::from_millis(100),
        idle_texts: false,
        view: None,
        all_views: false,
        sizes: false,
        session: None,
        full_texts: true,
    };
    let watch = WatchTarget {
        name: "server".to_owned(),
        target: target.clone(),
        poolers: Poolers::default(),
        agent: None,
    };
    let sampler = ServerSampler::start(&watch, what, move |health| {
        // Sending fails only once the receiver is gone, at the end.
        let _ = sender.send(health);
    });
    let sampler = sampler.unwrap();
    loop {
        if let ServerHealth::Read(snapshot) = updates.recv_timeout(Duration::from_secs(60)).unwrap()
            && wanted(&snapshot)
        {
            sampler.finish();
            return Arc::unwrap_or_clone(snapshot);
        }
    }
}

/// A snapshot in which all of these have run for a second. Its clock is advanced by 29.5 seconds:
/// they exceed the minimum threshold, and statements started within the last half second do not.
fn snapshot_with_slow(target: &ConnectTarget, pids: &BTreeSet<i32>) -> ServerSnapshot {
    let mut snapshot = wait_for_snapshot(target, |snapshot| {
        let now_us = snapshot.activity.taken_us;
        let slow = snapshot.activity.backends.iter().filter(|backend| {
            pids.contains(&backend.pid)
                && backend.query.as_ref().is_some_and(|query| query.as_str().contains("pg_sleep"))
                && backend.duration(now_us).is_some_and(|lasted| lasted > 1.0)
        });
        slow.count() == pids.len()
    });
    snapshot.activity.taken_us += 29_500_000;
    snapshot
}

const WITH_SUPERUSERS: SignalPolicy = SignalPolicy { with_superusers: true };

fn planned_pids(plan: &SignalPlan) -> BTreeSet<i32> {
    plan.signals.iter().map(|planned| planned.target.pid).collect()
}

#[test]
fn kill_slow_signals_only_listed_sessions_under_load() {
    let Some(cluster) = skip_without_postgres("kill under load", Cluster::builder().start()) else {
        return;
    };
    let target = target(&cluster);
    let Some(_load) = PgbenchLoad::start(&cluster) else {
        println!("skipped: there is no pgbench");
        return;
    };
    let slow = Sleepers::start(&target, 8);
    let snapshot = snapshot_with_slow(&target, &slow.pids);
    assert!(snapshot.activity.backends.len() > 20, "there is load");
    // A statement that has just started is not planned.
    let young = Sleepers::start(&target, 1);
    let plan = SignalPlan::for_slow(&snapshot, 1.0, SignalAction::Cancel, WITH_SUPERUSERS);
    assert!(slow.pids.is_subset(&planned_pids(&plan)), "{plan:?}");
    assert!(young.pids.is_disjoint(&planned_pids(&plan)));
    let targets: Vec<_> = plan.signals.iter().map(|planned| planned.target).collect();
    let results = send_signals(&target, SignalAction::Cancel, &targets);
    // On a slow machine ordinary statements are planned, too, and may have ended meanwhile.
    let sent = results.iter().filter(|(_, result)| *result == Ok(SignalOutcome::Sent));
    let sent: BTreeSet<i32> = sent.map(|(signal_target, _)| signal_target.pid).collect();
    assert!(slow.pids.is_subset(&sent), "{results:?}");
    let ends = slow.join();
    assert!(
        ends.iter().all(|end| end.contains("canceling statement due to user request")),
        "{ends:?}"
    );
    let log = std::fs::read_to_string(cluster.server_log()).unwrap();
    let cancelled = log.matches("canceling statement due to user request").count();
    assert_eq!(cancelled, sent.len(), "nobody else was cancelled");
    let still = wait_for_snapshot(&target, |_| true);
    let [young_pid] = young.pids.iter().copied().collect::<Vec<_>>()[..] else { panic!() };
    assert!(still.activity.backends.iter().any(|backend| backend.pid == young_pid));
    let chosen = still.activity.backends.iter().find(|backend| backend.pid == young_pid).unwrap();
    let chosen = [RowId::Session(chosen.pid, chosen.started_us)];
    let plan = SignalPlan::for_rows(&still, &chosen, SignalAction::Terminate, WITH_SUPERUSERS);
    let results = send_signals(&target, SignalAction::Terminate, &[plan.signals[0].target]);
    assert_eq!(results[0].1, Ok(SignalOutcome::Sent));
    let ends = young.join();
    assert!(ends[0].contains("terminating connection due to administrator command"), "{ends:?}");
}

#[test]
fn reused_process_id_is_never_signalled() {
    let Some(cluster) = skip_without_postgres("kill reused", Cluster::builder().start()) else {
        return;
    };
    let target = target(&cluster);
    let sleepers = Sleepers::start(&target, 2);
    let mut snapshot = snapshot_with_slow(&target, &sleepers.pids);
    // The plan is based on earlier owners of these process ids: one is another session now, the
    // other runs another statement.
    let mut planted = sleepers.pids.iter();
    let (session, statement) = (*planted.next().unwrap(), *planted.next().unwrap());
    for backend in &mut snapshot.activity.backends {
        if backend.pid == session {
            backend.started_us -= 1;
        }
        if backend.pid == statement {
            backend.query_started_us = backend.query_started_us.map(|us| us - 1);
        }
    }
    for action in [SignalAction::Cancel, SignalAction::Terminate] {
        let plan = SignalPlan::for_slow(&snapshot, KILL_THRESHOLD_MIN, action, WITH_SUPERUSERS);
        assert_eq!(planned_pids(&plan), sleepers.pids);
        let targets: Vec<_> = plan.signals.iter().map(|planned| planned.target).collect();
        for (signal_target, result) in send_signals(&target, action, &targets) {
            assert_eq!(result, Ok(SignalOutcome::Gone), "{signal_target:?}");
        }
    }
    assert!(sleepers.ends.iter().all(|end| !end.is_finished()), "both still run");
    let real = snapshot_with_slow(&target, &sleepers.pids);
    let plan =
        SignalPlan::for_slow(&real, KILL_THRESHOLD_MIN, SignalAction::Cancel, WITH_SUPERUSERS);
    let targets: Vec<_> = plan.signals.iter().map(|planned| planned.target).collect();
    assert!(
        send_signals(&target, SignalAction::Cancel, &targets)
            .iter()
            .all(|(_, end)| *end == Ok(SignalOutcome::Sent))
    );
    assert_eq!(sleepers.join().len(), 2);
}

#[test]
fn superuser_sessions_are_spared_unless_requested() {
    let Some(cluster) = skip_without_postgres("kill superuser", Cluster::builder().start()) else {
        return;
    };
    let admin = target(&cluster);
    Client::connect(&admin).unwrap().query("CREATE ROLE app LOGIN").unwrap();
    let of_app = Sleepers::start(&admin.with_user("app"), 1);
    let of_admin = Sleepers::start(&admin, 1);
    let both: BTreeSet<i32> = of_app.pids.union(&of_admin.pids).copied().collect();
    let snapshot = snapshot_with_slow(&admin, &both);
    let plan = SignalPlan::for_slow(
        &snapshot,
        KILL_THRESHOLD_MIN,
        SignalAction::Cancel,
        SignalPolicy::default(),
    );
    assert_eq!(planned_pids(&plan), of_app.pids);
    assert_eq!(plan.spared[0].reason, "it is a superuser's, and --superusers was not given");
    let plan = SignalPlan::for_slow(
        &snapshot,
        KILL_THRESHOLD_MIN,
        SignalAction::Terminate,
        WITH_SUPERUSERS,
    );
    assert_eq!(planned_pids(&plan), both);
    let targets: Vec<_> = plan.signals.iter().map(|planned| planned.target).collect();
    assert_eq!(send_signals(&admin, SignalAction::Terminate, &targets).len(), 2);
    assert_eq!((of_app.join().len(), of_admin.join().len()), (1, 1));
}

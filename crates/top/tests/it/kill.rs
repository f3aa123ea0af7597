//! Signals reach exactly those on the list, under load.

use std::{
    collections::BTreeSet,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc::channel},
    thread::JoinHandle,
    time::Duration,
};

use howdah_collect::{Action, Signalled};
use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, client_tool, or_say_why_not};
use howdah_top::{
    Poolers, Snapshot, Standing,
    kill::{Plan, Policy, THRESHOLD_MIN},
    run::signal,
    sampler::{Sampler, Wanted},
    table::RowKey,
};

fn target(cluster: &Cluster) -> Target {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Target::resolve(&words, &Environment::empty()).unwrap()
}

/// Sessions that run a statement until somebody ends it, and what they were told then.
struct Sleepers {
    pids: BTreeSet<i32>,
    ends: Vec<JoinHandle<String>>,
}

impl Sleepers {
    fn start(target: &Target, count: usize) -> Self {
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

    fn ends(self) -> Vec<String> {
        self.ends.into_iter().map(|end| end.join().unwrap()).collect()
    }
}

/// Ordinary work of many sessions; `None` where there is no pgbench.
struct Load(Child);

impl Load {
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

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the server until a reading is as wanted.
fn snapshot_when(target: &Target, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let (sender, standings) = channel();
    let what = Wanted {
        interval: Duration::from_millis(100),
        idle_texts: false,
        view: None,
        all_views: false,
        whole_texts: true,
    };
    let sampler = Sampler::start(target.clone(), Poolers::default(), what, move |standing| {
        // Nobody listens any more when it is over.
        let _ = sender.send(standing);
    });
    let sampler = sampler.unwrap();
    loop {
        if let Standing::Read(snapshot) = standings.recv_timeout(Duration::from_secs(60)).unwrap()
            && wanted(&snapshot)
        {
            sampler.finish();
            return Arc::unwrap_or_clone(snapshot);
        }
    }
}

/// A reading in which all of these have run for a second. Its clock is turned on by 29 and a half: then they are
/// above the lowest threshold there is, and what has begun within the last half second is not.
fn with_slow(target: &Target, pids: &BTreeSet<i32>) -> Snapshot {
    let mut snapshot = snapshot_when(target, |snapshot| {
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

const WITH_SUPERUSERS: Policy = Policy { with_superusers: true };

fn listed(plan: &Plan) -> BTreeSet<i32> {
    plan.listed.iter().map(|listed| listed.suspect.pid).collect()
}

#[test]
fn all_slower_than_ends_exactly_those_on_the_list_under_load() {
    let Some(cluster) = or_say_why_not("kill under load", Cluster::builder().start()) else {
        return;
    };
    let target = target(&cluster);
    let Some(_load) = Load::start(&cluster) else {
        println!("skipped: there is no pgbench");
        return;
    };
    let slow = Sleepers::start(&target, 8);
    let snapshot = with_slow(&target, &slow.pids);
    assert!(snapshot.activity.backends.len() > 20, "there is load");
    // One that has just begun stays.
    let young = Sleepers::start(&target, 1);
    let plan = Plan::of_slow(&snapshot, 1.0, Action::Cancel, WITH_SUPERUSERS);
    assert!(slow.pids.is_subset(&listed(&plan)), "{plan:?}");
    assert!(young.pids.is_disjoint(&listed(&plan)));
    let suspects: Vec<_> = plan.listed.iter().map(|listed| listed.suspect).collect();
    let results = signal(&target, Action::Cancel, &suspects);
    // On a slow machine ordinary statements are on the list, too, and may have gone meanwhile.
    let sent = results.iter().filter(|(_, result)| *result == Ok(Signalled::Sent));
    let sent: BTreeSet<i32> = sent.map(|(suspect, _)| suspect.pid).collect();
    assert!(slow.pids.is_subset(&sent), "{results:?}");
    let ends = slow.ends();
    assert!(
        ends.iter().all(|end| end.contains("canceling statement due to user request")),
        "{ends:?}"
    );
    let log = std::fs::read_to_string(cluster.server_log()).unwrap();
    let cancelled = log.matches("canceling statement due to user request").count();
    assert_eq!(cancelled, sent.len(), "nobody else was cancelled");
    let still = snapshot_when(&target, |_| true);
    let [young_pid] = young.pids.iter().copied().collect::<Vec<_>>()[..] else { panic!() };
    assert!(still.activity.backends.iter().any(|backend| backend.pid == young_pid));
    let chosen = still.activity.backends.iter().find(|backend| backend.pid == young_pid).unwrap();
    let chosen = [RowKey::Session(chosen.pid, chosen.started_us)];
    let plan = Plan::of_chosen(&still, &chosen, Action::Terminate, WITH_SUPERUSERS);
    let results = signal(&target, Action::Terminate, &[plan.listed[0].suspect]);
    assert_eq!(results[0].1, Ok(Signalled::Sent));
    let ends = young.ends();
    assert!(ends[0].contains("terminating connection due to administrator command"), "{ends:?}");
}

#[test]
fn a_process_id_that_was_given_to_another_session_is_never_hit() {
    let Some(cluster) = or_say_why_not("kill reused", Cluster::builder().start()) else { return };
    let target = target(&cluster);
    let sleepers = Sleepers::start(&target, 2);
    let mut snapshot = with_slow(&target, &sleepers.pids);
    // The list was made of sessions that had these process ids before: one is another session since, the
    // other another statement.
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
    for action in [Action::Cancel, Action::Terminate] {
        let plan = Plan::of_slow(&snapshot, THRESHOLD_MIN, action, WITH_SUPERUSERS);
        assert_eq!(listed(&plan), sleepers.pids);
        let suspects: Vec<_> = plan.listed.iter().map(|listed| listed.suspect).collect();
        for (suspect, result) in signal(&target, action, &suspects) {
            assert_eq!(result, Ok(Signalled::Gone), "{suspect:?}");
        }
    }
    assert!(sleepers.ends.iter().all(|end| !end.is_finished()), "both still run");
    let real = with_slow(&target, &sleepers.pids);
    let plan = Plan::of_slow(&real, THRESHOLD_MIN, Action::Cancel, WITH_SUPERUSERS);
    let suspects: Vec<_> = plan.listed.iter().map(|listed| listed.suspect).collect();
    assert!(
        signal(&target, Action::Cancel, &suspects)
            .iter()
            .all(|(_, end)| *end == Ok(Signalled::Sent))
    );
    assert_eq!(sleepers.ends().len(), 2);
}

#[test]
fn sessions_of_superusers_are_spared_unless_asked() {
    let Some(cluster) = or_say_why_not("kill superuser", Cluster::builder().start()) else {
        return;
    };
    let admin = target(&cluster);
    Client::connect(&admin).unwrap().query("CREATE ROLE app LOGIN").unwrap();
    let of_app = Sleepers::start(&admin.with_user("app"), 1);
    let of_admin = Sleepers::start(&admin, 1);
    let both: BTreeSet<i32> = of_app.pids.union(&of_admin.pids).copied().collect();
    let snapshot = with_slow(&admin, &both);
    let plan = Plan::of_slow(&snapshot, THRESHOLD_MIN, Action::Cancel, Policy::default());
    assert_eq!(listed(&plan), of_app.pids);
    assert_eq!(plan.excluded[0].reason, "it is a superuser's, and --superusers was not given");
    let plan = Plan::of_slow(&snapshot, THRESHOLD_MIN, Action::Terminate, WITH_SUPERUSERS);
    assert_eq!(listed(&plan), both);
    let suspects: Vec<_> = plan.listed.iter().map(|listed| listed.suspect).collect();
    assert_eq!(signal(&admin, Action::Terminate, &suspects).len(), 2);
    assert_eq!((of_app.ends().len(), of_admin.ends().len()), (1, 1));
}

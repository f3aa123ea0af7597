//! The experiment on real servers: small, for what it does and not for its figures.

#![allow(clippy::panic, clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, Search, or_say_why_not};
use howdah_proof::{Cold, Findings, Given, Place, Proof, ProofError, Throwaway, Way};
use howdah_warm::load::Options;

fn proof(place: Place) -> Proof {
    Proof {
        place,
        scale: 1,
        duration: Duration::from_millis(600),
        step: Duration::from_millis(100),
        skew: None,
        cold: Cold::Files,
        load: Options::default(),
        stop: Arc::new(AtomicBool::new(false)),
    }
}

/// What every experiment holds, whatever the machine does meanwhile.
fn check(findings: &Findings, ways: &[Way]) {
    let found: Vec<_> = findings.runs.iter().map(|run| run.way).collect();
    assert_eq!(found, ways, "{:?}", findings.notes);
    assert!(findings.steady > 0.0);
    // 1640 pages of the table and 276 of its key are warm before the restart.
    assert!(findings.pages.0 >= 1900, "{:?}", findings.pages);
    for run in &findings.runs {
        assert_eq!(run.steps.len(), 6);
        assert!(run.curve.transactions > 0);
        let sum: u64 = run.steps.iter().map(|step| step.transactions).sum();
        assert_eq!(sum, run.curve.transactions);
    }
}

#[test]
fn a_throwaway_server_is_warmed_in_each_way() {
    for major in [15, 18] {
        let search = Search::new().major(major);
        let test = format!("proof on {major}");
        if or_say_why_not(&test, search.find()).is_none() {
            continue;
        }
        let mut told = Vec::new();
        let place = Place::Throwaway(Throwaway { search, shared_buffers: None });
        let findings = proof(place).run(|line| told.push(line.to_owned())).unwrap();
        let is_out = findings.notes.iter().any(|note| note.contains("autoprewarm is left out"));
        match is_out {
            true => check(&findings, &[Way::Nothing, Way::Howdah]),
            false => check(&findings, &Way::ALL),
        }
        assert!(findings.server.starts_with(&major.to_string()));
        assert!(findings.notes.iter().any(|note| note.contains("data files")), "{findings:?}");
        assert!(told.iter().any(|line| line.starts_with("howdah: restarting")), "{told:?}");
        let howdah = findings.runs.last().unwrap().warming.unwrap();
        assert!(howdah.server_cpu.is_some() && howdah.read_bytes.is_some(), "{howdah:?}");
        if howdah.is_done {
            assert!(howdah.share.unwrap() > 0.9, "{howdah:?}");
        }
        assert!(findings.runs[0].warming.is_none());
    }
}

fn target(cluster: &Cluster) -> Target {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    Target::resolve(&words, &Environment::empty()).unwrap()
}

/// The experiment on a server that was not made for it. Its command asks us for the restart, and waits.
fn prove_given(cluster: &mut Cluster) -> Findings {
    let folder = tempfile::tempdir().unwrap();
    let (wanted, done) = (folder.path().join("wanted"), folder.path().join("done"));
    let restart = format!(
        "rm -f {done}; touch {wanted}; while ! [ -e {done} ]; do sleep 0.02; done",
        wanted = wanted.display(),
        done = done.display()
    );
    let proof = proof(Place::Given(Box::new(Given { target: target(cluster), restart })));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let runner = scope.spawn(|| {
            let found = proof.run(|_| {});
            is_over.store(true, Ordering::Relaxed);
            found
        });
        while !is_over.load(Ordering::Relaxed) {
            if fs::remove_file(&wanted).is_ok() {
                cluster.restart().unwrap();
                fs::write(&done, "").unwrap();
            }
            thread::sleep(Duration::from_millis(5));
        }
        runner.join().unwrap().unwrap()
    })
}

#[test]
fn a_server_that_is_there_is_left_as_it_was() {
    let test = "proof of a given server";
    let Some(mut cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let findings = prove_given(&mut cluster);
    check(&findings, &[Way::Nothing, Way::Howdah]);
    let out = "autoprewarm is left out: pg_prewarm is not in shared_preload_libraries";
    assert!(findings.notes.iter().any(|note| note == out), "{:?}", findings.notes);
    let left = "SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah_proof'";
    let mut client = Client::connect(&target(&cluster)).unwrap();
    assert_eq!(client.one_value(left).unwrap().as_deref(), Some("0"));
}

#[test]
fn a_server_that_is_there_is_proved_beside_its_own_autoprewarm() {
    let how = Cluster::builder()
        .setting("shared_preload_libraries", "pg_prewarm")
        .setting("pg_prewarm.autoprewarm_interval", "77");
    let test = "proof of a given server with autoprewarm";
    let Some(mut cluster) = or_say_why_not(test, how.start()) else { return };
    let findings = prove_given(&mut cluster);
    check(&findings, &Way::ALL);
    let autoprewarm = &findings.runs[1];
    assert!(autoprewarm.warming.unwrap().server_cpu.is_some(), "{autoprewarm:?}");
    // It was switched off for the other ways, and is as it was found.
    let mut client = Client::connect(&target(&cluster)).unwrap();
    let changed = "SELECT count(*) FROM pg_file_settings WHERE name = 'pg_prewarm.autoprewarm'";
    assert_eq!(client.one_value(changed).unwrap().as_deref(), Some("0"));
    let interval = "SHOW pg_prewarm.autoprewarm_interval";
    assert_eq!(client.one_value(interval).unwrap().as_deref(), Some("77s"));
}

#[test]
fn a_command_that_restarts_nothing_is_told() {
    let test = "proof without a restart";
    let Some(cluster) = or_say_why_not(test, Cluster::builder().start()) else { return };
    let target = target(&cluster);
    let told = |restart: &str| {
        let restart = restart.to_owned();
        proof(Place::Given(Box::new(Given { target: target.clone(), restart })))
            .run(|_| {})
            .unwrap_err()
    };
    assert!(matches!(told("true"), ProofError::NotRestarted { .. }));
    assert!(matches!(told("exit 3"), ProofError::CommandFailed { .. }));
    let left = "SELECT count(*) FROM pg_namespace WHERE nspname = 'howdah_proof'";
    let mut client = Client::connect(&target).unwrap();
    assert_eq!(client.one_value(left).unwrap().as_deref(), Some("0"), "cleaned up even then");
}

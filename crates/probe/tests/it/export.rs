//! Scripts of bpftrace, run by bpftrace beside our own probes.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
    thread,
};

use howdah_lab::Cluster;
use howdah_probe::{
    HitCost,
    export::Script,
    extend::{ExtensionLocks, Summary},
};

use crate::support::{may_trace, on_every_major, session};

/// bpftrace with a script, once it has attached; `None` where it is not installed.
fn bpftrace(script: &str) -> Option<Child> {
    if Command::new("bpftrace").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: bpftrace is not installed");
        return None;
    }
    // Ends it should it hang, and hands signals on.
    let mut command = Command::new("timeout");
    // Probes are attached in their order, so with the last one all are there.
    let script = format!("{script}interval:ms:50 {{ printf(\"ready\\n\"); }}\n");
    command.args(["--signal=INT", "120", "bpftrace", "-B", "none", "-e", &script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    // Byte by byte, so that nothing of what follows is taken along.
    let mut byte = [0];
    while child.stdout.as_mut().unwrap().read_exact(&mut byte).is_ok() {
        said.push(char::from(byte[0]));
        if said.ends_with("ready\n") {
            return Some(child);
        }
    }
    panic!("bpftrace did not begin: {:?} {said}", child.wait())
}

/// Ends bpftrace and gives what it printed of a map that holds one number.
fn ended(mut child: Child, names: [&str; 2]) -> [f64; 2] {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let lines: Vec<_> =
        BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    child.wait().unwrap();
    names.map(|name| {
        let of = |line: &String| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok();
        lines.iter().find_map(of).unwrap_or_else(|| panic!("no {name} in {lines:?}"))
    })
}

fn grow_together(cluster: &Cluster) {
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let pads = "SELECT repeat('x', 1500) FROM generate_series(1, 4000)";
                session(cluster).query(&format!("INSERT INTO grown {pads}")).unwrap();
            });
        }
    });
}

#[test]
fn extension_waits_are_those_that_bpftrace_sees() {
    if !may_trace("beside bpftrace") {
        return;
    }
    on_every_major("beside bpftrace", |cluster, server| {
        session(cluster).query("CREATE TABLE grown (pad text)").unwrap();
        let Some(other) = bpftrace(&Script::Extend.of(server).unwrap()) else { return };
        let mut locks = ExtensionLocks::attach(server).unwrap();
        grow_together(cluster);
        let mut summary = Summary::default();
        locks.drain(|lock| summary.add(&lock));
        let [count, total_ns] = ended(other, ["@waits", "@wait_ns"]);
        let ours = summary.waits();
        let is_near = |ours: f64, other: f64| (ours - other).abs() <= 0.05 * other.max(1.0);
        assert!(is_near(ours.count as f64, count), "{} {count}", ours.count);
        let total = ours.total.as_secs_f64();
        // bpftrace begins at the entry, and where that is dear we begin at the call within: stepping over the
        // entry is in its figure and not in ours.
        let other = total_ns / 1e9;
        let stepped = HitCost::measure().unwrap().stepped.as_secs_f64() * count;
        let is_near = is_near(total, other) || total < other && is_near(total + stepped, other);
        assert!(is_near, "{total} {other}, {stepped} for stepping");
    });
}

#[test]
fn every_script_is_one_that_bpftrace_takes() {
    if !may_trace("scripts") {
        return;
    }
    on_every_major("scripts", |_, server| {
        for script in Script::all() {
            let text = match script.of(server) {
                Ok(text) => text,
                Err(error) => {
                    assert!(server.binary().markers().is_empty(), "{error}");
                    continue;
                }
            };
            let Some(mut child) = bpftrace(&text) else { return };
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
            let mut rest = String::new();
            child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
            assert!(child.wait().unwrap().success(), "{}: {rest}", script.name());
        }
    });
}

//! Runs the exported scripts with bpftrace, beside our own probes.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    process::{Child, Command, Stdio},
};

use howdah_probe::{
    HitCost,
    export::BpftraceScript,
    extend::{ExtensionLocks, ExtensionSummary, LockStats},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{copy_concurrently, may_trace, on_every_major, session};

/// Starts bpftrace with a script, and returns once it has attached; `None` if it is not installed.
pub(crate) fn bpftrace(script: &str) -> Option<Child> {
    if Command::new("bpftrace").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: bpftrace is not installed");
        return None;
    }
    // Ends bpftrace if it hangs, and forwards signals.
    let mut command = Command::new("timeout");
    // Probes are attached in order: when the last one fires, all are attached.
    let script = format!("{script}interval:ms:50 {{ printf(\"ready\\n\"); }}\n");
    command.args(["--signal=INT", "120", "bpftrace", "-B", "none", "-e", &script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = String::new();
    // Byte by byte, so that later output is not consumed.
    let mut byte = [0];
    while child.stdout.as_mut().unwrap().read_exact(&mut byte).is_ok() {
        output.push(char::from(byte[0]));
        if output.ends_with("ready\n") {
            return Some(child);
        }
    }
    panic!("bpftrace did not attach: {:?} {output}", child.wait())
}

/// Stops bpftrace, and returns the lines that it printed.
pub(crate) fn stop_and_list(mut child: Child) -> Vec<String> {
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
    child.wait().unwrap();
    lines
}

/// Stops bpftrace, and returns the values it printed for these maps.
fn stop_and_read<const N: usize>(child: Child, names: [&str; N]) -> [f64; N] {
    let lines = stop_and_list(child);
    names.map(|name| {
        let of = |line: &String| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok();
        lines.iter().find_map(of).unwrap_or_else(|| panic!("no {name} in {lines:?}"))
    })
}

#[test]
fn extension_waits_agree_with_bpftrace() {
    if !may_trace("beside bpftrace") {
        return;
    }
    on_every_major("beside bpftrace", |cluster, server| {
        session(cluster).query("CREATE TABLE grown (pad text)").unwrap();
        let Some(other) = bpftrace(&BpftraceScript::Extend.text(server).unwrap()) else { return };
        let mut locks = ExtensionLocks::attach(server).unwrap();
        copy_concurrently(cluster);
        let mut summary = ExtensionSummary::default();
        locks.drain(|lock| summary.add(&lock));
        let names = ["@waits", "@wait_ns", "@holds", "@hold_ns"];
        let [count, total_ns, holds, hold_ns] = stop_and_read(other, names);
        let LockStats { wait: ours, hold, .. } = summary.stats();
        // Both programs see every lock, inside others or not.
        assert_eq!((ours.count as f64, hold.count as f64), (count, holds));
        assert!(locks.lost_events().unwrap().is_none(), "{:?}", locks.lost_events());
        let is_near = |ours: f64, other: f64| (ours - other).abs() <= 0.05 * other.max(1.0);
        // Each program is a part of what the other one measures.
        let cost = 3.0 * HitCost::measure().unwrap().stepped.as_secs_f64() * holds;
        let (ours_held, held) = (hold.total.as_secs_f64(), hold_ns / 1e9);
        let is_hold_near = is_near(ours_held, held) || (ours_held - held).abs() <= cost;
        assert!(is_hold_near, "{ours_held} {held} {cost}");
        let total = ours.total.as_secs_f64();
        // bpftrace probes the entry; where that is expensive, we probe the call inside. The cost of
        // single-stepping the entry is in its result and not in ours.
        let other = total_ns / 1e9;
        let stepped = HitCost::measure().unwrap().stepped.as_secs_f64() * count;
        let is_near = is_near(total, other) || total < other && is_near(total + stepped, other);
        assert!(is_near, "{total} {other}, {stepped} for single-stepping");
    });
}

#[test]
fn script_forgets_extension_locks_that_an_error_released() {
    if !may_trace("errors beside bpftrace") {
        return;
    }
    on_every_major("errors beside bpftrace", |cluster, server| {
        let mut client = session(cluster);
        client.query("CREATE TABLE grown (pad text); INSERT INTO grown VALUES ('')").unwrap();
        let Some(other) = bpftrace(&BpftraceScript::Extend.text(server).unwrap()) else { return };
        let grow = "INSERT INTO grown SELECT repeat('x', 1900) FROM generate_series(1, 20)";
        let backend = format!("{}", crate::support::pid(&client));
        let owner = fs::metadata(format!("/proc/{backend}")).unwrap();
        // Only the server's own user may set it everywhere; its hard limit stays as it is.
        let limit = |bytes: &str| {
            let mut command = Command::new("prlimit");
            command.args(["--pid", &backend, &format!("--fsize={bytes}:")]);
            command.uid(owner.uid()).gid(owner.gid());
            assert!(command.status().unwrap().success());
        };
        // The file cannot grow, which is noticed while the lock is taken.
        limit("8192");
        for _ in 0..3 {
            let error = client.query(grow).unwrap_err().to_string();
            assert!(error.contains("could not extend file"), "{error}");
        }
        limit("unlimited");
        client.query(grow).unwrap();
        let lines = stop_and_list(other);
        assert!(lines.contains(&"@errors: 3".to_owned()), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("@holds: ")), "{lines:?}");
        let inner = lines.iter().find(|line| line.starts_with("@inner"));
        assert!(inner.is_none_or(|line| line == "@inner: 0"), "{lines:?}");
    });
}

#[test]
fn bpftrace_accepts_every_script() {
    if !may_trace("scripts") {
        return;
    }
    on_every_major("scripts", |_, server| {
        for script in BpftraceScript::all() {
            let text = match script.text(server) {
                Ok(text) => text,
                Err(error) => {
                    assert!(server.binary().usdt_probes().is_empty(), "{error}");
                    continue;
                }
            };
            let Some(mut child) = bpftrace(&text) else { return };
            let pid = Pid::from_child(&child);
            kill_process(pid, Signal::INT).unwrap();
            let mut rest = String::new();
            child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
            assert!(child.wait().unwrap().success(), "{}: {rest}", script.name());
        }
    });
}

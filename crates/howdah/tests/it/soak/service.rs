//! [`Service`]: a part of howdah that runs as a process, with its memory and descriptors over time.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command},
};

use howdah_lab::{wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use super::TIMEOUT;

/// Growth that is allowed over the second half of a run, beyond a tenth: 8 MB.
const GROWTH_KB_MAX: u64 = 8 * 1024;
/// The same for descriptors, of which each client and server needs some.
const DESCRIPTORS_MAX: u64 = 16;

/// A running process, and how much memory and how many descriptors it has used. A process that
/// takes over from another continues its series.
pub(super) struct Service {
    pub(super) name: &'static str,
    child: Child,
    log: PathBuf,
    /// Anonymous memory in kB, and the number of open descriptors.
    samples: Vec<(u64, u64)>,
}

impl Service {
    /// Starts `howdah` with these arguments. Its output is appended to a file in the folder.
    pub(super) fn start(folder: &Path, name: &'static str, args: &[&str]) -> Self {
        let log = folder.join(name).with_extension("log");
        let child = spawn(folder, &log, args);
        Self { name, child, log, samples: Vec::new() }
    }

    /// Starts a process that takes over from this one, and waits until this one has ended.
    pub(super) fn replace(&mut self, folder: &Path, args: &[&str]) {
        let next = spawn(folder, &self.log, args);
        let mut old = std::mem::replace(&mut self.child, next);
        wait_until("the end of the old process", TIMEOUT, || old.try_wait().unwrap().is_some());
        assert!(old.wait().unwrap().success(), "{}", self.output());
    }

    /// Waits until the output contains `part`, and returns the rest of the last such line.
    pub(super) fn wait_for(&self, part: &str) -> String {
        wait_for(&format!("{part:?} of {}", self.name), TIMEOUT, || self.last_value(part))
    }

    fn last_value(&self, part: &str) -> Option<String> {
        let output = self.output();
        let (_, rest) = output.rsplit_once(part)?;
        rest.contains('\n').then(|| rest.lines().next().unwrap_or_default().to_owned())
    }

    /// Returns how often the output contains `part`.
    pub(super) fn count(&self, part: &str) -> usize {
        self.output().matches(part).count()
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap()).into_owned()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Records how much the process uses now.
    pub(super) fn sample(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert_eq!(ended, None, "{} has ended: {}", self.name, self.output());
        let proc = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = fs::read_to_string(proc.join("status")).unwrap();
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kb = anonymous.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        let descriptors = fs::read_dir(proc.join("fd")).unwrap().count() as u64;
        self.samples.push((kb, descriptors));
    }

    /// Returns the largest values in the second and in the last quarter of the samples.
    fn quarters(&self) -> [(u64, u64); 2] {
        let quarter = self.samples.len() / 4;
        let second = &self.samples[quarter..2 * quarter.max(1)];
        let last = &self.samples[self.samples.len() - quarter.max(1)..];
        [second, last].map(|samples| {
            let most = |of: fn(&(u64, u64)) -> u64| samples.iter().map(of).max().unwrap_or(0);
            (most(|it| it.0), most(|it| it.1))
        })
    }

    pub(super) fn usage(&self) -> String {
        let [(then_kb, then), (kb, now)] = self.quarters();
        format!("{}: {then_kb} → {kb} kB, {then} → {now} descriptors", self.name)
    }

    /// Checks that the last quarter of the run needed hardly more than the second.
    pub(super) fn assert_flat(&self) {
        let [(then_kb, then), (kb, now)] = self.quarters();
        assert!(kb <= then_kb + then_kb / 10 + GROWTH_KB_MAX, "{}", self.usage());
        assert!(now <= then + DESCRIPTORS_MAX, "{}", self.usage());
    }

    /// Sends SIGTERM, and checks that the process exits successfully.
    pub(super) fn terminate(mut self) {
        self.signal(Signal::TERM);
        let what = format!("the end of {}", self.name);
        wait_until(&what, TIMEOUT, || self.child.try_wait().unwrap().is_some());
        assert!(self.child.wait().unwrap().success(), "{}: {}", self.name, self.output());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Only if the test failed: otherwise the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, log: &Path, args: &[&str]) -> Child {
    let output = File::options().create(true).append(true).open(log).unwrap();
    Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(["--log-level=info", "--log-format=text"])
        .args(args)
        .current_dir(folder)
        .env("HOME", folder)
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap()
}

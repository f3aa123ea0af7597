//! Profiles the stacks of a server's processes: where they spend CPU time, or for what they leave
//! the CPU.
//!
//! Each process is recorded by events of the kernel (`perf_event_open`), which need no change of
//! the server's code:
//!
//! ```text
//! on CPU    a stack at a fixed rate of the process's CPU time
//! off CPU   a stack when the process leaves the CPU, and the time until it returns
//! ```
//!
//! The kernel follows frame pointers. In a build without them a stack has the innermost function
//! only, see [`stacks`](crate::stacks). In both cases, the caller of a function of the C library,
//! which has no frame of its own, is missing.

mod blocked;
mod perf_event;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_inspect::{ChildList, OsProcess, ProcessError, RunningServer};

use self::perf_event::{PerfRecord, ProcessEvents, StackEvent};
use crate::{
    clock::monotonic_ns,
    error::ProbeError,
    stacks::{CallStack, StackEnd, Symbolizer},
    waits::{BackendInfo, ProcessKind, cluster_name},
};

/// The measured time: on the CPU or off it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileMode {
    /// CPU time, sampled at this rate in Hz.
    OnCpu {
        /// Samples per second of CPU time.
        frequency: u32,
    },
    /// Time that processes sleep or wait for a CPU; every switch counts.
    OffCpu,
}

/// The processes to profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileScope {
    /// Only this process.
    pub process: Option<u32>,
    /// Off CPU, whether the server's own processes and waits for the client are included. On CPU,
    /// all processes are.
    pub has_all: bool,
}

/// Profiles a server until finished or dropped.
#[derive(Debug)]
pub struct StackProfiler {
    mode: ProfileMode,
    scope: ProfileScope,
    postmaster: OsProcess,
    cluster_name: String,
    children: ChildList,
    next_listing: Instant,
    processes: HashMap<u32, ProfiledProcess>,
    /// Present processes that could not be recorded.
    refused: HashSet<u32>,
    has_kernel: bool,
    folder: StackFolder,
}

/// A process that is being recorded.
#[derive(Debug)]
struct ProfiledProcess {
    event: ProcessEvents,
    kind: ProcessKind,
    off: Option<OffCpu>,
}

/// A process that is not on the CPU.
#[derive(Debug)]
struct OffCpu {
    since_ns: u64,
    is_preempted: bool,
    addresses: Vec<u64>,
}

/// Turns stacks to text, and adds up their weights.
#[derive(Debug)]
struct StackFolder {
    symbolizer: Symbolizer,
    /// The texts of stacks, by process and addresses.
    texts: HashMap<(u32, Vec<u64>), Arc<str>>,
    profile: StackProfile,
}

/// The stacks of a profile, with their weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StackProfile {
    /// Stacks in the folded format: functions from the outermost to the innermost, separated by
    /// semicolons, after the kind of the process.
    pub stacks: BTreeMap<Arc<str>, StackWeight>,
    /// Records that the kernel dropped because this process was too slow.
    pub lost: u64,
    /// Number of samples or switches whose stack is incomplete.
    pub incomplete: u64,
    /// Whether CPU time in the kernel is missing, for lack of permission.
    pub lacks_kernel: bool,
    /// Stacks that were not counted because there were too many different ones.
    pub uncounted: u64,
    /// Number of processes that could not be recorded, at least not from their start.
    pub unrecorded: u64,
}

/// The samples or switches that have the same stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackWeight {
    /// Number of samples, or of times that processes left the CPU here.
    pub count: u64,
    /// CPU time that the samples stand for, or time off the CPU.
    pub time: Duration,
}

const LISTING_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of different stacks.
const STACKS_MAX: usize = 50_000;
/// Pages of a ring. Records have some 400 bytes. Memory for rings is limited for ordinary users.
const PAGES_ON_CPU: usize = 4;
const PAGES_OFF_CPU: usize = 64;
/// Last frame of a sample that was taken in the kernel.
const IN_KERNEL: &str = "[kernel]";
/// Last frame of a process that was ready to run, but not on a CPU.
const PREEMPTED: &str = "[preempted]";
/// First frame of an incomplete stack.
const INCOMPLETE: &str = "[cut]";
/// Name of the server's executable.
const SERVER_FILE: &str = "postgres";
/// The function that waits for the client.
const READS_CLIENT: &str = "secure_read";

impl StackProfiler {
    /// Starts recording all processes of a server that are in the scope.
    ///
    /// # Errors
    ///
    /// The kernel does not permit it, or the server cannot be inspected.
    pub fn attach(
        server: &RunningServer,
        mode: ProfileMode,
        scope: ProfileScope,
    ) -> Result<Self, ProbeError> {
        let postmaster = server.postmaster();
        let mut profiler = Self {
            mode,
            scope,
            postmaster,
            cluster_name: cluster_name(server)?,
            children: postmaster.child_list()?,
            next_listing: Instant::now(),
            processes: HashMap::new(),
            refused: HashSet::new(),
            has_kernel: true,
            folder: StackFolder {
                symbolizer: Symbolizer::for_server(server),
                texts: HashMap::new(),
                profile: StackProfile::default(),
            },
        };
        let refusal = profiler.list(Instant::now())?;
        refusal.map_or(Ok(profiler), Err)
    }

    /// Time between two polls, so that no ring overflows on most servers.
    pub fn poll_interval(&self) -> Duration {
        match self.mode {
            ProfileMode::OnCpu { .. } => Duration::from_millis(50),
            ProfileMode::OffCpu => Duration::from_millis(20),
        }
    }

    /// Reads what was recorded since the last call, and finds new processes. Those that cannot be
    /// recorded, as for lack of file descriptors, are counted and tried again.
    ///
    /// # Errors
    ///
    /// The processes cannot be listed.
    pub fn poll(&mut self, now: Instant) -> Result<(), ProbeError> {
        self.drain();
        if now >= self.next_listing { self.list(now).map(drop) } else { Ok(()) }
    }

    /// Returns the number of processes being recorded.
    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Stops recording, and returns the profile.
    pub fn finish(mut self) -> StackProfile {
        self.drain();
        let now_ns = monotonic_ns();
        for (pid, process) in &mut self.processes {
            if let Some(off) = process.off.take() {
                self.folder.add_off(*pid, process.kind, &off, now_ns, self.scope.has_all);
            }
        }
        self.folder.profile.lacks_kernel = !self.has_kernel;
        self.folder.profile
    }

    fn drain(&mut self) {
        let has_all = self.scope.has_all;
        for (&pid, ProfiledProcess { event, kind, off }) in &mut self.processes {
            event.drain(|record| match (record, self.mode) {
                (
                    PerfRecord::Stack { in_kernel, addresses, .. },
                    ProfileMode::OnCpu { frequency },
                ) => {
                    let leaf = in_kernel.then_some(IN_KERNEL);
                    let time = Duration::from_secs(1) / frequency.max(1);
                    self.folder.add(pid, *kind, &addresses, leaf, time);
                }
                (PerfRecord::Stack { time_ns, addresses, .. }, ProfileMode::OffCpu) => {
                    *off = Some(OffCpu { since_ns: time_ns, is_preempted: false, addresses });
                }
                (PerfRecord::Out { is_preempted }, _) => {
                    if let Some(off) = off {
                        off.is_preempted = is_preempted;
                    }
                }
                (PerfRecord::In { time_ns }, _) => {
                    if let Some(off) = off.take() {
                        self.folder.add_off(pid, *kind, &off, time_ns, has_all);
                    }
                }
                (PerfRecord::Lost(count), _) => {
                    self.folder.profile.lost += count;
                    // The lost records may be of its return.
                    *off = None;
                }
            });
        }
    }

    /// Finds new and ended processes. Returns an error of a process that could not be recorded.
    fn list(&mut self, now: Instant) -> Result<Option<ProbeError>, ProbeError> {
        self.next_listing = now + LISTING_INTERVAL;
        let listed: HashSet<u32> = self.children.read()?.into_iter().collect();
        // A missing process may be omitted while another one exits.
        self.processes.retain(|pid, _| listed.contains(pid) || OsProcess::from_pid(*pid).is_ok());
        self.refused.retain(|pid| listed.contains(pid));
        let new: Vec<u32> =
            listed.into_iter().filter(|pid| !self.processes.contains_key(pid)).collect();
        let mut refusal = None;
        for pid in new {
            let opened = match self.kind(pid) {
                Ok(kind) => kind.map_or(Ok(None), |kind| self.record(pid, kind)),
                Err(error) => Err(error),
            };
            match opened {
                Ok(process) => self.processes.extend(process.map(|process| (pid, process))),
                Err(error) => {
                    self.folder.profile.unrecorded += u64::from(self.refused.insert(pid));
                    refusal = Some(error);
                }
            }
        }
        Ok(refusal)
    }

    /// Returns the kind of a process, if it belongs to the server and is in the scope.
    fn kind(&self, pid: u32) -> Result<Option<ProcessKind>, ProbeError> {
        let Ok(process) = OsProcess::from_pid(pid) else { return Ok(None) };
        let is_chosen = self.scope.process.is_none_or(|chosen| chosen == pid);
        if !is_chosen || !process.runs_same_binary(self.postmaster).unwrap_or(false) {
            return Ok(None);
        }
        let title = match process.title() {
            Ok(title) => title,
            Err(ProcessError::Proc { path, source }) if is_out_of_descriptors(&source) => {
                return Err(ProcessError::Proc { path, source }.into());
            }
            // It has exited.
            Err(_) => return Ok(None),
        };
        let Some(info) = BackendInfo::from_title(pid, &title, &self.cluster_name) else {
            return Ok(None);
        };
        let kind = info.kind;
        let is_included = match self.mode {
            ProfileMode::OnCpu { .. } => true,
            ProfileMode::OffCpu => {
                self.scope.has_all || self.scope.process.is_some() || kind.is_foreground()
            }
        };
        Ok(is_included.then_some(kind))
    }

    /// Starts recording a process; `None` if it has exited.
    fn record(
        &mut self,
        pid: u32,
        kind: ProcessKind,
    ) -> Result<Option<ProfiledProcess>, ProbeError> {
        let open = |has_kernel| match self.mode {
            ProfileMode::OnCpu { frequency } => {
                ProcessEvents::open(pid, StackEvent::OnCpu { frequency, has_kernel }, PAGES_ON_CPU)
            }
            ProfileMode::OffCpu => ProcessEvents::open(pid, StackEvent::Switches, PAGES_OFF_CPU),
        };
        // Before the event, so that a switch in between replaces it.
        let off = match self.mode {
            ProfileMode::OnCpu { .. } => None,
            ProfileMode::OffCpu => blocked::stack_of_sleeping(pid).map(|addresses| OffCpu {
                since_ns: monotonic_ns(),
                is_preempted: false,
                addresses,
            }),
        };
        let mut opened = open(self.has_kernel);
        let is_denied =
            |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
        if self.has_kernel
            && matches!(self.mode, ProfileMode::OnCpu { .. })
            && opened.as_ref().is_err_and(is_denied)
        {
            opened = open(false);
            self.has_kernel = opened.is_err();
        }
        match opened {
            Ok(event) => Ok(Some(ProfiledProcess { event, kind, off })),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
            Err(source) => Err(ProbeError::StackEvents { pid, source }),
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Checks whether a server's processes can be profiled here while they run.
///
/// # Errors
///
/// The kernel refuses events of the server's processes.
pub(crate) fn check_profile(server: &RunningServer) -> Result<(), ProbeError> {
    let pid = server.postmaster().pid();
    let event = StackEvent::OnCpu { frequency: 99, has_kernel: false };
    match ProcessEvents::open(pid, event, 1) {
        Ok(_) => Ok(()),
        Err(source) => Err(ProbeError::StackEvents { pid, source }),
    }
}

impl StackFolder {
    /// Adds the time that a process was off the CPU.
    fn add_off(&mut self, pid: u32, kind: ProcessKind, off: &OffCpu, end_ns: u64, has_all: bool) {
        let time = Duration::from_nanos(end_ns.saturating_sub(off.since_ns));
        let leaf = off.is_preempted.then_some(PREEMPTED);
        let text = self.text(pid, &off.addresses);
        let is_for_client = !off.is_preempted && text.split(';').any(|name| name == READS_CLIENT);
        if has_all || !is_for_client {
            self.add(pid, kind, &off.addresses, leaf, time);
        }
    }

    fn add(
        &mut self,
        pid: u32,
        kind: ProcessKind,
        addresses: &[u64],
        leaf: Option<&str>,
        time: Duration,
    ) {
        let stack = self.text(pid, addresses);
        self.profile.incomplete += u64::from(stack.starts_with(INCOMPLETE));
        let mut text = kind.name().to_owned();
        for part in [(!stack.is_empty()).then_some(&*stack), leaf].into_iter().flatten() {
            text.push(';');
            text.push_str(part);
        }
        if self.profile.stacks.len() >= STACKS_MAX && !self.profile.stacks.contains_key(&*text) {
            self.profile.uncounted += 1;
            return;
        }
        let weight = self.profile.stacks.entry(text.into()).or_default();
        weight.count += 1;
        weight.time += time;
    }

    /// Returns a stack as text, without the kind of the process.
    fn text(&mut self, pid: u32, addresses: &[u64]) -> Arc<str> {
        let key = (pid, addresses.to_vec());
        if let Some(text) = self.texts.get(&key) {
            return Arc::clone(text);
        }
        if self.texts.len() >= STACKS_MAX {
            self.texts.clear();
        }
        let text: Arc<str> = folded(&self.symbolizer.resolve(pid, addresses)).into();
        self.texts.insert(key, Arc::clone(&text));
        text
    }
}

/// Formats a stack without positions inside functions, so that stacks of equal functions are equal.
fn folded(stack: &CallStack) -> String {
    let name = |symbol: &howdah_inspect::Symbol| match &symbol.function {
        Some(function) if symbol.is_inside => function.to_string(),
        // In a stripped library, the last exported function is mostly another one.
        Some(function) if &*symbol.file == SERVER_FILE => format!("~{function}"),
        _ => format!("[{}]", symbol.file),
    };
    let incomplete = (stack.end != StackEnd::Complete).then(|| INCOMPLETE.to_owned());
    let names = incomplete.into_iter().chain(stack.frames.iter().rev().map(name));
    names.collect::<Vec<_>>().join(";")
}

impl StackProfile {
    /// Returns the time of all stacks.
    pub fn total(&self) -> Duration {
        self.stacks.values().map(|weight| weight.time).sum()
    }
}

#[cfg(test)]
mod tests {
    use howdah_inspect::Symbol;

    use super::*;

    #[test]
    fn folded_stack_has_functions_from_the_outermost_on() {
        let symbol = |function: Option<&str>, is_inside| Symbol {
            file: "postgres".into(),
            function: function.map(Into::into),
            offset: 5,
            is_inside,
        };
        let frames = vec![symbol(None, false), symbol(Some("f"), false), symbol(Some("g"), true)];
        let stack = CallStack { frames, end: StackEnd::Truncated };
        assert_eq!(folded(&stack), "[cut];g;~f;[postgres]");
        assert_eq!(folded(&CallStack { end: StackEnd::Complete, ..stack }), "g;~f;[postgres]");
    }
}

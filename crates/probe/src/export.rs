//! Exports the probes as bpftrace scripts, to verify the results of the probes or as a starting
//! point. A script works for one server only: it names the running binary, and recognises the
//! server's processes by their parent, for which bpftrace needs the kernel's type information
//! (BTF).

use std::fmt::{self, Write as _};

use howdah_inspect::RunningServer;

use crate::{checkpoints, durations, error::ProbeError, extend};

/// A probe that can be exported as a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BpftraceScript {
    /// Wait and hold times of relation extension locks.
    Extend,
    /// Checkpoint phases. Needs USDT probes.
    Checkpoints,
    /// Durations of the calls of one metric.
    Durations(durations::ProbeMetric),
}

impl BpftraceScript {
    /// Returns all scripts that can be exported.
    pub fn all() -> impl Iterator<Item = Self> {
        let durations = durations::ProbeMetric::ALL.into_iter().map(Self::Durations);
        [Self::Extend, Self::Checkpoints].into_iter().chain(durations)
    }

    /// Returns the name on the command line of `howdah probe export`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Extend => "extend",
            Self::Checkpoints => "checkpoints",
            Self::Durations(metric) => metric.name(),
        }
    }

    /// Returns the text of the script for a server.
    ///
    /// # Errors
    ///
    /// The server lacks the traced functions or USDT probes.
    pub fn text(self, server: &RunningServer) -> Result<String, ProbeError> {
        let target = ScriptTarget { postmaster: server.postmaster().pid() };
        let mut text = format!("// {}: PostgreSQL {}\n", self.name(), server.major());
        let written = match self {
            Self::Extend => write_extension_locks(&mut text, target),
            Self::Checkpoints => {
                let names = checkpoints::usdt_names(server)?;
                names.into_iter().try_for_each(|name| write_usdt(&mut text, target, name))
            }
            Self::Durations(metric) => {
                if metric == durations::ProbeMetric::LwLocks {
                    text.push_str("// Also counts other sleeps on the process's semaphore.\n");
                }
                let functions = metric.traced_symbols(server)?;
                let mut written = functions.iter().try_for_each(|(symbol, operation)| {
                    write_call(&mut text, target, symbol, operation)
                });
                if metric == durations::ProbeMetric::Spins {
                    for (symbol, _) in functions {
                        written = written.and_then(|()| write_callers(&mut text, target, symbol));
                    }
                }
                written
            }
        };
        written.expect("writing to a string cannot fail");
        Ok(text)
    }
}

/// The function with which the server raises an error, caught or not.
const ERROR_SYMBOL: &str = "pg_re_throw";

/// The server that a script traces.
#[derive(Clone, Copy)]
struct ScriptTarget {
    postmaster: u32,
}

impl ScriptTarget {
    fn probe_spec(self, kind: &str, symbol: &str) -> String {
        format!("{kind}:/proc/{}/exe:{symbol}", self.postmaster)
    }

    /// Returns a filter that is true in processes of this server.
    fn filter(self) -> String {
        format!("curtask->real_parent->tgid == {}", self.postmaster)
    }
}

/// Writes the script for extension locks. Locks of a thread are numbered by depth, because one may
/// be taken inside another.
fn write_extension_locks(text: &mut String, target: ScriptTarget) -> fmt::Result {
    let [lock, try_lock, unlock] = extend::SYMBOLS;
    let filter = target.filter();
    let entry = |symbol| target.probe_spec("uprobe", symbol);
    let exit = |symbol| target.probe_spec("uretprobe", symbol);
    writeln!(text, "{} /{filter}/ {{", entry(lock))?;
    writeln!(text, "    @depth[tid]++; @requested[tid, @depth[tid]] = nsecs;\n}}")?;
    writeln!(
        text,
        "{} /@requested[tid, @depth[tid]]/ {{
    $wait = nsecs - @requested[tid, @depth[tid]];
    @waits = count(); @wait_ns = sum($wait); @wait_us = hist($wait / 1000);
    @acquired[tid, @depth[tid]] = nsecs; delete(@requested[tid, @depth[tid]]);
}}",
        exit(lock)
    )?;
    writeln!(text, "{} /{filter}/ {{ @trying[tid] = 1; }}", entry(try_lock))?;
    writeln!(
        text,
        "{} /@trying[tid]/ {{
    if (retval & 0xff) {{ @depth[tid]++; @acquired[tid, @depth[tid]] = nsecs; }}
    delete(@trying[tid]);
}}",
        exit(try_lock)
    )?;
    writeln!(
        text,
        "{} /@acquired[tid, @depth[tid]]/ {{
    $hold = nsecs - @acquired[tid, @depth[tid]];
    @holds = count(); @hold_ns = sum($hold); @hold_us = hist($hold / 1000);
    delete(@acquired[tid, @depth[tid]]);
    if (@depth[tid] > 1) {{ @inner = count(); }}
    @depth[tid]--;
}}",
        entry(unlock)
    )?;
    // An error ends the functions without their returns, and releases the locks of the thread.
    writeln!(
        text,
        "{} /@depth[tid]/ {{ @errors = count(); delete(@depth[tid]); delete(@trying[tid]); }}",
        entry(ERROR_SYMBOL)
    )?;
    writeln!(text, "END {{ clear(@requested); clear(@acquired); clear(@trying); clear(@depth); }}")
}

/// Counts calls of `s_lock` by function, file and line of the caller.
fn write_callers(text: &mut String, target: ScriptTarget, symbol: &str) -> fmt::Result {
    writeln!(
        text,
        "{} /{}/ {{ @callers[str(arg3), str(arg1), (int32)arg2] = count(); }}",
        target.probe_spec("uprobe", symbol),
        target.filter()
    )
}

fn write_call(
    text: &mut String,
    target: ScriptTarget,
    symbol: &str,
    operation: &str,
) -> fmt::Result {
    let (filter, name) = (target.filter(), operation.replace(' ', "_"));
    let start = format!("@start_{symbol}[tid]");
    writeln!(text, "{} /{filter}/ {{ {start} = nsecs; }}", target.probe_spec("uprobe", symbol))?;
    writeln!(
        text,
        "{} /{start}/ {{ @{name}_us = hist((nsecs - {start}) / 1000); delete({start}); }}",
        target.probe_spec("uretprobe", symbol)
    )
}

fn write_usdt(text: &mut String, target: ScriptTarget, name: &str) -> fmt::Result {
    let head = target.probe_spec("usdt", &format!("postgresql:{name}"));
    writeln!(
        text,
        "{head} /{}/ {{ time(\"%H:%M:%S \"); printf(\"{name} by %d\\n\", pid); }}",
        target.filter()
    )
}

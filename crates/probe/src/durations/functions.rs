//! The functions that each metric traces, and their locations in a server.

use std::time::Duration;

use howdah_inspect::{BinaryError, RunningServer};

use super::ProbeMetric;
use crate::{
    bpf::{Point, UprobeKind},
    calibrate::HitCost,
    error::ProbeError,
    traced_server::TracedServer,
};

/// A traced function of the server, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TracedFunction {
    pub(super) span: TracedSpan,
    pub(super) operation: &'static str,
    pub(super) subject: SubjectSource,
    /// The register of a boolean argument that turns the call into a no-op if true.
    pub(super) unless: Option<&'static str>,
}

/// The points where a call starts and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TracedSpan {
    /// The time from the function's entry to its return.
    Call(&'static str),
    /// The time from one USDT probe to another in the same function.
    Between(&'static str, &'static str),
}

/// Location of a call's subject: the target of its first argument, unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubjectSource {
    Nothing,
    /// `LOCKTAG`, at the start of `LOCALLOCK`.
    Lock,
    /// Tablespace, database and file, at the start of `SMgrRelationData`.
    File,
    /// Like `File`, for the second argument.
    FileInSecondArgument,
    /// The wait event that the process reports, if it is for a lightweight lock.
    Wait,
    /// The source position in the second, third and fourth argument: file, line, function.
    Caller,
}

pub(super) const fn traced_call(
    symbol: &'static str,
    operation: &'static str,
    about: SubjectSource,
) -> TracedFunction {
    TracedFunction { span: TracedSpan::Call(symbol), operation, subject: about, unless: None }
}

/// Returns the functions that a metric may trace; a server has only some of them. Source: `proc.h`,
/// `lwlock.c`, `s_lock.h`, `md.h`, `xlog.h`, `planner.h`, `executor.h`, `tuplesort.h`, `buffile.h`
/// of 14 to 18.
const fn candidates(metric: ProbeMetric) -> &'static [TracedFunction] {
    match metric {
        ProbeMetric::Locks => const { &[traced_call("ProcSleep", "lock", SubjectSource::Lock)] },
        ProbeMetric::LwLocks => {
            const {
                &[
                    TracedFunction {
                        span: TracedSpan::Between("lwlock__wait__start", "lwlock__wait__done"),
                        operation: "lwlock",
                        subject: SubjectSource::Wait,
                        unless: None,
                    },
                    // The server sleeps for a lightweight lock here, and for a few other things.
                    // After a spurious wakeup it sleeps again, which counts as another call.
                    traced_call("PGSemaphoreLock", "lwlock", SubjectSource::Wait),
                ]
            }
        }
        // Called only if a spinlock is not free at the first attempt. The locks of buffer headers
        // and of the queues of lightweight locks are bits of other words, for which the server
        // waits without this function.
        ProbeMetric::Spins => const { &[traced_call("s_lock", "spin", SubjectSource::Caller)] },
        ProbeMetric::Io => {
            const {
                &[
                    traced_call("mdread", "read", SubjectSource::File),
                    traced_call("mdreadv", "read", SubjectSource::File),
                    // Asynchronous: the call does not include the wait.
                    traced_call("mdstartreadv", "start read", SubjectSource::FileInSecondArgument),
                    traced_call("mdwrite", "write", SubjectSource::File),
                    traced_call("mdwritev", "write", SubjectSource::File),
                    traced_call("mdextend", "extend", SubjectSource::File),
                    traced_call("mdzeroextend", "extend", SubjectSource::File),
                    traced_call("pg_fsync", "fsync", SubjectSource::Nothing),
                ]
            }
        }
        ProbeMetric::Wal => {
            const {
                &[
                    traced_call("XLogFlush", "flush", SubjectSource::Nothing),
                    traced_call("issue_xlog_fsync", "fsync", SubjectSource::Nothing),
                ]
            }
        }
        ProbeMetric::Queries => {
            const {
                &[
                    traced_call("standard_planner", "plan", SubjectSource::Nothing),
                    traced_call("standard_ExecutorRun", "execute", SubjectSource::Nothing),
                ]
            }
        }
        ProbeMetric::Sorts => {
            const {
                &[
                    traced_call("tuplesort_performsort", "sort", SubjectSource::Nothing),
                    traced_call("BufFileWrite", "spill", SubjectSource::Nothing),
                ]
            }
        }
    }
}

/// Returns the register of an argument that makes a call a no-op. In PostgreSQL 17, the third
/// argument of `ProcSleep` states whether to return without sleeping.
fn no_op_register(function: &TracedFunction, major: u32) -> Option<&'static str> {
    (function.span == TracedSpan::Call("ProcSleep") && major == 17).then_some("rdx")
}

impl ProbeMetric {
    /// Returns the functions of the metric that exist in a server; for lightweight locks, only one.
    pub(super) fn functions_in(
        self,
        server: &RunningServer,
    ) -> Result<Vec<TracedFunction>, ProbeError> {
        let all = candidates(self);
        let found = all.iter().filter(|function| function.span.exists_in(server));
        let mut functions: Vec<_> = found
            .map(|function| TracedFunction {
                unless: no_op_register(function, server.major()),
                ..*function
            })
            .collect();
        if self == Self::LwLocks {
            // The remaining functions are alternatives that observe the same waits.
            functions.truncate(1);
        }
        if functions.is_empty() {
            Err(all[all.len() - 1].span.missing_error())
        } else {
            Ok(functions)
        }
    }

    /// Returns the traced functions of a server, each with the operation that its calls represent.
    /// A metric traced by USDT probes is represented by an equivalent function.
    pub(crate) fn traced_symbols(
        self,
        server: &RunningServer,
    ) -> Result<Vec<(&'static str, &'static str)>, ProbeError> {
        let all = candidates(self).iter().filter(|function| function.span.exists_in(server));
        let watched: Vec<_> = all
            .filter_map(|function| match function.span {
                TracedSpan::Call(symbol) => Some((symbol, function.operation)),
                TracedSpan::Between(..) => None,
            })
            .collect();
        if watched.is_empty() { self.functions_in(server).map(|_| watched) } else { Ok(watched) }
    }

    /// Describes where programs are attached: in `server` or, if it is `None`, in servers of any
    /// version.
    pub fn points(self, server: Option<&RunningServer>) -> Vec<String> {
        let found = server.map(|server| self.functions_in(server).unwrap_or_default());
        let all = found.unwrap_or_else(|| candidates(self).to_vec());
        all.iter().map(|function| function.span.to_string()).collect()
    }

    /// Returns the time that tracing adds to a call of the most expensive function.
    pub(crate) fn cost_per_call(
        self,
        server: &RunningServer,
        traced: &TracedServer<'_>,
        hit: HitCost,
    ) -> Result<Duration, ProbeError> {
        let mut cost = Duration::ZERO;
        for function in self.functions_in(server)? {
            let begin = match function.span {
                TracedSpan::Call(symbol) => hit.for_code(&traced.entry_code(symbol)?),
                // A USDT probe is a nop.
                TracedSpan::Between(..) => hit.emulated,
            };
            // A return probe costs the breakpoint at the entry and an emulated one in the kernel's
            // trampoline.
            cost = cost.max(begin + hit.emulated);
        }
        Ok(cost)
    }
}

impl TracedSpan {
    fn exists_in(self, server: &RunningServer) -> bool {
        let has = |name: &str| server.binary().usdt_probes().iter().any(|probe| probe.name == name);
        match self {
            Self::Call(symbol) => server.binary().exports(symbol),
            Self::Between(begin, end) => has(begin) && has(end),
        }
    }

    fn missing_error(self) -> ProbeError {
        match self {
            Self::Call(symbol) => BinaryError::NoSymbol { symbol }.into(),
            Self::Between(probe, _) => ProbeError::NoUsdtProbe { probe },
        }
    }

    /// Returns the probe points for the start and for the end of the span. For a call both are the
    /// function's entry, where a return probe is attached too.
    pub(super) fn points(self, traced: &TracedServer<'_>) -> Result<[Vec<Point>; 2], ProbeError> {
        match self {
            Self::Call(symbol) => {
                let points = vec![traced.entry_point(symbol)?];
                Ok([points.clone(), points])
            }
            Self::Between(begin, end) => Ok([traced.usdt_points(begin)?, traced.usdt_points(end)?]),
        }
    }

    pub(super) fn return_kind(self) -> UprobeKind {
        match self {
            Self::Call(_) => UprobeKind::Return,
            Self::Between(..) => UprobeKind::Entry,
        }
    }
}

impl std::fmt::Display for TracedSpan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call(symbol) => f.write_str(symbol),
            Self::Between(begin, end) => write!(f, "usdt {begin} to {end}"),
        }
    }
}

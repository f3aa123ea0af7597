//! Which functions of a server each figure watches, and where they are in a server.

use std::time::Duration;

use howdah_inspect::{BinaryError, Server};

use super::Figure;
use crate::{
    bpf::{Point, Side},
    calibrate::HitCost,
    error::Error,
    traced::Traced,
};

/// A function of the server, or a part of one, and what a call of it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) place: Place,
    pub(super) operation: &'static str,
    pub(super) about: About,
    /// The register of an argument by which the call does nothing if it is true.
    pub(super) unless: Option<&'static str>,
}

/// Where something begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A function, from its entry to its return.
    Call(&'static str),
    /// From one marker to another in the same function.
    Between(&'static str, &'static str),
}

/// What an argument of a function points to: the first, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Nothing,
    /// `LOCKTAG`, the front of `LOCALLOCK`.
    Lock,
    /// Tablespace, database and file, the front of `SMgrRelationData`.
    File,
    /// The same, by the second argument.
    FileInSecond,
    /// No argument: the wait that the process reports, if it is for a lightweight lock.
    Wait,
}

pub(super) const fn function(
    symbol: &'static str,
    operation: &'static str,
    about: About,
) -> Function {
    Function { place: Place::Call(symbol), operation, about, unless: None }
}

/// Source: `proc.h`, `lwlock.c`, `md.h`, `xlog.h`, `planner.h`, `executor.h`, `tuplesort.h`, `buffile.h` of 14
/// to 18. Of alternatives, a version exports what it has.
const fn functions(figure: Figure) -> &'static [Function] {
    match figure {
        Figure::Locks => const { &[function("ProcSleep", "lock", About::Lock)] },
        Figure::LwLocks => {
            const {
                &[
                    Function {
                        place: Place::Between("lwlock__wait__start", "lwlock__wait__done"),
                        operation: "lwlock",
                        about: About::Wait,
                        unless: None,
                    },
                    // Where a process sleeps for such a lock, and for a few other things. It is woken
                    // for nothing now and then, and sleeps on: that is another call.
                    function("PGSemaphoreLock", "lwlock", About::Wait),
                ]
            }
        }
        Figure::Io => {
            const {
                &[
                    function("mdread", "read", About::File),
                    function("mdreadv", "read", About::File),
                    // Asynchronous: the wait for it is not within.
                    function("mdstartreadv", "start read", About::FileInSecond),
                    function("mdwrite", "write", About::File),
                    function("mdwritev", "write", About::File),
                    function("mdextend", "extend", About::File),
                    function("mdzeroextend", "extend", About::File),
                    function("pg_fsync", "fsync", About::Nothing),
                ]
            }
        }
        Figure::Wal => {
            const {
                &[
                    function("XLogFlush", "flush", About::Nothing),
                    function("issue_xlog_fsync", "fsync", About::Nothing),
                ]
            }
        }
        Figure::Queries => {
            const {
                &[
                    function("standard_planner", "plan", About::Nothing),
                    function("standard_ExecutorRun", "execute", About::Nothing),
                ]
            }
        }
        Figure::Sorts => {
            const {
                &[
                    function("tuplesort_performsort", "sort", About::Nothing),
                    function("BufFileWrite", "spill", About::Nothing),
                ]
            }
        }
    }
}

/// In 17, `ProcSleep` is also asked not to sleep, by its third argument.
fn doing_nothing(function: &Function, major: u32) -> Option<&'static str> {
    (function.place == Place::Call("ProcSleep") && major == 17).then_some("rdx")
}

impl Figure {
    /// The functions of it that a server has.
    pub(super) fn found_in(self, server: &Server) -> Result<Vec<Function>, Error> {
        let all = functions(self);
        let found = all.iter().filter(|function| function.place.is_in(server));
        let mut functions: Vec<_> = found
            .map(|function| Function {
                unless: doing_nothing(function, server.major()),
                ..*function
            })
            .collect();
        if self == Self::LwLocks {
            // Both see the same waits.
            functions.truncate(1);
        }
        match functions.is_empty() {
            true => Err(all[all.len() - 1].place.missing()),
            false => Ok(functions),
        }
    }

    /// The functions that are watched in a server, and what a call of each is. Parts of functions are told
    /// by the function that they are about.
    pub(crate) fn watched(
        self,
        server: &Server,
    ) -> Result<Vec<(&'static str, &'static str)>, Error> {
        let all = functions(self).iter().filter(|function| function.place.is_in(server));
        let watched: Vec<_> = all
            .filter_map(|function| match function.place {
                Place::Call(symbol) => Some((symbol, function.operation)),
                Place::Between(..) => None,
            })
            .collect();
        match watched.is_empty() {
            true => self.found_in(server).map(|_| watched),
            false => Ok(watched),
        }
    }

    /// Where programs are attached, in words: in a server, or in any.
    #[must_use]
    pub fn points(self, server: Option<&Server>) -> Vec<String> {
        let found = server.map(|server| self.found_in(server).unwrap_or_default());
        let all = found.unwrap_or_else(|| functions(self).to_vec());
        all.iter().map(|function| function.place.to_string()).collect()
    }

    /// What a call costs the process that makes it, at the dearest of the functions.
    pub(crate) fn cost_of_call(
        self,
        server: &Server,
        traced: &Traced<'_>,
        hit: HitCost,
    ) -> Result<Duration, Error> {
        let mut cost = Duration::ZERO;
        for function in self.found_in(server)? {
            let begin = match function.place {
                Place::Call(symbol) => hit.at(&traced.code_of(symbol)?),
                // A marker is a nop.
                Place::Between(..) => hit.emulated,
            };
            // The return is caught by the same breakpoint, and one of the kernel's own.
            cost = cost.max(begin + hit.emulated);
        }
        Ok(cost)
    }
}

impl Place {
    fn is_in(self, server: &Server) -> bool {
        let has = |name: &str| server.binary().markers().iter().any(|marker| marker.name == name);
        match self {
            Self::Call(symbol) => server.binary().exports(symbol),
            Self::Between(begin, end) => has(begin) && has(end),
        }
    }

    fn missing(self) -> Error {
        match self {
            Self::Call(symbol) => BinaryError::NoSymbol { symbol }.into(),
            Self::Between(marker, _) => Error::NoMarker { marker },
        }
    }

    /// Where it begins, and where it ends.
    pub(super) fn points(self, traced: &Traced<'_>) -> Result<[Vec<Point>; 2], Error> {
        match self {
            Self::Call(symbol) => {
                let points = vec![traced.function(symbol)?];
                Ok([points.clone(), points])
            }
            Self::Between(begin, end) => Ok([traced.markers(begin)?, traced.markers(end)?]),
        }
    }

    pub(super) fn side_of_end(self) -> Side {
        match self {
            Self::Call(_) => Side::Return,
            Self::Between(..) => Side::Entry,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call(symbol) => f.write_str(symbol),
            Self::Between(begin, end) => write!(f, "markers {begin} to {end}"),
        }
    }
}

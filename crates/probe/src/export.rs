//! The same probes as scripts of bpftrace, to check ours by, or to go on from.
//!
//! A script is for the server that it was made for: it names the running binary and tells the server's
//! processes by their parent. bpftrace has to read the kernel's types (BTF) for that.

use std::fmt::{self, Write as _};

use howdah_inspect::Server;

use crate::{checkpoints, durations, error::Error, extend};

/// What there is a script for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Waits for the lock to extend a relation, and holds.
    Extend,
    /// Phases of checkpoints. Needs markers.
    Checkpoints,
    /// Durations of calls.
    Durations(durations::Figure),
}

impl Script {
    /// Every script.
    pub fn all() -> impl Iterator<Item = Self> {
        let durations = durations::Figure::ALL.into_iter().map(Self::Durations);
        [Self::Extend, Self::Checkpoints].into_iter().chain(durations)
    }

    /// Its word: that of the probe.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Extend => "extend",
            Self::Checkpoints => "checkpoints",
            Self::Durations(figure) => figure.name(),
        }
    }

    /// The text of the script for a server.
    ///
    /// # Errors
    ///
    /// The server has not what it looks at.
    pub fn of(self, server: &Server) -> Result<String, Error> {
        let place = Place { postmaster: server.postmaster().pid() };
        let mut text = format!("// {}: PostgreSQL {}\n", self.name(), server.major());
        let written = match self {
            Self::Extend => extension(&mut text, place),
            Self::Checkpoints => {
                let names = checkpoints::marker_names(server)?;
                names.into_iter().try_for_each(|name| marker(&mut text, place, name))
            }
            Self::Durations(figure) => {
                if figure == durations::Figure::LwLocks {
                    text.push_str(
                        "// Also counts what else a process sleeps for on its semaphore.\n",
                    );
                }
                let mut functions = figure.watched(server)?.into_iter();
                functions
                    .try_for_each(|(symbol, operation)| call(&mut text, place, symbol, operation))
            }
        };
        written.expect("a string takes all that is written to it");
        Ok(text)
    }
}

/// Where a script looks.
#[derive(Clone, Copy)]
struct Place {
    postmaster: u32,
}

impl Place {
    fn head(self, kind: &str, symbol: &str) -> String {
        format!("{kind}:/proc/{}/exe:{symbol}", self.postmaster)
    }

    /// True in processes of this server.
    fn filter(self) -> String {
        format!("curtask->real_parent->tgid == {}", self.postmaster)
    }
}

fn extension(text: &mut String, place: Place) -> fmt::Result {
    let (ask, release) = extend::FUNCTIONS;
    let filter = place.filter();
    writeln!(text, "{} /{filter}/ {{ @asked[tid] = nsecs; }}", place.head("uprobe", ask))?;
    writeln!(
        text,
        "{} /@asked[tid]/ {{
    $wait = nsecs - @asked[tid];
    @waits = count(); @wait_ns = sum($wait); @wait_us = hist($wait / 1000);
    @got[tid] = nsecs; delete(@asked[tid]);
}}",
        place.head("uretprobe", ask)
    )?;
    writeln!(
        text,
        "{} /@got[tid]/ {{ @hold_us = hist((nsecs - @got[tid]) / 1000); delete(@got[tid]); }}",
        place.head("uprobe", release)
    )?;
    writeln!(text, "END {{ clear(@asked); clear(@got); }}")
}

fn call(text: &mut String, place: Place, symbol: &str, operation: &str) -> fmt::Result {
    let (filter, name) = (place.filter(), operation.replace(' ', "_"));
    let begun = format!("@begun_{symbol}[tid]");
    writeln!(text, "{} /{filter}/ {{ {begun} = nsecs; }}", place.head("uprobe", symbol))?;
    writeln!(
        text,
        "{} /{begun}/ {{ @{name}_us = hist((nsecs - {begun}) / 1000); delete({begun}); }}",
        place.head("uretprobe", symbol)
    )
}

fn marker(text: &mut String, place: Place, name: &str) -> fmt::Result {
    let head = place.head("usdt", &format!("postgresql:{name}"));
    writeln!(
        text,
        "{head} /{}/ {{ time(\"%H:%M:%S \"); printf(\"{name} by %d\\n\", pid); }}",
        place.filter()
    )
}

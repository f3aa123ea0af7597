//! What `howdah top` keeps of the past, and recordings.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::Context as _;
use howdah_top::{
    history::{History, Keeper, Limits, Recorder, Recording},
    units::parse_size,
};
use howdah_traffic::Timestamp;
use signal_hook::consts::SIGHUP;

use crate::context::Context;

/// What is kept, where, and for how long.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The past")]
pub(super) struct PastArgs {
    /// How far back the screen can be scrolled
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::values::time)]
    history: Duration,
    /// The most memory for that
    #[arg(long, value_name = "SIZE", default_value = "64MB", value_parser = size)]
    history_size: u64,
    /// Append all that is read to a file, every view in turn
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// What is older is dropped from the file
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = crate::values::time)]
    record_age: Duration,
    /// The most bytes of the file; the oldest are dropped
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = size)]
    record_size: u64,
    /// Look at such a file instead of a server
    #[arg(long, value_name = "FILE", conflicts_with = "servers")]
    pub(super) replay: Option<PathBuf>,
    /// Of the rows of a file those from this time on, such as 2026-03-01T14:30:00Z; without an offset it is UTC
    #[arg(long, value_name = "TIME", requires = "replay")]
    from: Option<Timestamp>,
    /// And up to this time
    #[arg(long, value_name = "TIME", requires = "replay")]
    until: Option<Timestamp>,
}

impl PastArgs {
    /// What keeps the past of servers of these names.
    pub(super) fn keeper(&self, names: impl Iterator<Item = String>) -> anyhow::Result<Keeper> {
        let limits = Limits { age: self.history, bytes: self.history_size };
        let history = History::new(told_apart(names), limits)?;
        let limits = Limits { age: self.record_age, bytes: self.record_size };
        let record = |path: &PathBuf| Recorder::open(path, limits);
        Ok(Keeper::new(history, self.record.as_ref().map(record).transpose()?))
    }

    /// Which rows of a recording are wanted.
    pub(super) fn moments_us(&self) -> RangeInclusive<i64> {
        let from_us = self.from.map_or(i64::MIN, Timestamp::as_micros);
        from_us..=self.until.map_or(i64::MAX, Timestamp::as_micros)
    }
}

/// Opens a recording, and says what of it cannot be read.
pub(super) fn open(path: &Path, ctx: &Context) -> anyhow::Result<Recording> {
    let recording = Recording::open(path)?;
    let gap = recording.gap;
    if gap.bytes > 0 {
        ctx.say(format_args!(
            "{}: {} bytes in {} place(s) are no frames: whoever wrote them was stopped, or they are lost",
            path.display(),
            gap.bytes,
            gap.places
        ));
    }
    Ok(recording)
}

/// A terminal that goes away ends the screen as Ctrl-C does.
pub(super) fn also_on_hangup(flag: &Arc<AtomicBool>) -> anyhow::Result<()> {
    signal_hook::flag::register(SIGHUP, Arc::clone(flag)).context("waiting for a hangup")?;
    Ok(())
}

/// Names of which no two are the same: a file tells servers apart by them.
fn told_apart(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut apart: Vec<String> = Vec::new();
    for name in names {
        let mut candidate = name.clone();
        let mut number = 2;
        while apart.contains(&candidate) {
            candidate = format!("{name} ({number})");
            number += 1;
        }
        apart.push(candidate);
    }
    apart
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text)
        .filter(|bytes| *bytes >= 1 << 20)
        .ok_or_else(|| "write a size of at least 1MB, such as 64MB or 2GB".to_owned())
}

#[test]
fn a_server_that_is_named_twice_has_two_names() {
    let names = ["a", "b", "a", "a"].map(str::to_owned);
    assert_eq!(told_apart(names.into_iter()), ["a", "b", "a (2)", "a (3)"]);
}

//! History and recordings of `howdah top`.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use anyhow::Context as _;
use howdah_top::history::{
    HistoryLimits, HistoryRecorder, HistoryWriter, SnapshotHistory, TopRecording,
};
use howdah_traffic::Timestamp;
use signal_hook::consts::SIGHUP;

use crate::context::CommandContext;

/// Options for history and recordings.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "History")]
pub(super) struct HistoryArgs {
    /// How far back the screen can go
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::values::time)]
    history: Duration,
    /// Maximum memory for the history
    #[arg(long, value_name = "SIZE", default_value = "64MB", value_parser = size)]
    history_size: u64,
    /// Append all samples to this file, of every view in turn
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,
    /// Drop older samples from the file
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = crate::values::time)]
    record_age: Duration,
    /// Maximum size of the file; the oldest samples are dropped
    #[arg(long, value_name = "SIZE", default_value = "1GB", value_parser = size)]
    record_size: u64,
    /// Show this recording instead of a server
    #[arg(long, value_name = "FILE", conflicts_with = "servers")]
    pub(super) replay: Option<PathBuf>,
    /// With --replay: rows from this time on, such as 2026-03-01T14:30:00Z; UTC without an offset
    #[arg(long, value_name = "TIME", requires = "replay")]
    from: Option<Timestamp>,
    /// With --replay: rows up to this time
    #[arg(long, value_name = "TIME", requires = "replay")]
    until: Option<Timestamp>,
}

impl HistoryArgs {
    /// Creates the history for servers with these names, and the recording if one is requested.
    pub(super) fn writer(
        &self,
        names: impl Iterator<Item = String>,
    ) -> anyhow::Result<HistoryWriter> {
        let limits = HistoryLimits { age: self.history, bytes: self.history_size };
        let history = SnapshotHistory::new(unique_names(names), limits)?;
        let limits = HistoryLimits { age: self.record_age, bytes: self.record_size };
        let record = |path: &PathBuf| HistoryRecorder::open(path, limits);
        Ok(HistoryWriter::new(history, self.record.as_ref().map(record).transpose()?))
    }

    /// Returns the time range, in microseconds since 1970, of rows to show from a recording.
    pub(super) fn time_range_us(&self) -> RangeInclusive<i64> {
        let from_us = self.from.map_or(i64::MIN, Timestamp::as_micros);
        from_us..=self.until.map_or(i64::MAX, Timestamp::as_micros)
    }
}

/// Opens a recording, and reports damaged parts.
pub(super) fn open(path: &Path, ctx: &CommandContext) -> anyhow::Result<TopRecording> {
    let recording = TopRecording::open(path)?;
    let gap = recording.gap;
    if gap.bytes > 0 {
        ctx.report(format_args!(
            "{}: {} bytes are not valid (number of places: {}): the writer was stopped, or the file is corrupted",
            path.display(),
            gap.bytes,
            gap.runs
        ));
    }
    Ok(recording)
}

/// Makes SIGHUP, sent when the terminal is closed, act like Ctrl-C.
pub(super) fn interrupt_on_hangup(flag: &Arc<AtomicBool>) -> anyhow::Result<()> {
    signal_hook::flag::register(SIGHUP, Arc::clone(flag))
        .context("cannot install a handler for SIGHUP")?;
    Ok(())
}

/// Makes server names unique, because a recording distinguishes servers by name.
fn unique_names(names: impl Iterator<Item = String>) -> Vec<String> {
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
    howdah_settings::parse_size(text)
        .filter(|bytes| *bytes >= 1 << 20)
        .ok_or_else(|| "write a size of at least 1MB, such as 64MB or 2GB".to_owned())
}

#[test]
fn duplicate_server_names_are_numbered() {
    let names = ["a", "b", "a", "a"].map(str::to_owned);
    assert_eq!(unique_names(names.into_iter()), ["a", "b", "a (2)", "a (3)"]);
}

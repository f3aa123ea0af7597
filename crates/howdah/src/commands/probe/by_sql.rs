//! Reports the probes by SQL of [`howdah_probe::by_sql`].
//!
//! Every row has `source=sql` and its limitation. Values that SQL does not provide are omitted.

mod counters;
mod locks;
mod samples;

use std::{
    io::{self, Write as _},
    time::{Instant, SystemTime},
};

use anyhow::Context as _;
use howdah_collect::MonitorConnection;
use howdah_probe::by_sql::SqlProbe;
use serde_json::{Value, json};

pub(super) use self::{
    counters::CheckpointRows, locks::LockRows, samples::from_memory as lwlocks_from_memory,
};
use super::{
    common::WatchArgs,
    rows::{self, RowFormat, RowWriter},
    target::SqlTarget,
};
use crate::{context::CommandContext, outcome::CommandOutcome};

/// A probe by SQL that is reported as rows.
pub(super) trait SqlRows: SqlProbe {
    /// Columns of the rows.
    const COLUMNS: &'static [&'static str];

    /// Reports the data since the last report.
    fn report_interval(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()>;

    /// Reports the totals at the end.
    fn report_summary(&mut self, rows: &mut LimitedRows<'_>) -> io::Result<()>;

    /// Whether the awaited event has occurred.
    fn is_done(&self) -> bool {
        false
    }
}

/// Polls until the duration is over or the user interrupts.
pub(super) fn run<A: SqlRows>(
    mut probe: A,
    target: &SqlTarget,
    args: &WatchArgs,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let mut server = connect(target)?;
    report_limitation(target, A::LIMITATION, ctx);
    let mut rows = LimitedRows::new(ctx, args.format, ("sql", A::COLUMNS), A::LIMITATION);
    let every = A::INTERVAL.map_or(args.pace.interval, |every| every.min(args.pace.interval));
    probe.sample(&mut server)?;
    let mut ticks = args.pace.start(ctx, every);
    let mut due = Instant::now() + args.pace.interval;
    let mut ended = None;
    while ended.is_none() && !probe.is_done() && ticks.tick() {
        ended = probe.sample(&mut server).context("the server no longer responds").err();
        if Instant::now() + every / 2 >= due {
            due += args.pace.interval;
            probe.report_interval(&mut rows)?;
        }
    }
    probe.report_summary(&mut rows)?;
    ended.map_or(Ok(CommandOutcome::Done), Err)
}

/// Opens a session for reading statistics.
pub(super) fn connect(target: &SqlTarget) -> anyhow::Result<MonitorConnection> {
    MonitorConnection::connect(&target.target)
        .with_context(|| format!("cannot query {} by SQL", target.target))
}

/// Reports why SQL is used, and its limitation.
pub(super) fn report_limitation(target: &SqlTarget, limitation: &str, ctx: &CommandContext) {
    ctx.report(format_args!("using SQL: {}; limitation: {limitation}", target.reason));
}

/// Writes rows of a fallback source, with its limitation.
pub(super) struct LimitedRows<'a> {
    ctx: &'a CommandContext,
    rows: RowWriter<'a>,
    format: RowFormat,
    source: &'static str,
    limitation: &'static str,
}

impl<'a> LimitedRows<'a> {
    pub(super) fn new(
        ctx: &'a CommandContext,
        format: RowFormat,
        (source, columns): (&'static str, &'static [&'static str]),
        limitation: &'static str,
    ) -> Self {
        Self { ctx, rows: RowWriter::new(ctx, format, columns), format, source, limitation }
    }

    /// Writes a row; in a table only the cells with values.
    pub(super) fn write(
        &mut self,
        kind: Option<&str>,
        mut cells: Vec<(&'static str, Value)>,
    ) -> io::Result<()> {
        if self.format == RowFormat::Table {
            let has_value = |(_, value): &&(&str, Value)| !value.is_null();
            let shown = cells.iter().filter(has_value).map(|(name, value)| match value {
                Value::String(text) => format!("{name} {text}"),
                other => format!("{name} {other}"),
            });
            let shown: Vec<_> = kind.map(str::to_owned).into_iter().chain(shown).collect();
            let time = rows::time(SystemTime::now());
            return writeln!(self.ctx.stdout(), "{time}  {}", shown.join("  "));
        }
        cells.extend([("source", json!(self.source)), ("limitation", json!(self.limitation))]);
        if let Some(kind) = kind {
            cells.extend([("kind", json!(kind)), ("time", json!(rows::time(SystemTime::now())))]);
        }
        self.rows.write(&cells)
    }
}

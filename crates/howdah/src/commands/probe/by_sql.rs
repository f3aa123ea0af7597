//! Runs probes by SQL, on request or for servers to which no other probe can be attached.

use anyhow::Context as _;
use howdah_collect::MonitorConnection;
use howdah_probe::live::poll_by_sql;
use howdah_report::probe::{SqlPrinter, SqlReport};

use super::{
    common::{self, WatchArgs},
    target::SqlTarget,
};
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Polls the server until the probe ends, and prints rows and totals.
pub(super) fn run<P: SqlReport>(
    mut probe: P,
    target: &SqlTarget,
    args: &WatchArgs,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let mut server = connect(target)?;
    report_limitation(target, P::LIMITATION, ctx);
    let mut printer = SqlPrinter::new::<P>(ctx.output(), args.format.into());
    let ended = poll_by_sql(&mut probe, &mut server, &args.pace(ctx), &mut printer)
        .map_err(common::live_error)?;
    probe.write_totals(&mut printer)?;
    common::outcome(ended)
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

//! `howdah probe sweep`: measures the clock sweep, the search for a buffer to evict.

use std::{
    io::{self, Write as _},
    time::{Instant, SystemTime},
};

use howdah_inspect::RunningServer;
use howdah_probe::{
    SampleError,
    by_sql::SqlSweep,
    sweep::{PerAllocation, SweepRow, SweepSampler, SweepSummary},
};
use serde_json::{Value, json};

use super::{
    by_sql,
    common::{OpenedProbe, ServerWatch, SourceName, WatchArgs},
    rows::{self, RowFormat, RowWriter},
};
use crate::{context::CommandContext, errors::wrong_usage, outcome::CommandOutcome};

/// Measure the clock sweep, the search for a buffer to evict, from the server's own counters.
///
/// Prints a line per second: passes of the clock hand per second, buffers allocated, and buffers
/// examined for each; at the end, how many allocations there were and how many had to sweep. Costs
/// the server nothing.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe sweep postgresql://localhost/shop --duration 60s
  howdah probe sweep --pid 4711 --interval 10 --format csv > sweep.csv";

pub(super) const COLUMNS: &[&str] = &[
    "source",
    "kind",
    "time",
    "hand",
    "buffers",
    "passes",
    "passes_per_s",
    "examined",
    "allocations",
    "swept",
    "per_allocation_min",
    "per_allocation_avg",
    "per_allocation_max",
    "has_free_buffers",
    "limitation",
];

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let WatchArgs { format, pace, .. } = &args.watch;
    if pace.interval < SweepSampler::ROW_LENGTH_MIN {
        return Err(wrong_usage(
            "--interval is shorter than a millisecond, the minimum time between two samples",
        ));
    }
    let open =
        |server: &RunningServer| Ok(SweepSampler::open(server, Instant::now(), pace.interval)?);
    let (mut sweep, server) = match args.watch.open(&[SourceName::Memory, SourceName::Sql], open)? {
        OpenedProbe::Local(sweep, found) => (sweep, found.server),
        OpenedProbe::Sql(outside) => {
            return by_sql::run(SqlSweep::default(), &outside, &args.watch, ctx);
        }
    };
    let watched = ServerWatch::new(&server)?;
    let mut rows = RowWriter::new(ctx, *format, COLUMNS);
    let mut ticks = pace.start(ctx, SweepSampler::ROW_LENGTH_MIN);
    let (mut lines, mut ended) = (0_u64, None);
    while ticks.wait_until(sweep.next_poll_at()) {
        match sweep.poll(Instant::now()) {
            Ok(Some(row)) if *format == RowFormat::Table => {
                print_line(ctx, &row, lines)?;
                lines += 1;
            }
            Ok(Some(row)) => rows.write(&cells(&row))?,
            Ok(None) => {}
            Err(
                error @ (SampleError::ServerStopped { .. } | SampleError::Reinitialised { .. }),
            ) => {
                ended = Some(error);
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let summary = sweep.summary();
    match format {
        RowFormat::Table => print_summary(ctx, &summary)?,
        _ => rows.write(&summary_cells(&summary))?,
    }
    match ended {
        Some(error) => Err(watched.explain(error)),
        None => Ok(CommandOutcome::Done),
    }
}

const HEAD_EVERY: u64 = 30;

fn print_line(ctx: &CommandContext, row: &SweepRow, lines: u64) -> io::Result<()> {
    let mut out = ctx.stdout();
    if lines.is_multiple_of(HEAD_EVERY) {
        writeln!(
            out,
            "{:<27}  {:>10} {:>9} {:>11}  {:>26}  free",
            "time", "hand", "passes/s", "allocated", "examined each (min avg max)"
        )?;
    }
    let time = rows::time(SystemTime::now());
    let free = if row.has_free_buffers { "yes" } else { "no" };
    let each = row.per_allocation.map_or_else(
        || "-".to_owned(),
        |PerAllocation { min, avg, max }| format!("{min:.2} {avg:.2} {max:.2}"),
    );
    writeln!(
        out,
        "{time:<27}  {:>10} {:>9.3} {:>11}  {each:>26}  {free}",
        row.hand,
        row.passes_per_s(),
        row.allocations
    )
}

fn print_summary(ctx: &CommandContext, summary: &SweepSummary) -> io::Result<()> {
    let mut out = ctx.stdout();
    let SweepSummary { allocations, swept, examined, buffers, .. } = *summary;
    let seconds = summary.elapsed.as_secs_f64();
    writeln!(
        out,
        "\n{allocations} buffers allocated in {seconds:.1} s, {swept} of them by sweeping"
    )?;
    write!(out, "{examined} of {buffers} buffers examined, {:.2} passes", summary.passes())?;
    if let Some(PerAllocation { min, avg, max }) = summary.per_allocation {
        write!(out, "; per allocation min {min:.2}, mean {avg:.2}, max {max:.2}")?;
    }
    writeln!(out)?;
    if let Some((slowest, fastest)) = summary.passes_per_s {
        let mean = summary.passes_per_s_avg();
        writeln!(out, "passes per second: min {slowest:.3}, mean {mean:.3}, max {fastest:.3}")?;
    }
    Ok(())
}

fn cells(row: &SweepRow) -> Vec<(&'static str, Value)> {
    let mut cells = vec![
        ("source", json!("memory")),
        ("kind", json!("interval")),
        ("time", json!(rows::time(SystemTime::now()))),
        ("hand", json!(row.hand)),
        ("buffers", json!(row.buffers)),
        ("passes", json!(row.passes())),
        ("passes_per_s", json!(row.passes_per_s())),
        ("examined", json!(row.examined)),
        ("allocations", json!(row.allocations)),
        ("has_free_buffers", json!(row.has_free_buffers)),
    ];
    cells.extend(per_allocation(row.per_allocation));
    cells
}

fn summary_cells(summary: &SweepSummary) -> Vec<(&'static str, Value)> {
    let mut cells = vec![
        ("source", json!("memory")),
        ("kind", json!("end")),
        ("time", json!(rows::time(SystemTime::now()))),
        ("buffers", json!(summary.buffers)),
        ("passes", json!(summary.passes())),
        ("passes_per_s", json!(summary.passes_per_s_avg())),
        ("examined", json!(summary.examined)),
        ("allocations", json!(summary.allocations)),
        ("swept", json!(summary.swept)),
    ];
    cells.extend(per_allocation(summary.per_allocation));
    cells
}

fn per_allocation(of: Option<PerAllocation>) -> Vec<(&'static str, Value)> {
    of.map_or_else(Vec::new, |PerAllocation { min, avg, max }| {
        vec![
            ("per_allocation_min", json!(min)),
            ("per_allocation_avg", json!(avg)),
            ("per_allocation_max", json!(max)),
        ]
    })
}

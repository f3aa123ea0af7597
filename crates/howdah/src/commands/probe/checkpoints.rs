//! `howdah probe checkpoints`: traces the phases of checkpoints.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use howdah_inspect::RunningServer;
use howdah_probe::{
    ProbeError,
    checkpoints::{CheckpointPhase, CheckpointTracer, FinishedPhase, PhaseCounts, PhaseUpdate},
};
use serde_json::{Value, json};

use super::{
    by_sql,
    common::{OpenedProbe, ServerWatch, SourceName, WatchArgs},
    rows::{self, RowFormat, RowWriter},
};
use crate::{context::CommandContext, outcome::CommandOutcome};

/// Trace each phase of a checkpoint: start, end, duration and amount.
///
/// Exact and nested if the server was built with USDT probes (as Debian's and PGDG's packages are)
/// and BPF programs are permitted; otherwise from the checkpointer's statistics in memory.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
    /// Exit after the first completed checkpoint
    #[arg(long)]
    until_checkpoint: bool,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe checkpoints postgresql://localhost/shop
  howdah probe checkpoints --data-dir /var/lib/postgresql/15/main --until-checkpoint
  howdah probe checkpoints --pid 4711 --duration 600s --format ndjson > checkpoints.ndjson";

const SOURCES: &[SourceName] = &[SourceName::Bpf, SourceName::Memory, SourceName::Sql];

/// How long a running server may be without a checkpointer.
const CHECKPOINTER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(super) const COLUMNS: &[&str] = &[
    "source",
    "phase",
    "depth",
    "pid",
    "start",
    "end",
    "duration_ms",
    "buffers_written",
    "buffers_to_write",
    "files_synced",
    "longest_sync_ms",
    "segments_added",
    "segments_removed",
    "segments_recycled",
    "limitation",
];

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let WatchArgs { source, format, pace, .. } = &args.watch;
    let open = |server: &RunningServer| Ok(open_tracer(*source, server, ctx)?);
    let (mut checkpoints, server) = match args.watch.open(SOURCES, open)? {
        OpenedProbe::Local(checkpoints, found) => (checkpoints, found.server),
        OpenedProbe::Sql(outside) => {
            let asking = by_sql::CheckpointRows::new(args.until_checkpoint);
            return by_sql::run(asking, &outside, &args.watch, ctx);
        }
    };
    let source = checkpoints.source().as_str();
    let mut rows = RowWriter::new(ctx, *format, COLUMNS);
    let mut watched = ServerWatch::new(&server)?;
    let mut ticks = pace.start(ctx, POLL_INTERVAL);
    let (mut is_done, mut ended, mut failing) = (false, None, None);
    while !is_done && ended.is_none() && ticks.tick() {
        let mut updates = Vec::new();
        match checkpoints.poll(|update| updates.push(update)) {
            Ok(()) => failing = None,
            // While a server shuts down, the checkpointer exits before the server is gone.
            Err(error) => {
                let since = *failing.get_or_insert_with(Instant::now);
                let is_lasting = since.elapsed() > CHECKPOINTER_TIMEOUT;
                ended = watched.why_gone().or_else(|| is_lasting.then(|| error.into()));
            }
        }
        for update in updates {
            match format {
                RowFormat::Table => writeln!(ctx.stdout(), "{}", line(&update))?,
                _ => {
                    if let PhaseUpdate::Finished(span) = &update {
                        rows.write(&row(source, span))?;
                    }
                }
            }
            is_done |= args.until_checkpoint && is_end(&update);
            if is_done {
                // Skip later events.
                break;
            }
        }
        ended = ended.or_else(|| watched.ended());
    }
    let lost = checkpoints.lost_events()?;
    if lost > 0 {
        ctx.report(format_args!("{lost} events lost: some phases are missing"));
    }
    ended.map_or(Ok(CommandOutcome::Done), Err)
}

/// Opens the best source that works, and reports why a better one does not.
fn open_tracer(
    requested: SourceName,
    server: &RunningServer,
    ctx: &CommandContext,
) -> Result<CheckpointTracer, ProbeError> {
    match requested {
        SourceName::Bpf => CheckpointTracer::from_usdt(server),
        SourceName::Memory => CheckpointTracer::from_stats(server),
        SourceName::Best | SourceName::Sql => {
            CheckpointTracer::from_usdt(server).or_else(|reason| {
                ctx.report(format_args!("reading phases from the checkpointer's memory: {reason}"));
                CheckpointTracer::from_stats(server)
            })
        }
    }
}

fn is_end(update: &PhaseUpdate) -> bool {
    matches!(
        update,
        PhaseUpdate::Finished(FinishedPhase { phase: CheckpointPhase::Checkpoint, .. })
    )
}

/// `2026-11-21T20:00:01.000000Z    write done in 12.3 ms: 372 of 372 buffers`
fn line(update: &PhaseUpdate) -> String {
    match update {
        PhaseUpdate::Started { phase, pid, at, depth } => {
            let by = if *depth == 0 { format!(" by process {pid}") } else { String::new() };
            let indent = 2 * depth;
            format!("{}  {:indent$}{} started{by}", rows::time(*at), "", phase.as_str())
        }
        PhaseUpdate::Finished(span) => {
            let FinishedPhase { phase, started_at, duration, depth, counts, .. } = span;
            let (at, took) = (rows::time(*started_at + *duration), rows::display(*duration));
            let indent = 2 * depth;
            let details = describe_counts(counts);
            format!("{at}  {:indent$}{} done in {took}{details}", "", phase.as_str())
        }
    }
}

fn describe_counts(counts: &PhaseCounts) -> String {
    let mut parts = Vec::new();
    match (counts.buffers_written, counts.buffers_to_write) {
        (Some(written), Some(all)) => parts.push(format!("{written} of {all} buffers")),
        (Some(written), None) => parts.push(format!("{written} buffers")),
        _ => {}
    }
    if let Some(files) = counts.files_synced {
        let longest = counts.longest_sync.map_or_else(String::new, |longest| {
            format!(", the longest {}", rows::display(longest))
        });
        parts.push(format!("{files} files synced{longest}"));
    }
    if let Some([added, removed, recycled]) = counts.segments {
        parts.push(format!("WAL segments {added} added, {removed} removed, {recycled} recycled"));
    }
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join("; ")) }
}

fn row(source: &str, span: &FinishedPhase) -> Vec<(&'static str, Value)> {
    let FinishedPhase { phase, pid, started_at, duration, depth, counts } = span;
    let [added, removed, recycled] = match counts.segments {
        Some(segments) => segments.map(Value::from),
        None => [const { Value::Null }; 3],
    };
    vec![
        ("source", json!(source)),
        ("phase", json!(phase.as_str())),
        ("depth", json!(depth)),
        ("pid", json!(pid)),
        ("start", json!(rows::time(*started_at))),
        ("end", json!(rows::time(*started_at + *duration))),
        ("duration_ms", rows::ms(*duration)),
        ("buffers_written", json!(counts.buffers_written)),
        ("buffers_to_write", json!(counts.buffers_to_write)),
        ("files_synced", json!(counts.files_synced)),
        ("longest_sync_ms", counts.longest_sync.map_or(Value::Null, rows::ms)),
        ("segments_added", added),
        ("segments_removed", removed),
        ("segments_recycled", recycled),
    ]
}

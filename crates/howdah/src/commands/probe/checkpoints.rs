//! `howdah probe checkpoints`: every phase of a checkpoint as it happens.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use howdah_inspect::Server;
use howdah_probe::{
    Error,
    checkpoints::{Checkpoints, Counts, Phase, Span, Update},
};
use serde_json::{Value, json};

use super::{
    by_sql,
    rows::{self, Format, Rows},
    watch::{Opened, SourceName, WatchArgs, Watched},
};
use crate::{context::Context, outcome::Outcome};

/// Every phase of a checkpoint as it happens: begin, end, how long, how much.
///
/// Exact and nested where the server was built with markers (Debian's and PGDG's are) and programs may run
/// in the kernel; else from the checkpointer's own notes in its memory.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
    /// End when a checkpoint has ended
    #[arg(long)]
    until_checkpoint: bool,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe checkpoints postgresql://localhost/shop
  howdah probe checkpoints --data-dir /var/lib/postgresql/15/main --until-checkpoint
  howdah probe checkpoints --pid 4711 --duration 600s --format ndjson > checkpoints.ndjson";

const SOURCES: &[SourceName] = &[SourceName::Bpf, SourceName::Memory, SourceName::Sql];

/// How long a server may be without a checkpointer.
const PATIENCE: Duration = Duration::from_secs(5);

/// From one look to the next.
const EVERY: Duration = Duration::from_millis(10);

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
    "lacks",
];

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let WatchArgs { source, format, pace, .. } = &args.watch;
    let open = |server: &Server| Ok(watch(*source, server, ctx)?);
    let (mut checkpoints, server) = match args.watch.open(SOURCES, open)? {
        Opened::Inside(checkpoints, found) => (checkpoints, found.server),
        Opened::Outside(outside) => {
            let asking = by_sql::Checkpoints::new(args.until_checkpoint);
            return by_sql::ask(asking, &outside, &args.watch, ctx);
        }
    };
    let source = checkpoints.source().as_str();
    let mut rows = Rows::new(ctx, *format, COLUMNS);
    let mut watched = Watched::new(&server)?;
    let mut ticks = pace.begin(ctx, EVERY);
    let (mut is_done, mut ended, mut failing) = (false, None, None);
    while !is_done && ended.is_none() && ticks.tick() {
        let mut updates = Vec::new();
        match checkpoints.poll(|update| updates.push(update)) {
            Ok(()) => failing = None,
            // A server that stops has no checkpointer before it is gone itself.
            Err(error) => {
                let since = *failing.get_or_insert_with(Instant::now);
                let is_lasting = since.elapsed() > PATIENCE;
                ended = watched.why_gone().or_else(|| is_lasting.then(|| error.into()));
            }
        }
        for update in updates {
            match format {
                Format::Table => writeln!(ctx.stdout(), "{}", line(&update))?,
                _ => {
                    if let Update::Finished(span) = &update {
                        rows.write(&row(source, span))?;
                    }
                }
            }
            is_done |= args.until_checkpoint && is_end(&update);
            if is_done {
                // What came after it, while programs were attached, was not asked for.
                break;
            }
        }
        ended = ended.or_else(|| watched.ended());
    }
    let lost = checkpoints.lost()?;
    if lost > 0 {
        ctx.say(format_args!("{lost} events were lost: some phases are missing"));
    }
    ended.map_or(Ok(Outcome::Done), Err)
}

/// The best source that works here, and why it is not a better one.
fn watch(wanted: SourceName, server: &Server, ctx: &Context) -> Result<Checkpoints, Error> {
    match wanted {
        SourceName::Bpf => Checkpoints::by_markers(server),
        SourceName::Memory => Checkpoints::by_notes(server),
        SourceName::Best | SourceName::Sql => Checkpoints::by_markers(server).or_else(|reason| {
            ctx.say(format_args!("phases are read from the checkpointer's memory: {reason}"));
            Checkpoints::by_notes(server)
        }),
    }
}

fn is_end(update: &Update) -> bool {
    matches!(update, Update::Finished(Span { phase: Phase::Checkpoint, .. }))
}

/// `2026-11-21T20:00:01.000000Z    write done in 12.3 ms: 372 of 372 buffers`
fn line(update: &Update) -> String {
    match update {
        Update::Started { phase, pid, at, depth } => {
            let by = if *depth == 0 { format!(" by process {pid}") } else { String::new() };
            let indent = 2 * depth;
            format!("{}  {:indent$}{} started{by}", rows::time(*at), "", phase.as_str())
        }
        Update::Finished(span) => {
            let Span { phase, started_at, duration, depth, counts, .. } = span;
            let (at, took) = (rows::time(*started_at + *duration), rows::shown(*duration));
            let indent = 2 * depth;
            let told = told(counts);
            format!("{at}  {:indent$}{} done in {took}{told}", "", phase.as_str())
        }
    }
}

fn told(counts: &Counts) -> String {
    let mut told = Vec::new();
    match (counts.buffers_written, counts.buffers_to_write) {
        (Some(written), Some(all)) => told.push(format!("{written} of {all} buffers")),
        (Some(written), None) => told.push(format!("{written} buffers")),
        _ => {}
    }
    if let Some(files) = counts.files_synced {
        let longest = counts
            .longest_sync
            .map_or_else(String::new, |longest| format!(", the longest {}", rows::shown(longest)));
        told.push(format!("{files} files synced{longest}"));
    }
    if let Some([added, removed, recycled]) = counts.segments {
        told.push(format!("WAL segments {added} added, {removed} removed, {recycled} recycled"));
    }
    if told.is_empty() { String::new() } else { format!(": {}", told.join("; ")) }
}

fn row(source: &str, span: &Span) -> Vec<(&'static str, Value)> {
    let Span { phase, pid, started_at, duration, depth, counts } = span;
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

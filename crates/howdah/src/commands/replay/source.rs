//! The input of a replay: a capture or server logs, and how far it was read.

use std::{
    collections::BTreeMap,
    iter::Peekable,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use howdah_dataset::{CapturedServer, Events, SessionShare, is_store_url};
use howdah_logs::{LogStream, ReadProgress, StreamPosition};
use howdah_replay::{
    EventSourceError, InputMetrics, InputPosition, ProgressReader, Replay, ReplayReport, StartError,
};
use howdah_traffic::{Event, Kind, Timestamp};

use super::Args;
use crate::{
    commands::capture::{self, Exclusions, FilteredEvents},
    context::CommandContext,
    errors,
    progress::Total,
};

/// The source of the replayed events: a capture or server logs.
#[expect(clippy::large_enum_variant, reason = "created once per process")]
pub(super) enum ReplaySource {
    Capture {
        events: Peekable<FilteredEvents<Events>>,
        left: Exclusions,
        total: Option<u64>,
        connects: u64,
        /// Time of the capture's first event, whatever is replayed of it.
        first: Option<Timestamp>,
        is_finished: bool,
        encodings: BTreeMap<String, String>,
        server: Option<CapturedServer>,
    },
    Log {
        events: Peekable<FilteredEvents<LogStream>>,
        left: Exclusions,
        position: Arc<StreamPosition>,
    },
}

impl ReplaySource {
    pub(super) fn open(args: &Args) -> anyhow::Result<Self> {
        match &args.inputs[..] {
            [dir] if is_dataset(dir) => {
                let capture = capture::open(dir)?;
                let manifest = capture.manifest();
                let share = args.run.worker.share();
                let connects = manifest.kinds.get(&Kind::Connect).copied().unwrap_or(0);
                let connects = connects / u64::from(share.count());
                let first = manifest.first;
                let events = FilteredEvents::new(capture.events_of(share), args.select.filter());
                let is_whole = events.is_unfiltered() && share == SessionShare::ALL;
                let total = is_whole.then_some(manifest.events);
                let left = events.exclusions();
                let encodings = manifest.origin.encodings.clone();
                let server = manifest.origin.server.clone();
                let is_finished = manifest.finished;
                let events = events.peekable();
                Ok(Self::Capture {
                    events,
                    left,
                    total,
                    connects,
                    first,
                    is_finished,
                    encodings,
                    server,
                })
            }
            inputs if inputs.iter().any(|path| is_dataset(path)) => Err(errors::wrong_usage(
                "give one capture, or logs: a folder among several inputs is a capture or a run",
            )),
            _ if args.run.worker.is_one_of_several() => Err(errors::with_hint(
                errors::wrong_usage("--worker needs a capture: logs are not divided by session"),
                "`howdah capture import LOG -o CAPTURE` makes a capture",
            )),
            inputs => {
                // Skip glob patterns and `-`, which is standard input.
                let is_name = |path: &&PathBuf| !path.to_string_lossy().contains(['*', '?', '[']);
                for path in inputs.iter().filter(is_name).filter(|path| path.as_os_str() != "-") {
                    std::fs::metadata(path)
                        .with_context(|| format!("cannot read the log {}", path.display()))?;
                }
                let stream = LogStream::open(inputs.to_vec(), args.log.options()?);
                let stream = stream.context("cannot read the log")?;
                let position = stream.position();
                let events = FilteredEvents::new(stream, args.select.filter());
                Ok(Self::Log { left: events.exclusions(), events: events.peekable(), position })
            }
        }
    }

    /// Returns the captured time that is due at the start of the replay: that of the first event of
    /// all sessions, so that it is the same for all workers. `None` for a log.
    pub(super) fn origin(&self, args: &Args) -> Option<Timestamp> {
        match self {
            Self::Capture { first, .. } => (*first).max(args.select.start()),
            Self::Log { .. } => None,
        }
    }

    /// Returns the encodings of the captured databases.
    pub(super) fn encodings(&self) -> BTreeMap<String, String> {
        match self {
            Self::Capture { encodings, .. } => encodings.clone(),
            Self::Log { .. } => BTreeMap::new(),
        }
    }

    /// Returns the captured server, if the capture has it.
    pub(super) fn captured_server(&self) -> Option<&CapturedServer> {
        match self {
            Self::Capture { server, .. } => server.as_ref(),
            Self::Log { .. } => None,
        }
    }

    /// Waits for the first event, without consuming it.
    pub(super) fn wait_for_first(&mut self) -> Result<(), StartError> {
        match self {
            Self::Capture { events, .. } => check_first_event(events),
            Self::Log { events, .. } => check_first_event(events),
        }
    }

    /// Returns the total number of events, if known.
    pub(super) fn total(&self) -> Option<u64> {
        match self {
            Self::Capture { total, .. } => *total,
            Self::Log { .. } => None,
        }
    }

    /// Returns a handle to the position in the logs; `None` for a capture.
    pub(super) fn position(&self) -> Option<Arc<StreamPosition>> {
        match self {
            Self::Capture { .. } => None,
            Self::Log { position, .. } => Some(position.clone()),
        }
    }

    /// Returns a handle to the counts of events excluded by the filter.
    pub(super) fn exclusions(&self) -> Exclusions {
        match self {
            Self::Capture { left, .. } | Self::Log { left, .. } => left.clone(),
        }
    }

    pub(super) fn play(self, replay: Replay) -> Result<ReplayReport, StartError> {
        match self {
            Self::Capture { events, .. } => replay.run(events),
            Self::Log { events, .. } => replay.run(events),
        }
    }
}

/// Whether an input is the folder of a capture, or at least not one of logs.
fn is_dataset(path: &Path) -> bool {
    is_store_url(path) || (path.is_dir() && !capture::has_no_dataset(path))
}

fn check_first_event<E: Into<EventSourceError>>(
    events: &mut Peekable<impl Iterator<Item = Result<Box<Event>, E>>>,
) -> Result<(), StartError> {
    if let Some(Ok(_)) = events.peek() {
        return Ok(());
    }
    match events.next() {
        Some(Err(error)) => Err(StartError::Source(error.into())),
        _ => Err(StartError::NoEvents),
    }
}

/// The input of a running replay, as far as it is observed.
pub(super) struct ReplayInput {
    /// The total number of events, if known.
    pub(super) total: Option<u64>,
    pub(super) left: Exclusions,
    pub(super) position: Option<Arc<StreamPosition>>,
}

impl ReplayInput {
    /// Returns the position in the input; `ended` is the number of events that have ended.
    fn position(&self, ended: u64) -> InputPosition {
        let read = self.position.as_ref().map(|position| position.progress());
        let share = |part: u64, total: u64| (part as f64 / total.max(1) as f64).min(1.0);
        InputPosition {
            excluded: self.left.count(),
            log_bytes: read.map_or(0, |read| read.bytes),
            log_problems: self.position.as_ref().map_or(0, |position| position.rejected()),
            share: match (self.total, read) {
                (Some(total), _) => share(ended, total),
                (None, Some(ReadProgress { bytes, bytes_total: Some(total) })) => {
                    share(bytes, total)
                }
                _ => 0.0,
            },
        }
    }
}

/// Shows the progress of the replay until it is finished.
pub(super) fn show_progress(ctx: &CommandContext, input: &ReplayInput, finished: &AtomicBool) {
    let progress = ProgressReader::new(ctx.registry());
    let mut metrics = InputMetrics::new(ctx.registry());
    let bar = ctx.progress(input.total.map_or(Total::Unknown, Total::Count), "replaying");
    let mut is_last = false;
    while !is_last {
        is_last = finished.load(Ordering::Relaxed);
        let state = progress.read();
        metrics.record(input.position(state.ended));
        bar.set_position(state.ended);
        bar.set_message(format!(
            "replaying, {} open, {} failed, {} ms late",
            state.connections,
            state.failed,
            state.lag.as_millis()
        ));
        if !is_last {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    bar.finish_and_clear();
}

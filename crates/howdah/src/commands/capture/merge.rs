//! `howdah capture merge`: merges several captures into one.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    path::{Path, PathBuf},
};

use howdah_capture::EventFilter;
use howdah_dataset::{CaptureOrigin, CaptureSettings, Events, ReadError};
use howdah_traffic::{Event, Timestamp};
use serde_json::json;

use super::{
    output::{self, CaptureOutput, with_write_hint},
    selection::RedactArgs,
};
use crate::{context::CommandContext, errors, outcome::CommandOutcome, progress::Total};

/// Merge several captures into one, in time order.
///
/// Sessions of different captures stay separate: their names get the number of their capture, as in
/// 2/656a1b2c.4d2. Parts of one capture, such as those of `howdah capture split`, are joined with
/// --join-sessions.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folders of the captures
    #[arg(required = true, value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// Folder to write the new capture to
    #[arg(long, short, value_name = "CAPTURE")]
    output: PathBuf,
    /// Treat sessions of the same name as one session
    #[arg(long)]
    join_sessions: bool,
    /// Replace an existing capture
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    redact: RedactArgs,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    if args.captures.len() > CAPTURES_MAX {
        return Err(errors::wrong_usage(format!(
            "cannot merge {} captures at once: merge at most {CAPTURES_MAX}, then the \
            results",
            args.captures.len()
        )));
    }
    let mut origin = CaptureOrigin::default();
    let mut merged = MergedEvents::default();
    let mut sources = Vec::new();
    let mut total = 0;
    for dir in &args.captures {
        super::refuse_overwriting_input(dir, &args.output)?;
        let capture = super::open(dir)?;
        let manifest = capture.manifest();
        origin.files.extend(manifest.origin.files.iter().cloned());
        for (database, encoding) in &manifest.origin.encodings {
            let known = origin.encodings.insert(database.clone(), encoding.clone());
            if let Some(other) = known.filter(|known| known != encoding) {
                return Err(errors::wrong_usage(format!(
                    "{} has database {database:?} in {encoding}, but an earlier capture has it in {other}: they \
                    cannot be merged",
                    dir.display()
                )));
            }
        }
        total += manifest.events;
        let report = super::inherited_report(manifest);
        sources.push(json!({ "capture": dir.display().to_string(), "report": report }));
        merged.add(capture.events())?;
    }
    let settings = CaptureSettings { origin: origin.clone(), overwrite: args.force };
    let redactor = args.redact.redactor()?;
    let mut output =
        CaptureOutput::capture(&args.output, settings, EventFilter::default(), redactor);
    let bar = ctx.progress(Total::Count(total), "merging");
    let interrupted = ctx.interrupted();
    while let Some((number, mut event)) = merged.next()? {
        super::bail_if_interrupted(&interrupted)?;
        if !args.join_sessions {
            event.session = format!("{number}/{}", event.session).into();
        }
        with_write_hint(&args.output, output.push(event))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    finish(args.output.as_path(), ctx, output, origin, json!({ "merged": sources }))
}

fn finish(
    dir: &Path,
    ctx: &CommandContext,
    output: CaptureOutput,
    origin: CaptureOrigin,
    report: serde_json::Value,
) -> anyhow::Result<CommandOutcome> {
    let open = output.tally().open_transactions();
    if let Some(manifest) = with_write_hint(dir, output.finish(origin, report))? {
        output::report_capture(ctx, dir, &manifest);
        output::report_kinds(ctx, &manifest);
    }
    open.into_iter().for_each(|line| ctx.report(line));
    Ok(CommandOutcome::Done)
}

/// Maximum number of captures; each has open files and a few megabytes in memory.
const CAPTURES_MAX: usize = 64;

/// A k-way merge of captures by the time of events.
#[derive(Default)]
struct MergedEvents {
    captures: Vec<(Option<Event>, Events)>,
    /// Time of the next event of each capture, with the capture's index.
    order: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

impl MergedEvents {
    fn add(&mut self, mut events: Events) -> Result<(), ReadError> {
        let next = events.next().transpose()?;
        if let Some(event) = &next {
            self.order.push(Reverse((event.time, self.captures.len())));
        }
        self.captures.push((next, events));
        Ok(())
    }

    /// The next event, with the number of its capture, from 1.
    fn next(&mut self) -> Result<Option<(usize, Event)>, ReadError> {
        let Some(Reverse((_, index))) = self.order.pop() else { return Ok(None) };
        let (next, events) = &mut self.captures[index];
        let after = events.next().transpose()?;
        if let Some(event) = &after {
            self.order.push(Reverse((event.time, index)));
        }
        Ok(std::mem::replace(next, after).map(|event| (index + 1, event)))
    }
}

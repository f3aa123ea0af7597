//! `howdah capture merge`: several captures into one.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    path::{Path, PathBuf},
};

use howdah_dataset::{CaptureSettings, Events, Origin, ReadError};
use howdah_sift::EventFilter;
use howdah_traffic::{Event, Timestamp};
use serde_json::json;

use super::{
    output::{self, Output, written},
    select::RedactArgs,
};
use crate::{context::Context, errors, outcome::Outcome, progress::Total};

/// Make one capture of several, in the order of time.
///
/// Sessions of different captures stay apart: their names get the number of their capture, 2/656a1b2c.4d2.
/// Parts of one capture, such as `howdah capture split` makes, are joined with --join-sessions.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folders of the captures
    #[arg(required = true, value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// Folder for the new capture
    #[arg(long, short, value_name = "CAPTURE")]
    output: PathBuf,
    /// Sessions of the same name are one session
    #[arg(long)]
    join_sessions: bool,
    /// Replace a capture that is there already
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    redact: RedactArgs,
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    if args.captures.len() > CAPTURES_MAX {
        return Err(errors::wrong_usage(format!(
            "{} captures are more than can be merged at once; merge at most {CAPTURES_MAX}, then the \
             results",
            args.captures.len()
        )));
    }
    let mut origin = Origin::default();
    let mut merged = Merged::default();
    let mut sources = Vec::new();
    let mut total = 0;
    for dir in &args.captures {
        super::refuse_same(dir, &args.output)?;
        let capture = super::open(dir)?;
        let manifest = capture.manifest();
        origin.files.extend(manifest.origin.files.iter().cloned());
        for (database, encoding) in &manifest.origin.encodings {
            let known = origin.encodings.insert(database.clone(), encoding.clone());
            if let Some(other) = known.filter(|known| known != encoding) {
                return Err(errors::wrong_usage(format!(
                    "{} has database {database:?} in {encoding}, a capture before it in {other}: they \
                     cannot be one",
                    dir.display()
                )));
            }
        }
        total += manifest.events;
        let report = super::inherited(manifest);
        sources.push(json!({ "capture": dir.display().to_string(), "report": report }));
        merged.add(capture.events())?;
    }
    let settings = CaptureSettings { origin: origin.clone(), overwrite: args.force };
    let redactor = args.redact.redactor()?;
    let mut output = Output::capture(&args.output, settings, EventFilter::default(), redactor);
    let bar = ctx.progress(Total::Count(total), "merging");
    let interrupted = ctx.interrupted();
    while let Some((number, mut event)) = merged.next()? {
        super::heed(&interrupted)?;
        if !args.join_sessions {
            event.session = format!("{number}/{}", event.session).into();
        }
        written(&args.output, output.push(event))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    conclude(args.output.as_path(), ctx, output, origin, json!({ "merged": sources }))
}

fn conclude(
    dir: &Path,
    ctx: &Context,
    output: Output,
    origin: Origin,
    report: serde_json::Value,
) -> anyhow::Result<Outcome> {
    let open = output.tally().open_transactions();
    if let Some(manifest) = written(dir, output.finish(origin, report))? {
        output::tell(ctx, dir, &manifest);
        output::tell_kinds(ctx, &manifest);
    }
    open.into_iter().for_each(|line| ctx.say(line));
    Ok(Outcome::Done)
}

/// Each has files open and a few megabytes in memory.
const CAPTURES_MAX: usize = 64;

/// Captures side by side, the one with the earliest event first.
#[derive(Default)]
struct Merged {
    captures: Vec<(Option<Event>, Events)>,
    /// Time of the next event of each, with its number from 0.
    order: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

impl Merged {
    fn add(&mut self, mut events: Events) -> Result<(), ReadError> {
        let next = events.next().transpose()?;
        if let Some(event) = &next {
            self.order.push(Reverse((event.time, self.captures.len())));
        }
        self.captures.push((next, events));
        Ok(())
    }

    /// The next event, with the number of its capture from 1.
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

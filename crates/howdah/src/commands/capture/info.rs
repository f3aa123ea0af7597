//! `howdah capture info`: what a capture holds.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use howdah_dataset::{Capture, CaptureManifest};
use howdah_report::counted;
use howdah_traffic::EventHash;
use indicatif::HumanBytes;
use serde::Serialize;

use super::report;
use crate::{
    context::Context,
    format::{self, Format},
    outcome::Outcome,
};

/// Say what is in a capture: where it came from, its time, its events.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The folder of the capture
    #[arg(value_name = "CAPTURE")]
    capture: PathBuf,
    /// How to print it
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Read all of it, and fail if its events are not those that its manifest counts
    #[arg(long)]
    verify: bool,
}

/// The document of `--format json`.
#[derive(Serialize)]
struct Document<'a> {
    capture: String,
    bytes: u64,
    #[serde(flatten)]
    manifest: &'a CaptureManifest,
}

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let capture = super::open(&args.capture)?;
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => table(&mut out, &args.capture, &capture)?,
        Format::Json => {
            let document = Document {
                capture: args.capture.display().to_string(),
                bytes: capture.bytes(),
                manifest: capture.manifest(),
            };
            format::write_json(&mut out, &document)?;
        }
    }
    match args.verify {
        true => verify(ctx, &capture),
        false => Ok(Outcome::Done),
    }
}

/// Counts and hashes the events again.
fn verify(ctx: &Context, capture: &Capture) -> anyhow::Result<Outcome> {
    let manifest = capture.manifest();
    let mut found = EventHash::default();
    for event in capture.events() {
        found.add(&event.context("the capture is damaged")?);
    }
    let kinds: Vec<_> = manifest.kinds.iter().map(|(kind, count)| (*kind, *count)).collect();
    let same_hash = match manifest.report["hash"].as_str() {
        Some(hash) => hash == found.to_string(),
        // An older howdah wrote it, or its writer was killed.
        None => true,
    };
    if found.kinds().collect::<Vec<_>>() == kinds && same_hash {
        ctx.say(format_args!("verified: {}, hash {found}", counted(found.events(), "event")));
        return Ok(Outcome::Done);
    }
    ctx.say(format_args!(
        "NOT what the manifest says: {} events, hash {found}; the manifest has {} events, hash {}",
        found.events(),
        manifest.events,
        manifest.report["hash"].as_str().unwrap_or("unknown"),
    ));
    Ok(Outcome::No)
}

fn table(out: &mut impl Write, dir: &Path, capture: &Capture) -> io::Result<()> {
    let manifest = capture.manifest();
    let state = match manifest.finished {
        true => "",
        false => "; NOT FINISHED: the writer was stopped, what it finished is here",
    };
    writeln!(out, "capture   {}", dir.display())?;
    writeln!(out, "written   {} by howdah {}{state}", manifest.created, manifest.howdah)?;
    writeln!(out, "from      {}", origin(manifest))?;
    if let (Some(first), Some(last)) = (manifest.first, manifest.last) {
        writeln!(out, "time      {first} to {last} ({:.1?})", last.saturating_since(first))?;
    }
    let size = HumanBytes(capture.bytes());
    writeln!(out, "events    {}, {size}", manifest.events)?;
    if let Some(sessions) = manifest.report["sessions"].as_u64() {
        writeln!(out, "sessions  {sessions}")?;
    }
    if let Some(hash) = manifest.report["hash"].as_str() {
        writeln!(out, "hash      {hash}")?;
    }
    if !manifest.report["redacted"].is_null() {
        writeln!(out, "values    redacted")?;
    }
    for (kind, count) in &manifest.kinds {
        writeln!(out, "  {kind:<10} {count:>10}")?;
    }
    report::lines(&manifest.report).iter().try_for_each(|line| writeln!(out, "{line}"))
}

fn origin(manifest: &CaptureManifest) -> String {
    let origin = &manifest.origin;
    let mut text = origin.files.join(", ");
    for (name, value) in
        [("", &origin.format), ("prefix ", &origin.prefix), ("zone ", &origin.timezone)]
    {
        if let Some(value) = value {
            text = format!("{text}; {name}{value}");
        }
    }
    for (database, encoding) in &origin.encodings {
        let of = if database.is_empty() { "databases" } else { database };
        text = format!("{text}; {of} in {encoding}");
    }
    text
}

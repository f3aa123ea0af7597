//! `howdah capture info`: describes a capture.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use howdah_dataset::{Capture, CaptureManifest, CapturePart};
use howdah_report::counted;
use howdah_traffic::EventHash;
use indicatif::HumanBytes;
use serde::Serialize;

use super::report;
use crate::{
    context::CommandContext,
    format::{self, Format},
    outcome::CommandOutcome,
    values::dataset_path,
};

/// Show what a capture contains: its origin, time range and events.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder of the capture
    #[arg(value_name = "CAPTURE", value_parser = dataset_path())]
    capture: PathBuf,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Read all events, and fail if they do not match the manifest
    #[arg(long)]
    verify: bool,
}

/// The document of `--format json`.
#[derive(Serialize)]
struct CaptureInfoDocument<'a> {
    capture: String,
    bytes: u64,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    parts: &'a [CapturePart],
    #[serde(flatten)]
    manifest: &'a CaptureManifest,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let capture = super::open(&args.capture)?;
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => table(&mut out, &args.capture, &capture)?,
        Format::Json => {
            let document = CaptureInfoDocument {
                capture: args.capture.display().to_string(),
                bytes: capture.bytes(),
                parts: capture.parts(),
                manifest: capture.manifest(),
            };
            format::write_json(&mut out, &document)?;
        }
    }
    if args.verify { verify(ctx, &capture) } else { Ok(CommandOutcome::Done) }
}

/// Counts and hashes the events and compares them with the manifest.
fn verify(ctx: &CommandContext, capture: &Capture) -> anyhow::Result<CommandOutcome> {
    let manifest = capture.manifest();
    let mut found = EventHash::default();
    for event in capture.events() {
        found.add(&*event.context("cannot read the events")?);
    }
    let kinds: Vec<_> = manifest.kinds.iter().map(|(kind, count)| (*kind, *count)).collect();
    let same_hash = match manifest.report["hash"].as_str() {
        Some(hash) => hash == found.to_string(),
        // Written by an older howdah, or the writer was killed.
        None => true,
    };
    if found.kinds().collect::<Vec<_>>() == kinds && same_hash {
        ctx.report(format_args!("verified: {}, hash {found}", counted(found.events(), "event")));
        return Ok(CommandOutcome::Done);
    }
    ctx.report(format_args!(
        "MISMATCH with the manifest: {} events, hash {found}; the manifest has {} events, hash {}",
        found.events(),
        manifest.events,
        manifest.report["hash"].as_str().unwrap_or("unknown"),
    ));
    Ok(CommandOutcome::CheckFailed)
}

fn table(out: &mut impl Write, dir: &Path, capture: &Capture) -> io::Result<()> {
    let manifest = capture.manifest();
    let state = if manifest.finished { "" } else { "; INCOMPLETE: later events are missing" };
    writeln!(out, "capture   {}", dir.display())?;
    writeln!(out, "written   {} by howdah {}{state}", manifest.created, manifest.howdah)?;
    writeln!(out, "from      {}", origin(manifest))?;
    if let Some(server) = &manifest.origin.server {
        writeln!(out, "server    {server}")?;
        if let (Some(lsn), Some(time)) = (&server.lsn, server.time) {
            writeln!(out, "start     LSN {lsn}, {time}")?;
        }
    }
    if let (Some(first), Some(last)) = (manifest.first, manifest.last) {
        writeln!(out, "time      {first} to {last} ({:.1?})", last.saturating_since(first))?;
    }
    for group in capture.parts().chunk_by(|a, b| a.importer == b.importer) {
        writeln!(
            out,
            "part      {}, {}",
            group[0].importer,
            counted(group[0].buckets.into(), "bucket")
        )?;
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

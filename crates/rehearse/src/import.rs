//! Imports the logs of a rehearsal into a capture.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use howdah_dataset::{Capture, CaptureOrigin, CaptureSettings, CaptureWriter};
use howdah_logs::{ImportOptions, ReadFilesError, visit_files};

use crate::error::RehearsalError;

/// Imports logs into a capture in `dir` and returns it. A finished capture in `dir` is returned
/// instead, unless `again` is set.
pub(crate) fn import(
    files: &[PathBuf],
    options: &ImportOptions,
    dir: &Path,
    again: bool,
    stop: &AtomicBool,
) -> Result<Capture, RehearsalError> {
    let made = Capture::open(dir).ok().filter(|capture| capture.manifest().finished && !again);
    if let Some(capture) = made {
        return Ok(capture);
    }
    let origin = CaptureOrigin {
        files: files.iter().map(|file| file.display().to_string()).collect(),
        format: options.format.map(|format| format.as_str().to_owned()),
        prefix: options.prefix.clone(),
        timezone: options.timezone.clone(),
        ..CaptureOrigin::default()
    };
    let mut writer = CaptureWriter::create(dir, CaptureSettings { origin, overwrite: true })?;
    let progress = |_| {
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let sink = |event: &howdah_traffic::EventRef<'_>| {
        // An event that is too large for a capture could not be replayed either.
        if CaptureWriter::accepts(event) { writer.write_ref(event) } else { Ok(()) }
    };
    let summary =
        visit_files(files, options.clone(), progress, sink).map_err(|error| match error {
            ReadFilesError::Stopped => RehearsalError::Interrupted,
            ReadFilesError::Sink(error) => error.into(),
            error => RehearsalError::Import(Box::new(error)),
        })?;
    let report = serde_json::json!({
        "records": summary.records,
        "rejected": summary.rejected(),
        "completeness": summary.completeness(),
    });
    writer.finish(report)?;
    Capture::open(dir).map_err(RehearsalError::Capture)
}

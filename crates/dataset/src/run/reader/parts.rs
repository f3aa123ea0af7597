//! Opens a run that consists of the parts of several workers.

use std::path::Path;

use serde_json::{Value, json};

use super::ReplayRun;
use crate::{
    error::{Corruption, ReadError},
    kind::DatasetKind,
    manifest::{RunManifest, RunPart},
    part::{self, map_parallel},
};

/// Opens the run in a folder; `None` if it has no parts.
pub(super) fn open(dir: &Path) -> Result<Option<ReplayRun>, ReadError> {
    let failed = |source| ReadError::Io { path: dir.to_owned(), source };
    let workers = part::run_parts(dir).map_err(failed)?;
    if workers.is_empty() {
        return Ok(None);
    }
    let mut runs = map_parallel(dir, &workers, |worker| {
        let folder = dir.join(part::worker_folder_name(*worker));
        let run = ReplayRun::open_single(&folder)?;
        if run.manifest.part.is_none() {
            let path = folder.join(DatasetKind::Run.manifest_name());
            let source = Corruption::MissingKey { key: "part".to_owned() };
            return Err(ReadError::Damaged { path, source });
        }
        Ok(run)
    })?;
    let parts: Vec<RunPart> = runs.iter().filter_map(|run| run.manifest.part.clone()).collect();
    check_run(dir, &parts)?;
    let count = parts.first().map_or(0, |part| part.workers);
    let missing_workers: Vec<u32> =
        (0..count).filter(|worker| parts.iter().all(|part| part.worker != *worker)).collect();
    let mut manifest = sum(runs.iter().map(|run| &run.manifest));
    manifest.finished &= missing_workers.is_empty();
    manifest.complete &= missing_workers.is_empty();
    let outcomes = runs.iter_mut().flat_map(|run| std::mem::take(&mut run.outcomes)).collect();
    let statements = runs.iter_mut().flat_map(|run| std::mem::take(&mut run.statements)).collect();
    let folders = runs.into_iter().flat_map(|run| run.folders).collect();
    Ok(Some(ReplayRun { folders, manifest, outcomes, statements, parts, missing_workers }))
}

/// Checks that all parts are of one run.
fn check_run(dir: &Path, parts: &[RunPart]) -> Result<(), ReadError> {
    let Some(first) = parts.first() else { return Ok(()) };
    let name = |part: &RunPart| format!("run {} of {} workers", part.run_id, part.workers);
    let other =
        parts.iter().find(|part| (&part.run_id, part.workers) != (&first.run_id, first.workers));
    match other {
        Some(other) => Err(ReadError::Parts {
            dir: dir.to_owned(),
            reason: format!("they are of {} and of {}", name(first), name(other)),
        }),
        None => Ok(()),
    }
}

/// Returns the sum of the manifests of parts. The summary has only what can be added.
fn sum<'a>(mut parts: impl Iterator<Item = &'a RunManifest>) -> RunManifest {
    let mut sum = parts.next().expect("there is a part").clone();
    let mut summaries = vec![std::mem::take(&mut sum.summary)];
    for part in parts {
        sum.started = sum.started.min(part.started);
        sum.outcomes += part.outcomes;
        sum.done += part.done;
        sum.failed += part.failed;
        sum.skipped += part.skipped;
        sum.dropped += part.dropped;
        sum.statements += part.statements;
        sum.files += part.files;
        sum.statement_files += part.statement_files;
        sum.finished &= part.finished;
        sum.complete &= part.complete;
        summaries.push(part.summary.clone());
    }
    let mut typed: Vec<Value> = Vec::new();
    let statements = |summary: &Value| summary["types_deduced"]["statements"].as_array().cloned();
    for statement in summaries.iter().filter_map(statements).flatten() {
        if !typed.contains(&statement) {
            typed.push(statement);
        }
    }
    sum.part = None;
    sum.summary = json!({ "types_deduced": { "statements": typed }, "workers": summaries });
    sum
}

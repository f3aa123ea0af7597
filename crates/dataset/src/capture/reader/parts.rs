//! Opens a capture that consists of parts.

use std::path::Path;

use serde_json::{Value, json};

use super::{Capture, EventFile};
use crate::{
    capture::origin::MergedOrigin,
    error::{Corruption, ReadError},
    kind::DatasetKind,
    manifest::CaptureManifest,
    part::{self, CapturePart, map_parallel},
};

/// Number of parts above which local files are not kept open while they are read.
const OPEN_PARTS_MAX: usize = 16;

/// Opens the capture in a folder; `None` if it has no parts.
pub(super) fn open(dir: &Path) -> Result<Option<Capture>, ReadError> {
    let failed = |source| ReadError::Io { path: dir.to_owned(), source };
    let parts = part::capture_parts(dir).map_err(failed)?;
    let Some(first) = parts.first() else { return Ok(None) };
    check_buckets(dir, &parts)?;
    let captures =
        map_parallel(dir, &parts, |part| Capture::open_single(&dir.join(part.folder_name())))?;
    let mut importers: Vec<(&str, CaptureManifest)> = Vec::new();
    let mut importer = first.importer.as_str();
    let (mut files, mut bytes) = (Vec::new(), 0);
    for ((number, part), capture) in (0..).zip(&parts).zip(captures) {
        match importers.last_mut() {
            Some((_, sum)) if part.importer == importer => sum.add_part(&capture.manifest),
            _ => importers.push((&part.importer, capture.manifest)),
        }
        importer = &part.importer;
        let in_memory = parts.len() > OPEN_PARTS_MAX;
        files.extend(capture.files.into_iter().map(|file| EventFile {
            part: number,
            in_memory,
            ..file
        }));
        bytes += capture.bytes;
    }
    let manifest =
        merge(importers).map_err(|reason| ReadError::Parts { dir: dir.to_owned(), reason })?;
    Ok(Some(Capture { manifest, files, bytes, parts }))
}

/// Checks that every importer has a part for each bucket.
fn check_buckets(dir: &Path, parts: &[CapturePart]) -> Result<(), ReadError> {
    for group in parts.chunk_by(|a, b| a.importer == b.importer) {
        let (importer, buckets) = (&group[0].importer, group[0].buckets);
        if group.iter().any(|part| part.buckets != buckets) {
            let reason = format!(
                "importer {importer} has parts of different numbers of buckets: import with \
                 --part {importer} again"
            );
            return Err(ReadError::Parts { dir: dir.to_owned(), reason });
        }
        let missing = (0..buckets).find(|bucket| group.iter().all(|part| part.bucket != *bucket));
        if let Some(bucket) = missing {
            let part = CapturePart { importer: importer.clone(), bucket, buckets };
            let path = dir.join(part.folder_name()).join(DatasetKind::Capture.manifest_name());
            return Err(ReadError::Damaged { path, source: Corruption::MissingPart });
        }
    }
    Ok(())
}

/// Returns the sum of the manifests of all importers, with their reports and their hash.
fn merge(importers: Vec<(&str, CaptureManifest)>) -> Result<CaptureManifest, String> {
    let mut origin = MergedOrigin::default();
    let mut reports = Vec::new();
    let mut hash = Some(0_u128);
    let is_one = importers.len() == 1;
    for (name, manifest) in &importers {
        origin.add(manifest).map_err(|error| format!("importer {name}: {error}"))?;
        let own = manifest.report["hash"].as_str();
        let own = own.and_then(|hash| u128::from_str_radix(hash, 16).ok());
        // Hashes of disjoint sets of events are added.
        hash = hash.zip(own).map(|(sum, own)| sum.wrapping_add(own));
        reports.push(json!({ "capture": format!("part {name}"), "report": manifest.report }));
    }
    let mut importers = importers.into_iter().map(|(_, manifest)| manifest);
    let mut sum = importers.next().ok_or("there are none")?;
    for manifest in importers {
        sum.add_part(&manifest);
    }
    sum.part = None;
    if !is_one {
        sum.origin = origin.origin().clone();
        sum.report = json!({ "merged": reports });
        if let Some(hash) = hash {
            sum.report["hash"] = Value::from(format!("{hash:032x}"));
        }
    }
    Ok(sum)
}

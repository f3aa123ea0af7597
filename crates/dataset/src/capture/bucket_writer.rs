//! [`BucketWriter`]: writes a capture, or an importer's parts of one.

use std::path::Path;

use howdah_traffic::EventRef;
use serde_json::Value;

use super::{CaptureSettings, CaptureWriter};
use crate::{
    buffer::BufferLimits,
    error::WriteError,
    folder::Folder,
    kind::DatasetKind,
    manifest::{CaptureManifest, CaptureOrigin},
    part::{self, CapturePart},
    storage::{self, Uploads},
};

/// The parts that an importer writes of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportPart {
    /// The importer's name; see [`CapturePart::is_valid_name`]. An importer replaces the parts of
    /// an earlier one of the same name.
    pub importer: String,
    /// Number of parts over which the sessions are distributed.
    pub buckets: u32,
}

/// Writes a capture, or an importer's parts of one: a part for each bucket of sessions. Other
/// importers may write their parts of the same capture at the same time.
#[derive(Debug)]
pub struct BucketWriter {
    /// One for each bucket; a capture that does not consist of parts has one bucket.
    buckets: Vec<CaptureWriter>,
}

/// Maximum bytes of text that all buckets buffer, unless each has only [`BUCKET_BYTES_MIN`].
const BUFFER_BYTES: usize = 128 << 20;
const BUCKET_BYTES_MIN: usize = 1 << 20;

/// Maximum number of rows that all buckets buffer, unless each has only [`BUCKET_ROWS_MIN`].
const BUFFER_ROWS: usize = 256 << 10;
const BUCKET_ROWS_MIN: usize = 4 << 10;

impl BucketWriter {
    /// Starts a capture in `dir`, or the parts of one. The parts of an earlier importer of the same
    /// name are replaced, whatever the settings say.
    ///
    /// # Errors
    ///
    /// The folder contains something that may not be replaced, or cannot be written.
    pub fn create(
        dir: &Path,
        settings: CaptureSettings,
        part: Option<&ImportPart>,
    ) -> Result<Self, WriteError> {
        match part {
            None => Ok(Self { buckets: vec![CaptureWriter::create(dir, settings)?] }),
            Some(part) => Self::create_parts(dir, &settings, part),
        }
    }

    fn create_parts(
        dir: &Path,
        settings: &CaptureSettings,
        part: &ImportPart,
    ) -> Result<Self, WriteError> {
        let kind = DatasetKind::Capture;
        let failed = |source| WriteError::from_io(dir.to_owned(), 0, source);
        check_folder(dir)?;
        let is_store = storage::is_store_url(dir);
        let uploads = is_store.then(Uploads::start).transpose().map_err(failed)?;
        let importer = &part.importer;
        // Those of other numbers of buckets would be read as well.
        for old in part::capture_parts(dir).map_err(failed)? {
            if old.importer == *importer && old.buckets != part.buckets {
                Folder::remove(&dir.join(old.folder_name()), kind)?;
            }
        }
        let count = part.buckets as usize;
        let bytes = (BUFFER_BYTES / count).max(BUCKET_BYTES_MIN);
        let rows = (BUFFER_ROWS / count).max(BUCKET_ROWS_MIN);
        let mut buckets: Vec<CaptureWriter> = Vec::with_capacity(count);
        for bucket in 0..part.buckets {
            let part = CapturePart { importer: importer.clone(), bucket, buckets: part.buckets };
            let folder = dir.join(part.folder_name());
            let folder = Folder::create_with_uploads(&folder, kind, true, uploads.clone())?;
            let mut manifest = CaptureManifest::new(settings.origin.clone());
            manifest.part = Some(part);
            let mut writer =
                CaptureWriter::in_folder(folder, manifest, BufferLimits::for_dir(dir))?;
            writer.limit_buffer(bytes, rows);
            buckets.push(writer);
        }
        if let Some(uploads) = uploads {
            uploads.wait().map_err(failed)?;
        }
        Ok(Self { buckets })
    }

    /// Adds an event.
    ///
    /// # Errors
    ///
    /// See [`CaptureWriter::write`].
    pub fn write_ref(&mut self, event: &EventRef<'_>) -> Result<(), WriteError> {
        let count = self.buckets.len() as u64;
        let bucket = match count {
            1 => 0,
            // The remainder is less than the number of buckets.
            _ => (event.identity.session_hash() % count) as usize,
        };
        self.buckets[bucket].write_ref(event)
    }

    /// Saves buffered events that are old enough; see [`CaptureWriter::save_if_due`].
    ///
    /// # Errors
    ///
    /// A file could not be written; the events are still buffered.
    pub fn save_if_due(&mut self) -> Result<(), WriteError> {
        self.buckets.iter_mut().try_for_each(CaptureWriter::save_if_due)
    }

    /// Sets the origin of the events once it is known.
    pub fn set_origin(&mut self, origin: &CaptureOrigin) {
        self.buckets.iter_mut().for_each(|writer| writer.set_origin(origin.clone()));
    }

    /// Writes the buffered events and the manifests. Returns the manifest of the capture, or of the
    /// importer's parts as if they were one capture. `report` is the producer's information about
    /// the events; every part has it.
    ///
    /// # Errors
    ///
    /// The files could not be written. Earlier files stay readable.
    pub fn finish(self, report: &Value) -> Result<CaptureManifest, WriteError> {
        self.close(report, true)
    }

    /// Like [`Self::finish`], for a capture that is incomplete; see [`CaptureWriter::stop`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::finish`].
    pub fn stop(self, report: &Value) -> Result<CaptureManifest, WriteError> {
        self.close(report, false)
    }

    fn close(self, report: &Value, finished: bool) -> Result<CaptureManifest, WriteError> {
        let closed: Vec<_> = self
            .buckets
            .into_iter()
            .map(|writer| writer.close(report.clone(), finished))
            .collect::<Result<_, _>>()?;
        let mut manifests = closed.into_iter().map(super::writer::ClosedCapture::wait);
        let mut sum = manifests.next().expect("there is at least one bucket")?;
        for manifest in manifests {
            sum.add_part(&manifest?);
        }
        Ok(sum)
    }
}

/// Checks that a folder can contain parts of a capture.
fn check_folder(dir: &Path) -> Result<(), WriteError> {
    let kind = DatasetKind::Capture;
    let listing = match storage::list(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        listing => listing.map_err(|source| WriteError::from_io(dir.to_owned(), 0, source))?,
    };
    let has = |name: &str| listing.files.iter().any(|file| file == name);
    let dir = dir.to_owned();
    if has(kind.other().manifest_name()) {
        return Err(WriteError::OtherKind { dir, expected: kind, found: kind.other() });
    }
    if has(kind.manifest_name()) {
        return Err(WriteError::NoParts { dir, kind });
    }
    if !listing.files.is_empty() && !listing.folders.iter().any(|name| part::is_part_name(name)) {
        return Err(WriteError::NotEmpty { dir, kind });
    }
    Ok(())
}

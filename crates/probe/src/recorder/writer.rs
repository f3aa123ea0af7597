//! The thread that writes the file, so that a slow or full disk never delays sampling.

use std::{
    io::ErrorKind,
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;

use super::ring::{RecordingFileError, SlotRing};

/// Writes records in a separate thread. Dropping it waits until all queued records are written.
#[derive(Debug)]
pub(super) struct RecordingWriter {
    requests: Option<SyncSender<WriteRequest>>,
    thread: Option<JoinHandle<()>>,
    status: Arc<Mutex<WriterStatus>>,
    body_max: usize,
    max_bytes: u64,
}

/// Losses of the writer since the file was opened, and its current problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WriterStatus {
    /// Number of records that were not written; an episode that the queue had no room for counts as
    /// one.
    pub(super) lost: u64,
    /// The latest problem, unless a later write succeeded.
    pub(super) trouble: Option<String>,
    /// Number of records omitted when episodes were written because their slots were full.
    pub(super) omitted: u64,
}

/// An encoded record. Shared, because a record of an episode is written twice: to the ring and to
/// the episode's slot.
pub(super) type RecordBody = Arc<[u8]>;

/// A request to the writer thread.
enum WriteRequest {
    Append(RecordBody),
    Episode(Vec<RecordBody>),
}

/// Maximum number of queued requests, enough for some minutes. Further ones are lost and counted.
const QUEUE_DEPTH: usize = 1024;

impl RecordingWriter {
    /// Opens the file; also returns the number of the next record.
    pub(super) fn open(
        path: &Path,
        max_bytes: Option<u64>,
        default_bytes: u64,
    ) -> Result<(Self, u64), RecordingFileError> {
        let ring = SlotRing::open(path, max_bytes, default_bytes)?;
        let (next_number, body_max, max_bytes) =
            (ring.next_number(), ring.body_max(), ring.max_bytes());
        let (requests, received) = sync_channel(QUEUE_DEPTH);
        let status = Arc::default();
        let shared = Arc::clone(&status);
        let started = thread::Builder::new()
            .name("recorder-file".to_owned())
            .spawn(move || write(ring, &received, &shared));
        let thread =
            started.map_err(|source| RecordingFileError::Io { path: path.to_owned(), source })?;
        let writer =
            Self { requests: Some(requests), thread: Some(thread), status, body_max, max_bytes };
        Ok((writer, next_number))
    }

    /// Returns the maximum length of a record, in bytes.
    pub(super) fn body_max(&self) -> usize {
        self.body_max
    }

    /// Returns the maximum size of the file, in bytes.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Queues a record for the ring.
    pub(super) fn append(&self, body: RecordBody) {
        self.send(WriteRequest::Append(body));
    }

    /// Queues an episode for its own slot, which the ring does not overwrite.
    pub(super) fn write_episode(&self, bodies: Vec<RecordBody>) {
        self.send(WriteRequest::Episode(bodies));
    }

    pub(super) fn status(&self) -> WriterStatus {
        self.status.lock().clone()
    }

    /// Waits until all queued records are written, and returns the final status.
    pub(super) fn finish(mut self) -> WriterStatus {
        self.close();
        self.status()
    }

    fn close(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread's results are in the file and in `status`.
            let _ = thread.join();
        }
    }

    fn send(&self, request: WriteRequest) {
        let Some(requests) = &self.requests else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            requests.try_send(request)
        {
            let mut status = self.status.lock();
            status.lost += 1;
            status.trouble = Some("the disk is too slow".to_owned());
        }
    }
}

impl Drop for RecordingWriter {
    fn drop(&mut self) {
        self.close();
    }
}

fn write(mut ring: SlotRing, requests: &Receiver<WriteRequest>, status: &Mutex<WriterStatus>) {
    for request in requests {
        let written = match &request {
            WriteRequest::Append(body) => ring.append(body).map(|()| 0),
            WriteRequest::Episode(bodies) => ring.write_episode(bodies),
        };
        let mut status = status.lock();
        match written {
            Ok(left_out) => {
                status.omitted += left_out as u64;
                status.trouble = None;
            }
            Err(error) => {
                status.lost += match &request {
                    WriteRequest::Append(_) => 1,
                    WriteRequest::Episode(bodies) => bodies.len() as u64,
                };
                status.trouble = Some(match error.kind() {
                    ErrorKind::StorageFull => "no space left on the disk".to_owned(),
                    _ => error.to_string(),
                });
            }
        }
    }
    // Protects against a crash of the machine; a killed process would lose nothing anyway.
    if let Err(error) = ring.sync() {
        status.lock().trouble = Some(error.to_string());
    }
}

//! [`Uploads`]: files on their way to an object store.

use std::{
    collections::VecDeque,
    io, mem,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use bytes::Bytes;

/// Uploads files in the background, in the order in which they were added, so that a replay is not
/// held up by a store that is slow, or away for a while.
///
/// Clones share the queue. When the last one is dropped, files that have not been uploaded are
/// discarded, as after a crash.
#[derive(Clone, Debug)]
pub(crate) struct Uploads(Arc<UploadHandle>);

/// Stops the thread when it is dropped.
#[derive(Debug)]
struct UploadHandle {
    queue: Arc<UploadQueue>,
}

#[derive(Debug, Default)]
struct UploadQueue {
    state: Mutex<UploadState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct UploadState {
    /// The files, of which the first is being uploaded, or has failed.
    files: VecDeque<(PathBuf, Bytes)>,
    bytes: usize,
    /// The reason why the first file could not be uploaded. Uploading waits until it is reported.
    error: Option<io::Error>,
    is_closed: bool,
}

/// Maximum bytes of files that wait for their upload.
const QUEUE_BYTES_MAX: usize = 128 << 20;

impl Uploads {
    /// Starts the thread that uploads.
    pub(crate) fn start() -> io::Result<Self> {
        let queue = Arc::new(UploadQueue::default());
        let uploading = Arc::clone(&queue);
        thread::Builder::new().name("uploads".to_owned()).spawn(move || uploading.run())?;
        Ok(Self(Arc::new(UploadHandle { queue })))
    }

    /// Adds a file. Waits if too many bytes are queued.
    ///
    /// # Errors
    ///
    /// An earlier file could not be uploaded; this file was not added. A later call tries to upload
    /// the earlier file again.
    pub(crate) fn add(&self, path: &Path, bytes: Bytes) -> io::Result<()> {
        let has_room = |state: &UploadState| {
            state.files.is_empty() || state.bytes + bytes.len() <= QUEUE_BYTES_MAX
        };
        let mut state = self.0.queue.wait_until(has_room)?;
        state.bytes += bytes.len();
        state.files.push_back((path.to_owned(), bytes));
        self.0.queue.changed.notify_all();
        Ok(())
    }

    /// Waits until all files have been uploaded.
    ///
    /// # Errors
    ///
    /// A file could not be uploaded. A later call tries again.
    pub(crate) fn wait(&self) -> io::Result<()> {
        self.0.queue.wait_until(|state| state.files.is_empty()).map(drop)
    }
}

impl Drop for UploadHandle {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_all();
    }
}

impl UploadQueue {
    fn lock(&self) -> MutexGuard<'_, UploadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, UploadState>) -> MutexGuard<'a, UploadState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a condition, or returns an error that has not been reported yet.
    fn wait_until(
        &self,
        condition: impl Fn(&UploadState) -> bool,
    ) -> io::Result<MutexGuard<'_, UploadState>> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.error.take() {
                self.changed.notify_all();
                return Err(error);
            }
            if condition(&state) {
                return Ok(state);
            }
            state = self.wait(state);
        }
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let next = state.files.front().filter(|_| state.error.is_none()).cloned();
            let Some((path, bytes)) = next else {
                state = self.wait(state);
                continue;
            };
            drop(state);
            let uploaded = super::upload(&path, bytes);
            state = self.lock();
            match uploaded {
                Ok(()) => {
                    let (_, bytes) = state.files.pop_front().unwrap_or_default();
                    state.bytes -= bytes.len();
                }
                Err(error) => state.error = Some(error),
            }
            self.changed.notify_all();
        }
        drop(mem::take(&mut state.files));
    }
}

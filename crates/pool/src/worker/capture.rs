//! Starts and stops captures. A capture has a recorder, and a buffer for each worker.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
};

use howdah_capture::{KeyError, RedactionKey, live::CopyRows};
use howdah_pool_config::{CaptureConfig, CopyCapture};
use howdah_pool_core::PoolId;
use howdah_traffic::Timestamp;
use parking_lot::Mutex;

use super::{
    captured_server::{self, ServerFinder},
    control::PoolerHandle,
    messages::WorkerMessage,
    shared_state::SharedState,
};
use crate::recorder::{CaptureRecorder, CaptureStartError, RecorderSettings, RecorderStatus};

/// The running capture of the pooler, or the last one. Only one runs at a time.
#[derive(Debug, Default)]
pub(super) struct Captures(Mutex<CaptureState>);

#[derive(Debug, Default)]
struct CaptureState {
    /// The recorder of the running capture, or of the last one.
    recorder: Option<Arc<CaptureRecorder>>,
    /// Number of captures that the pooler has tried to start; also the number of the last one.
    started: u32,
}

/// The reason why a capture could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// `capture.path` is not set.
    #[error("there is no folder for captures: set capture.path")]
    NoPath,
    /// The requested name is empty, begins with a period, or contains a character that is not
    /// allowed.
    #[error(
        "{name:?} is not a valid capture name: use letters, digits, '-', '_' and '.', and do not begin with '.'"
    )]
    Name {
        /// The requested name.
        name: String,
    },
    /// A capture is already running.
    #[error("a capture is already running in {}", path.display())]
    AlreadyRunning {
        /// The folder of the running capture.
        path: PathBuf,
    },
    /// No capture is running.
    #[error("no capture is running")]
    NotRunning,
    /// The redaction key file cannot be read.
    #[error("cannot read the redaction key file {}", path.display())]
    KeyFile {
        /// The path of the key file.
        path: PathBuf,
        /// The error of opening or reading the file.
        #[source]
        source: std::io::Error,
    },
    /// The redaction key is invalid, or no random bytes are available for one.
    #[error("cannot set up the redaction of captured values")]
    Key(#[from] KeyError),
    /// The folder cannot be used, or the recorder's thread cannot be started.
    #[error(transparent)]
    Start(#[from] CaptureStartError),
}

impl Captures {
    fn current(&self) -> parking_lot::MutexGuard<'_, CaptureState> {
        self.0.lock()
    }

    /// Stops the running capture, if any, and waits until it is written. Called after the workers
    /// have ended.
    pub(super) fn finish(&self) {
        let recorder = self.current().recorder.clone();
        if let Some(recorder) = recorder.filter(|recorder| !recorder.status().is_finished) {
            recorder.stop();
        }
    }
}

impl PoolerHandle {
    /// Starts a capture of client traffic in a folder below `capture.path`, which is named `name`
    /// or after the current time. Waits at most 10 s until all workers record, and returns the path
    /// of the folder.
    ///
    /// # Errors
    ///
    /// [`CaptureError`]. No capture is started then.
    pub fn start_capture(&self, name: Option<&str>) -> Result<PathBuf, CaptureError> {
        let config = self.config();
        let path = capture_path(&config.capture, name)?;
        // The position of the server must precede what is captured.
        let mut finder = ServerFinder::default();
        if self.capture().is_none_or(|status| status.is_finished) {
            finder.search(&self.shared, captured_server::START_TIMEOUT);
        }
        let mut current = self.shared.captures.current();
        if let Some(recorder) = &current.recorder
            && !recorder.status().is_finished
        {
            return Err(CaptureError::AlreadyRunning { path: recorder.path().to_owned() });
        }
        current.started += 1;
        let workers = self.mailboxes.len();
        let settings = recorder_settings(
            &config.capture,
            path.clone(),
            workers,
            current.started,
            &self.shared,
        )?;
        let shared = Arc::clone(&self.shared);
        let names_of = move |pool: u32| {
            let entry = shared.directory.by_id(PoolId(pool))?;
            let login = &entry.settings.login;
            Some((login.user.as_str().into(), login.database.as_str().into()))
        };
        let (recorder, buffers) = CaptureRecorder::start(settings, Box::new(names_of))?;
        let recorder = Arc::new(recorder);
        recorder.set_server(finder.server());
        current.recorder = Some(Arc::clone(&recorder));
        let (to, done) = mpsc::channel();
        for (mailbox, buffer) in self.mailboxes.iter().zip(buffers) {
            mailbox
                .send(WorkerMessage::StartRecording { buffer: Box::new(buffer), done: to.clone() });
        }
        drop((current, to));
        self.wait_for_all(&done);
        tracing::info!(path = %path.display(), "capture started");
        let shared = Arc::clone(&self.shared);
        let find = move || finder.run(&shared, &recorder);
        if let Err(error) = thread::Builder::new().name("captured-server".to_owned()).spawn(find) {
            tracing::warn!(%error, "cannot start the thread that finds the captured server");
        }
        Ok(path)
    }

    /// Stops the capture and waits until it is written.
    ///
    /// # Errors
    ///
    /// [`CaptureError::NotRunning`] if no capture is running.
    pub fn stop_capture(&self) -> Result<RecorderStatus, CaptureError> {
        let recorder = self.shared.captures.current().recorder.clone();
        let recorder = recorder.filter(|recorder| !recorder.status().is_finished);
        let recorder = recorder.ok_or(CaptureError::NotRunning)?;
        self.broadcast(|| WorkerMessage::StopRecording);
        let status = recorder.stop();
        let RecorderStatus { path, tally, .. } = &status;
        tracing::info!(path = %path.display(), events = tally.events, "capture stopped");
        Ok(status)
    }

    /// Returns the status of the running capture, or of the last one; `None` if there was none.
    pub fn capture(&self) -> Option<RecorderStatus> {
        let recorder = self.shared.captures.current().recorder.clone();
        recorder.map(|recorder| recorder.status())
    }
}

/// Returns the folder for a new capture.
fn capture_path(capture: &CaptureConfig, name: Option<&str>) -> Result<PathBuf, CaptureError> {
    let folder: &Path = capture.path.as_deref().ok_or(CaptureError::NoPath)?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => {
            let digits = |character: char| character.is_ascii_digit() || character == 'T';
            let now = Timestamp::now().to_string();
            let now: String = now.chars().filter(|character| digits(*character)).take(18).collect();
            format!("capture-{now}")
        }
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_plain) {
        return Err(CaptureError::Name { name });
    }
    Ok(folder.join(name))
}

fn recorder_settings(
    capture: &CaptureConfig,
    path: PathBuf,
    workers: usize,
    number: u32,
    shared: &SharedState,
) -> Result<RecorderSettings, CaptureError> {
    let redaction = match (&capture.redact_key, capture.redact) {
        (_, false) => None,
        (None, true) => Some(RedactionKey::random()?),
        (Some(path), true) => {
            let cannot_read = |source| CaptureError::KeyFile { path: path.clone(), source };
            Some(RedactionKey::from_secret(&fs::read(path).map_err(cannot_read)?)?)
        }
    };
    let since = i64::try_from(shared.started_at.elapsed().as_micros()).unwrap_or(0);
    Ok(RecorderSettings {
        path,
        copy: match capture.copy {
            CopyCapture::Full => CopyRows::Full { bytes_max: capture.copy_bytes_max as usize },
            CopyCapture::Length => CopyRows::Length,
            CopyCapture::Off => CopyRows::Off,
        },
        results: capture.results,
        redaction,
        buffer_bytes: capture.buffer_bytes as usize / workers.max(1),
        file_bytes: capture.file_bytes as usize,
        file_time: capture.file_time,
        workers,
        capture_number: number,
        clock_origin: Timestamp::from_micros(Timestamp::now().as_micros().saturating_sub(since)),
        origin: format!("howdah pool, process {}", std::process::id()),
    })
}

//! Beginning and ending captures: a recorder, and a tape for each worker.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, mpsc},
};

use howdah_record::{BeginError, CopyRows, Recorder, Settings, Status};
use howdah_sift::{KeyError, RedactionKey};
use howdah_traffic::Timestamp;

use super::{control::Control, front::Front, mail::WorkerMessage};
use crate::{
    PoolId,
    config::{Capture, CopyCapture},
};

/// Captures of this process: one at a time.
#[derive(Debug, Default)]
pub(super) struct Captures(Mutex<Current>);

#[derive(Debug, Default)]
struct Current {
    /// The one under way, or the last.
    recorder: Option<Arc<Recorder>>,
    /// How many were begun.
    begun: u32,
}

/// A capture does not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no folder for it.
    #[error("there is no folder for captures: set capture.path")]
    NoPath,
    /// Its name is none for a folder.
    #[error("{name:?} is no name for a capture: use letters, digits, '-', '_' and '.'")]
    Name {
        /// The name.
        name: String,
    },
    /// One is under way.
    #[error("a capture is under way in {}", path.display())]
    UnderWay {
        /// Where.
        path: PathBuf,
    },
    /// There is none to be ended.
    #[error("no capture is under way")]
    None,
    /// The key of redaction.
    #[error("cannot read the key of redaction {}", path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What is in that file, or nothing random to be had.
    #[error("no key of redaction")]
    Key(#[from] KeyError),
    /// The folder cannot be written.
    #[error(transparent)]
    Begin(#[from] BeginError),
}

impl Captures {
    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the capture under way is written, after the workers have ended.
    pub(super) fn end(&self) {
        let recorder = self.current().recorder.clone();
        if let Some(recorder) = recorder.filter(|recorder| !recorder.status().is_over) {
            recorder.end();
        }
    }
}

impl Control {
    /// Begins a capture of clients' traffic, in a folder of this name below `capture.path`, or of one
    /// that tells the time. Gives where it is, once every worker records.
    ///
    /// # Errors
    ///
    /// [`CaptureError`]; nothing is captured.
    pub fn start_capture(&self, name: Option<&str>) -> Result<PathBuf, CaptureError> {
        let config = self.config();
        let mut current = self.front.captures.current();
        if let Some(recorder) = &current.recorder
            && !recorder.status().is_over
        {
            return Err(CaptureError::UnderWay { path: recorder.path().to_owned() });
        }
        let path = place(&config.capture, name)?;
        current.begun += 1;
        let workers = self.mailboxes.len();
        let settings =
            settings(&config.capture, path.clone(), workers, current.begun, &self.front)?;
        let front = Arc::clone(&self.front);
        let who_is = move |pool: u32| {
            let entry = front.directory.by_id(PoolId(pool))?;
            let login = &entry.settings.login;
            Some((login.user.as_str().into(), login.database.as_str().into()))
        };
        let (recorder, tapes) = Recorder::begin(settings, Box::new(who_is))?;
        current.recorder = Some(Arc::new(recorder));
        let (to, done) = mpsc::channel();
        for (mailbox, tape) in self.mailboxes.iter().zip(tapes) {
            mailbox.send(WorkerMessage::Record { tape: Box::new(tape), done: to.clone() });
        }
        drop((current, to));
        self.wait_for_all(&done);
        tracing::info!(path = %path.display(), "capturing traffic");
        Ok(path)
    }

    /// Ends the capture, and waits until it is written.
    ///
    /// # Errors
    ///
    /// [`CaptureError::None`].
    pub fn stop_capture(&self) -> Result<Status, CaptureError> {
        let recorder = self.front.captures.current().recorder.clone();
        let recorder = recorder.filter(|recorder| !recorder.status().is_over);
        let recorder = recorder.ok_or(CaptureError::None)?;
        self.tell(|| WorkerMessage::StopRecording);
        let status = recorder.end();
        let Status { path, tally, .. } = &status;
        tracing::info!(path = %path.display(), events = tally.events, "captured traffic");
        Ok(status)
    }

    /// How the capture under way is, or the last.
    pub fn capture(&self) -> Option<Status> {
        let recorder = self.front.captures.current().recorder.clone();
        recorder.map(|recorder| recorder.status())
    }
}

/// Where a capture is put.
fn place(capture: &Capture, name: Option<&str>) -> Result<PathBuf, CaptureError> {
    let folder: &Path = capture.path.as_deref().ok_or(CaptureError::NoPath)?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => {
            let digits = |letter: char| letter.is_ascii_digit() || letter == 'T';
            let now = Timestamp::now().to_string();
            let now: String = now.chars().filter(|letter| digits(*letter)).take(18).collect();
            format!("capture-{now}")
        }
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.starts_with('.') || !name.bytes().all(is_plain) {
        return Err(CaptureError::Name { name });
    }
    Ok(folder.join(name))
}

fn settings(
    capture: &Capture,
    path: PathBuf,
    workers: usize,
    number: u32,
    front: &Front,
) -> Result<Settings, CaptureError> {
    let redaction = match (&capture.redact_key, capture.redact) {
        (_, false) => None,
        (None, true) => Some(RedactionKey::random()?),
        (Some(path), true) => {
            let failed = |source| CaptureError::KeyFile { path: path.clone(), source };
            Some(RedactionKey::from_secret(&fs::read(path).map_err(failed)?)?)
        }
    };
    let since = i64::try_from(front.began.elapsed().as_micros()).unwrap_or(0);
    Ok(Settings {
        path,
        copy: match capture.copy {
            CopyCapture::Full => CopyRows::Full { bytes_max: capture.copy_bytes_max as usize },
            CopyCapture::Length => CopyRows::Length,
            CopyCapture::Off => CopyRows::Off,
        },
        redaction,
        buffer_bytes: capture.buffer_bytes as usize / workers.max(1),
        file_bytes: capture.file_bytes as usize,
        file_time: capture.file_time,
        workers,
        number,
        zero: Timestamp::from_micros(Timestamp::now().as_micros().saturating_sub(since)),
        origin: format!("howdah pool, process {}", std::process::id()),
    })
}

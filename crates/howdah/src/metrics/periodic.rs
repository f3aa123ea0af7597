//! A thread that sends metrics at intervals, and once more at the end.

use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// The usual flush interval of statsd servers.
const INTERVAL: Duration = Duration::from_secs(10);

/// The thread that sends metrics every [`INTERVAL`] until this handle is dropped, and then once
/// more.
#[derive(Debug)]
pub(super) struct PeriodicSender {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PeriodicSender {
    /// Starts a thread of this name that calls `send`.
    pub(super) fn start(name: &str, mut send: impl FnMut() + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            loop {
                let is_end = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
                send();
                if is_end {
                    return;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for PeriodicSender {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Errors of the thread were already logged there.
            let _ = thread.join();
        }
    }
}

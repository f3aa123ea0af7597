//! [`Helpers`]: threads beside the data path, for the heavy steps of logins.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use super::{
    entrance::Entrance,
    front::Front,
    mail::{Mail, Mailbox},
};

/// Threads for TLS handshakes, SCRAM and look-ups.
#[derive(Clone, Debug)]
pub(super) struct Helpers {
    jobs: Sender<Job>,
}

/// A step to take, and where to report.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) entrance: Box<Entrance>,
    pub(super) seat: usize,
    pub(super) generation: u32,
    pub(super) back: Arc<Mailbox>,
}

/// A look-up may block for seconds; others are to go on meanwhile.
const THREADS: usize = 4;

impl Helpers {
    /// Starts the threads; they end when the last handle is gone.
    ///
    /// # Errors
    ///
    /// The system gives no more threads.
    pub(super) fn start(front: &Arc<Front>) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..THREADS {
            let (queue, front) = (Arc::clone(&queue), Arc::clone(front));
            thread::Builder::new()
                .name(format!("login-{number}"))
                .spawn(move || help(&queue, &front))?;
        }
        Ok(Self { jobs })
    }

    /// Has a heavy step taken. As many may wait as there are logins under way.
    pub(super) fn submit(&self, job: Job) {
        // The threads live as long as any handle does.
        let _ = self.jobs.send(job);
    }
}

fn help(queue: &Mutex<Receiver<Job>>, front: &Front) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { mut entrance, seat, generation, back }) = job else { return };
        let progress = entrance.advance(front, true);
        back.send(Mail::Helped { entrance, progress, seat, generation });
    }
}

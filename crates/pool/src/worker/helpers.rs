//! [`Helpers`]: threads beside the data path, for the heavy steps of logins. Steps that may wait for somebody
//! else, a server or a resolver, have threads of their own: they must not hold up those that only compute.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use super::{
    entrance::PendingLogin,
    front::Front,
    lookup,
    mail::{Mailbox, WorkerMessage},
    resolve::Resolver,
};

/// Threads for TLS handshakes, SCRAM and look-ups.
#[derive(Clone, Debug)]
pub(super) struct Helpers {
    heavy: Sender<Job>,
    lookups: Sender<Job>,
    resolver: Resolver,
}

/// A step to take, and where to report.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) entrance: Box<PendingLogin>,
    pub(super) seat: usize,
    pub(super) generation: u32,
    pub(super) back: Arc<Mailbox>,
}

/// What kind of step it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// It takes processor time.
    Heavy,
    /// It waits for a server's answer. These have threads of their own: the server connection that
    /// brings the answer may itself need a helper to be logged in.
    LookUp,
    /// It waits for the system's resolver.
    Resolve,
}

/// Of each kind; a step may block for seconds, and others are to go on meanwhile.
const THREADS: usize = 4;

impl Helpers {
    /// Starts the threads; they end when the last handle is gone.
    ///
    /// # Errors
    ///
    /// The system gives no more threads.
    pub(super) fn start(front: &Arc<Front>) -> std::io::Result<Self> {
        let heavy = start("login", front, |job, front| job.entrance.advance(front, true))?;
        let lookups = start("lookup", front, |Job { entrance, back, .. }, front| {
            entrance.look_up(|asked| lookup::find(&asked, back, front));
            entrance.advance(front, true)
        })?;
        Ok(Self { heavy, lookups, resolver: Resolver::start(front)? })
    }

    /// Has a step taken. As many may wait as there are logins under way.
    pub(super) fn submit(&self, errand: Errand, job: Job) {
        let queue = match errand {
            Errand::Heavy => &self.heavy,
            Errand::LookUp => &self.lookups,
            Errand::Resolve => return self.resolver.submit(job),
        };
        // The threads live as long as any handle does.
        let _ = queue.send(job);
    }
}

type Step = fn(&mut Job, &Front) -> super::entrance::Progress;

fn start(name: &str, front: &Arc<Front>, step: Step) -> std::io::Result<Sender<Job>> {
    let (jobs, queue) = mpsc::channel::<Job>();
    let queue = Arc::new(Mutex::new(queue));
    for number in 0..THREADS {
        let (queue, front) = (Arc::clone(&queue), Arc::clone(front));
        thread::Builder::new()
            .name(format!("{name}-{number}"))
            .spawn(move || help(&queue, &front, step))?;
    }
    Ok(jobs)
}

fn help(queue: &Mutex<Receiver<Job>>, front: &Front, step: Step) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut job) = job else { return };
        let progress = step(&mut job, front);
        let Job { entrance, seat, generation, back } = job;
        back.send(WorkerMessage::Helped { entrance, progress, seat, generation });
    }
}

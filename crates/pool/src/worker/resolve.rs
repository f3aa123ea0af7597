//! [`Resolver`]: threads that look up the addresses of servers' hosts.
//!
//! The system's resolver may take half a minute for a name whose servers do not answer. Nothing but connections
//! to that name waits for it: one name occupies one thread, however many want it.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use super::{entrance::PendingLogin, front::Front, helpers::Job, mail::WorkerMessage};

/// So many names are looked up at a time.
const THREADS: usize = 4;

/// A host and a port.
type Name = (String, u16);

/// Looks up names on threads of its own.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    names: Sender<Name>,
    /// Those who wait, by what they wait for: for each name that a thread is at, or that is queued.
    waiting: Arc<Mutex<HashMap<Name, Vec<Job>>>>,
}

impl Resolver {
    /// Starts the threads; they end when the last handle is gone.
    ///
    /// # Errors
    ///
    /// The system gives no more threads.
    pub(super) fn start(front: &Arc<Front>) -> std::io::Result<Self> {
        let (names, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let waiting = Arc::<Mutex<HashMap<_, _>>>::default();
        for number in 0..THREADS {
            let (queue, front, waiting) =
                (Arc::clone(&queue), Arc::clone(front), Arc::clone(&waiting));
            thread::Builder::new()
                .name(format!("resolve-{number}"))
                .spawn(move || run(&queue, &waiting, &front))?;
        }
        Ok(Self { names, waiting })
    }

    /// Has the name looked up that an entrance needs, then the entrance goes on.
    pub(super) fn submit(&self, job: Job) {
        let Some(name) = job.entrance.host() else { return };
        let mut waiting = jobs(&self.waiting);
        let jobs = waiting.entry(name.clone()).or_default();
        jobs.push(job);
        if jobs.len() == 1 {
            // The threads live as long as any handle does.
            let _ = self.names.send(name);
        }
    }
}

fn jobs(waiting: &Mutex<HashMap<Name, Vec<Job>>>) -> MutexGuard<'_, HashMap<Name, Vec<Job>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(queue: &Mutex<Receiver<Name>>, waiting: &Mutex<HashMap<Name, Vec<Job>>>, front: &Front) {
    loop {
        let name = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(name) = name else { return };
        let address = address(&name, front);
        let jobs = jobs(waiting).remove(&name);
        for Job { mut entrance, seat, generation, back } in jobs.into_iter().flatten() {
            entrance.resolved(address.clone());
            let progress = entrance.advance(front, false);
            back.send(WorkerMessage::Helped { entrance, progress, seat, generation });
        }
    }
}

/// Looks up what an entrance needs on this thread.
pub(super) fn now(entrance: &mut PendingLogin, front: &Front) {
    if let Some(name) = entrance.host() {
        entrance.resolved(address(&name, front));
    }
}

fn address((host, port): &Name, front: &Front) -> Result<SocketAddr, String> {
    match front.resolve(host, *port) {
        Ok(found) => {
            found.first().copied().ok_or_else(|| format!("no address found for host {host:?}"))
        }
        Err(error) => Err(format!("no address found for host {host:?}: {error}")),
    }
}

#[cfg(test)]
mod tests;

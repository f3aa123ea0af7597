//! [`ResolverThreads`]: threads that resolve host names of servers.
//!
//! The system's resolver may take half a minute for a name whose name servers do not respond. A
//! name occupies one thread, however many logins need it, so logins that need other names rarely
//! wait for it.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use parking_lot::{Mutex, MutexGuard};

use super::{
    helpers::LoginJob, messages::WorkerMessage, pending_login::PendingLogin,
    shared_state::SharedState,
};

/// Maximum number of names that are resolved at the same time.
const THREADS: usize = 4;

/// Host name and port of a server.
type HostPort = (String, u16);

/// Handles to the resolver threads.
#[derive(Clone, Debug)]
pub(super) struct ResolverThreads {
    names: Sender<HostPort>,
    /// The waiting logins, by name, for each name that is being resolved or queued.
    waiting: Arc<Mutex<HashMap<HostPort, Vec<LoginJob>>>>,
}

impl ResolverThreads {
    /// Starts the threads; they end when the last handle is dropped.
    ///
    /// # Errors
    ///
    /// The operating system cannot create a thread.
    pub(super) fn start(shared: &Arc<SharedState>) -> std::io::Result<Self> {
        let (names, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let waiting = Arc::<Mutex<HashMap<_, _>>>::default();
        for number in 0..THREADS {
            let (queue, shared, waiting) =
                (Arc::clone(&queue), Arc::clone(shared), Arc::clone(&waiting));
            thread::Builder::new()
                .name(format!("resolve-{number}"))
                .spawn(move || resolve_names(&queue, &waiting, &shared))?;
        }
        Ok(Self { names, waiting })
    }

    /// Queues the host name that a pending login needs. A thread resolves the name and then
    /// continues the login.
    pub(super) fn submit(&self, job: LoginJob) {
        let Some(name) = job.pending.host() else { return };
        let mut waiting = lock_waiting(&self.waiting);
        let jobs = waiting.entry(name.clone()).or_default();
        jobs.push(job);
        if jobs.len() == 1 {
            // Never fails: the threads live as long as any handle.
            let _ = self.names.send(name);
        }
    }
}

fn lock_waiting(
    waiting: &Mutex<HashMap<HostPort, Vec<LoginJob>>>,
) -> MutexGuard<'_, HashMap<HostPort, Vec<LoginJob>>> {
    waiting.lock()
}

fn resolve_names(
    queue: &Mutex<Receiver<HostPort>>,
    waiting: &Mutex<HashMap<HostPort, Vec<LoginJob>>>,
    shared: &SharedState,
) {
    loop {
        let name = queue.lock().recv();
        let Ok(name) = name else { return };
        let address = resolve_address(&name, shared);
        let jobs = lock_waiting(waiting).remove(&name);
        for LoginJob { mut pending, slot, generation, reply_to } in jobs.into_iter().flatten() {
            pending.set_address(address.clone());
            let progress = pending.advance(shared, false);
            reply_to.send(WorkerMessage::LoginStepDone { pending, progress, slot, generation });
        }
    }
}

/// Resolves the host name that a pending login needs, on the calling thread.
pub(super) fn resolve_blocking(pending: &mut PendingLogin, shared: &SharedState) {
    if let Some(name) = pending.host() {
        pending.set_address(resolve_address(&name, shared));
    }
}

fn resolve_address((host, port): &HostPort, shared: &SharedState) -> Result<SocketAddr, String> {
    match shared.resolve(host, *port) {
        Ok(found) => {
            found.first().copied().ok_or_else(|| format!("no address found for host {host:?}"))
        }
        Err(error) => Err(format!("no address found for host {host:?}: {error}")),
    }
}

#[cfg(test)]
mod tests;

//! [`Helpers`]: threads outside the data path for the slow steps of logins. Steps that wait for a
//! server or a resolver have separate threads, so that they do not delay steps that only compute.

mod password_threads;

use std::{
    sync::{
        Arc, OnceLock,
        mpsc::{self, Receiver, Sender},
    },
    thread,
};

use parking_lot::Mutex;

use self::password_threads::PasswordThreads;
use super::{
    auth_query,
    messages::{Mailbox, WorkerMessage},
    pending_login::{LoginProgress, PendingLogin},
    resolver_threads::ResolverThreads,
    shared_state::SharedState,
    socket_check,
};

/// Handles to the helper threads.
#[derive(Clone, Debug)]
pub(super) struct Helpers {
    heavy: Sender<LoginJob>,
    lookups: Sender<LoginJob>,
    passwords: PasswordThreads,
    secrets: Sender<LoginJob>,
    resolver: ResolverThreads,
    /// Started when the first socket is checked; the setting is rarely used.
    socket_checks: Arc<OnceLock<Option<Sender<LoginJob>>>>,
    shared: Arc<SharedState>,
}

/// A login step to run, and the worker to send the result to.
#[derive(Debug)]
pub(super) struct LoginJob {
    pub(super) pending: Box<PendingLogin>,
    pub(super) slot: usize,
    pub(super) generation: u32,
    pub(super) reply_to: Arc<Mailbox>,
}

/// The kind of a login step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    /// A TLS handshake or SCRAM, which takes CPU time.
    Heavy,
    /// An auth query, which waits for a server. Auth queries have separate threads, because the
    /// server connection for the query may itself need a helper to log in.
    AuthQuery,
    /// The check of a unix socket, which waits for a server. It has separate threads for the same
    /// reason.
    CheckSocket,
    /// The check of a password, which waits for a server.
    CheckPassword,
    /// The password for a server from a file or a program.
    FetchSecret,
    /// A DNS lookup, which waits for the system's resolver.
    Resolve,
}

/// Number of threads of each kind. If a step blocks for seconds, the other threads of its kind make
/// progress.
const THREADS: usize = 4;

impl Helpers {
    /// Starts the threads; they end when the last handle is dropped.
    ///
    /// # Errors
    ///
    /// The operating system cannot create a thread.
    pub(super) fn start(shared: &Arc<SharedState>) -> std::io::Result<Self> {
        let heavy = start("login", shared, check_socket)?;
        let lookups = start("lookup", shared, |LoginJob { pending, reply_to, .. }, shared| {
            pending.run_auth_query(|auth_query| {
                auth_query::user_secret(&auth_query, reply_to, shared)
            });
            pending.advance(shared, true)
        })?;
        let passwords = PasswordThreads::start(shared)?;
        let secrets = start("secret", shared, |job, shared| {
            job.pending.fetch_secret(shared);
            job.pending.advance(shared, true)
        })?;
        let resolver = ResolverThreads::start(shared)?;
        let (socket_checks, shared) = (Arc::default(), Arc::clone(shared));
        Ok(Self { heavy, lookups, passwords, secrets, resolver, socket_checks, shared })
    }

    /// Queues a login step. The queue is bounded by the number of logins in progress.
    pub(super) fn submit(&self, errand: JobKind, job: LoginJob) {
        let queue = match errand {
            JobKind::Heavy => &self.heavy,
            JobKind::AuthQuery => &self.lookups,
            JobKind::CheckSocket => {
                let start = || start("socket", &self.shared, check_socket).ok();
                // Without threads of their own, checks delay logins that only compute.
                self.socket_checks.get_or_init(start).as_ref().unwrap_or(&self.heavy)
            }
            JobKind::CheckPassword => return self.passwords.submit(job),
            JobKind::FetchSecret => &self.secrets,
            JobKind::Resolve => return self.resolver.submit(job),
        };
        // Never fails: the threads live as long as any handle.
        let _ = queue.send(job);
    }
}

fn check_socket(job: &mut LoginJob, shared: &SharedState) -> LoginProgress {
    if let Some((local, entry)) = job.pending.unchecked_socket() {
        socket_check::check(&local, &entry, shared);
    }
    job.pending.advance(shared, true)
}

type LoginStepFn = fn(&mut LoginJob, &SharedState) -> LoginProgress;

fn start(
    name: &str,
    shared: &Arc<SharedState>,
    step: LoginStepFn,
) -> std::io::Result<Sender<LoginJob>> {
    let (jobs, queue) = mpsc::channel::<LoginJob>();
    let queue = Arc::new(Mutex::new(queue));
    for number in 0..THREADS {
        let (queue, shared) = (Arc::clone(&queue), Arc::clone(shared));
        thread::Builder::new()
            .name(format!("{name}-{number}"))
            .spawn(move || run_jobs(&queue, &shared, step))?;
    }
    Ok(jobs)
}

fn run_jobs(queue: &Mutex<Receiver<LoginJob>>, shared: &SharedState, step: LoginStepFn) {
    loop {
        let job = queue.lock().recv();
        let Ok(mut job) = job else { return };
        let progress = step(&mut job, shared);
        let LoginJob { pending, slot, generation, reply_to } = job;
        reply_to.send(WorkerMessage::LoginStepDone { pending, progress, slot, generation });
    }
}

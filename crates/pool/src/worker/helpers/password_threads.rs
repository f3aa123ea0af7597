//! [`PasswordThreads`]: threads that check passwords at servers, for pass-through authentication.
//!
//! The passwords of one user of a database are checked one after the other: of many clients that
//! connect with the same password at the same time, one asks the server, and the others use its
//! answer. The number of threads limits how many logins to servers all clients together can cause
//! at the same time.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_net::Poller;
use howdah_pool_core::ServerFailure;
use howdah_wire::frontend::encode;
use parking_lot::Mutex;

use super::LoginJob;
use crate::{
    auth::PasswordCheck,
    worker::{
        cluster_monitor::{BlockingLoginError, log_in_blocking, pending_server},
        directory::PoolEntry,
        messages::WorkerMessage,
        password_checks::{DatabaseUser, ServerAnswer},
        shared_state::SharedState,
    },
};

/// Maximum number of passwords that are checked at the same time.
const THREADS: usize = 8;

/// Time limit of a check if neither `timeouts.server-connect` nor `timeouts.client-login` is set.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// The waiting logins, for each user whose passwords are being checked.
type WaitingLogins = Mutex<HashMap<DatabaseUser, VecDeque<LoginJob>>>;

/// Handles to the threads.
#[derive(Clone, Debug)]
pub(super) struct PasswordThreads {
    users: Sender<DatabaseUser>,
    waiting: Arc<WaitingLogins>,
}

impl PasswordThreads {
    /// Starts the threads; they end when the last handle is dropped.
    ///
    /// # Errors
    ///
    /// The operating system cannot create a thread.
    pub(super) fn start(shared: &Arc<SharedState>) -> std::io::Result<Self> {
        let (users, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let waiting = Arc::<WaitingLogins>::default();
        for number in 0..THREADS {
            let (queue, shared, waiting) =
                (Arc::clone(&queue), Arc::clone(shared), Arc::clone(&waiting));
            thread::Builder::new()
                .name(format!("password-{number}"))
                .spawn(move || check_passwords(&queue, &waiting, &shared))?;
        }
        Ok(Self { users, waiting })
    }

    /// Queues the check that a pending login needs. A thread does it and then continues the login.
    pub(super) fn submit(&self, job: LoginJob) {
        let Some(user) = job.pending.password_check() else { return };
        let mut waiting = self.waiting.lock();
        match waiting.get_mut(&user) {
            Some(jobs) => jobs.push_back(job),
            None => {
                waiting.insert(user.clone(), VecDeque::from([job]));
                // Never fails: the threads live as long as any handle.
                let _ = self.users.send(user);
            }
        }
    }
}

fn check_passwords(
    queue: &Mutex<Receiver<DatabaseUser>>,
    waiting: &WaitingLogins,
    shared: &SharedState,
) {
    loop {
        let user = queue.lock().recv();
        let Ok(user) = user else { return };
        loop {
            let job = {
                let mut waiting = waiting.lock();
                let job = waiting.get_mut(&user).and_then(VecDeque::pop_front);
                if job.is_none() {
                    waiting.remove(&user);
                }
                job
            };
            let Some(LoginJob { mut pending, slot, generation, reply_to }) = job else { break };
            let recheck = shared.directory.config().auth.pass_through_recheck;
            pending.check_password(|check, address| {
                let query = |check: &PasswordCheck| query_servers(check, shared);
                shared.password_checks.check(check, address, recheck, query)
            });
            let progress = pending.advance(shared, true);
            reply_to.send(WorkerMessage::LoginStepDone { pending, progress, slot, generation });
        }
    }
}

/// Asks the servers of a database, one after the other until one answers.
fn query_servers(check: &PasswordCheck, shared: &SharedState) -> ServerAnswer {
    let timeouts = shared.directory.config().timeouts;
    let limit = [timeouts.server_connect, timeouts.client_login].into_iter().flatten().min();
    let deadline = Instant::now() + limit.unwrap_or(CHECK_TIMEOUT);
    let message = "the database has no server".to_owned();
    let mut last = ServerFailure { sqlstate: *b"08006", message };
    for entry in shared.directory.entries_for_check(check) {
        match query_server(&entry, check, shared, deadline) {
            ServerAnswer::Failed(failure) if failure.is_transient() => last = failure,
            answer => return answer,
        }
    }
    ServerAnswer::Failed(last)
}

fn query_server(
    entry: &Arc<PoolEntry>,
    check: &PasswordCheck,
    shared: &SharedState,
    deadline: Instant,
) -> ServerAnswer {
    let PasswordCheck { user, database, .. } = check;
    let server = pending_server(entry).with_own_keys();
    let result = Poller::new()
        .map_err(BlockingLoginError::from)
        .and_then(|mut poller| log_in_blocking(&mut poller, server, shared, deadline));
    let unreachable = |message: String| ServerFailure { sqlstate: *b"08006", message };
    let failure = match result {
        Ok((mut stream, ready)) => {
            let mut terminate = Vec::new();
            encode::terminate(&mut terminate);
            // A courtesy: the server notices the end in any case.
            let _ = stream.send(&terminate);
            stream.close();
            if ready.was_password_checked {
                return ServerAnswer::Accepted;
            }
            tracing::warn!(
                user,
                database,
                "pass-through authentication failed: the server lets the pooler log in as this user \
                 without a password (trust, peer or cert in its pg_hba.conf), so it cannot check one"
            );
            return ServerAnswer::Refused;
        }
        Err(BlockingLoginError::Failed(failure)) => failure,
        Err(error @ BlockingLoginError::Timeout) => {
            unreachable(format!("cannot reach the server: {error}"))
        }
        Err(BlockingLoginError::Poll(error)) => unreachable(error.to_string()),
    };
    if !failure.sqlstate.starts_with(b"28") {
        return ServerAnswer::Failed(failure);
    }
    // A wrong password is logged as a refused login; other reasons are the administrator's matter.
    if failure.sqlstate != *b"28P01" {
        let error = &failure.message;
        tracing::warn!(user, database, error, "the server refused to check a password");
    }
    ServerAnswer::Refused
}

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
};

use parking_lot::Mutex;

use super::{
    helpers::LoginJob, messages::WorkerMessage, password_checks::DatabaseUser,
    shared_state::SharedState,
};

/// Maximum number of passwords that are checked at the same time.
const THREADS: usize = 8;

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
            pending.check_password(|check, address| {
                shared.password_checks.check(check, address, shared)
            });
            let progress = pending.advance(shared, true);
            reply_to.send(WorkerMessage::LoginStepDone { pending, progress, slot, generation });
        }
    }
}

//! [`Gate`]: what an operator has ordered about a database. Shared by its pools in all workers, which
//! look at it when a server would change hands; whoever turns it tells the workers to look.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
};

/// What an operator has ordered about a database.
///
/// Relaxed ordering is enough: each field guards nothing but itself, and the letter that tells a worker
/// to look comes by a lock.
#[derive(Debug, Default)]
pub struct Gate {
    /// One of [`NOBODY`], [`SOME_USERS`] and [`EVERYBODY`].
    paused: AtomicU8,
    /// Those that are paused by name, whether everybody is or not.
    paused_users: Mutex<BTreeSet<String>>,
    disabled: AtomicBool,
    epoch: AtomicU32,
}

const NOBODY: u8 = 0;
const SOME_USERS: u8 = 1;
const EVERYBODY: u8 = 2;

impl Gate {
    /// Whether no client gets a server: servers are closed as they become free.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed) == EVERYBODY
    }

    /// Whether no client of this user gets a server.
    #[inline]
    pub fn is_paused_for(&self, user: &str) -> bool {
        match self.paused.load(Ordering::Relaxed) {
            NOBODY => false,
            EVERYBODY => true,
            _ => self.is_paused_by_name(user),
        }
    }

    #[cold]
    fn is_paused_by_name(&self, user: &str) -> bool {
        self.users().contains(user)
    }

    /// The users who are paused by name.
    pub fn paused_users(&self) -> Vec<String> {
        self.users().iter().cloned().collect()
    }

    /// Whether anybody is paused.
    pub fn is_paused_for_any(&self) -> bool {
        self.paused.load(Ordering::Relaxed) != NOBODY
    }

    /// Pauses everybody, or resumes, also those who are paused by name.
    pub fn set_paused(&self, paused: bool) {
        let mut users = self.users();
        if !paused {
            users.clear();
        }
        self.paused.store(if paused { EVERYBODY } else { NOBODY }, Ordering::Relaxed);
    }

    /// Pauses a user, or resumes, which does nothing for one who is paused with everybody.
    pub fn set_paused_for(&self, user: &str, paused: bool) {
        let mut users = self.users();
        if paused {
            users.insert(user.to_owned());
        } else {
            users.remove(user);
        }
        if !self.is_paused() {
            let some = if users.is_empty() { NOBODY } else { SOME_USERS };
            self.paused.store(some, Ordering::Relaxed);
        }
    }

    /// A set that another thread left while it panicked is whole.
    fn users(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.paused_users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no new client is let in.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Lets no new client in, or lets them in again.
    pub fn set_disabled(&self, disabled: bool) {
        self.disabled.store(disabled, Ordering::Relaxed);
    }

    /// Servers of another epoch are closed as they become free.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins another epoch: every server there is has to be replaced.
    pub fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn users_are_paused_by_name_and_with_everybody() {
    let gate = Gate::default();
    let paused = |gate: &Gate| (gate.is_paused_for("ann"), gate.is_paused_for("bob"));
    assert_eq!(paused(&gate), (false, false));
    gate.set_paused_for("ann", true);
    assert_eq!((paused(&gate), gate.is_paused()), ((true, false), false));
    gate.set_paused(true);
    gate.set_paused_for("ann", false);
    assert_eq!((paused(&gate), gate.is_paused()), ((true, true), true));
    gate.set_paused_for("bob", true);
    gate.set_paused(false);
    assert_eq!((paused(&gate), gate.paused_users().len()), ((false, false), 0));
    gate.set_paused_for("bob", true);
    gate.set_paused_for("bob", false);
    assert!(!gate.is_paused_for_any());
}

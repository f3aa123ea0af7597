//! [`AdminState`]: the effect of PAUSE, DISABLE and RECONNECT on a database. The database's pools
//! in all workers share it, and read it before a server is assigned or returned. A command that
//! affects servers also sends a message to the workers.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
};

use parking_lot::{Mutex, MutexGuard};

/// The effect of an administrator's commands (PAUSE, DISABLE, RECONNECT) on a database.
///
/// Relaxed ordering is sufficient: no field protects other data, and the message that makes a
/// worker read the fields is sent under a lock.
#[derive(Debug, Default)]
pub struct AdminState {
    /// One of [`NOT_PAUSED`], [`USERS_PAUSED`] and [`ALL_PAUSED`].
    pause_scope: AtomicU8,
    /// Users that were paused by name, whether or not all users are paused.
    paused_users: Mutex<BTreeSet<String>>,
    disabled: AtomicBool,
    epoch: AtomicU32,
}

const NOT_PAUSED: u8 = 0;
const USERS_PAUSED: u8 = 1;
const ALL_PAUSED: u8 = 2;

impl AdminState {
    /// Whether the whole database is paused: no client gets a server, and free servers are closed.
    pub fn is_paused(&self) -> bool {
        self.pause_scope.load(Ordering::Relaxed) == ALL_PAUSED
    }

    /// Whether clients of `user` get no server.
    #[inline]
    pub fn is_paused_for_user(&self, user: &str) -> bool {
        match self.pause_scope.load(Ordering::Relaxed) {
            NOT_PAUSED => false,
            ALL_PAUSED => true,
            _ => self.is_paused_by_name(user),
        }
    }

    #[cold]
    fn is_paused_by_name(&self, user: &str) -> bool {
        self.lock_users().contains(user)
    }

    /// Returns the users that are paused by name.
    pub fn paused_users(&self) -> Vec<String> {
        self.lock_users().iter().cloned().collect()
    }

    /// Whether the database or any user is paused.
    pub fn is_paused_for_any_user(&self) -> bool {
        self.pause_scope.load(Ordering::Relaxed) != NOT_PAUSED
    }

    /// Pauses all users, or resumes all users, including those that were paused by name.
    pub fn set_paused(&self, paused: bool) {
        let mut users = self.lock_users();
        if !paused {
            users.clear();
        }
        self.pause_scope.store(if paused { ALL_PAUSED } else { NOT_PAUSED }, Ordering::Relaxed);
    }

    /// Pauses or resumes a user. While the whole database is paused, a resumed user stays paused.
    pub fn set_paused_for_user(&self, user: &str, paused: bool) {
        let mut users = self.lock_users();
        if paused {
            users.insert(user.to_owned());
        } else {
            users.remove(user);
        }
        if !self.is_paused() {
            let some = if users.is_empty() { NOT_PAUSED } else { USERS_PAUSED };
            self.pause_scope.store(some, Ordering::Relaxed);
        }
    }

    /// Locks the set of paused users. `pause_scope` is changed only under this lock, so that the
    /// two agree.
    fn lock_users(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.paused_users.lock()
    }

    /// Whether new clients are refused.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Refuses new clients, or accepts them again.
    pub fn set_disabled(&self, disabled: bool) {
        self.disabled.store(disabled, Ordering::Relaxed);
    }

    /// Returns the current epoch. Servers of an earlier epoch are closed when they become free.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Starts a new epoch, so that all existing servers are replaced (RECONNECT).
    pub fn start_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn users_are_paused_by_name_and_together() {
    let state = AdminState::default();
    let paused =
        |state: &AdminState| (state.is_paused_for_user("ann"), state.is_paused_for_user("bob"));
    assert_eq!(paused(&state), (false, false));
    state.set_paused_for_user("ann", true);
    assert_eq!((paused(&state), state.is_paused()), ((true, false), false));
    state.set_paused(true);
    state.set_paused_for_user("ann", false);
    assert_eq!((paused(&state), state.is_paused()), ((true, true), true));
    state.set_paused_for_user("bob", true);
    state.set_paused(false);
    assert_eq!((paused(&state), state.paused_users().len()), ((false, false), 0));
    state.set_paused_for_user("bob", true);
    state.set_paused_for_user("bob", false);
    assert!(!state.is_paused_for_any_user());
}

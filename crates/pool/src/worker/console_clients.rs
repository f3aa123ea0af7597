//! [`ConsoleClients`]: the connections to the console, with their limit.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use howdah_pool_core::{ConnectionLimit, Permits};
use parking_lot::Mutex;

use super::control::ConnectionNumbers;
use crate::{AdminView, ConnectionNumber};

/// Maximum number of console connections at a time.
const ADMIN_CLIENTS_MAX: u32 = 64;

/// The connections to the console, and the ids of all connections that it shows.
#[derive(Debug)]
pub(super) struct ConsoleClients {
    limit: Arc<[Arc<ConnectionLimit>]>,
    clients: Mutex<BTreeMap<ConnectionNumber, AdminView>>,
    commands: AtomicU64,
    pub(super) numbers: ConnectionNumbers,
}

impl Default for ConsoleClients {
    fn default() -> Self {
        Self {
            limit: [ConnectionLimit::new(ADMIN_CLIENTS_MAX)].into(),
            clients: Mutex::default(),
            commands: AtomicU64::new(0),
            numbers: ConnectionNumbers::default(),
        }
    }
}

impl ConsoleClients {
    /// Acquires a permit for a console connection; `None` if there are too many.
    pub(super) fn try_acquire(&self) -> Option<Permits> {
        Permits::try_acquire(&self.limit)
    }

    /// Adds a connection and assigns its id.
    pub(super) fn add(&self, mut client: AdminView) -> ConnectionNumber {
        client.id = self.numbers.next();
        let id = client.id;
        self.clients.lock().insert(id, client);
        id
    }

    pub(super) fn remove(&self, id: ConnectionNumber) {
        self.clients.lock().remove(&id);
    }

    /// Counts a command.
    pub(super) fn record_command(&self) {
        self.commands.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of commands.
    pub(super) fn commands(&self) -> u64 {
        self.commands.load(Ordering::Relaxed)
    }

    /// Returns the connections, ordered by id.
    pub(super) fn views(&self) -> Vec<AdminView> {
        self.clients.lock().values().cloned().collect()
    }
}

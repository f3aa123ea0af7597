//! [`ConsoleClients`]: the connections to the console, with their limit, and the ids of connections
//! in its tables: small numbers, as PgBouncer's clients expect.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use howdah_pool_core::{ConnectionLimit, Permits};
use parking_lot::Mutex;

use crate::{AdminView, ConnectionNumber};

/// Maximum number of console connections at a time.
const ADMIN_CLIENTS_MAX: u32 = 64;

/// The connections to the console, and the ids of all connections that it shows.
#[derive(Debug)]
pub(super) struct ConsoleClients {
    limit: Arc<[Arc<ConnectionLimit>]>,
    clients: Mutex<BTreeMap<ConnectionNumber, ConsoleClient>>,
    commands: AtomicU64,
    pub(super) numbers: ConnectionNumbers,
}

#[derive(Debug)]
struct ConsoleClient {
    view: AdminView,
    is_killed: bool,
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
        self.clients.lock().insert(id, ConsoleClient { view: client, is_killed: false });
        id
    }

    pub(super) fn remove(&self, id: ConnectionNumber) {
        self.clients.lock().remove(&id);
    }

    /// Marks a connection as one to close. Returns whether it exists.
    pub(super) fn kill(&self, id: ConnectionNumber) -> bool {
        self.clients.lock().get_mut(&id).map(|client| client.is_killed = true).is_some()
    }

    pub(super) fn is_killed(&self, id: ConnectionNumber) -> bool {
        self.clients.lock().get(&id).is_some_and(|client| client.is_killed)
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
        self.clients.lock().values().map(|client| client.view.clone()).collect()
    }
}

/// The kind of a connection that has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NumberedKind {
    Client,
    Server,
}

/// The numbers of connections. A connection gets one when a table first shows it, and keeps it.
#[derive(Debug, Default)]
pub(super) struct ConnectionNumbers(Mutex<NumberTable>);

#[derive(Debug, Default)]
struct NumberTable {
    last: ConnectionNumber,
    numbers: HashMap<(NumberedKind, u64), ConnectionNumber>,
}

impl NumberTable {
    fn next(&mut self) -> ConnectionNumber {
        // After 2^31 connections the numbers start again; those of the first ones are free by then.
        self.last = self.last.checked_add(1).unwrap_or(1);
        self.last
    }
}

impl ConnectionNumbers {
    /// Returns an unused number.
    pub(super) fn next(&self) -> ConnectionNumber {
        self.0.lock().next()
    }

    /// Returns the number of each connection in a complete list, and discards all other numbers.
    pub(super) fn assign(
        &self,
        connections: impl Iterator<Item = (NumberedKind, u64)>,
    ) -> HashMap<(NumberedKind, u64), ConnectionNumber> {
        let mut table = self.0.lock();
        let mut assigned = HashMap::new();
        for key in connections {
            let number = match table.numbers.get(&key) {
                Some(number) => *number,
                None => table.next(),
            };
            assigned.insert(key, number);
        }
        table.numbers.clone_from(&assigned);
        assigned
    }

    /// Returns the client with this number.
    pub(super) fn client(&self, number: ConnectionNumber) -> Option<u64> {
        let table = self.0.lock();
        let mut clients =
            table.numbers.iter().filter(|((kind, _), _)| *kind == NumberedKind::Client);
        clients.find(|(_, it)| **it == number).map(|((_, pointer), _)| *pointer)
    }
}

#[test]
fn connection_keeps_its_number() {
    let numbers = ConnectionNumbers::default();
    let (ann, bob, server) =
        ((NumberedKind::Client, 1 << 40), (NumberedKind::Client, 2), (NumberedKind::Server, 2));
    let first = numbers.assign([ann, server].into_iter());
    assert_eq!((first[&ann], first[&server]), (1, 2));
    assert_eq!(numbers.next(), 3);
    let second = numbers.assign([bob, ann].into_iter());
    assert_eq!((second[&ann], second[&bob]), (1, 4));
    assert_eq!((numbers.client(4), numbers.client(2)), (Some(2), None));
}

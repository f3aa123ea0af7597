//! The ids of connections on the console, unique across workers: small numbers, as PgBouncer's
//! clients expect.

use std::collections::HashMap;

use howdah_pool_core::{ClientId, ServerId, WorkerId};
use parking_lot::Mutex;

use crate::ConnectionNumber;

/// Identifies a connection inside of the process: worker (8 bits), generation (24 bits) and slot
/// (32 bits).
fn pointer(worker: WorkerId, generation: u32, slot: usize) -> u64 {
    let slot = slot as u64 & SLOT_MASK;
    u64::from(worker.0) << 56 | u64::from(generation & 0xff_ffff) << 32 | slot
}

const SLOT_MASK: u64 = 0xffff_ffff;

pub(super) fn client_pointer(worker: WorkerId, id: ClientId) -> u64 {
    pointer(worker, id.generation(), id.index())
}

pub(super) fn server_pointer(worker: WorkerId, id: ServerId) -> u64 {
    pointer(worker, id.generation(), id.index())
}

/// Returns the worker of a client, and its id within that worker.
pub(super) fn split(pointer: u64) -> (WorkerId, ClientId) {
    let [worker, rest @ ..] = pointer.to_be_bytes();
    let [a, b, c, slot @ ..] = rest;
    let generation = u32::from_be_bytes([0, a, b, c]);
    (WorkerId(worker), ClientId::new(u32::from_be_bytes(slot), generation))
}

/// The kind of a connection that has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::worker) enum NumberedKind {
    Client,
    Server,
}

/// The numbers of connections. A connection gets one when a table first shows it, and keeps it.
#[derive(Debug, Default)]
pub(in crate::worker) struct ConnectionNumbers(Mutex<NumberTable>);

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
    pub(in crate::worker) fn next(&self) -> ConnectionNumber {
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
fn client_pointer_round_trips() {
    let id = ClientId::new(7, 9);
    assert_eq!(split(client_pointer(WorkerId(3), id)), (WorkerId(3), id));
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

//! The identity of a connection inside of the process, across workers.

use howdah_pool_core::{ClientId, ServerId, WorkerId};

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

#[test]
fn client_pointer_round_trips() {
    let id = ClientId::new(7, 9);
    assert_eq!(split(client_pointer(WorkerId(3), id)), (WorkerId(3), id));
}

//! What operators call a connection: one number over all workers.

use crate::{ClientId, ServerId, WorkerId};

/// A connection's name over all workers: worker, occupant of the slot, slot.
fn name(worker: WorkerId, generation: u32, slot: usize) -> u64 {
    let slot = slot as u64 & SLOT_MASK;
    u64::from(worker.0) << 56 | u64::from(generation & 0xff_ffff) << 32 | slot
}

const SLOT_MASK: u64 = 0xffff_ffff;

pub(super) fn client_name(worker: WorkerId, id: ClientId) -> u64 {
    name(worker, id.generation(), id.index())
}

pub(super) fn server_name(worker: WorkerId, id: ServerId) -> u64 {
    name(worker, id.generation(), id.index())
}

/// The worker that has this client, and what it calls it.
pub(super) fn split(name: u64) -> (WorkerId, ClientId) {
    let [worker, rest @ ..] = name.to_be_bytes();
    let [a, b, c, slot @ ..] = rest;
    let generation = u32::from_be_bytes([0, a, b, c]);
    (WorkerId(worker), ClientId::new(u32::from_be_bytes(slot), generation))
}

#[test]
fn names_lead_back_to_their_clients() {
    let id = ClientId::new(7, 9);
    assert_eq!(split(client_name(WorkerId(3), id)), (WorkerId(3), id));
}

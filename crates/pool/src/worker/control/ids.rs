//! The connection IDs shown on the console, unique across workers.

/// Encodes a connection's ID: worker (8 bits), generation (24 bits), slot (32 bits).
use howdah_pool_core::{ClientId, ServerId, WorkerId};

fn external_id(worker: WorkerId, generation: u32, slot: usize) -> u64 {
    let slot = slot as u64 & SLOT_MASK;
    u64::from(worker.0) << 56 | u64::from(generation & 0xff_ffff) << 32 | slot
}

const SLOT_MASK: u64 = 0xffff_ffff;

pub(super) fn external_client_id(worker: WorkerId, id: ClientId) -> u64 {
    external_id(worker, id.generation(), id.index())
}

pub(super) fn external_server_id(worker: WorkerId, id: ServerId) -> u64 {
    external_id(worker, id.generation(), id.index())
}

/// Decodes a client's ID into its worker and its ID within that worker.
pub(super) fn split(name: u64) -> (WorkerId, ClientId) {
    let [worker, rest @ ..] = name.to_be_bytes();
    let [a, b, c, slot @ ..] = rest;
    let generation = u32::from_be_bytes([0, a, b, c]);
    (WorkerId(worker), ClientId::new(u32::from_be_bytes(slot), generation))
}

#[test]
fn client_id_round_trips() {
    let id = ClientId::new(7, 9);
    assert_eq!(split(external_client_id(WorkerId(3), id)), (WorkerId(3), id));
}

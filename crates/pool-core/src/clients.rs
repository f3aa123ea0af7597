//! [`Clients`]: the table of a worker's clients, and what happens to a client as a whole: its
//! login, its cancel requests, its handover to another process, and its end.

pub(crate) mod cancel;
pub(crate) mod handover;
pub(crate) mod leaving;
pub(crate) mod login;

use std::collections::HashMap;

use howdah_wire::startup::CancelKey;

use crate::state::{
    client::{ClientConnection, ClientKind, ClientState},
    ids::ClientId,
    slab::Slab,
};

/// The clients of a worker, connected and internal ones.
#[derive(Debug)]
pub(crate) struct Clients {
    table: Slab<ClientId, ClientConnection>,
    /// Clients taken over from another process, by the cancel key that they got from it.
    takeover_keys: HashMap<CancelKey, ClientId>,
    /// Number of internal clients that replay transactions on mirrors.
    mirror_clients: usize,
}

impl Clients {
    pub(crate) fn new() -> Self {
        Self { table: Slab::new(), takeover_keys: HashMap::new(), mirror_clients: 0 }
    }

    pub(crate) fn insert(&mut self, client: ClientConnection) -> ClientId {
        self.mirror_clients += usize::from(is_for_mirror(&client));
        let key = client.takeover_key.as_deref().cloned();
        let id = self.table.insert(client);
        self.takeover_keys.extend(key.map(|key| (key, id)));
        id
    }

    pub(crate) fn remove(&mut self, id: ClientId) -> Option<ClientConnection> {
        let client = self.table.remove(id)?;
        self.mirror_clients -= usize::from(is_for_mirror(&client));
        if let Some(key) = &client.takeover_key {
            self.takeover_keys.remove(&**key);
        }
        Some(client)
    }

    #[inline]
    pub(crate) fn get(&self, id: ClientId) -> Option<&ClientConnection> {
        self.table.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ClientId) -> Option<&mut ClientConnection> {
        self.table.get_mut(id)
    }

    /// Returns the client in a slot, with its id; `None` if the slot is free.
    pub(crate) fn occupant(&self, slot: usize) -> Option<(ClientId, &ClientConnection)> {
        self.table.occupant(slot)
    }

    /// Returns the number of slots, occupied or free.
    pub(crate) fn slots(&self) -> usize {
        self.table.slots()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ClientId, &ClientConnection)> {
        (0..self.table.slots()).filter_map(|slot| self.table.occupant(slot))
    }

    /// Returns the client that was taken over with this key.
    pub(crate) fn by_takeover_key(&self, key: &CancelKey) -> Option<ClientId> {
        self.takeover_keys.get(key).copied()
    }

    /// Removes all keys from other processes, as a core with a bug would.
    #[cfg(test)]
    pub(crate) fn clear_takeover_keys(&mut self) {
        self.takeover_keys.clear();
    }

    /// Returns the number of clients, including internal ones.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns the number of connected clients and sub-requests, without clients of mirrors.
    pub(crate) fn len_without_mirrors(&self) -> usize {
        self.table.len() - self.mirror_clients
    }

    /// Whether a client waits for a server; `false` if the client has disconnected.
    pub(crate) fn is_waiting(&self, id: ClientId) -> bool {
        self.get(id).is_some_and(|client| client.state == ClientState::Waiting)
    }

    /// Returns the connected client: for a sub-request, the one that sent the request; otherwise
    /// `id` itself.
    pub(crate) fn external(&self, id: ClientId) -> ClientId {
        let sub_request = self.get(id).and_then(ClientConnection::sub_request);
        sub_request.map_or(id, |sub_request| sub_request.parent)
    }

    /// Whether a client's fan-out request has failed, so that the client has received an error.
    pub(crate) fn has_fan_out_failed(&self, id: ClientId) -> bool {
        let fan_out = self.get(id).and_then(|client| client.fan_out.as_ref());
        fan_out.is_some_and(|fan_out| fan_out.merger.has_failed())
    }

    /// Returns the sub-requests of a client's fan-out request that have a server.
    pub(crate) fn linked_sub_requests(&self, id: ClientId) -> Vec<ClientId> {
        let fan_out = self.get(id).and_then(|client| client.fan_out.as_ref());
        let sub_requests = fan_out.into_iter().flat_map(|it| it.sub_requests.iter().flatten());
        let is_linked = |id: &ClientId| self.get(*id).is_some_and(|it| it.server().is_some());
        sub_requests.copied().filter(is_linked).collect()
    }
}

fn is_for_mirror(client: &ClientConnection) -> bool {
    match &client.kind {
        ClientKind::Internal(internal) => internal.is_for_mirror(),
        ClientKind::Plain | ClientKind::Mirrored(_) => false,
    }
}

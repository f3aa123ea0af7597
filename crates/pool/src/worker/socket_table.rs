//! [`SocketTable`]: all polled sockets of a worker, by poll token.

use howdah_net::{Interest, Stream, Token};

use super::{peer_connection::PeerConnection, pending_login::PendingLogin};

/// A polled socket, by its current use.
#[derive(Debug)]
pub(super) enum SocketEntry {
    /// A listener, by its index in the worker's list.
    Listener(usize),
    /// A connection that is not logged in yet, or one for a CancelRequest.
    Login(Box<PendingLogin>),
    /// A login at a helper thread, with the events reported since it was handed to the helper.
    AtHelper { ready: bool, hung_up: bool },
    /// A peer that is logged in.
    Connected(PeerConnection),
}

/// The poll state of a stream at the end of its login.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoginSocket {
    /// Whether the peer has closed its side.
    pub(super) hung_up: bool,
    /// Events that the poller watches the stream for; `None` if it is not registered.
    pub(super) watched: Option<Interest>,
    /// Whether the last read emptied the socket and no event was reported since.
    pub(super) drained: bool,
}

/// The sockets of a worker, in numbered slots. A token contains slot and generation, so an event
/// for a removed socket is not attributed to its successor.
#[derive(Debug, Default)]
pub(super) struct SocketTable {
    slots: Vec<SocketSlot>,
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct SocketSlot {
    generation: u32,
    entry: Option<SocketEntry>,
}

impl SocketTable {
    pub(super) fn insert(&mut self, entry: SocketEntry) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(SocketSlot::default());
            self.slots.len() - 1
        });
        self.slots[index].entry = Some(entry);
        index
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<SocketEntry> {
        let slot = self.slots.get_mut(index)?;
        let entry = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(entry)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut SocketEntry> {
        self.slots.get_mut(index)?.entry.as_mut()
    }

    pub(super) fn connection(&mut self, index: usize) -> Option<&mut PeerConnection> {
        match self.get_mut(index)? {
            SocketEntry::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    /// Takes the stream out of a login that is complete.
    pub(super) fn take_login_stream(&mut self, index: usize) -> Option<(Stream, LoginSocket)> {
        let SocketEntry::Login(pending) = self.get_mut(index)? else { return None };
        let PendingLogin { hung_up, watched, drained, .. } = **pending;
        Some((pending.stream.take()?, LoginSocket { hung_up, watched, drained }))
    }

    pub(super) fn generation(&self, index: usize) -> u32 {
        self.slots.get(index).map_or(0, |slot| slot.generation)
    }

    pub(super) fn token(&self, index: usize) -> Token {
        Token((index as u64) << 32 | u64::from(self.generation(index)))
    }

    /// Returns the slot of a token, if its socket still exists.
    pub(super) fn find(&self, token: Token) -> Option<usize> {
        let index = usize::try_from(token.0 >> 32).ok()?;
        let slot = self.slots.get(index)?;
        (slot.entry.is_some() && u64::from(slot.generation) == token.0 & 0xffff_ffff)
            .then_some(index)
    }

    /// Whether a closed connection still has output to send.
    pub(super) fn has_unflushed(&self) -> bool {
        self.slots.iter().any(|slot| match &slot.entry {
            Some(SocketEntry::Connected(connection)) => connection.peer.is_none(),
            _ => false,
        })
    }

    /// Whether a cancel request is being sent to a server.
    pub(super) fn has_cancels(&self) -> bool {
        self.slots.iter().any(|slot| match &slot.entry {
            Some(SocketEntry::Login(pending)) => pending.is_cancel(),
            _ => false,
        })
    }

    pub(super) fn slots(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }
}

#[test]
fn event_for_removed_socket_is_not_its_successors() {
    let mut table = SocketTable::default();
    let first = table.insert(SocketEntry::Listener(1));
    let token = table.token(first);
    assert_eq!(table.find(token), Some(first));
    table.remove(first);
    let second = table.insert(SocketEntry::Listener(2));
    assert_eq!(first, second, "the slot is reused");
    assert_eq!(table.find(token), None);
    assert_eq!(table.find(table.token(second)), Some(second));
}

//! [`SocketTable`]: everything of a worker that has a file descriptor, by the token it is registered with.

use howdah_net::{Interest, Stream, Token};

use super::{entrance::PendingLogin, link::Link};

/// What sits at a place.
#[derive(Debug)]
pub(super) enum Seat {
    /// A listener, by its number.
    Listener(usize),
    /// A connection that is not logged in yet, or that carries a CancelRequest.
    Entrance(Box<PendingLogin>),
    /// The same, away with a helper; whether readiness was told meanwhile.
    Away { ready: bool, hung_up: bool },
    /// A peer that is logged in.
    Link(Link),
}

/// What is known of a stream from before its peer was logged in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    /// Whether the peer has closed its side.
    pub(super) hung_up: bool,
    /// What the poller watches it for, if it does.
    pub(super) watched: Option<Interest>,
    /// Whether it was read to where it was empty, and nothing has been told since.
    pub(super) drained: bool,
}

/// Slots for all of them. A token names slot and occupant, so readiness of one that is gone is not
/// taken for its successor's.
#[derive(Debug, Default)]
pub(super) struct SocketTable {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    seat: Option<Seat>,
}

impl SocketTable {
    pub(super) fn insert(&mut self, seat: Seat) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        });
        self.slots[index].seat = Some(seat);
        index
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Seat> {
        let slot = self.slots.get_mut(index)?;
        let seat = slot.seat.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        Some(seat)
    }

    pub(super) fn at(&mut self, index: usize) -> Option<&mut Seat> {
        self.slots.get_mut(index)?.seat.as_mut()
    }

    pub(super) fn link(&mut self, index: usize) -> Option<&mut Link> {
        match self.at(index)? {
            Seat::Link(link) => Some(link),
            _ => None,
        }
    }

    /// Takes the stream out of an entrance whose peer is in.
    pub(super) fn leave_entrance(&mut self, index: usize) -> Option<(Stream, Before)> {
        let Seat::Entrance(entrance) = self.at(index)? else { return None };
        let PendingLogin { hung_up, watched, drained, .. } = **entrance;
        Some((entrance.stream.take()?, Before { hung_up, watched, drained }))
    }

    pub(super) fn generation(&self, index: usize) -> u32 {
        self.slots.get(index).map_or(0, |slot| slot.generation)
    }

    pub(super) fn token(&self, index: usize) -> Token {
        Token((index as u64) << 32 | u64::from(self.generation(index)))
    }

    /// The slot of a token, if its occupant is still there.
    pub(super) fn find(&self, token: Token) -> Option<usize> {
        let index = usize::try_from(token.0 >> 32).ok()?;
        let slot = self.slots.get(index)?;
        (slot.seat.is_some() && u64::from(slot.generation) == token.0 & 0xffff_ffff)
            .then_some(index)
    }

    /// Whether somebody has not taken yet what was sent last.
    pub(super) fn any_lingers(&self) -> bool {
        let lingers =
            |slot: &Slot| matches!(&slot.seat, Some(Seat::Link(link)) if link.peer.is_none());
        self.slots.iter().any(lingers)
    }

    pub(super) fn indexes(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }
}

#[test]
fn news_of_one_that_left_is_not_its_successors() {
    let mut seats = SocketTable::default();
    let first = seats.insert(Seat::Listener(1));
    let token = seats.token(first);
    assert_eq!(seats.find(token), Some(first));
    seats.remove(first);
    let second = seats.insert(Seat::Listener(2));
    assert_eq!(first, second, "the slot is used again");
    assert_eq!(seats.find(token), None);
    assert_eq!(seats.find(seats.token(second)), Some(second));
}

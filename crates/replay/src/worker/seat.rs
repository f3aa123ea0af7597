//! Places for players, and names for them.

use std::time::Instant;

use howdah_net::Token;

use crate::{
    link::Link,
    player::{Item, Player},
};

/// A place for a player. Places are used again; the generation tells an old name from a new one.
#[derive(Default)]
pub(super) struct Seat {
    pub(super) generation: u32,
    pub(super) player: Option<Player>,
    pub(super) link: Option<Link>,
    /// The Connect event that the connection being opened answers, and when that began.
    pub(super) arriving: Option<(Option<Item>, Instant)>,
    pub(super) retries: u32,
    /// The due time a timer is set for.
    pub(super) timer: Option<Instant>,
}

/// Names a seat at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Slot {
    pub(super) fn token(self) -> Token {
        Token(u64::from(self.generation & 0x3fff_ffff) << 32 | u64::from(self.index))
    }
}

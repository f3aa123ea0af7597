//! [`Stream`]: one client's way to one mirror, with what waits there and what is under way.

use std::{collections::VecDeque, sync::Arc};

use super::{
    DropReason, MirrorTarget,
    count::{MirrorError, SqlState},
};
use crate::{
    ids::ClientId, prepared::ClientStatements, settings::TrackedParameters, slab, time::Time,
};

/// Names a [`Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamId {
    index: u32,
    generation: u32,
}

impl slab::Key for StreamId {
    fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    fn index(self) -> usize {
        self.index as usize
    }

    fn generation(self) -> u32 {
        self.generation
    }
}

/// What a shadow knows of what it is for.
#[derive(Debug)]
pub(crate) struct MirrorClient {
    pub(crate) stream: StreamId,
    /// The first error that it was told.
    pub(crate) error: Option<Box<MirrorError>>,
}

/// Whether what a client sends is kept for a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Not before it is between two transactions.
    NotYet,
    Yes,
    /// Not this transaction.
    No(DropReason),
}

/// What a mirrored client has of it.
#[derive(Debug, Default)]
pub(crate) struct Mirrored {
    /// One for each mirror that it was drawn for.
    pub(crate) streams: Vec<StreamId>,
    /// What it has sent since it was last between two transactions, if it was since it is mirrored.
    pub(crate) open: Option<Open>,
}

/// A transaction of a client, or several that it sent without waiting in between, under way.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) bytes: Vec<u8>,
    /// How many bytes there were, those that are not kept among them.
    pub(crate) seen: usize,
    pub(crate) wishes: Arc<TrackedParameters>,
    /// What it had prepared when it began, if somebody has to be told.
    pub(crate) statements: Option<Arc<ClientStatements>>,
    /// The first error that the client was told.
    pub(crate) error: Option<SqlState>,
    pub(crate) is_cancelled: bool,
}

/// Room that is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Of that of one client and that of all.
    pub(crate) bytes: usize,
    /// Of that of all only: it tells what a client has prepared. A client that has prepared much would else
    /// have no room for anything after its first drop.
    pub(crate) statements: usize,
}

impl Room {
    fn all(self) -> usize {
        self.bytes + self.statements
    }
}

/// One client's way to one mirror. It outlives its client for as long as there is something to do.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) target: MirrorTarget,
    /// When its client went, or was mirrored no more.
    pub(crate) left: Option<Time>,
    /// Whether what the client is sending is kept for this mirror.
    pub(crate) take: Take,
    /// How much of its room that has.
    pub(crate) open_room: Room,
    /// What waits, the oldest first.
    pub(crate) waiting: VecDeque<Unit>,
    pub(crate) running: Option<Running>,
    /// Of all that waits or is under way, here or at its client.
    pub(crate) room: Room,
    /// What is prepared there, in the client's names.
    pub(crate) statements: ClientStatements,
    /// That is not what the client has prepared: something was dropped.
    pub(crate) is_out_of_step: bool,
}

impl Stream {
    pub(crate) fn new(target: MirrorTarget) -> Self {
        target.mirror.joins();
        Self {
            target,
            left: None,
            take: Take::NotYet,
            open_room: Room::default(),
            waiting: VecDeque::new(),
            running: None,
            room: Room::default(),
            statements: ClientStatements::default(),
            is_out_of_step: true,
        }
    }

    /// Takes room for more bytes of the transaction that its client is at, or drops that.
    pub(crate) fn take_more(&mut self, bytes: usize) {
        if self.take != Take::Yes {
            return;
        }
        let why = if self.open_room.bytes + bytes > self.target.client_bytes {
            DropReason::Large
        } else if self.room.bytes + bytes > self.target.client_bytes
            || !self.target.mirror.take_room(bytes, self.target.buffer_bytes)
        {
            DropReason::Full
        } else {
            self.room.bytes += bytes;
            self.open_room.bytes += bytes;
            return;
        };
        self.take_no_more(why);
    }

    /// Takes room for what its client has prepared, or drops the transaction that it is at.
    pub(crate) fn take_statements(&mut self, bytes: usize) {
        if self.take != Take::Yes {
            return;
        }
        if self.target.mirror.take_room(bytes, self.target.buffer_bytes) {
            self.room.statements += bytes;
            self.open_room.statements += bytes;
        } else {
            self.take_no_more(DropReason::Full);
        }
    }

    /// What its client is sending is not for this mirror.
    pub(crate) fn take_no_more(&mut self, why: DropReason) {
        let room = std::mem::take(&mut self.open_room);
        self.give_room(room);
        if self.take == Take::Yes {
            self.take = Take::No(why);
        }
    }

    /// The transaction that its client was at is over. Gives how much room it has, if it is to wait here.
    pub(crate) fn end_take(&mut self, seen: usize) -> Option<Room> {
        match std::mem::replace(&mut self.take, Take::NotYet) {
            Take::NotYet => None,
            Take::Yes => Some(std::mem::take(&mut self.open_room)),
            Take::No(why) => {
                self.target.mirror.drops(why, seen);
                self.is_out_of_step = true;
                None
            }
        }
    }

    pub(crate) fn give_room(&mut self, room: Room) {
        self.room.bytes -= room.bytes;
        self.room.statements -= room.statements;
        self.target.mirror.give_room(room.all());
    }

    /// Drops what waits.
    pub(crate) fn drop_waiting(&mut self, why: DropReason) {
        for unit in std::mem::take(&mut self.waiting) {
            self.target.mirror.drops(why, unit.bytes.len());
            self.give_room(unit.room);
        }
        self.is_out_of_step = true;
    }

    /// Whether it has nothing to do any more, and nobody will give it something.
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_some() && self.running.is_none() && self.waiting.is_empty()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.target.mirror.give_room(self.room.all());
        if self.left.is_none() {
            self.target.mirror.leaves();
        }
    }
}

/// A transaction that waits for a mirror.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// What the client sent: whole messages.
    pub(crate) bytes: Arc<Vec<u8>>,
    /// How much it takes of the room that there is.
    pub(crate) room: Room,
    /// The settings that its client began it with.
    pub(crate) wishes: Arc<TrackedParameters>,
    /// Those that its client itself began with.
    pub(crate) startup: Arc<TrackedParameters>,
    /// What its client had prepared, unless that is what those before it leave.
    pub(crate) statements: Option<Arc<ClientStatements>>,
    /// The first error that the client was told.
    pub(crate) error: Option<SqlState>,
}

/// A transaction under way on a mirror.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) unit: Unit,
    pub(crate) shadow: ClientId,
    /// Why its shadow was refused.
    pub(crate) why: Option<DropReason>,
}

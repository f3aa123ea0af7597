//! [`MirrorQueue`]: one client's waiting and running transactions for one mirror.

use std::{collections::VecDeque, sync::Arc};

use howdah_wire::{Backend, Frame};

use crate::{
    mirror::{
        counters::{MirrorError, SqlstateBytes, parse_sqlstate},
        outcome::DropReason,
        target::MirrorTarget,
    },
    prepared::names::ClientStatements,
    session::parameters::TrackedParameters,
    state::{ids::ClientId, slab},
    time::Time,
};

/// Identifies a [`MirrorQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MirrorQueueId {
    index: u32,
    generation: u32,
}

impl slab::SlabKey for MirrorQueueId {
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

/// The state of a mirror client, the internal client that replays a transaction.
#[derive(Debug)]
pub(crate) struct MirrorClient {
    pub(crate) queue: MirrorQueueId,
    /// The first error that the mirror client received in its transaction.
    pub(crate) error: Option<Box<MirrorError>>,
}

/// The state of buffering a client's current input for one mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferingState {
    /// Buffering starts at the next point between two transactions.
    NotStarted,
    Active,
    /// The current transaction is not buffered, for this reason.
    Dropped(DropReason),
}

/// The mirroring state of a sampled client.
#[derive(Debug, Default)]
pub(crate) struct MirroredClient {
    /// One queue for each mirror that the client was sampled for.
    pub(crate) queues: Vec<MirrorQueueId>,
    /// The client's input since it was last between two transactions; `None` until it sends more,
    /// or if it became mirrored within its current transaction.
    pub(crate) open: Option<OpenTransaction>,
}

impl MirroredClient {
    /// Records the first error among the merged replies of several shards that the client receives
    /// in a transaction, to compare the results.
    pub(crate) fn record_errors(&mut self, replies: &[u8]) {
        let Some(open) = &mut self.open else { return };
        let mut rest = replies;
        while let Ok(Some((frame, later))) = Frame::split(rest, u32::MAX) {
            if frame.tag == Backend::ErrorResponse.tag() {
                open.error.get_or_insert_with(|| parse_sqlstate(frame.body));
            }
            rest = later;
        }
    }
}

/// A transaction in progress, or several that the client has pipelined.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    pub(crate) bytes: Vec<u8>,
    /// Total length in bytes, including bytes that are not buffered.
    pub(crate) total_bytes: usize,
    pub(crate) parameters: Arc<TrackedParameters>,
    /// The client's prepared statements at the start of the transaction, if a mirror is out of
    /// sync.
    pub(crate) statements: Option<Arc<ClientStatements>>,
    /// The first error that the client received.
    pub(crate) error: Option<SqlstateBytes>,
    pub(crate) is_cancelled: bool,
}

/// Buffer space reserved for transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BufferReservation {
    /// Bytes that count against both limits: the client's own and that for all clients.
    pub(crate) bytes: usize,
    /// Bytes of the client's prepared statements, which count only against the limit for all
    /// clients. Otherwise a client with many statements would have no space left after its first
    /// dropped transaction.
    pub(crate) statements: usize,
}

impl BufferReservation {
    fn total(self) -> usize {
        self.bytes + self.statements
    }
}

/// One client's queue for one mirror. It outlives its client while transactions remain.
#[derive(Debug)]
pub(crate) struct MirrorQueue {
    pub(crate) target: MirrorTarget,
    /// Time at which the client disconnected or was removed from mirroring.
    pub(crate) closed_at: Option<Time>,
    /// Whether the client's current input is buffered for this mirror.
    pub(crate) buffering: BufferingState,
    /// Space reserved for the input of the open transaction.
    pub(crate) open_reservation: BufferReservation,
    /// Completed transactions that have yet to run on the mirror, the oldest first.
    pub(crate) waiting: VecDeque<BufferedTransaction>,
    pub(crate) running: Option<RunningTransaction>,
    /// Space reserved for all open, waiting and running transactions of this queue.
    pub(crate) reservation: BufferReservation,
    /// Statements prepared on the mirror, by the client's names. While a transaction runs, its
    /// mirror client has them.
    pub(crate) statements: ClientStatements,
    /// Whether `statements` may differ from the client's, because the queue is new, or because a
    /// transaction was dropped or had another result on the mirror.
    pub(crate) is_out_of_sync: bool,
}

impl MirrorQueue {
    pub(crate) fn new(target: MirrorTarget) -> Self {
        target.mirror.add_client();
        Self {
            target,
            closed_at: None,
            buffering: BufferingState::NotStarted,
            open_reservation: BufferReservation::default(),
            waiting: VecDeque::new(),
            running: None,
            reservation: BufferReservation::default(),
            statements: ClientStatements::default(),
            is_out_of_sync: true,
        }
    }

    /// Reserves space for more bytes of the client's transaction, or drops the transaction if they
    /// would exceed the client's buffer limit or that of all clients.
    pub(crate) fn reserve_bytes(&mut self, bytes: usize) {
        if self.buffering != BufferingState::Active {
            return;
        }
        let reason = if self.open_reservation.bytes + bytes > self.target.client_bytes {
            DropReason::TooLarge
        } else if self.reservation.bytes + bytes > self.target.client_bytes
            || !self.target.mirror.reserve(bytes, self.target.buffer_bytes)
        {
            DropReason::BufferFull
        } else {
            self.reservation.bytes += bytes;
            self.open_reservation.bytes += bytes;
            return;
        };
        self.stop_buffering(reason);
    }

    /// Reserves space for the client's prepared statements, or drops the client's transaction if
    /// the buffer is full.
    pub(crate) fn reserve_statements(&mut self, bytes: usize) {
        if self.buffering != BufferingState::Active {
            return;
        }
        if self.target.mirror.reserve(bytes, self.target.buffer_bytes) {
            self.reservation.statements += bytes;
            self.open_reservation.statements += bytes;
        } else {
            self.stop_buffering(DropReason::BufferFull);
        }
    }

    /// Stops buffering the client's transaction for this mirror, and frees its space.
    pub(crate) fn stop_buffering(&mut self, reason: DropReason) {
        let reservation = std::mem::take(&mut self.open_reservation);
        self.release(reservation);
        if self.buffering == BufferingState::Active {
            self.buffering = BufferingState::Dropped(reason);
        }
    }

    /// Ends the client's transaction. Returns its reservation if the transaction must be queued;
    /// counts a dropped one.
    pub(crate) fn finish_transaction(&mut self, total_bytes: usize) -> Option<BufferReservation> {
        match std::mem::replace(&mut self.buffering, BufferingState::NotStarted) {
            BufferingState::NotStarted => None,
            BufferingState::Active => Some(std::mem::take(&mut self.open_reservation)),
            BufferingState::Dropped(reason) => {
                self.target.mirror.record_drop(reason, total_bytes);
                self.is_out_of_sync = true;
                None
            }
        }
    }

    pub(crate) fn release(&mut self, reservation: BufferReservation) {
        self.reservation.bytes -= reservation.bytes;
        self.reservation.statements -= reservation.statements;
        self.target.mirror.release(reservation.total());
    }

    /// Drops the waiting transactions, and counts them as dropped for this reason.
    pub(crate) fn drop_waiting(&mut self, reason: DropReason) {
        for transaction in std::mem::take(&mut self.waiting) {
            self.target.mirror.record_drop(reason, transaction.bytes.len());
            self.release(transaction.reservation);
        }
        self.is_out_of_sync = true;
    }

    /// Whether the queue is closed and empty.
    pub(crate) fn is_finished(&self) -> bool {
        self.closed_at.is_some() && self.running.is_none() && self.waiting.is_empty()
    }
}

impl Drop for MirrorQueue {
    fn drop(&mut self) {
        self.target.mirror.release(self.reservation.total());
        if self.closed_at.is_none() {
            self.target.mirror.remove_client();
        }
    }
}

/// A completed transaction of a client that is replayed on a mirror.
#[derive(Clone, Debug)]
pub(crate) struct BufferedTransaction {
    /// The client's messages, all complete.
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Buffer space reserved for the transaction.
    pub(crate) reservation: BufferReservation,
    /// The client's session parameters at the start of the transaction.
    pub(crate) parameters: Arc<TrackedParameters>,
    /// The client's session parameters at startup.
    pub(crate) startup_parameters: Arc<TrackedParameters>,
    /// The client's prepared statements, if the queue's must be replaced by them.
    pub(crate) statements: Option<Arc<ClientStatements>>,
    /// The first error that the client received.
    pub(crate) error: Option<SqlstateBytes>,
}

/// A transaction running on a mirror.
#[derive(Debug)]
pub(crate) struct RunningTransaction {
    pub(crate) transaction: BufferedTransaction,
    pub(crate) client: ClientId,
    /// The reason why the mirror client was disconnected, once it was.
    pub(crate) drop_reason: Option<DropReason>,
}

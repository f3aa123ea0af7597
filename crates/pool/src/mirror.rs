//! [`Mirror`]: another cluster on which a share of a database's traffic is run, too; what is counted of it,
//! and how much may wait for it.
//!
//! # How
//!
//! A mirrored client's bytes are copied from one moment between two transactions to the next: a [`Unit`]. When
//! the client has been told how it ended, the unit waits for the mirror, behind those before it. It is played
//! there by a *shadow*: a client of the core's own in the mirror's pool, which finds the settings and prepared
//! statements that the client had, waits for a server, and has what it leaves behind cleaned up, as any other;
//! what it is told is read and dropped.
//!
//! So the mirror gets whole transactions, in the order of each client, and only those whose end is known. What
//! finds no room is dropped whole and counted. Nothing that the client waits for ever waits for the mirror.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    ids::{ClientId, PoolId},
    prepared::ClientStatements,
    refusal::Refusal,
    settings::Wishes,
    slab,
    time::Time,
};

/// Why a transaction was not run on a mirror, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// The room of its client, or that of all clients, was taken: the mirror is slower than the traffic.
    Full,
    /// It has more bytes than its client has room.
    Large,
    /// The mirror could not be logged in to, or no connection to it got free in time.
    Unreachable,
    /// It was not over in time there.
    Timeout,
    /// The connection to the mirror ended in the middle of it.
    Lost,
    /// Its client cancelled a statement of it.
    Cancelled,
    /// Its client went before it was told how it ended, or too much was left when it had gone.
    Left,
}

impl Dropped {
    /// Every reason, in the order in which they are shown.
    pub const ALL: [Self; 7] = [
        Self::Full,
        Self::Large,
        Self::Unreachable,
        Self::Timeout,
        Self::Lost,
        Self::Cancelled,
        Self::Left,
    ];

    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Large => "large",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Cancelled => "cancelled",
            Self::Left => "left",
        }
    }

    /// What it means for a transaction that its shadow was refused.
    pub(crate) fn because(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::QueryWait | Refusal::ServerLogin { .. } | Refusal::NoMember(_) => {
                Self::Unreachable
            }
            Refusal::QueryTimeout
            | Refusal::Transaction
            | Refusal::IdleTransaction
            | Refusal::ClientIdle => Self::Timeout,
            _ => Self::Lost,
        }
    }
}

/// How a transaction that was run to its end on a mirror compares with what its client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Both ended without an error, or with the same one first.
    Same,
    /// Only the mirror had an error.
    MirrorFailed,
    /// Only the database had one.
    ClientFailed,
    /// Both had errors, and the first were of different codes.
    Different,
}

/// The code of an error.
pub(crate) type SqlState = [u8; 5];

/// What an error is counted as that was too long to be looked at.
const UNKNOWN: SqlState = *b"XX000";

/// The code in the body of an ErrorResponse.
pub(crate) fn sqlstate_in(body: &[u8]) -> SqlState {
    let mut fields = body.split(|byte| *byte == 0);
    let code = fields.find_map(|field| field.strip_prefix(b"C"));
    code.and_then(|code| code.try_into().ok()).unwrap_or(UNKNOWN)
}

/// The text in the body of an ErrorResponse, cut if it is long.
fn message_in(body: &[u8]) -> String {
    let mut fields = body.split(|byte| *byte == 0);
    let text = fields.find_map(|field| field.strip_prefix(b"M")).unwrap_or_default();
    String::from_utf8_lossy(&text[..text.len().min(MESSAGE_BYTES)]).into_owned()
}

/// So much of an error's text is kept.
const MESSAGE_BYTES: usize = 200;

/// Classes of errors that are counted apart; PostgreSQL has some forty.
const CLASSES_MAX: usize = 64;

/// A mirror of a database, for all workers and users.
#[derive(Debug, Default)]
pub struct Mirror {
    /// Clients that came while there was this mirror.
    drawn: AtomicU64,
    clients: AtomicU64,
    buffered: AtomicU64,
    transactions: AtomicU64,
    mirror_failed: AtomicU64,
    client_failed: AtomicU64,
    different: AtomicU64,
    dropped: [AtomicU64; Dropped::ALL.len()],
    dropped_bytes: AtomicU64,
    errors: Mutex<Errors>,
}

/// What errors a mirror had that the database had not.
#[derive(Clone, Debug, Default)]
struct Errors {
    by_class: BTreeMap<[u8; 2], u64>,
    last: Option<String>,
}

/// What was counted of a mirror, since there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorReport {
    /// Clients that are mirrored now.
    pub clients: u64,
    /// Bytes of their transactions that wait or are under way.
    pub buffered_bytes: u64,
    /// Transactions that were run to their end on the mirror.
    pub transactions: u64,
    /// Those of them with an error that the database did not have.
    pub mirror_failed: u64,
    /// Those of them without the error that the database had.
    pub client_failed: u64,
    /// Those of them with an error of another code.
    pub different: u64,
    /// Transactions that were not, by the places in [`Dropped::ALL`].
    pub dropped: [u64; Dropped::ALL.len()],
    /// Bytes that clients sent of these.
    pub dropped_bytes: u64,
    /// How many transactions first had an error of which class there, and none or another here.
    pub classes: Vec<([u8; 2], u64)>,
    /// The last such error, or why the mirror could not be logged in to.
    pub last_error: Option<String>,
}

impl MirrorReport {
    /// How many were dropped, for whatever reason.
    pub fn dropped_in_all(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl Mirror {
    /// Whether the next client is one of a share. Of any clients in a row, about as many are as the share
    /// says; no short pattern in how clients come meets one here, since the places are multiples of the
    /// golden ratio. The same clients in the same order are drawn the same.
    pub(crate) fn draws(&self, share: f64) -> bool {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        is_drawn(number, share)
    }

    /// A client is mirrored from now on.
    pub(crate) fn joins(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    /// A client is mirrored no more.
    pub(crate) fn leaves(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes room for bytes, unless there would be more than `max`.
    pub(crate) fn take_room(&self, bytes: usize, max: usize) -> bool {
        let (bytes, max) = (bytes as u64, max as u64);
        let before = self.buffered.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= max;
        if !fits {
            self.buffered.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn give_room(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// A transaction was dropped, of which its client sent so many bytes, or more.
    pub(crate) fn drops(&self, why: Dropped, bytes: usize) {
        self.dropped[why as usize].fetch_add(1, Ordering::Relaxed);
        self.dropped_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A transaction was run to its end, with these first errors.
    pub(crate) fn ran(&self, here: Option<SqlState>, there: Option<&MirrorError>) -> Compared {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        let compared = match (here, there) {
            (None, None) => Compared::Same,
            (Some(here), Some(there)) if here == there.sqlstate => Compared::Same,
            (None, Some(_)) => Compared::MirrorFailed,
            (Some(_), None) => Compared::ClientFailed,
            (Some(_), Some(_)) => Compared::Different,
        };
        match compared {
            Compared::Same => return compared,
            Compared::MirrorFailed => &self.mirror_failed,
            Compared::ClientFailed => &self.client_failed,
            Compared::Different => &self.different,
        }
        .fetch_add(1, Ordering::Relaxed);
        if let Some(there) = there {
            let [first, second, ..] = there.sqlstate;
            let mut errors = self.errors();
            let is_known = errors.by_class.contains_key(&[first, second]);
            if is_known || errors.by_class.len() < CLASSES_MAX {
                *errors.by_class.entry([first, second]).or_default() += 1;
            }
            errors.last = Some(there.shown());
        }
        compared
    }

    /// Keeps why the mirror could not be used.
    pub(crate) fn failed(&self, refusal: &Refusal) {
        let sqlstate = String::from_utf8_lossy(&refusal.sqlstate()).into_owned();
        self.errors().last = Some(format!("{sqlstate}: {refusal}"));
    }

    fn errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was counted. The numbers are not of one moment.
    pub fn report(&self) -> MirrorReport {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let Errors { by_class, last } = self.errors().clone();
        MirrorReport {
            clients: read(&self.clients),
            buffered_bytes: read(&self.buffered),
            transactions: read(&self.transactions),
            mirror_failed: read(&self.mirror_failed),
            client_failed: read(&self.client_failed),
            different: read(&self.different),
            dropped: std::array::from_fn(|at| read(&self.dropped[at])),
            dropped_bytes: read(&self.dropped_bytes),
            classes: by_class.into_iter().collect(),
            last_error: last,
        }
    }
}

/// 2⁶⁴ divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn is_drawn(number: u64, share: f64) -> bool {
    // Its 53 highest bits are what a double can tell apart.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are a double's")]
    let place = (number.wrapping_mul(GOLDEN) >> 11) as f64 / (1_u64 << 53) as f64;
    place < share
}

/// An error that a mirror had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MirrorError {
    pub(crate) sqlstate: SqlState,
    message: String,
}

impl MirrorError {
    /// Of the body of an ErrorResponse.
    pub(crate) fn new(body: &[u8]) -> Self {
        Self { sqlstate: sqlstate_in(body), message: message_in(body) }
    }

    fn shown(&self) -> String {
        format!("{}: {}", String::from_utf8_lossy(&self.sqlstate), self.message)
    }
}

/// A mirror as a pool's clients use it.
#[derive(Clone, Debug)]
pub struct MirrorTarget {
    /// Whose servers their shadows use; it has no clients of its own.
    pub pool: PoolId,
    /// What all workers and pools have in common.
    pub mirror: Arc<Mirror>,
    /// Which part of clients is mirrored, from 0 to 1.
    pub share: f64,
    /// How many bytes of one client's transactions may wait or be under way.
    pub client_bytes: usize,
    /// The same of all clients together.
    pub buffer_bytes: usize,
    /// How long what a client has left behind may take.
    pub timeout: Duration,
}

impl MirrorTarget {
    /// Whether clients that were drawn for one stay drawn for the other.
    pub(crate) fn draws_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.mirror, &other.mirror)
            && self.share.to_bits() == other.share.to_bits()
            && self.pool == other.pool
    }
}

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
pub(crate) struct Shadow {
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
    No(Dropped),
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
    pub(crate) wishes: Arc<Wishes>,
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
            Dropped::Large
        } else if self.room.bytes + bytes > self.target.client_bytes
            || !self.target.mirror.take_room(bytes, self.target.buffer_bytes)
        {
            Dropped::Full
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
            self.take_no_more(Dropped::Full);
        }
    }

    /// What its client is sending is not for this mirror.
    pub(crate) fn take_no_more(&mut self, why: Dropped) {
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
    pub(crate) fn drop_waiting(&mut self, why: Dropped) {
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
    pub(crate) wishes: Arc<Wishes>,
    /// Those that its client itself began with.
    pub(crate) startup: Arc<Wishes>,
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
    pub(crate) why: Option<Dropped>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_clients_is_drawn_and_the_same_ones_of_a_larger_share() {
        for share in [0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 1.0] {
            let drawn: Vec<_> = (0..1000).map(|number| is_drawn(number, share)).collect();
            for clients in [10, 100, 1000] {
                let count = drawn[..clients].iter().filter(|it| **it).count();
                let off = (count as f64 - share * clients as f64).abs();
                assert!(off < 3.0, "{count} of {clients} for {share}");
            }
            // Whoever connects in turns is mirrored as often as the other.
            let even = drawn.iter().step_by(2).filter(|it| **it).count();
            assert!((even as f64 - share * 500.0).abs() < 3.0, "{even} of every other for {share}");
            let more = |number| is_drawn(number, share + 0.1);
            assert!(drawn.iter().zip(0..).all(|(is_drawn, number)| !is_drawn || more(number)));
        }
    }

    #[test]
    fn room_is_never_more_than_there_is() {
        let mirror = Mirror::default();
        assert!(mirror.take_room(60, 100));
        assert!(!mirror.take_room(41, 100));
        assert!(mirror.take_room(40, 100));
        mirror.give_room(100);
        assert_eq!(mirror.report().buffered_bytes, 0);
    }

    #[test]
    fn an_error_is_known_by_its_code() {
        let body = b"SERROR\0VERROR\0C42P01\0Mrelation \"t\" does not exist\0\0";
        let error = MirrorError::new(body);
        assert_eq!(error.shown(), "42P01: relation \"t\" does not exist");
        assert_eq!(sqlstate_in(b""), UNKNOWN);
        let mirror = Mirror::default();
        assert_eq!(mirror.ran(None, None), Compared::Same);
        assert_eq!(mirror.ran(Some(*b"42P01"), Some(&error)), Compared::Same);
        assert_eq!(mirror.ran(None, Some(&error)), Compared::MirrorFailed);
        assert_eq!(mirror.ran(Some(*b"23505"), Some(&error)), Compared::Different);
        assert_eq!(mirror.ran(Some(*b"23505"), None), Compared::ClientFailed);
        let report = mirror.report();
        assert_eq!(report.classes, [(*b"42", 2)]);
        assert_eq!((report.transactions, report.different), (5, 1));
    }
}

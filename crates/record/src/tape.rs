//! [`CaptureBuffer`]: where a worker of the pooler writes down what its clients say and hear.
//!
//! # Cost
//!
//! What a client sends is copied once, in one piece for each read, with a header of 17 bytes; of what it
//! hears only the ends of statements, errors and the readiness behind them, some 20 bytes each. The copy
//! goes to memory of the worker's own. A full piece of it is handed over by one atomic addition and one
//! message to the thread that makes events of it; if too much waits there, the piece is thrown away, and
//! what is missing is counted. So nothing here waits, ever.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::Sender,
    },
};

use howdah_wire::{Backend, Frontend, Header};

use crate::record::{Kind, put_bytes};

/// Bytes that are handed over at once.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// How long what was written may lie with the worker, in nanoseconds.
const LIE_NANOS_MAX: u64 = 500_000_000;

/// Bytes of a record before those of the client: 13 of every record, and seven of what is heard.
const FRONT_BYTES_MAX: usize = 20;

/// Pieces whose memory is kept for the next.
const SPARE_MAX: usize = 4;

/// The recorder of one worker.
#[derive(Debug)]
pub struct CaptureBuffer {
    /// Which capture of this process it is of.
    capture: u32,
    lane: Arc<Lane>,
    to: Sender<Piece>,
    bytes: Vec<u8>,
    /// When the first of `bytes` was written.
    began: u64,
    /// Counts gaps. Who was recorded before one is not recorded after it until it is entered anew.
    epoch: u32,
    sessions: u32,
    /// Texts that are on the tape already.
    texts: HashSet<u64>,
    keeps_rows: bool,
}

/// What a worker and the thread that reads its tape share.
#[derive(Debug)]
pub(crate) struct Lane {
    /// The worker's number.
    pub(crate) number: usize,
    /// Bytes that wait.
    waiting: AtomicUsize,
    waiting_max: usize,
    /// Nobody reads any more.
    closed: AtomicBool,
    /// Bytes of clients, and of records, that found no room.
    pub(crate) lost_bytes: AtomicU64,
    /// How often there was no room.
    pub(crate) gaps: AtomicU64,
    spare: Mutex<Vec<Vec<u8>>>,
}

/// A piece of a tape.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) lane: Arc<Lane>,
    pub(crate) bytes: Vec<u8>,
    /// There is nothing behind it.
    pub(crate) is_last: bool,
}

/// What is remembered of a client that is, or was, recorded.
#[derive(Clone, Debug, Default)]
pub struct Mark {
    capture: u32,
    session: u32,
    epoch: u32,
    /// Where its stream is: bytes left of a body, and whether they are left out.
    body_left: u32,
    leaves_out: bool,
    /// The front of a header that is not all there.
    front: [u8; Header::BYTES],
    front_bytes: u8,
    /// Requests of the extended protocol answered since something was last written of it.
    answered: u16,
}

/// How a session is when it enters the record.
#[derive(Debug)]
pub struct Entry<'a, Settings, Statements> {
    /// Whether it has just begun; else it was open before.
    pub is_new: bool,
    /// The number of its pool, which says who it is.
    pub pool: u32,
    /// Its settings, by name and value.
    pub settings: Settings,
    /// Its prepared statements: name, a number that stands for the text for ever, and the text with the
    /// types of parameters, as Parse has them.
    pub statements: Statements,
    /// Its unnamed statement, as Parse has it; empty if there is none.
    pub unnamed: &'a [u8],
}

impl Lane {
    pub(crate) fn new(number: usize, waiting_max: usize) -> Arc<Self> {
        Arc::new(Self {
            number,
            waiting: AtomicUsize::new(0),
            waiting_max,
            closed: AtomicBool::new(false),
            lost_bytes: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            spare: Mutex::default(),
        })
    }

    /// Has the worker stop.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Bytes that wait to be read.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A piece has been dealt with.
    pub(crate) fn give_back(&self, mut bytes: Vec<u8>) {
        self.waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
        bytes.clear();
        if let Ok(mut spare) = self.spare.try_lock()
            && spare.len() < SPARE_MAX
            && bytes.capacity() <= 2 * PIECE_BYTES
        {
            spare.push(bytes);
        }
    }

    /// Has no room until [`Lane::empty`].
    pub(crate) fn fill(&self) {
        self.waiting.fetch_add(self.waiting_max, Ordering::Relaxed);
    }

    /// Takes [`Lane::fill`] back.
    pub(crate) fn empty(&self) {
        self.waiting.fetch_sub(self.waiting_max, Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        self.waiting() >= self.waiting_max
    }
}

impl CaptureBuffer {
    pub(crate) fn new(capture: u32, lane: Arc<Lane>, to: Sender<Piece>, keeps_rows: bool) -> Self {
        Self {
            capture,
            lane,
            to,
            bytes: Vec::new(),
            began: 0,
            epoch: 1,
            sessions: 0,
            texts: HashSet::new(),
            keeps_rows,
        }
    }

    /// Whether nobody reads it any more, because writing has failed.
    pub fn is_closed(&self) -> bool {
        self.lane.closed.load(Ordering::Relaxed)
    }

    /// Whether a client is recorded now.
    #[inline]
    pub fn has(&self, mark: &Mark) -> bool {
        mark.epoch == self.epoch && mark.capture == self.capture
    }

    /// Whether a client may be entered now; if not, what it sent is counted as lost.
    pub fn has_room(&self, bytes: usize) -> bool {
        let has_room = !self.lane.is_full();
        if !has_room {
            self.lane.lost_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        has_room
    }

    /// Bytes of a client's that are not recorded because it is in the middle of something.
    pub fn passed_over(&self, mark: &Mark, bytes: usize) {
        if mark.capture == self.capture && mark.session != 0 {
            self.lane.lost_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// From here on a client is recorded: it stands between two transactions and has sent nothing that
    /// was not answered.
    pub fn enter<'e>(
        &mut self,
        mark: &mut Mark,
        entry: Entry<
            'e,
            impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
            impl Iterator<Item = (&'e [u8], u64, &'e [u8])> + Clone,
        >,
        now: u64,
    ) {
        if mark.capture != self.capture || mark.session == 0 {
            self.sessions += 1;
            mark.session = self.sessions;
        }
        let session = mark.session;
        *mark = Mark { capture: self.capture, session, epoch: self.epoch, ..Mark::default() };
        for (_, id, text) in entry.statements.clone() {
            if self.texts.insert(id) {
                let buf = self.begin(Kind::Text, 0, now);
                buf.extend_from_slice(&id.to_le_bytes());
                put_bytes(buf, text);
            }
        }
        let buf = self.begin(Kind::Enter, session, now);
        buf.push(entry.is_new.into());
        buf.extend_from_slice(&entry.pool.to_le_bytes());
        put_bytes(buf, entry.unnamed);
        put_count(buf, entry.settings.clone().count());
        for (name, value) in entry.settings {
            put_bytes(buf, name);
            put_bytes(buf, value);
        }
        put_count(buf, entry.statements.clone().count());
        for (name, id, _) in entry.statements {
            put_bytes(buf, name);
            buf.extend_from_slice(&id.to_le_bytes());
        }
        self.hand_over_if_full();
    }

    /// What a recorded client sent, in pieces of any size. Passwords are left out, and rows of COPY unless
    /// they are to be kept.
    pub fn said(&mut self, mark: &mut Mark, bytes: &[u8], now: u64) {
        let (mut from, mut at) = (0, 0);
        while at < bytes.len() {
            if mark.body_left > 0 {
                let taken = (bytes.len() - at).min(mark.body_left as usize);
                if mark.leaves_out {
                    self.put_said(mark.session, &bytes[from..at], now);
                    let left_out = u32::try_from(taken).unwrap_or(u32::MAX);
                    self.begin(Kind::LeftOut, mark.session, now)
                        .extend_from_slice(&left_out.to_le_bytes());
                    from = at + taken;
                }
                at += taken;
                mark.body_left -= u32::try_from(taken).unwrap_or(mark.body_left);
                continue;
            }
            let whole = bytes.get(at..at + Header::BYTES).filter(|_| mark.front_bytes == 0);
            let header = match whole {
                Some(front) => {
                    at += Header::BYTES;
                    Header::parse(front)
                }
                None => {
                    let has = usize::from(mark.front_bytes);
                    let taken = (Header::BYTES - has).min(bytes.len() - at);
                    mark.front[has..has + taken].copy_from_slice(&bytes[at..at + taken]);
                    at += taken;
                    mark.front_bytes += taken as u8;
                    if usize::from(mark.front_bytes) < Header::BYTES {
                        break;
                    }
                    mark.front_bytes = 0;
                    Header::parse(&mark.front)
                }
            };
            let Ok(Some(header)) = header else {
                // Nothing behind it can be understood; the pooler refuses the client.
                self.put_said(mark.session, &bytes[from..at], now);
                mark.epoch = 0;
                return;
            };
            mark.body_left = header.body_bytes;
            mark.leaves_out = match Frontend::from_tag(header.tag) {
                Some(Frontend::CopyData) => !self.keeps_rows,
                Some(Frontend::Authentication) | None => true,
                Some(_) => false,
            };
        }
        self.put_said(mark.session, &bytes[from..], now);
        self.hand_over_if_full();
    }

    /// What a recorded client hears: a message, its body if it is one that is looked at and all there.
    #[inline]
    pub fn heard(&mut self, mark: &mut Mark, kind: Backend, body: &[u8], now: u64) {
        match kind {
            Backend::DataRow => {}
            Backend::ParseComplete
            | Backend::BindComplete
            | Backend::CloseComplete
            | Backend::RowDescription
            | Backend::NoData => mark.answered = mark.answered.saturating_add(1),
            Backend::CommandComplete | Backend::ErrorResponse | Backend::ReadyForQuery => {
                self.put_heard(mark, kind, body, now);
            }
            Backend::EmptyQueryResponse
            | Backend::PortalSuspended
            | Backend::CopyInResponse
            | Backend::CopyOutResponse
            | Backend::FunctionCallResponse => self.put_heard(mark, kind, &[], now),
            _ => {}
        }
    }

    /// A recorded client that had to wait for a server has one now.
    pub fn granted(&mut self, mark: &Mark, now: u64) {
        self.begin(Kind::Granted, mark.session, now);
    }

    /// Somebody asks to cancel what a recorded client does.
    pub fn cancelled(&mut self, mark: &Mark, now: u64) {
        self.begin(Kind::Cancelled, mark.session, now);
    }

    /// A client that is, or was, recorded is gone.
    pub fn left(&mut self, mark: &Mark, now: u64) {
        if mark.capture == self.capture && mark.session != 0 {
            self.begin(Kind::Left, mark.session, now);
        }
    }

    /// When [`Self::hand_over`] is due, in the nanoseconds of the worker's clock; `None` if there is
    /// nothing to be handed over.
    pub fn due(&self) -> Option<u64> {
        (!self.bytes.is_empty()).then(|| self.began.saturating_add(LIE_NANOS_MAX))
    }

    /// Hands over what there is.
    pub fn hand_over(&mut self) {
        if !self.bytes.is_empty() {
            self.send(false);
        }
    }

    /// Hands over what there is, and ends.
    pub fn end(mut self) {
        self.send(true);
    }

    fn put_said(&mut self, session: u32, bytes: &[u8], now: u64) {
        if !bytes.is_empty() {
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let buf = self.begin_with(Kind::Said, session, now, len.to_le_bytes());
            buf.extend_from_slice(&bytes[..len as usize]);
        }
    }

    fn put_heard(&mut self, mark: &mut Mark, kind: Backend, body: &[u8], now: u64) {
        let answered = std::mem::take(&mut mark.answered);
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut rest = [0; 7];
        rest[0] = kind.tag().0;
        rest[1..3].copy_from_slice(&answered.to_le_bytes());
        rest[3..].copy_from_slice(&len.to_le_bytes());
        let buf = self.begin_with(Kind::Heard, mark.session, now, rest);
        buf.extend_from_slice(&body[..len as usize]);
        self.hand_over_if_full();
    }

    /// Begins a record.
    #[inline]
    fn begin(&mut self, kind: Kind, session: u32, now: u64) -> &mut Vec<u8> {
        self.begin_with(kind, session, now, [])
    }

    /// Begins a record that goes on with these bytes.
    #[inline]
    fn begin_with<const N: usize>(
        &mut self,
        kind: Kind,
        session: u32,
        now: u64,
        rest: [u8; N],
    ) -> &mut Vec<u8> {
        if self.bytes.is_empty() {
            self.began = now;
        }
        let mut front = [0; FRONT_BYTES_MAX];
        front[0] = kind as u8;
        front[1..5].copy_from_slice(&session.to_le_bytes());
        front[5..13].copy_from_slice(&now.to_le_bytes());
        front[13..13 + N].copy_from_slice(&rest);
        self.bytes.extend_from_slice(&front[..13 + N]);
        &mut self.bytes
    }

    #[inline]
    fn hand_over_if_full(&mut self) {
        if self.bytes.len() >= PIECE_BYTES {
            self.send(false);
        }
    }

    fn send(&mut self, is_last: bool) {
        if self.lane.is_full() && !is_last {
            return self.lose();
        }
        let spare = self.lane.spare.try_lock().ok().and_then(|mut spare| spare.pop());
        let next = if is_last { Vec::new() } else { spare.unwrap_or_else(room) };
        let bytes = std::mem::replace(&mut self.bytes, next);
        self.lane.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        let piece = Piece { lane: Arc::clone(&self.lane), bytes, is_last };
        if self.to.send(piece).is_err() {
            self.lane.close();
        }
    }

    /// Throws away what could not be handed over: a gap.
    fn lose(&mut self) {
        let lost = self.bytes.len() as u64;
        self.lane.lost_bytes.fetch_add(lost, Ordering::Relaxed);
        self.lane.gaps.fetch_add(1, Ordering::Relaxed);
        self.bytes.clear();
        self.texts.clear();
        self.epoch = self.epoch.wrapping_add(1).max(1);
        let now = self.began;
        self.begin(Kind::Gap, 0, now).extend_from_slice(&lost.to_le_bytes());
    }
}

fn room() -> Vec<u8> {
    Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 4)
}

fn put_count(buf: &mut Vec<u8>, count: usize) {
    buf.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

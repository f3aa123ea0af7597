//! [`CaptureBuffer`]: the buffer in which a worker of the pooler records its clients' traffic.
//!
//! # Cost
//!
//! Bytes from a client are copied once, usually in one record per read, with a header of 17 bytes.
//! Only some of the server's replies are recorded: the ends of statements, the starts of COPYs,
//! errors and ReadyForQuery, with a header of 20 bytes each. The copy is stored in the worker's
//! own memory. A full chunk is handed over with one atomic addition and one message to the
//! recorder's thread; if too much is queued there, the chunk is dropped and counted as missing.
//! Recording therefore never blocks the worker.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::Sender,
    },
};

use howdah_traffic::ResultDigest;
use howdah_wire::{Backend, Frontend, Header};
use parking_lot::Mutex;

use crate::live::record::{RecordKind, write_bytes};

/// Size in bytes from which a chunk of records is handed over immediately.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

/// Maximum time that records stay in the worker's buffer, in nanoseconds.
const FLUSH_INTERVAL_NANOS: u64 = 500_000_000;

/// Maximum length of a record before the payload: 13 bytes for every record, plus seven for backend
/// messages.
const PREFIX_BYTES_MAX: usize = 20;

/// Maximum size of a row that is read for the checksum of its result.
const ROW_BYTES_MAX: u32 = 64 << 10;

/// Maximum number of chunks whose memory is retained for reuse.
const SPARE_MAX: usize = 4;

/// The buffer in which one worker of the pooler records the traffic of its clients.
#[derive(Debug)]
pub struct CaptureBuffer {
    /// Number of the capture, counted from 1 since the pooler's process started.
    capture: u32,
    queue: Arc<BufferQueue>,
    sender: Sender<BufferChunk>,
    bytes: Vec<u8>,
    /// Time at which the first record in `bytes` was written.
    oldest_nanos: u64,
    /// Incremented at each gap. A client that was recorded before a gap is recorded again only
    /// after its session has been started again.
    epoch: u32,
    sessions: u32,
    /// Ids of the statement texts that have been written since the last gap.
    texts: HashSet<u64>,
    captures: CapturedParts,
}

/// The parts of the traffic that are captured although they can be large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapturedParts {
    /// The rows that clients send for COPY.
    pub copy_rows: bool,
    /// Checksums of the rows that clients receive, and first rows.
    pub results: bool,
}

/// State shared by a worker and the recorder's thread.
#[derive(Debug)]
pub struct BufferQueue {
    /// Number of the worker, from 0.
    number: usize,
    /// Number of queued bytes.
    queued: AtomicUsize,
    queued_max: usize,
    /// Whether the recorder has stopped reading.
    closed: AtomicBool,
    /// Number of bytes lost because the queue was full: those of dropped chunks, and those that
    /// clients sent before recording them could start or resume.
    lost_bytes: AtomicU64,
    /// Number of dropped chunks.
    gaps: AtomicU64,
    spare: Mutex<Vec<Vec<u8>>>,
}

/// A chunk of records, on its way to the recorder's thread.
#[derive(Debug)]
pub struct BufferChunk {
    queue: Arc<BufferQueue>,
    bytes: Vec<u8>,
    is_last: bool,
}

/// The state of recording one client. The default is that of a client that was never recorded.
#[derive(Clone, Debug, Default)]
pub struct ClientMark {
    capture: u32,
    session: u32,
    epoch: u32,
    /// Position in the client's stream: the remaining bytes of a body, and whether they are
    /// omitted.
    body_left: u32,
    is_omitted: bool,
    /// The bytes of an incomplete message header.
    header_prefix: [u8; Header::BYTES],
    header_prefix_bytes: u8,
    /// Number of replies since the last backend record that complete a request of the extended
    /// protocol. RowDescriptions of a simple Query count too, although they complete none.
    completed_requests: u16,
    /// The rows of the reply that is being received, if results are captured.
    result: Option<Box<ResultDigest>>,
}

/// The state of a session when its recording starts or resumes.
#[derive(Debug)]
pub struct SessionStart<'a, Settings, Statements> {
    /// Whether the client has just logged in; false for a session that was already open.
    pub is_new: bool,
    /// Number of the client's pool, which determines role and database.
    pub pool: u32,
    /// The client's settings, by name and value.
    pub settings: Settings,
    /// The client's prepared statements: the name, a permanent id of the text, and the text with
    /// its parameter types as in a Parse message.
    pub statements: Statements,
    /// The client's unnamed statement, as in a Parse message; empty if there is none.
    pub unnamed: &'a [u8],
}

impl BufferQueue {
    /// Creates the queue of the worker with this number. While `queued_max` bytes or more are
    /// queued, the worker drops its chunks.
    pub fn new(number: usize, queued_max: usize) -> Arc<Self> {
        Arc::new(Self {
            number,
            queued: AtomicUsize::new(0),
            queued_max,
            closed: AtomicBool::new(false),
            lost_bytes: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            spare: Mutex::default(),
        })
    }

    /// Marks the recorder as stopped, which the worker sees by [`CaptureBuffer::is_closed`].
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Returns the number of bytes in chunks that were handed over and not yet recycled.
    pub fn queued_bytes(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Returns the number of gaps, which is the number of chunks that were dropped.
    pub fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes lost because the queue was full: those of dropped chunks, and
    /// those that clients sent before recording them could start or resume.
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes.load(Ordering::Relaxed)
    }

    /// Returns the memory of a processed chunk to the worker.
    fn recycle(&self, mut bytes: Vec<u8>) {
        self.queued.fetch_sub(bytes.len(), Ordering::Relaxed);
        bytes.clear();
        if let Some(mut spare) = self.spare.try_lock()
            && spare.len() < SPARE_MAX
            && bytes.capacity() <= 2 * CHUNK_BYTES
        {
            spare.push(bytes);
        }
    }

    /// Makes the queue appear full until [`BufferQueue::unblock`].
    pub(crate) fn block(&self) {
        self.queued.fetch_add(self.queued_max, Ordering::Relaxed);
    }

    /// Reverts [`BufferQueue::block`].
    pub(crate) fn unblock(&self) {
        self.queued.fetch_sub(self.queued_max, Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        self.queued_bytes() >= self.queued_max
    }
}

impl BufferChunk {
    /// Returns the number of the worker that wrote the chunk.
    pub fn worker(&self) -> usize {
        self.queue.number
    }

    /// Whether this is the worker's last chunk.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// Returns the chunk's memory to the worker, once it is decoded.
    pub fn recycle(self) {
        self.queue.recycle(self.bytes);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl CaptureBuffer {
    /// Creates the buffer of one worker, which hands over its chunks to `sender`. `capture` is the
    /// number of the capture, counted from 1 since the pooler's process started.
    pub fn new(
        capture: u32,
        queue: Arc<BufferQueue>,
        sender: Sender<BufferChunk>,
        captures: CapturedParts,
    ) -> Self {
        Self {
            capture,
            queue,
            sender,
            bytes: Vec::new(),
            oldest_nanos: 0,
            epoch: 1,
            sessions: 0,
            texts: HashSet::new(),
            captures,
        }
    }

    /// Whether the bodies of rows are needed.
    #[inline]
    pub fn needs_row(&self, body_bytes: u32) -> bool {
        self.captures.results && body_bytes <= ROW_BYTES_MAX
    }

    /// Whether the recorder has stopped reading, because the recording ends or writing has failed.
    pub fn is_closed(&self) -> bool {
        self.queue.closed.load(Ordering::Relaxed)
    }

    /// Whether a client is being recorded.
    #[inline]
    pub fn is_recording(&self, client: &ClientMark) -> bool {
        client.epoch == self.epoch && client.capture == self.capture
    }

    /// Returns whether the recording of a client can start now. If not, adds `bytes`, the number
    /// of bytes that the client has just sent, to the lost bytes.
    pub fn has_room(&self, bytes: usize) -> bool {
        let has_room = !self.queue.is_full();
        if !has_room {
            self.queue.lost_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        has_room
    }

    /// Adds `bytes`, which a client has sent inside a transaction and before its recording can
    /// resume, to the lost bytes. Does nothing for a client that this capture has never recorded.
    pub fn count_skipped(&self, client: &ClientMark, bytes: usize) {
        if client.capture == self.capture && client.session != 0 {
            self.queue.lost_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Starts or resumes recording a client. The client must be between two transactions and have
    /// no outstanding requests.
    pub fn start_session<'e>(
        &mut self,
        client: &mut ClientMark,
        start: SessionStart<
            'e,
            impl Iterator<Item = (&'e [u8], &'e [u8])> + Clone,
            impl Iterator<Item = (&'e [u8], u64, &'e [u8])> + Clone,
        >,
        now: u64,
    ) {
        if client.capture != self.capture || client.session == 0 {
            self.sessions += 1;
            client.session = self.sessions;
        }
        let session = client.session;
        *client = ClientMark {
            capture: self.capture,
            session,
            epoch: self.epoch,
            ..ClientMark::default()
        };
        for (_, id, text) in start.statements.clone() {
            if self.texts.insert(id) {
                let buf = self.start_record(RecordKind::StatementText, 0, now);
                buf.extend_from_slice(&id.to_le_bytes());
                write_bytes(buf, text);
            }
        }
        let buf = self.start_record(RecordKind::SessionStart, session, now);
        buf.push(start.is_new.into());
        buf.extend_from_slice(&start.pool.to_le_bytes());
        write_bytes(buf, start.unnamed);
        write_count(buf, start.settings.clone().count());
        for (name, value) in start.settings {
            write_bytes(buf, name);
            write_bytes(buf, value);
        }
        write_count(buf, start.statements.clone().count());
        for (name, id, _) in start.statements {
            write_bytes(buf, name);
            buf.extend_from_slice(&id.to_le_bytes());
        }
        self.flush_if_full();
    }

    /// Records bytes from a client, in pieces of any size. Omits the bodies of authentication
    /// messages, of unknown messages and, unless rows of COPY are to be captured, of CopyData.
    /// Stops recording the client at an invalid header.
    pub fn record_frontend(&mut self, client: &mut ClientMark, bytes: &[u8], now: u64) {
        let (mut from, mut at) = (0, 0);
        while at < bytes.len() {
            if client.body_left > 0 {
                let len = (bytes.len() - at).min(client.body_left as usize);
                if client.is_omitted {
                    self.write_frontend(client.session, &bytes[from..at], now);
                    let left_out = u32::try_from(len).unwrap_or(u32::MAX);
                    self.start_record(RecordKind::Omitted, client.session, now)
                        .extend_from_slice(&left_out.to_le_bytes());
                    from = at + len;
                }
                at += len;
                client.body_left -= u32::try_from(len).unwrap_or(client.body_left);
                continue;
            }
            let whole =
                bytes.get(at..at + Header::BYTES).filter(|_| client.header_prefix_bytes == 0);
            let header = match whole {
                Some(front) => {
                    at += Header::BYTES;
                    Header::parse(front)
                }
                None => {
                    let present = usize::from(client.header_prefix_bytes);
                    let len = (Header::BYTES - present).min(bytes.len() - at);
                    client.header_prefix[present..present + len]
                        .copy_from_slice(&bytes[at..at + len]);
                    at += len;
                    client.header_prefix_bytes += len as u8;
                    if usize::from(client.header_prefix_bytes) < Header::BYTES {
                        break;
                    }
                    client.header_prefix_bytes = 0;
                    Header::parse(&client.header_prefix)
                }
            };
            let Ok(Some(header)) = header else {
                // The rest of the stream cannot be parsed; the pooler will disconnect the client.
                self.write_frontend(client.session, &bytes[from..at], now);
                client.epoch = 0;
                return;
            };
            client.body_left = header.body_bytes;
            client.is_omitted = match Frontend::from_tag(header.tag) {
                Some(Frontend::CopyData) => !self.captures.copy_rows,
                Some(Frontend::Authentication) | None => true,
                Some(_) => false,
            };
        }
        self.write_frontend(client.session, &bytes[from..], now);
        self.flush_if_full();
    }

    /// Records a message to a client if it is needed to complete requests. Replies such as
    /// ParseComplete are only counted. The body is recorded only for CommandComplete, ErrorResponse
    /// and ReadyForQuery.
    #[inline]
    pub fn record_backend(
        &mut self,
        client: &mut ClientMark,
        kind: Backend,
        body: &[u8],
        now: u64,
    ) {
        match kind {
            Backend::DataRow if self.captures.results => {
                let result = client.result.get_or_insert_default();
                // A row has at least the number of its columns.
                if body.is_empty() {
                    result.skip_row();
                } else {
                    result.add_row(body);
                }
            }
            Backend::DataRow => {}
            Backend::ParseComplete
            | Backend::BindComplete
            | Backend::CloseComplete
            | Backend::RowDescription
            | Backend::NoData => {
                client.completed_requests = client.completed_requests.saturating_add(1);
            }
            Backend::CommandComplete | Backend::ErrorResponse | Backend::ReadyForQuery => {
                self.write_backend(client, kind, body, now);
            }
            Backend::EmptyQueryResponse
            | Backend::PortalSuspended
            | Backend::CopyInResponse
            | Backend::CopyOutResponse
            | Backend::FunctionCallResponse => self.write_backend(client, kind, &[], now),
            _ => {}
        }
    }

    /// Records that a waiting client was assigned a server connection.
    pub fn record_server_assigned(&mut self, client: &ClientMark, now: u64) {
        self.start_record(RecordKind::ServerAssigned, client.session, now);
    }

    /// Records a request to cancel a client's statement.
    pub fn record_cancel(&mut self, client: &ClientMark, now: u64) {
        self.start_record(RecordKind::Cancel, client.session, now);
    }

    /// Records the disconnect of a client that is or was recorded.
    pub fn record_disconnect(&mut self, client: &ClientMark, now: u64) {
        if client.capture == self.capture && client.session != 0 {
            self.start_record(RecordKind::SessionEnd, client.session, now);
        }
    }

    /// Returns the time at which [`Self::flush`] is due, in nanoseconds of the worker's clock;
    /// `None` if the buffer is empty.
    pub fn flush_deadline(&self) -> Option<u64> {
        (!self.bytes.is_empty()).then(|| self.oldest_nanos.saturating_add(FLUSH_INTERVAL_NANOS))
    }

    /// Hands over the buffered records, or drops them if the queue is full.
    pub fn flush(&mut self) {
        if !self.bytes.is_empty() {
            self.send(false);
        }
    }

    /// Hands over the buffered records as the last chunk, even if the queue is full.
    pub fn finish(mut self) {
        self.send(true);
    }

    fn write_frontend(&mut self, session: u32, bytes: &[u8], now: u64) {
        if !bytes.is_empty() {
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let buf = self.start_record_with(RecordKind::Frontend, session, now, len.to_le_bytes());
            buf.extend_from_slice(&bytes[..len as usize]);
        }
    }

    fn write_backend(&mut self, client: &mut ClientMark, kind: Backend, body: &[u8], now: u64) {
        if let Some(mut result) = client.result.take_if(|result| result.has_rows()) {
            result.end_result();
            let buf = self.start_record(RecordKind::Result, client.session, now);
            buf.push(u8::from(!result.is_incomplete()));
            buf.extend_from_slice(&result.checksum().to_le_bytes());
            write_bytes(buf, result.first_row());
        }
        let completed = std::mem::take(&mut client.completed_requests);
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let mut rest = [0; 7];
        rest[0] = kind.tag().0;
        rest[1..3].copy_from_slice(&completed.to_le_bytes());
        rest[3..].copy_from_slice(&len.to_le_bytes());
        let buf = self.start_record_with(RecordKind::Backend, client.session, now, rest);
        buf.extend_from_slice(&body[..len as usize]);
        self.flush_if_full();
    }

    /// Starts a record, and returns the buffer for its payload.
    #[inline]
    fn start_record(&mut self, kind: RecordKind, session: u32, now: u64) -> &mut Vec<u8> {
        self.start_record_with(kind, session, now, [])
    }

    /// Starts a record with the given payload bytes.
    #[inline]
    fn start_record_with<const N: usize>(
        &mut self,
        kind: RecordKind,
        session: u32,
        now: u64,
        rest: [u8; N],
    ) -> &mut Vec<u8> {
        if self.bytes.is_empty() {
            self.oldest_nanos = now;
        }
        let mut front = [0; PREFIX_BYTES_MAX];
        front[0] = kind as u8;
        front[1..5].copy_from_slice(&session.to_le_bytes());
        front[5..13].copy_from_slice(&now.to_le_bytes());
        front[13..13 + N].copy_from_slice(&rest);
        self.bytes.extend_from_slice(&front[..13 + N]);
        &mut self.bytes
    }

    #[inline]
    fn flush_if_full(&mut self) {
        if self.bytes.len() >= CHUNK_BYTES {
            self.send(false);
        }
    }

    fn send(&mut self, is_last: bool) {
        if self.queue.is_full() && !is_last {
            return self.drop_chunk();
        }
        let spare = self.queue.spare.try_lock().and_then(|mut spare| spare.pop());
        let next = if is_last { Vec::new() } else { spare.unwrap_or_else(new_chunk) };
        let bytes = std::mem::replace(&mut self.bytes, next);
        self.queue.queued.fetch_add(bytes.len(), Ordering::Relaxed);
        let chunk = BufferChunk { queue: Arc::clone(&self.queue), bytes, is_last };
        if self.sender.send(chunk).is_err() {
            self.queue.close();
        }
    }

    /// Replaces the buffered records with a gap, and stops recording all clients until their
    /// sessions are started again.
    fn drop_chunk(&mut self) {
        let dropped = self.bytes.len() as u64;
        self.queue.lost_bytes.fetch_add(dropped, Ordering::Relaxed);
        self.queue.gaps.fetch_add(1, Ordering::Relaxed);
        self.bytes.clear();
        self.texts.clear();
        self.epoch = self.epoch.wrapping_add(1).max(1);
        let now = self.oldest_nanos;
        self.start_record(RecordKind::Gap, 0, now).extend_from_slice(&dropped.to_le_bytes());
    }
}

fn new_chunk() -> Vec<u8> {
    Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4)
}

fn write_count(buf: &mut Vec<u8>, count: usize) {
    buf.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

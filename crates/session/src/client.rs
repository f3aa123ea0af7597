//! [`ClientSession`]: the frontend's side of a connection.

mod login;
mod pipeline;
mod protocol;
mod requests;

use std::ops::Range;

use howdah_wire::{
    Backend, DecodeError, Frame, Header, auth::scram::ClientKeys, backend::TransactionStatus,
    startup::CancelKey,
};

pub use login::Login;
pub use pipeline::{Request, RequestId};

use crate::{SessionError, SessionEvent, buffers::Input};
use protocol::{ConnectionState, Protocol};

/// A connection to a server, from the client's side, without its socket.
///
/// # Contract
///
/// The driver connects, performs TLS if requested, and then, until the connection ends:
///
/// * writes the bytes of [`ClientSession::transmit`] and reports to [`ClientSession::transmitted`]
///   how many were written;
/// * passes what it reads to [`ClientSession::handle_input`], then calls
///   [`ClientSession::poll_event`] until it returns `None`. Messages are buffered until they are
///   polled, so memory stays bounded only if every input is followed by that loop;
/// * calls [`ClientSession::handle_eof`] when the server has closed its side.
///
/// Requests may be made at any time, even before the login is complete: they are deferred until
/// then. Those that the server answers get a [`RequestId`], and after each event
/// [`ClientSession::answered`] returns the request that the event belongs to. An error returned by
/// `poll_event` ends the connection: requests made after it are dropped.
///
/// # States
///
/// ```text
///  startup sent ─ password, md5 ───────────────► awaiting Ok
///  startup sent ─ SASL ─► scram ─► proof sent ─► awaiting Ok
///  startup sent ─ Ok (trust) ──────────────────► awaiting ready
///  awaiting Ok ─ Ok ───────────────────────────► awaiting ready
///  awaiting ready ─ ReadyForQuery ─────────────► open
///  any ─ terminate + handle_eof ───────────────► closed
///
///  before open ─ any ErrorResponse ────────────► closed
///  open ─ ErrorResponse FATAL or PANIC ────────► closed
///  any but closed ─ any SessionError ──────────► failed
/// ```
///
/// # Replies outstanding
///
/// ```text
///  parse, bind, close ──► one event each                  describe ──► parameters, columns
///  execute ──► rows, then its end                         sync ──► Ready
///  query ──► columns, rows and end per statement, then Ready
///  function call ──► result or error, then Ready          flush, copy_data ──► nothing
/// ```
///
/// After an error in a batch the server skips everything up to the next Sync. When
/// [`SessionEvent::Ready`] answers request `n`, every request before `n` that has not been answered
/// by then was skipped or ignored.
///
/// # Cost
///
/// Small exchanges reuse the buffers' memory. An idle connection usually uses less than 4 kB,
/// mostly for two buffers of at most a kilobyte each. Input is copied into a buffer; events borrow
/// from there. Requests are stored until they are written and answered; the driver decides how many
/// may be in flight.
///
/// # Example
///
/// ```
/// use howdah_session::{ClientSession, SessionEvent, Login};
///
/// let mut client = ClientSession::new(
///     Login {
///         user: "alice".into(),
///         database: "shop".into(),
///         password: None,
///         parameters: vec![],
///         channel_binding: None,
///     },
///     [7; 18], // random, in real life
/// );
/// assert!(client.transmit().ends_with(b"user\0alice\0database\0shop\0\0"));
/// client.transmitted(client.transmit().len());
///
/// // AuthenticationOk, ReadyForQuery
/// client.handle_input(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I");
/// assert!(matches!(client.poll_event()?, Some(SessionEvent::LoggedIn)));
///
/// let query = client.query(b"select 1")?;
/// assert_eq!(client.transmit(), b"Q\0\0\0\x0dselect 1\0");
///
/// client.handle_input(b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I");
/// let Some(SessionEvent::CommandComplete(tag)) = client.poll_event()? else { panic!() };
/// assert_eq!(tag.rows(), Some(1));
/// assert_eq!(client.answered(), Some(query));
/// assert!(matches!(client.poll_event()?, Some(SessionEvent::Ready(_))));
/// assert!(client.is_ready());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ClientSession {
    input: Input,
    protocol: Protocol,
    discard_rows: bool,
}

/// The message at the front of the input, now counted as consumed.
enum FrontMessage {
    /// A complete message; its body is at this position.
    Whole(Backend, Range<usize>),
    /// A row or a piece of COPY data that is being discarded.
    Discarded(Backend, Header),
}

impl ClientSession {
    /// Creates a connection that is not logged in. Queues the startup packet.
    ///
    /// `nonce` must be random and never used before: the security of SCRAM depends on it. A login
    /// that cannot be encoded, for example because of a zero byte in it, is reported by
    /// [`ClientSession::poll_event`].
    pub fn new(login: Login, nonce: [u8; 18]) -> Self {
        Self { input: Input::default(), protocol: Protocol::new(login, nonce), discard_rows: false }
    }

    /// Shares SCRAM keys with other logins: known keys are reused, computed ones are added. Without
    /// this each SCRAM login computes the iterations that the server requests. Call it before any
    /// input.
    pub fn share_scram_keys(&mut self, keys: ClientKeys) {
        if let ConnectionState::LoggingIn(handshake) = &mut self.protocol.state {
            handshake.share_keys(keys);
        }
    }

    /// Handles bytes from the server. Ignores them once the connection is closed.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        if !self.is_closed() {
            self.input.push(bytes);
        }
    }

    /// Handles the end of the server's stream. Poll the events of all input first.
    ///
    /// # Errors
    ///
    /// [`SessionError::ConnectionLost`] if neither side had ended the session.
    pub fn handle_eof(&mut self) -> Result<(), SessionError> {
        self.protocol.handle_eof()
    }

    /// Returns the next event from the server; `None` if more input is needed, or if the session
    /// has ended without a failure.
    ///
    /// # Errors
    ///
    /// The connection cannot continue; [`SessionError::origin`] is the side at fault.
    pub fn poll_event(&mut self) -> Result<Option<SessionEvent<'_>>, SessionError> {
        self.protocol.answered = None;
        let event = match self.advance() {
            Ok(None) => return Ok(None),
            Ok(Some(FrontMessage::Whole(kind, body))) => {
                self.protocol.event(Frame { tag: kind.tag(), body: self.input.body(body) })
            }
            Ok(Some(FrontMessage::Discarded(kind, header))) => {
                self.protocol.discarded(kind, header)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &event {
            self.protocol.state = ConnectionState::Failed(error.clone());
        }
        event.map(Some)
    }

    /// Returns the request that the last result of [`ClientSession::poll_event`] belongs to; `None`
    /// if that was no event, or one that answers no request.
    pub fn answered(&self) -> Option<RequestId> {
        self.protocol.answered
    }

    /// Returns the bytes to write.
    pub fn transmit(&self) -> &[u8] {
        self.protocol.output.unsent()
    }

    /// Counts the first `bytes` of [`ClientSession::transmit`], at most all of them, as written.
    pub fn transmitted(&mut self, bytes: usize) {
        self.protocol.output.advance(bytes);
    }

    /// Sets whether rows and COPY data are skipped as they stream in: their events then contain
    /// only a length, and a long message is not buffered. Takes effect from the next message on.
    pub fn discard_rows(&mut self, yes: bool) {
        self.discard_rows = yes;
    }

    /// Whether the server waits for a request: the login is complete, every request is answered,
    /// and no batch is open that needs a Sync.
    pub fn is_ready(&self) -> bool {
        matches!(self.protocol.state, ConnectionState::Open) && self.protocol.pipeline.is_idle()
    }

    /// Whether a batch of extended-protocol requests is open, which a Sync must end.
    pub fn has_open_batch(&self) -> bool {
        self.protocol.pipeline.has_open_batch()
    }

    /// Whether the connection is over: it failed, the server ended the session, or the end of its
    /// stream was reported.
    pub fn is_closed(&self) -> bool {
        matches!(self.protocol.state, ConnectionState::Closed | ConnectionState::Failed(_))
    }

    /// Returns the transaction status that the server reported last; idle before its first report.
    pub fn transaction_status(&self) -> TransactionStatus {
        self.protocol.transaction_status
    }

    /// Returns the number of requests that an outstanding [`SessionEvent::Ready`] will answer:
    /// Syncs, Queries and function calls.
    pub fn pending_ready_count(&self) -> usize {
        self.protocol.pipeline.pending_ready_count()
    }

    /// Returns the requests that are not fully answered, oldest first, except those that the server
    /// skips because of an error or ignores.
    pub fn outstanding(&self) -> impl Iterator<Item = (RequestId, Request)> + '_ {
        self.protocol.pipeline.outstanding()
    }

    /// Returns the key for a CancelRequest, if the server sent one.
    pub fn cancel_key(&self) -> Option<&CancelKey> {
        self.protocol.cancel_key.as_ref()
    }

    /// Returns a session parameter, if the server has reported it and its value is UTF-8:
    /// `server_version`, `client_encoding`, …
    pub fn parameter(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.protocol.settings.value(name.as_bytes())?).ok()
    }

    /// Processes input until a message produces an event; `None` if more input is needed or the
    /// session has ended without a failure.
    fn advance(&mut self) -> Result<Option<FrontMessage>, SessionError> {
        loop {
            match &self.protocol.state {
                ConnectionState::LoggingIn(_) | ConnectionState::Open => {}
                ConnectionState::Closed => return Ok(None),
                ConnectionState::Failed(error) => return Err(error.clone()),
            }
            let Some(header) = self.input.header()? else {
                self.input.release();
                return Ok(None);
            };
            let tag = header.tag;
            let kind = Backend::from_tag(tag).ok_or(DecodeError::UnknownTag { tag })?;
            let header = header.limited_to(self.protocol.body_bytes_max(kind))?;
            if self.discard_rows && matches!(kind, Backend::DataRow | Backend::CopyData) {
                self.input.discard(header);
                return Ok(Some(FrontMessage::Discarded(kind, header)));
            }
            let Some(body) = self.input.pop(header) else { return Ok(None) };
            if !Protocol::absorbs(kind) {
                return Ok(Some(FrontMessage::Whole(kind, body)));
            }
            self.protocol.absorb(Frame { tag, body: self.input.body(body) })?;
        }
    }
}

#[test]
fn idle_client_is_small() {
    // Excludes the two buffers and the reported parameters, which have separate limits.
    assert!(size_of::<ClientSession>() <= 512, "{} bytes", size_of::<ClientSession>());
}

//! [`Client`]: the frontend's side of a connection.

mod login;
mod pipeline;
mod protocol;
mod verbs;

use std::ops::Range;

use howdah_wire::{
    Backend, DecodeError, Frame, Header, auth::scram::ClientKeys, backend::TransactionStatus,
    startup::CancelKey,
};

pub use login::Login;
pub use pipeline::{Request, RequestId};

use crate::{Error, Event, buffers::Input};
use protocol::{Protocol, State};

/// A connection to a server, seen from the client, without its socket.
///
/// # Contract
///
/// The driver connects, does TLS if there is to be any, and then, until the connection ends:
///
/// * writes what [`Client::transmit`] holds and reports to [`Client::transmitted`] how much of it
///   went out;
/// * gives what it reads to [`Client::handle_input`], then calls [`Client::poll_event`] until it
///   gives `None`. Bytes are buffered only until their message is whole, so memory stays bounded as
///   long as every input is followed by that loop;
/// * calls [`Client::handle_end`] when the server has closed its side.
///
/// Requests may be made at any time, also before the login is complete: they are held back until
/// then. Each gets a [`RequestId`], and after each event [`Client::answered`] says which request the
/// event belongs to. An error returned by `poll_event` ends the connection: from then on it gives
/// that error again, and requests are dropped.
///
/// # States
///
/// ```text
///            ┌─ password, md5 ──────────────┐
///  new ──► asked ─ SASL ─► scram ─► proof ──┴► proven ─ Ok ─► settling ─ ReadyForQuery ─► open
///            └─ Ok (trust) ─────────────────────────────────────▲                          │
///                                                                                          │
///  any ─ ErrorResponse FATAL or PANIC, or handle_end ─► closed ◄─ terminate + handle_end ──┘
///  any ─ broken protocol, unusable login ─► failed
/// ```
///
/// # Replies owed
///
/// ```text
///  parse, bind, describe, close ──► one reply each        execute ──► rows, then its end
///  query ──► any of those, then Ready                     sync ──► Ready
///  function call ──► result or error, then Ready          flush, copy_data ──► nothing
/// ```
///
/// After an error the server skips everything up to the next Sync. When [`Event::Ready`] answers
/// request `n`, every request before `n` that has not been answered by then was skipped.
///
/// # Cost
///
/// A small exchange allocates nothing. An idle connection holds less than 4 kB: two buffers of at
/// most a kilobyte and the settings the server reported. Input is copied once, into the buffer;
/// events borrow from there. Requests are held until they are written and answered: how many may be
/// on their way is the driver's decision.
///
/// # Example
///
/// ```
/// use howdah_session::{Client, Event, Login};
///
/// let mut client = Client::new(
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
/// assert!(matches!(client.poll_event()?, Some(Event::LoggedIn)));
///
/// let query = client.query(b"select 1")?;
/// assert_eq!(client.transmit(), b"Q\0\0\0\x0dselect 1\0");
///
/// client.handle_input(b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I");
/// let Some(Event::CommandComplete(tag)) = client.poll_event()? else { panic!() };
/// assert_eq!(tag.rows(), Some(1));
/// assert_eq!(client.answered(), Some(query));
/// assert!(matches!(client.poll_event()?, Some(Event::Ready(_))));
/// assert!(client.is_ready());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    input: Input,
    protocol: Protocol,
    discard_rows: bool,
}

/// What is at the front of the input, now counted as past.
enum Front {
    /// A whole message; its body is at this place.
    Whole(Backend, Range<usize>),
    /// A row or a piece of COPY data that is being discarded.
    Discarded(Backend, Header),
}

impl Client {
    /// A connection that has yet to log in. Queues the startup packet.
    ///
    /// `nonce` has to be random and never used before: SCRAM rests on it. A login that cannot be
    /// written, because of a zero byte in it, is reported by the first [`Client::poll_event`].
    pub fn new(login: Login, nonce: [u8; 18]) -> Self {
        Self { input: Input::default(), protocol: Protocol::new(login, nonce), discard_rows: false }
    }

    /// Has SCRAM take its keys from those that other logins have computed, and leave its own there.
    /// Without this each login pays for the iterations that the server asks for. To be called before
    /// any input.
    pub fn share_scram_keys(&mut self, keys: ClientKeys) {
        if let State::LoggingIn(handshake) = &mut self.protocol.state {
            handshake.share_keys(keys);
        }
    }

    /// Takes bytes that came from the server.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        if !self.is_closed() {
            self.input.push(bytes);
        }
    }

    /// Takes the news that the server has closed its side. What came before has to be polled before.
    ///
    /// # Errors
    ///
    /// [`Error::ConnectionLost`]: neither did we say goodbye nor did the server.
    pub fn handle_end(&mut self) -> Result<(), Error> {
        self.protocol.end()
    }

    /// The next thing the server said, or `None` until more input comes.
    ///
    /// # Errors
    ///
    /// The connection cannot go on; [`Error::fault`] says whose fault it is.
    pub fn poll_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.protocol.answered = None;
        let event = match self.advance() {
            Ok(None) => return Ok(None),
            Ok(Some(Front::Whole(kind, body))) => {
                self.protocol.event(Frame { tag: kind.tag(), body: self.input.body(body) })
            }
            Ok(Some(Front::Discarded(kind, header))) => self.protocol.discarded(kind, header),
            Err(error) => Err(error),
        };
        if let Err(error) = &event {
            self.protocol.state = State::Failed(error.clone());
        }
        event.map(Some)
    }

    /// The request that the event polled last belongs to; `None` for events that answer none.
    pub fn answered(&self) -> Option<RequestId> {
        self.protocol.answered
    }

    /// Bytes to write.
    pub fn transmit(&self) -> &[u8] {
        self.protocol.output.unsent()
    }

    /// Counts the first `bytes` of [`Client::transmit`] as written.
    pub fn transmitted(&mut self, bytes: usize) {
        self.protocol.output.advance(bytes);
    }

    /// Whether rows and COPY data are skipped as they stream in: their events carry only a length,
    /// and they are never held in memory. Takes effect from the next message on.
    pub fn discard_rows(&mut self, yes: bool) {
        self.discard_rows = yes;
    }

    /// Whether the server waits for a request: the login is complete, every request is answered, and
    /// no batch is open that needs a Sync.
    pub fn is_ready(&self) -> bool {
        matches!(self.protocol.state, State::Open) && self.protocol.pipeline.is_settled()
    }

    /// Whether something was sent that needs a Sync to end it.
    pub fn has_open_batch(&self) -> bool {
        self.protocol.pipeline.has_open_batch()
    }

    /// Whether the connection is over: it failed, the server ended the session, or its end was
    /// reported.
    pub fn is_closed(&self) -> bool {
        matches!(self.protocol.state, State::Closed | State::Failed(_))
    }

    /// What the session was in at the last [`Event::Ready`].
    pub fn transaction_status(&self) -> TransactionStatus {
        self.protocol.transaction_status
    }

    /// How many requests are yet to be answered by an [`Event::Ready`]: Syncs, Queries, function
    /// calls.
    pub fn ready_owed(&self) -> usize {
        self.protocol.pipeline.ready_owed()
    }

    /// Requests that are not fully answered, the oldest first. What the server is going to skip
    /// because of an error is not among them.
    pub fn owed(&self) -> impl Iterator<Item = (RequestId, Request)> + '_ {
        self.protocol.pipeline.owed()
    }

    /// What a request to cancel has to say, if the server said.
    pub fn cancel_key(&self) -> Option<&CancelKey> {
        self.protocol.cancel_key.as_ref()
    }

    /// A setting that the server reported, if it is UTF-8: `server_version`, `client_encoding`, …
    pub fn parameter(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.protocol.settings.value(name.as_bytes())?).ok()
    }

    /// Goes through the input until something is there that makes an event.
    fn advance(&mut self) -> Result<Option<Front>, Error> {
        loop {
            match &self.protocol.state {
                State::LoggingIn(_) | State::Open => {}
                State::Closed => return Ok(None),
                State::Failed(error) => return Err(error.clone()),
            }
            let Some(header) = self.input.header()? else {
                self.input.release();
                return Ok(None);
            };
            let tag = header.tag;
            let kind = Backend::from_tag(tag).ok_or(DecodeError::UnknownTag { tag })?;
            let header = header.within(self.protocol.body_bytes_max(kind))?;
            if self.discard_rows && matches!(kind, Backend::DataRow | Backend::CopyData) {
                self.input.discard(header);
                return Ok(Some(Front::Discarded(kind, header)));
            }
            let Some(body) = self.input.take(header) else { return Ok(None) };
            if !Protocol::absorbs(kind) {
                return Ok(Some(Front::Whole(kind, body)));
            }
            self.protocol.absorb(Frame { tag, body: self.input.body(body) })?;
        }
    }
}

#[test]
fn an_idle_client_is_small() {
    // Beside two buffers and the settings, which are bounded where they are.
    assert!(size_of::<Client>() <= 512, "{} bytes", size_of::<Client>());
}

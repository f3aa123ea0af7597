//! One connection to the target: a [`Stream`] that carries what a protocol [`Client`] says.

use std::io;

use howdah_connect::{GuardedInput, LoginFault};
use howdah_net::{Dialer, Received, Stream};
use howdah_session::{Client, Event, Login, TransactionStatus};
use howdah_traffic::{SqlState, Text};

use crate::target::Logins;

/// A connection from its first byte to its last.
pub(crate) struct Link {
    stream: Stream,
    phase: Phase,
    /// The server has closed its side: there is an end to be read, and no readiness will say so.
    hung_up: bool,
    /// The last error that no ReadyForQuery followed: FATAL ones come right before the end.
    last_words: Option<Failure>,
}

enum Phase {
    /// The socket, and TLS if wanted, are not ready; the login waits, until it is used.
    Opening(Option<Box<Login>>),
    Talking(Box<Talk>),
}

/// The protocol side of a connection.
struct Talk {
    client: Client,
    input: GuardedInput,
}

/// What the server said, as far as a replay cares.
#[derive(Debug)]
pub(crate) enum Reply {
    LoggedIn,
    Parsed,
    /// Types of the parameters of the statement that was described.
    ParameterTypes(Vec<u32>),
    Bound,
    Rows(u64),
    CopyIn,
    Failed(Failure),
    Ready(TransactionStatus),
}

/// Why something did not work.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) sqlstate: Option<SqlState>,
    pub(crate) message: Text,
}

impl Failure {
    /// Whether the same attempt may go well later: the target is starting, stopping, full, or not
    /// reached. It will not where it refuses a role, a password or a database.
    pub(crate) fn may_pass(&self) -> bool {
        self.sqlstate.is_none_or(|code| {
            ["08006", "53", "57"].iter().any(|class| code.as_str().starts_with(class))
        })
    }

    /// Whether the target has no connection to give: 53300 too_many_connections.
    pub(crate) fn is_want_of_room(&self) -> bool {
        self.sqlstate == SqlState::new(b"53300")
    }
}

/// How far [`Link::pump`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// The socket is empty: its next readiness tells when to go on.
    Dry,
    /// It has more, and no further readiness will say so: call again once others had their turn.
    More,
}

/// Reads of one connection before others have their turn.
const READS_MAX: u32 = 16;

/// The connection is gone.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The server closed it.
    Closed,
    Io(io::Error),
    /// What it asked for or said allows no connection.
    Fault(LoginFault),
}

impl Link {
    /// Begins a connection.
    pub(crate) fn begin(dialer: &Dialer, login: Login) -> Result<Self, howdah_net::DialError> {
        let phase = Phase::Opening(Some(Box::new(login)));
        Ok(Self { stream: dialer.dial()?, phase, hung_up: false, last_words: None })
    }

    /// Takes the news that the server has closed its side, or that the connection is broken.
    pub(crate) fn hung_up(&mut self) {
        self.hung_up = true;
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The protocol side, once the socket is open.
    pub(crate) fn client(&mut self) -> Option<&mut Client> {
        match &mut self.phase {
            Phase::Talking(talk) => Some(&mut talk.client),
            Phase::Opening(_) => None,
        }
    }

    /// Moves bytes in both directions and passes on what the server said, until the socket has no
    /// more, or for so long that a large result delays no other session.
    pub(crate) fn pump(
        &mut self,
        buffer: &mut [u8],
        logins: &Logins,
        mut heard: impl FnMut(&mut Client, Reply),
    ) -> Result<Pumped, Lost> {
        if let Phase::Opening(login) = &mut self.phase {
            if !self.stream.open().map_err(Lost::Io)? {
                return Ok(Pumped::Dry);
            }
            let Some(login) = login.take() else { return Ok(Pumped::Dry) };
            let (mut client, input) = logins.begin(*login, self.stream.peer_certificate());
            client.discard_rows(true);
            self.phase = Phase::Talking(Box::new(Talk { client, input }));
        }
        let Phase::Talking(talk) = &mut self.phase else { return Ok(Pumped::Dry) };
        let Talk { client, input } = &mut **talk;
        for _ in 0..READS_MAX {
            // A server that hangs up has said why before: it is read although nothing can be sent.
            let sent = flush(&mut self.stream, client);
            let received = self.stream.receive(buffer).map_err(Lost::Io)?;
            if let Received::Bytes(some) | Received::Drained(some) = received {
                let handled = input.handle(&buffer[..some], client);
                hear(client, &mut |client: &mut Client, reply| {
                    match &reply {
                        Reply::Failed(failure) => self.last_words = Some(failure.clone()),
                        Reply::Ready(_) => self.last_words = None,
                        _ => {}
                    }
                    heard(client, reply);
                })?;
                handled.map_err(Lost::Fault)?;
            }
            match received {
                Received::Bytes(_) => {}
                Received::Drained(1..) if self.hung_up => {}
                Received::Drained(_) => {
                    sent?;
                    flush(&mut self.stream, client)?;
                    return Ok(Pumped::Dry);
                }
                Received::Closed => return Err(Lost::Closed),
            }
        }
        Ok(Pumped::More)
    }

    /// Sends what the protocol side has queued, as far as the socket takes it now.
    pub(crate) fn flush(&mut self) -> Result<(), Lost> {
        match &mut self.phase {
            Phase::Talking(talk) => flush(&mut self.stream, &mut talk.client),
            Phase::Opening(_) => Ok(()),
        }
    }

    /// The error that the server ended the connection with, if it said one.
    pub(crate) fn into_last_words(self) -> Option<Failure> {
        self.last_words
    }

    /// Says goodbye and closes.
    pub(crate) fn close(mut self) {
        if let Phase::Talking(talk) = &mut self.phase {
            talk.client.terminate();
            let _ = flush(&mut self.stream, &mut talk.client);
        }
        self.stream.close();
    }
}

fn flush(stream: &mut Stream, client: &mut Client) -> Result<(), Lost> {
    let sent = stream.send(client.transmit()).map_err(Lost::Io)?;
    client.transmitted(sent);
    Ok(())
}

fn hear(client: &mut Client, heard: &mut impl FnMut(&mut Client, Reply)) -> Result<(), Lost> {
    while let Some(event) = client.poll_event().map_err(|error| Lost::Fault(error.into()))? {
        let reply = match event {
            Event::LoggedIn => Reply::LoggedIn,
            Event::ParseComplete => Reply::Parsed,
            Event::ParameterDescription(types) => Reply::ParameterTypes(types.collect()),
            Event::BindComplete => Reply::Bound,
            Event::CommandComplete(tag) => Reply::Rows(tag.rows().unwrap_or(0)),
            // An Execute is done with these as well.
            Event::PortalSuspended | Event::EmptyQuery => Reply::Rows(0),
            Event::CopyIn => Reply::CopyIn,
            Event::Error(error) => Reply::Failed(Failure {
                sqlstate: SqlState::new(error.sqlstate()),
                message: Text::from(error.message()),
            }),
            Event::Ready(status) => Reply::Ready(status),
            _ => continue,
        };
        heard(client, reply);
    }
    Ok(())
}

impl From<Lost> for Failure {
    fn from(lost: Lost) -> Self {
        // 08006 connection_failure, 08001 sqlclient_unable_to_establish_sqlconnection, 08P01
        // protocol_violation: what a driver would report.
        let (code, message) = match lost {
            Lost::Closed => (b"08006", "the server closed the connection".to_owned()),
            Lost::Io(error) => (b"08006", format!("connection lost: {error}")),
            Lost::Fault(LoginFault::Refused(refused)) => (b"08001", refused.to_string()),
            Lost::Fault(fault) => (b"08P01", fault.to_string()),
        };
        Self { sqlstate: SqlState::new(code), message: Text::from(message) }
    }
}

//! One connection to the target: a [`Stream`] that carries the messages of a [`ClientSession`].

use std::{io, time::Instant};

use howdah_connect::{AuthFilter, LoginError};
use howdah_net::{Dialer, Received, Stream};
use howdah_session::{ClientSession, ErrorOrigin, Login, SessionEvent, TransactionStatus};
use howdah_traffic::{ResultDigest, SqlState, Text};
use howdah_wire::startup::CancelKey;

use crate::target::Logins;

/// A connection, from dialing to closing.
pub(crate) struct Link {
    stream: Stream,
    phase: LinkPhase,
    /// The server has closed its side. The rest of the stream must be read without waiting for
    /// readiness, because no further event will come.
    is_hung_up: bool,
    /// The last error not followed by ReadyForQuery: a FATAL error arrives right before the end.
    last_error: Option<ReplayFailure>,
}

enum LinkPhase {
    /// The socket, or TLS if used, is not ready. The login is stored until it is.
    Connecting(Option<Box<Login>>),
    Connected(Box<ProtocolState>),
}

/// The protocol side of a connection.
struct ProtocolState {
    client: ClientSession,
    input: AuthFilter,
    rows: ReceivedRows,
}

/// The rows of the current result.
#[derive(Default)]
struct ReceivedRows {
    count: u64,
    /// Their checksum, if results are read.
    digest: Option<ResultDigest>,
}

/// A server message, reduced to what a replay needs.
#[derive(Debug)]
pub(crate) enum Reply {
    LoggedIn,
    Parsed,
    /// Parameter types of a described statement.
    ParameterTypes(Vec<u32>),
    Bound,
    /// The rows of the reply that follows, if results are read.
    Result(Box<ResultDigest>),
    Rows(u64),
    CopyIn,
    Failed(ReplayFailure),
    Ready(TransactionStatus),
}

/// An error of the server or the connection, or in encoding a message.
#[derive(Clone, Debug)]
pub(crate) struct ReplayFailure {
    pub(crate) sqlstate: Option<SqlState>,
    pub(crate) message: Text,
}

impl ReplayFailure {
    /// Whether another attempt may succeed later, because the target is starting, stopping, full or
    /// unreachable. Refusal of a role, password or database is permanent.
    pub(crate) fn is_transient(&self) -> bool {
        self.sqlstate.is_none_or(|code| {
            ["08006", "53", "57"].iter().any(|class| code.as_str().starts_with(class))
        })
    }

    /// Whether the target has no free connection slot: 53300 too_many_connections.
    pub(crate) fn is_too_many_connections(&self) -> bool {
        self.sqlstate == SqlState::new(b"53300")
    }
}

/// The state of the socket after [`Link::pump`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PumpResult {
    /// Nothing more can be read for now: call again after the next readiness event.
    Drained,
    /// More can be read without another readiness event: call again after other connections have
    /// had their turn.
    More,
}

/// Maximum number of reads from one connection before other connections get their turn.
const READS_MAX: u32 = 16;

/// The reason why a connection was lost.
#[derive(Debug)]
pub(crate) enum ConnectionLoss {
    /// The server closed the connection.
    Closed,
    Io(io::Error),
    /// The server violated the protocol, or the client refused or could not complete the login.
    Protocol(LoginError),
}

impl Link {
    /// Starts connecting.
    pub(crate) fn open(dialer: &Dialer, login: Login) -> Result<Self, howdah_net::DialError> {
        let phase = LinkPhase::Connecting(Some(Box::new(login)));
        Ok(Self { stream: dialer.dial()?, phase, is_hung_up: false, last_error: None })
    }

    /// Records that the server has closed its side, or that the connection is broken.
    pub(crate) fn on_hangup(&mut self) {
        self.is_hung_up = true;
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Returns the protocol side, once the socket is open.
    pub(crate) fn client(&mut self) -> Option<&mut ClientSession> {
        match &mut self.phase {
            LinkPhase::Connected(connected) => Some(&mut connected.client),
            LinkPhase::Connecting(_) => None,
        }
    }

    /// Returns the process id of the backend, once the server has sent it.
    pub(crate) fn backend(&mut self) -> Option<i32> {
        self.client()?.cancel_key().map(CancelKey::process_id)
    }

    /// Transfers bytes in both directions and passes replies to `on_reply`, each with the time at
    /// which its end was received. Returns when the socket
    /// is drained or the read limit is reached, so that a large result does not delay other
    /// sessions.
    pub(crate) fn pump(
        &mut self,
        buffer: &mut [u8],
        logins: &Logins,
        mut on_reply: impl FnMut(&mut ClientSession, Reply, Instant),
    ) -> Result<PumpResult, ConnectionLoss> {
        if let LinkPhase::Connecting(login) = &mut self.phase {
            if !self.stream.open().map_err(ConnectionLoss::Io)? {
                return Ok(PumpResult::Drained);
            }
            let Some(login) = login.take() else { return Ok(PumpResult::Drained) };
            let (mut client, input) = logins.start_login(*login, self.stream.peer_certificate());
            // Mostly, rows are only counted.
            client.discard_rows(!logins.reads_results);
            let digest = logins.reads_results.then(ResultDigest::default);
            let rows = ReceivedRows { count: 0, digest };
            self.phase = LinkPhase::Connected(Box::new(ProtocolState { client, input, rows }));
        }
        let LinkPhase::Connected(connected) = &mut self.phase else {
            return Ok(PumpResult::Drained);
        };
        let ProtocolState { client, input, rows } = &mut **connected;
        for _ in 0..READS_MAX {
            // A server that hangs up may have sent an error first, so read it even if sending
            // failed.
            let sent = flush(&mut self.stream, client);
            let received = self.stream.receive(buffer).map_err(ConnectionLoss::Io)?;
            if let Received::Bytes(some) | Received::Drained(some) = received {
                let now = Instant::now();
                let handled = input.handle(&buffer[..some], client);
                handle_events(client, rows, &mut |client: &mut ClientSession, reply| {
                    match &reply {
                        Reply::Failed(failure) => self.last_error = Some(failure.clone()),
                        Reply::Ready(_) => self.last_error = None,
                        _ => {}
                    }
                    on_reply(client, reply, now);
                })?;
                handled.map_err(ConnectionLoss::Protocol)?;
            }
            match received {
                Received::Bytes(_) => {}
                // The peer has hung up: read on until the end, since no further readiness event
                // will come.
                Received::Drained(1..) if self.is_hung_up => {}
                // All bytes are read, so a send error is now the cause. The replies may have
                // allowed further messages, so send those too.
                Received::Drained(_) => {
                    sent?;
                    flush(&mut self.stream, client)?;
                    return Ok(PumpResult::Drained);
                }
                Received::Closed => return Err(ConnectionLoss::Closed),
            }
        }
        Ok(PumpResult::More)
    }

    /// Sends as much of the queued messages as the socket accepts now.
    pub(crate) fn flush(&mut self) -> Result<(), ConnectionLoss> {
        match &mut self.phase {
            LinkPhase::Connected(connected) => flush(&mut self.stream, &mut connected.client),
            LinkPhase::Connecting(_) => Ok(()),
        }
    }

    /// Returns the last error that no ReadyForQuery followed, usually the reason why the server
    /// ended the connection.
    pub(crate) fn into_last_error(self) -> Option<ReplayFailure> {
        self.last_error
    }

    /// Sends Terminate and closes the connection.
    pub(crate) fn close(mut self) {
        if let LinkPhase::Connected(connected) = &mut self.phase {
            connected.client.terminate();
            let _ = flush(&mut self.stream, &mut connected.client);
        }
        self.stream.close();
    }
}

fn flush(stream: &mut Stream, client: &mut ClientSession) -> Result<(), ConnectionLoss> {
    let sent = stream.send(client.transmit()).map_err(ConnectionLoss::Io)?;
    client.transmitted(sent);
    Ok(())
}

fn handle_events(
    client: &mut ClientSession,
    received: &mut ReceivedRows,
    on_reply: &mut impl FnMut(&mut ClientSession, Reply),
) -> Result<(), ConnectionLoss> {
    while let Some(event) =
        client.poll_event().map_err(|error| ConnectionLoss::Protocol(error.into()))?
    {
        let reply = match event {
            SessionEvent::LoggedIn => Reply::LoggedIn,
            SessionEvent::ParseComplete => Reply::Parsed,
            SessionEvent::ParameterDescription(types) => Reply::ParameterTypes(types.collect()),
            SessionEvent::BindComplete => Reply::Bound,
            SessionEvent::Row(row) => {
                received.count += 1;
                if let Some(digest) = &mut received.digest {
                    digest.add_row(row.body());
                }
                continue;
            }
            SessionEvent::CommandComplete(tag) => {
                let rows = tag.rows().unwrap_or(0);
                end_result(client, received, on_reply);
                Reply::Rows(rows)
            }
            // These messages complete an Execute, too, but contain no number of rows.
            SessionEvent::PortalSuspended | SessionEvent::EmptyQuery => {
                let rows = received.count;
                end_result(client, received, on_reply);
                Reply::Rows(rows)
            }
            SessionEvent::CopyIn => Reply::CopyIn,
            SessionEvent::Error(error) => {
                // Rows before the error do not belong to the next result.
                received.count = 0;
                received.digest = received.digest.take().map(|_| ResultDigest::default());
                Reply::Failed(ReplayFailure {
                    sqlstate: SqlState::new(error.sqlstate()),
                    message: Text::from(error.message()),
                })
            }
            SessionEvent::Ready(status) => Reply::Ready(status),
            _ => continue,
        };
        on_reply(client, reply);
    }
    Ok(())
}

/// Passes on the rows of a result that has ended, if results are read.
fn end_result(
    client: &mut ClientSession,
    received: &mut ReceivedRows,
    on_reply: &mut impl FnMut(&mut ClientSession, Reply),
) {
    received.count = 0;
    if let Some(digest) = &mut received.digest {
        on_reply(client, Reply::Result(Box::new(std::mem::take(digest))));
    }
}

impl From<ConnectionLoss> for ReplayFailure {
    fn from(loss: ConnectionLoss) -> Self {
        // 08006 connection_failure, 08001 sqlclient_unable_to_establish_sqlconnection, 08P01
        // protocol_violation: as a driver would report them.
        let (code, message) = match loss {
            ConnectionLoss::Closed => (b"08006", "the server closed the connection".to_owned()),
            ConnectionLoss::Io(error) => (b"08006", format!("connection lost: {error}")),
            ConnectionLoss::Protocol(LoginError::Refused(refused)) => {
                (b"08001", refused.to_string())
            }
            // A password that is missing, or a method that is not supported: the server is not at
            // fault.
            ConnectionLoss::Protocol(LoginError::Protocol(error))
                if error.origin() != ErrorOrigin::Server =>
            {
                (b"08001", error.to_string())
            }
            ConnectionLoss::Protocol(fault) => (b"08P01", fault.to_string()),
        };
        Self { sqlstate: SqlState::new(code), message: Text::from(message) }
    }
}

#[test]
fn missing_password_is_no_violation_of_the_protocol() {
    use howdah_session::SessionError;
    let code = |error: SessionError| {
        ReplayFailure::from(ConnectionLoss::Protocol(error.into())).sqlstate.unwrap().to_string()
    };
    assert_eq!(code(SessionError::PasswordMissing { method: "SASL" }), "08001");
    assert_eq!(code(SessionError::ServerUnproven), "08P01");
}

#[test]
fn rows_before_an_error_do_not_belong_to_the_next_result() {
    use howdah_wire::backend::{Severity, encode as say};
    let login = Login {
        user: "u".to_owned(),
        database: "d".to_owned(),
        password: None,
        parameters: Vec::new(),
        channel_binding: None,
    };
    let mut client = ClientSession::new(login, [7; 18]);
    client.handle_input(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I");
    let mut received = ReceivedRows { count: 0, digest: Some(ResultDigest::default()) };
    let mut digests = Vec::new();
    let mut read = |client: &mut ClientSession| {
        handle_events(client, &mut received, &mut |_: &mut ClientSession, reply| {
            if let Reply::Result(digest) = reply {
                digests.push(*digest);
            }
        })
        .unwrap();
    };
    read(&mut client);
    let row = |bytes: &mut Vec<u8>| say::data_row(bytes, [Some(&b"1"[..])]).unwrap();
    let mut bytes = Vec::new();
    row(&mut bytes);
    say::error_response(&mut bytes, say::essentials(Severity::Error, b"22012", b"no")).unwrap();
    say::ready_for_query(&mut bytes, TransactionStatus::Idle);
    row(&mut bytes);
    say::command_complete(&mut bytes, b"SELECT 1").unwrap();
    say::ready_for_query(&mut bytes, TransactionStatus::Idle);
    client.query(b"select 1 / 0").unwrap();
    client.query(b"select 1").unwrap();
    client.handle_input(&bytes);
    read(&mut client);
    let mut expected = ResultDigest::default();
    expected.add_row(b"\0\x01\0\0\0\x011");
    assert_eq!(digests, [expected]);
}

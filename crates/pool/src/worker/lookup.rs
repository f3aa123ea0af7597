//! Looking up a user's secret: a thread beside the data path is a client of our own pooler for as long
//! as it takes, so that limits, pauses, retries and the reset of servers hold for it as for anybody,
//! and the connection is one of the pool's.
//!
//! Nothing is kept of an answer but for the server leg: who was deleted, or whose time is over, is
//! refused at once. That costs each login one query at the server.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use howdah_net::Stream;
use howdah_wire::{
    EncodeError, Frame,
    backend::Message,
    frontend::{Target, encode},
    startup::ProtocolVersion,
};

use super::{
    directory::{Key, PoolEntry},
    entrance::Arrival,
    front::Front,
    mail::{Mailbox, WorkerMessage},
};
use crate::{
    ClientLogin, Permits,
    auth::Known,
    config::{Lookup, SECRET_BYTES_MAX, StoredSecret},
};

/// How long a look-up may take where logins may take for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest message of an answer: the longest secret, a name, and room for the row around them.
const MESSAGE_BYTES_MAX: u32 = 66 << 10;

/// Why nothing was found out. The client is told the same in each case; the log is not.
#[derive(Debug, thiserror::Error)]
enum LookupError {
    #[error("there is no such database to ask in")]
    NoDatabase,
    #[error("the answer did not come in time")]
    TooSlow,
    #[error("the connection was closed before the answer")]
    Closed,
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    #[error("the server says: {message} ({sqlstate})")]
    Refused { sqlstate: String, message: String },
    #[error("the query's answer {0}")]
    Answer(&'static str),
    #[error("the question cannot be asked")]
    Question(#[from] EncodeError),
}

/// Asks the server. `None` if it knows of nobody of that name, or if it does not tell.
pub(super) fn find(lookup: &Lookup, worker: &Mailbox, front: &Front) -> Option<Known> {
    let Lookup { user, database, auth_user, .. } = lookup;
    match ask(lookup, worker, front) {
        Ok(Some(known)) if known.secret.is_none() => {
            tracing::info!(user, database, auth_user, "the server has no valid secret of the user");
            Some(known)
        }
        Ok(Some(known)) => Some(known),
        Ok(None) => {
            tracing::info!(user, database, auth_user, "the server knows of no such user");
            None
        }
        Err(error) => {
            let reason = &error as &dyn std::error::Error;
            tracing::warn!(user, database, auth_user, reason, "cannot look up a user's secret");
            None
        }
    }
}

fn ask(lookup: &Lookup, worker: &Mailbox, front: &Front) -> Result<Option<Known>, LookupError> {
    let limit = front.directory.config().timeouts.client_login.unwrap_or(PATIENCE);
    let deadline = Instant::now() + limit;
    let mut line = Line { socket: visit(lookup, worker, front)?, read: Vec::new(), deadline };
    line.receive(|_| Ok(()))?;
    let mut question = Vec::new();
    encode::parse(&mut question, b"", lookup.query.as_bytes(), &[])?;
    encode::bind(&mut question, b"", b"", &[], [Some(lookup.user.as_bytes())], &[])?;
    encode::describe(&mut question, Target::Portal(b""))?;
    encode::execute(&mut question, b"", 0)?;
    encode::sync(&mut question);
    line.socket.write_all(&question).map_err(broken)?;
    let mut rows = Vec::new();
    let mut has_rows = false;
    line.receive(|message| {
        match message {
            Message::RowDescription(_) => has_rows = true,
            Message::DataRow(_) if rows.len() == 2 => {
                return Err(LookupError::Answer("has more than one row"));
            }
            Message::DataRow(cells) => {
                rows.extend(cells.map(|cell| cell.map(<[u8]>::to_vec)));
                if rows.len() != 2 {
                    return Err(LookupError::Answer("has not two columns, user and secret"));
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    let mut farewell = Vec::new();
    encode::terminate(&mut farewell);
    // It has told all that it knows; that we go, it hears in any case.
    let _ = line.socket.write_all(&farewell);
    match &rows[..] {
        [] if has_rows => Ok(None),
        [] => Err(LookupError::Answer("has no columns")),
        [Some(user), _] if user != lookup.user.as_bytes() => {
            Err(LookupError::Answer("is about another user"))
        }
        [Some(_), secret] => known(secret.as_deref()).map(Some),
        _ => Err(LookupError::Answer("names no user")),
    }
}

fn known(secret: Option<&[u8]>) -> Result<Known, LookupError> {
    let text = secret.map(std::str::from_utf8).transpose();
    let text = text.map_err(|_| LookupError::Answer("holds a secret that is not UTF-8"))?;
    if text.is_some_and(|text| text.len() > SECRET_BYTES_MAX) {
        return Err(LookupError::Answer("holds a secret of more than 65,530 bytes"));
    }
    let secret = text.map(StoredSecret::parse).filter(|secret| !secret.is_empty());
    Ok(Known { secret })
}

/// Becomes a client of the pool, by a pair of sockets of which the worker gets the other end.
fn visit(lookup: &Lookup, worker: &Mailbox, front: &Front) -> Result<UnixStream, LookupError> {
    let Lookup { auth_user: user, database, .. } = lookup.clone();
    let key = Key { database, user, replication: None, part: None };
    // Whoever waits for it is counted already.
    let count = |entry: &PoolEntry| Ok::<_, LookupError>(Permits::take(&entry.occupancy));
    let (pool, permits) =
        front.directory.enter(&key, |pool, _| count(pool)).ok_or(LookupError::NoDatabase)??;
    let (ours, theirs) = UnixStream::pair().map_err(broken)?;
    let stream = Stream::from_unix(theirs).map_err(broken)?;
    let no_random = || broken(io::Error::other("the system has no random bytes"));
    let secret = front.cancel_secret().ok_or_else(no_random)?;
    let (version, settings) = (ProtocolVersion::V3_0, Vec::new());
    let login = ClientLogin { pool: pool.id, user: None, version, secret, settings, role: None };
    let (owed, received, is_told) = (Vec::new(), Vec::new(), false);
    let arrival = Arrival { login, permits, owed, received, is_told };
    worker.send(WorkerMessage::Guest(Box::new(arrival), stream));
    Ok(ours)
}

/// Our end of the conversation.
struct Line {
    socket: UnixStream,
    read: Vec<u8>,
    deadline: Instant,
}

impl Line {
    /// Gives each message up to the next ReadyForQuery to `take`.
    fn receive(
        &mut self,
        mut take: impl FnMut(Message<'_>) -> Result<(), LookupError>,
    ) -> Result<(), LookupError> {
        let malformed = || LookupError::Answer("is no message of the protocol");
        loop {
            let read = std::mem::take(&mut self.read);
            let mut rest = &read[..];
            while let Some((frame, behind)) =
                Frame::split(rest, MESSAGE_BYTES_MAX).map_err(|_| malformed())?
            {
                rest = behind;
                match Message::parse(frame).map_err(|_| malformed())? {
                    Message::ReadyForQuery(_) => {
                        self.read = rest.to_vec();
                        return Ok(());
                    }
                    Message::ErrorResponse(error) => {
                        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                        let (sqlstate, message) = (text(error.sqlstate()), text(error.message()));
                        return Err(LookupError::Refused { sqlstate, message });
                    }
                    message => take(message)?,
                }
            }
            self.read = rest.to_vec();
            self.wait_for_more()?;
        }
    }

    fn wait_for_more(&mut self) -> Result<(), LookupError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LookupError::TooSlow);
        }
        self.socket.set_read_timeout(Some(left)).map_err(broken)?;
        let mut buffer = [0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(0) => Err(LookupError::Closed),
            Ok(some) => {
                self.read.extend_from_slice(&buffer[..some]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(LookupError::TooSlow),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(broken(error)),
        }
    }
}

fn broken(error: io::Error) -> LookupError {
    LookupError::Broken(error)
}

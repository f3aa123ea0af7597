//! Cancel requests: each is a connection of its own that carries sixteen bytes or a few more.

use std::{collections::HashMap, time::Instant};

use howdah_net::{Dialer, Poller, Received, Stream, Token};

use crate::{
    link::{Failure, Lost},
    player::Item,
};

/// Tokens with this bit belong to cancel requests; those of sessions do not have it.
const OURS: u64 = 1 << 62;

/// The cancel requests that are on their way.
#[derive(Default)]
pub(crate) struct Cancels {
    pending: HashMap<u64, Pending>,
    next: u64,
}

struct Pending {
    stream: Stream,
    request: Vec<u8>,
    written: usize,
    item: Option<Item>,
    sent: Instant,
}

/// A cancel request that came to an end.
pub(crate) struct Cancel {
    /// The captured event that asked for it, if one did.
    pub(crate) item: Option<Item>,
    pub(crate) sent: Instant,
    pub(crate) failure: Option<Failure>,
}

/// A cancel request that could not even be begun.
pub(crate) struct NotBegun {
    pub(crate) item: Option<Item>,
    pub(crate) failure: Failure,
}

impl Cancels {
    pub(crate) fn owns(token: Token) -> bool {
        token.0 & OURS != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Begins one. A failure gives the event back.
    pub(crate) fn begin(
        &mut self,
        dialer: &Dialer,
        poller: &Poller,
        request: Vec<u8>,
        item: Option<Item>,
        now: Instant,
    ) -> Result<(), Box<NotBegun>> {
        let id = self.next;
        self.next += 1;
        let begun = dialer.dial().map_err(std::io::Error::other).and_then(|stream| {
            poller.add(&stream, Token(OURS | id))?;
            Ok(stream)
        });
        match begun {
            Ok(stream) => {
                let pending = Pending { stream, request, written: 0, item, sent: now };
                self.pending.insert(id, pending);
                Ok(())
            }
            Err(error) => Err(Box::new(NotBegun { item, failure: Lost::Io(error).into() })),
        }
    }

    /// Goes on with one; `Some` when it has ended. The server answers nothing, it hangs up.
    pub(crate) fn advance(&mut self, token: Token) -> Option<Cancel> {
        let id = token.0 & !OURS;
        let failure = match self.pending.get_mut(&id)?.advance() {
            Ok(false) => return None,
            Ok(true) => None,
            Err(lost) => Some(lost.into()),
        };
        let Pending { item, sent, .. } = self.pending.remove(&id)?;
        Some(Cancel { item, sent, failure })
    }

    /// Gives up all of them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Cancel> {
        self.pending.drain().map(|(_, Pending { item, sent, .. })| Cancel {
            item,
            sent,
            failure: None,
        })
    }
}

impl Pending {
    /// True when the server has hung up after the request.
    fn advance(&mut self) -> Result<bool, Lost> {
        if !self.stream.open().map_err(Lost::Io)? {
            return Ok(false);
        }
        self.written += self.stream.send(&self.request[self.written..]).map_err(Lost::Io)?;
        let is_written = self.written == self.request.len();
        let mut rest = [0; 64];
        loop {
            match self.stream.receive(&mut rest) {
                // There is no answer; should one come all the same, it is none of ours.
                Ok(Received::Bytes(_) | Received::Drained(1..)) => {}
                Ok(Received::Drained(0)) => return Ok(false),
                Ok(Received::Closed) if is_written => return Ok(true),
                Ok(Received::Closed) => return Err(Lost::Closed),
                // The postmaster may reset the connection when it has read the request.
                Err(_) if is_written => return Ok(true),
                Err(error) => return Err(Lost::Io(error)),
            }
        }
    }
}

//! Cancel requests. Each uses a connection of its own.

use std::{collections::HashMap, time::Instant};

use howdah_net::{Dialer, Poller, Received, Stream, Token};

use crate::{
    link::{ConnectionLoss, ReplayFailure},
    player::ScheduledEvent,
};

/// Tokens with this bit belong to cancel requests; tokens of sessions do not have it.
const CANCEL_BIT: u64 = 1 << 62;

/// The cancel requests in progress.
#[derive(Default)]
pub(crate) struct CancelRequests {
    pending: HashMap<u64, Pending>,
    next: u64,
}

struct Pending {
    stream: Stream,
    request: Vec<u8>,
    written: usize,
    item: Option<ScheduledEvent>,
    sent: Instant,
}

/// A cancel request that is over: the server closed its connection, it failed, or it was abandoned.
pub(crate) struct FinishedCancel {
    /// The captured event that requested the cancellation, if any.
    pub(crate) item: Option<ScheduledEvent>,
    pub(crate) sent: Instant,
    pub(crate) failure: Option<ReplayFailure>,
}

/// A cancel request that could not be started.
pub(crate) struct CancelStartError {
    pub(crate) item: Option<ScheduledEvent>,
    pub(crate) failure: ReplayFailure,
}

impl CancelRequests {
    pub(crate) fn owns_token(token: Token) -> bool {
        token.0 & CANCEL_BIT != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Starts a cancel request. The error contains `item`.
    pub(crate) fn start(
        &mut self,
        dialer: &Dialer,
        poller: &Poller,
        request: Vec<u8>,
        item: Option<ScheduledEvent>,
        now: Instant,
    ) -> Result<(), Box<CancelStartError>> {
        let id = self.next;
        self.next += 1;
        let started = dialer.dial().map_err(std::io::Error::other).and_then(|stream| {
            poller.add(&stream, Token(CANCEL_BIT | id))?;
            Ok(stream)
        });
        match started {
            Ok(stream) => {
                let pending = Pending { stream, request, written: 0, item, sent: now };
                self.pending.insert(id, pending);
                Ok(())
            }
            Err(error) => {
                Err(Box::new(CancelStartError { item, failure: ConnectionLoss::Io(error).into() }))
            }
        }
    }

    /// Advances the cancel request of `token`. Returns it once the server, which sends no reply,
    /// has closed the connection, or once the request has failed.
    pub(crate) fn advance(&mut self, token: Token) -> Option<FinishedCancel> {
        let id = token.0 & !CANCEL_BIT;
        let failure = match self.pending.get_mut(&id)?.advance() {
            Ok(false) => return None,
            Ok(true) => None,
            Err(lost) => Some(lost.into()),
        };
        let Pending { item, sent, .. } = self.pending.remove(&id)?;
        Some(FinishedCancel { item, sent, failure })
    }

    /// Abandons all cancel requests in progress.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = FinishedCancel> {
        self.pending.drain().map(|(_, Pending { item, sent, .. })| FinishedCancel {
            item,
            sent,
            failure: None,
        })
    }
}

impl Pending {
    /// Sends the rest of the request. Returns true once the server has closed the connection after
    /// it.
    fn advance(&mut self) -> Result<bool, ConnectionLoss> {
        if !self.stream.open().map_err(ConnectionLoss::Io)? {
            return Ok(false);
        }
        self.written +=
            self.stream.send(&self.request[self.written..]).map_err(ConnectionLoss::Io)?;
        let is_written = self.written == self.request.len();
        let mut rest = [0; 64];
        loop {
            match self.stream.receive(&mut rest) {
                // The protocol has no reply to a cancel request, so ignore any bytes.
                Ok(Received::Bytes(_) | Received::Drained(1..)) => {}
                Ok(Received::Drained(0)) => return Ok(false),
                Ok(Received::Closed) if is_written => return Ok(true),
                Ok(Received::Closed) => return Err(ConnectionLoss::Closed),
                // The postmaster may reset the connection after reading the request.
                Err(_) if is_written => return Ok(true),
                Err(error) => return Err(ConnectionLoss::Io(error)),
            }
        }
    }
}

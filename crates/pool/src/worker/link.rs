//! [`Link`]: a connection of a peer that is logged in.

use std::io::{self, IoSlice};

use howdah_net::{Interest, Stream};

use crate::{Backlog, Peer};

/// A connection of a peer that is logged in, with what it has not taken yet.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: Stream,
    /// `None` once the core is through with it and only the backlog has to go out.
    pub(super) peer: Option<Peer>,
    /// Unsent bytes; no memory while there are none.
    backlog: Vec<u8>,
    /// Whether the core wants no bytes of it for now.
    pub(super) paused: bool,
    /// Whether there may be bytes that no further readiness will tell of.
    pub(super) unread: bool,
    /// Whether the peer has closed its side: then reading ends at the end of the stream only.
    pub(super) hung_up: bool,
    /// Whether a send has failed; what is sent now goes nowhere.
    pub(super) broken: bool,
    pub(super) interest: Interest,
}

impl Link {
    pub(super) fn new(stream: Stream, peer: Peer, interest: Interest, hung_up: bool) -> Self {
        Self {
            stream,
            peer: Some(peer),
            backlog: Vec::new(),
            paused: false,
            unread: true,
            hung_up,
            broken: false,
            interest,
        }
    }

    /// Sends, behind what is unsent; keeps what is not taken.
    pub(super) fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Backlog> {
        let mut taken = 0;
        if self.backlog.is_empty() {
            taken = self.stream.send_slices(slices)?;
            if taken == slices.iter().map(|slice| slice.len()).sum::<usize>() {
                return Ok(self.backlog());
            }
        }
        for slice in slices {
            let skipped = taken.min(slice.len());
            taken -= skipped;
            self.backlog.extend_from_slice(&slice[skipped..]);
        }
        Ok(Backlog::Waiting)
    }

    /// Sends what is unsent, as far as it is taken.
    pub(super) fn flush(&mut self) -> io::Result<Backlog> {
        let taken = self.stream.send(&self.backlog)?;
        self.backlog.drain(..taken);
        if self.backlog.is_empty() {
            self.backlog = Vec::new();
        }
        Ok(self.backlog())
    }

    pub(super) fn backlog(&self) -> Backlog {
        match self.backlog.is_empty() && !self.stream.holds_bytes() {
            true => Backlog::Empty,
            false => Backlog::Waiting,
        }
    }
}

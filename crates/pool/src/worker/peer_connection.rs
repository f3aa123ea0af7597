//! [`PeerConnection`]: the connection of a client or server that is logged in.

use std::io::{self, IoSlice};

use howdah_net::{Interest, Stream};
use howdah_pool_core::{Backlog, PeerId};

/// The connection of a client or server that is logged in, with its unsent bytes.
#[derive(Debug)]
pub(super) struct PeerConnection {
    pub(super) stream: Stream,
    /// The peer; `None` once the core has closed it and only the backlog must still be sent.
    pub(super) peer: Option<PeerId>,
    /// Unsent bytes; no memory is allocated while empty.
    backlog: Vec<u8>,
    /// Whether the core has paused reading.
    pub(super) paused: bool,
    /// Whether bytes may be available for which no further event will be reported.
    pub(super) unread: bool,
    /// Whether the peer has closed its side, so that the stream must be read to its end.
    pub(super) hung_up: bool,
    /// Whether a send, or the registration with the poller, has failed; further output is
    /// discarded.
    pub(super) broken: bool,
    pub(super) interest: Interest,
}

impl PeerConnection {
    pub(super) fn new(stream: Stream, peer: PeerId, interest: Interest, hung_up: bool) -> Self {
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

    /// Sends bytes after the backlog; bytes that the socket does not accept are appended to the
    /// backlog.
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

    /// Sends as much of the backlog as the socket accepts.
    pub(super) fn flush(&mut self) -> io::Result<Backlog> {
        let taken = self.stream.send(&self.backlog)?;
        self.backlog.drain(..taken);
        if self.backlog.is_empty() {
            self.backlog = Vec::new();
        }
        Ok(self.backlog())
    }

    pub(super) fn backlog(&self) -> Backlog {
        if self.backlog.is_empty() && !self.stream.has_buffered_bytes() {
            Backlog::Empty
        } else {
            Backlog::Waiting
        }
    }
}

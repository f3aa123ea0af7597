//! [`Io`]: what the core wants done, as the worker sees it. The other direction, what the worker
//! reports, are the methods of [`crate::Core`].

use std::io::IoSlice;

use howdah_wire::startup::CancelKey;

use crate::{
    Channel, Refusal, Transfer,
    ids::{ClientId, Peer, PoolId, ServerId, WorkerId},
};

/// The worker's side of the seam: sockets, seen from the core.
///
/// The core calls these while it handles a report; none of them may call back into the core. An
/// outcome that is known at once (a connection refused, a peer gone) is kept by the worker and
/// reported after the running call has returned.
///
/// # Contract
///
/// - After [`Io::close`] or [`Io::hand_over`] the id means nothing any more: the worker reports
///   nothing about it, and its slot may be given to another connection within the same call.
/// - A peer starts unpaused. While it is paused the worker does not read from it, and need not touch
///   its registration: with edge-triggered readiness a flag is enough, if [`Io::resume`] makes the
///   worker try a read again.
/// - Errors are never returned. A send that failed loses its bytes, counts as sent in full, and is
///   followed by [`crate::Core::client_closed`] or [`crate::Core::server_closed`].
pub trait Io {
    /// Sends `slices`, in order, after whatever is unsent: one `writev`. What the socket does not
    /// take is copied and kept by the worker.
    ///
    /// The slices live as long as the call. There are at most 64 of them, none empty.
    fn send(&mut self, to: Peer, slices: &[IoSlice<'_>]) -> Backlog;

    /// Stop reading from `peer` until [`Io::resume`]. What was read already and not handed in is
    /// still to be handed in, at most one receive buffer.
    fn pause(&mut self, peer: Peer);

    /// Read from `peer` again; there may be bytes whose readiness was seen while it was paused.
    fn resume(&mut self, peer: Peer);

    /// Close `peer`, once what was sent to it is out or that takes too long. The core has put a
    /// farewell (an ErrorResponse, a Terminate) before, where one is due.
    fn close(&mut self, peer: Peer);

    /// `client` is told this, and closed: for the log. It is a remark; nothing has to be done.
    fn refused(&mut self, client: ClientId, refusal: &Refusal) {
        let _ = (client, refusal);
    }

    /// `client` is told this for a request on several shards, and goes on: for the log. It is a remark, too.
    fn told(&mut self, client: ClientId, error: &dyn std::fmt::Display) {
        let _ = (client, error);
    }

    /// A server of `pool`, a member of a cluster, ended by itself or could not be reached: it is to be
    /// asked how it is, soon. It is a remark; nothing has to be done.
    fn doubted(&mut self, pool: PoolId) {
        let _ = pool;
    }

    /// A client has written by a server of this pool, a member of a cluster, and wants to read that wherever it
    /// reads: how far the primary is has to be asked soon. Not ordered again before it was.
    fn wrote(&mut self, pool: PoolId) {
        let _ = pool;
    }

    /// Connect and log in to a server of `pool`, then report [`crate::Core::server_ready`] or
    /// [`crate::Core::server_failed`]. The core has counted it against every limit already, and
    /// paces retries; the worker has the deadline for connecting and logging in.
    fn open_server(&mut self, server: ServerId, pool: PoolId);

    /// Send `key` in a CancelRequest over a connection of its own, to the address and by the TLS
    /// settings of `pool`; report [`crate::Core::cancel_finished`] when the server has closed that
    /// connection, which it does without an answer, or when the attempt has failed or has taken too
    /// long. Until then `server` is not handed to another client.
    fn send_cancel(&mut self, server: ServerId, pool: PoolId, key: &CancelKey);

    /// This worker has clients of `pool` waiting and may open no more servers: have every other
    /// worker call [`crate::Core::server_wanted`]. May be dropped if there is one worker.
    fn want_server(&mut self, pool: PoolId);

    /// Have the dedicated connection of the database that `home` is of listen to `channels` for `client`, and
    /// report [`crate::Core::heard`] when it does, or why it cannot; then what comes there by
    /// [`crate::Core::notified`]. With `again` the client listens to them already and waits for nothing: it
    /// is told when they are listened to that it may have missed some, by [`crate::Core::missed`].
    fn listen(&mut self, client: ClientId, home: PoolId, channels: Vec<Channel>, again: bool) {
        let _ = (client, home, channels, again);
    }

    /// `client` is not to hear of `channels` any more; of none if it is `None`. It may be gone.
    fn unlisten(&mut self, client: ClientId, home: PoolId, channels: Option<Vec<Channel>>) {
        let _ = (client, home, channels);
    }

    /// Take the idle `server` out of the loop and give its socket, with `transfer`, to worker `to`,
    /// which calls [`crate::Core::adopt_server`].
    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>);
}

/// What is left to send to a peer after [`Io::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a peer that takes nothing must not be sent more"]
pub enum Backlog {
    /// Nothing: the socket took all of it.
    Empty,
    /// Some bytes. The core sends no more than it has at hand, and the worker owes a
    /// [`crate::Core::drained`] as soon as nothing is left.
    Waiting,
}

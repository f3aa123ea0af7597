//! [`CoreIo`]: the I/O that the core requests from the worker. For the other direction, the methods
//! of [`crate::Core`] receive the events that the worker reports.

use std::io::IoSlice;

use howdah_wire::startup::CancelKey;

use crate::{
    Channel, ClientRefusal, Transfer,
    state::ids::{ClientId, PeerId, PoolId, ServerId, WorkerId},
};

/// The I/O commands that the core issues to its worker.
///
/// The core calls these while it handles an event; none of them may call back into the core. If a
/// result is known at once (connection refused, peer closed), the worker stores it and reports it
/// after the current call has returned.
///
/// # Contract
///
/// - After [`CoreIo::close`] or [`CoreIo::hand_over`] the id is invalid: the worker reports no more
///   events of its socket, and the core may reuse its slot for another connection within the same
///   call.
/// - A peer is not paused initially. While it is paused, the worker does not read from it. The
///   worker need not change the peer's registration in the event loop: with edge-triggered
///   readiness a flag is enough, if [`CoreIo::resume`] makes the worker try to read again.
/// - Errors are never returned. The bytes of a failed send are lost, but count as sent; the worker
///   then calls [`crate::CoreEvent::ClientClosed`] or [`crate::CoreEvent::ServerClosed`].
pub trait CoreIo {
    /// Sends `slices`, in order, after any unsent bytes; without TLS, with at most one `writev`.
    /// The worker copies and retains the bytes that the socket does not accept.
    ///
    /// The slices are valid only during the call. There are at most 64 of them, none empty.
    fn send(&mut self, to: PeerId, slices: &[IoSlice<'_>]) -> Backlog;

    /// Stops reading from `peer` until [`CoreIo::resume`]. Bytes that were already read, at most
    /// one receive buffer, are still delivered.
    fn pause(&mut self, peer: PeerId);

    /// Resumes reading from `peer`. Bytes may have become readable while it was paused.
    fn resume(&mut self, peer: PeerId);

    /// Closes `peer` once its unsent bytes are sent or a timeout has passed. The core has already
    /// sent a final ErrorResponse or Terminate, if one is required.
    fn close(&mut self, peer: PeerId);

    /// Reports, for the log, the error with which `client` is being disconnected. Optional.
    fn client_refused(&mut self, client: ClientId, refusal: &ClientRefusal) {
        let _ = (client, refusal);
    }

    /// Reports, for the log, why a request of `client` on several shards has failed. The client
    /// stays connected. Optional.
    fn request_failed(&mut self, client: ClientId, error: &dyn std::fmt::Display) {
        let _ = (client, error);
    }

    /// Reports that a connection to the server of `pool`, a cluster member, was lost, aborted, or
    /// could not be opened: the member's health should be checked soon. Optional.
    fn server_suspected(&mut self, pool: PoolId) {
        let _ = pool;
    }

    /// Reports that a client that reads its own writes has written, or may have, through `pool`, a
    /// cluster member: the WAL position of the primary should be queried soon. The core repeats
    /// this call only once such a query has started.
    fn check_primary(&mut self, pool: PoolId) {
        let _ = pool;
    }

    /// Starts to connect and log in to a server of `pool`; the worker later reports
    /// [`crate::CoreEvent::ServerReady`] or [`crate::CoreEvent::ServerFailed`]. The core has
    /// already counted the server against every limit, and limits the rate of retries; the worker
    /// enforces the timeout for connecting and logging in.
    fn open_server(&mut self, server: ServerId, pool: PoolId);

    /// Sends `key` in a CancelRequest over a new connection, to the address and with the TLS
    /// settings of `pool`. Reports [`crate::CoreEvent::CancelFinished`] when the server has closed
    /// that connection, which it does without a reply, or when the attempt has failed or timed out.
    /// Until then `server` is not given to another client.
    fn send_cancel(&mut self, server: ServerId, pool: PoolId, key: &CancelKey);

    /// Requests a server from the other workers: clients of `pool` wait here, and this worker may
    /// not open more servers. Every other worker must then call
    /// [`crate::CoreEvent::ServerRequested`]. If there is only one worker, the request may be
    /// ignored.
    fn request_server(&mut self, pool: PoolId);

    /// Asks the other workers for idle servers of `pool`, at most `servers_max` from each, because
    /// few more may be opened. Every other worker must then call
    /// [`crate::CoreEvent::IdleServersRequested`]. Called only if there are several workers; see
    /// [`crate::Core::set_worker_count`].
    fn request_idle_servers(&mut self, pool: PoolId, servers_max: u32) {
        let _ = (pool, servers_max);
    }

    /// Makes worker `to` call [`crate::CoreEvent::IdleServersConfirmed`], after all servers that
    /// were handed over to it so far.
    fn confirm_idle_servers(&mut self, pool: PoolId, to: WorkerId) {
        let _ = (pool, to);
    }

    /// Makes the dedicated connection for the database of `owner_pool` listen to `channels` for
    /// `client`. The worker then reports [`crate::CoreEvent::ListenFinished`], with the reason if
    /// that failed, and passes notifications in [`crate::CoreEvent::Notification`]. With
    /// `is_relisten`, the client already listens to these channels and does not wait for the
    /// result. Instead, if it may have missed notifications, the worker reports
    /// [`crate::CoreEvent::NotificationsMissed`] once the connection listens, which warns the
    /// client.
    fn listen(
        &mut self,
        client: ClientId,
        owner_pool: PoolId,
        channels: Vec<Channel>,
        is_relisten: bool,
    ) {
        let _ = (client, owner_pool, channels, is_relisten);
    }

    /// Stops delivering notifications of `channels` to `client`, or of all channels if `None`. The
    /// client may already be gone.
    fn unlisten(&mut self, client: ClientId, owner_pool: PoolId, channels: Option<Vec<Channel>>) {
        let _ = (client, owner_pool, channels);
    }

    /// Removes the idle `server` from the event loop and gives its socket, with `transfer`, to
    /// worker `to`, which calls [`crate::Core::adopt_server`].
    fn hand_over(&mut self, server: ServerId, to: WorkerId, transfer: Box<Transfer>);
}

/// The state of a peer's send buffer after [`CoreIo::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "while bytes are unsent, the peer's counterpart must be paused"]
pub enum Backlog {
    /// No bytes remain: the socket accepted everything.
    Empty,
    /// Some bytes remain in the worker's buffer. The core pauses the peer's counterpart, and the
    /// worker calls [`crate::CoreEvent::Drained`] as soon as the buffer is empty.
    Waiting,
}

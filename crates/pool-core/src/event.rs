//! [`CoreEvent`]: what a worker reports to its core.

use crate::{
    Channel,
    login::{ServerFailure, ServerLogin},
    state::ids::{ClientId, PeerId, PoolId, ServerId, WorkerId},
};

/// An event that a worker reports with [`Core::handle`](crate::Core::handle): everything except
/// bytes and timers, which have methods of their own.
#[derive(Debug)]
pub enum CoreEvent<'a> {
    /// A client's connection has ended: end of file, an error, or a failed send. Its slot may then
    /// be reused.
    ClientClosed(ClientId),
    /// The login to a server requested by [`CoreIo::open_server`](crate::CoreIo::open_server) has
    /// succeeded.
    ServerReady(ServerId, ServerLogin),
    /// A server requested by [`CoreIo::open_server`](crate::CoreIo::open_server) could not be
    /// opened; the worker has closed its socket, if there was one. Its slot may then be reused.
    ServerFailed(ServerId, ServerFailure),
    /// A server's connection has ended: end of file, an error, or a failed send. Its slot may then
    /// be reused.
    ServerClosed(ServerId),
    /// A peer's send buffer has become empty after [`Backlog::Waiting`](crate::Backlog::Waiting):
    /// the peer's counterpart may be read from again.
    Drained(PeerId),
    /// The attempt started by [`CoreIo::send_cancel`](crate::CoreIo::send_cancel) has ended,
    /// successfully or not.
    CancelFinished(ServerId),
    /// Another worker requests a server of a pool; see
    /// [`CoreIo::request_server`](crate::CoreIo::request_server). The core hands over an idle
    /// server or, if there is none, closes another pool's idle server so that the other worker can
    /// open one. If neither is possible, the request is queued while the other worker repeats it.
    ServerRequested(PoolId, WorkerId),
    /// Another worker asks for idle servers of a pool; see
    /// [`CoreIo::request_idle_servers`](crate::CoreIo::request_idle_servers). The core hands over
    /// those that it can spare, and confirms with
    /// [`CoreIo::confirm_idle_servers`](crate::CoreIo::confirm_idle_servers). It does the latter
    /// even if it does not have the pool.
    IdleServersRequested {
        /// The pool that needs servers.
        pool: PoolId,
        /// The worker that the servers go to.
        by: WorkerId,
        /// The maximum number of servers to hand over.
        servers_max: u32,
    },
    /// Another worker has handed over the idle servers of this pool that it can spare, perhaps
    /// none.
    IdleServersConfirmed(PoolId),
    /// Servers of a pool may be available, after
    /// [`Core::adopt_server`](crate::Core::adopt_server). Idle ones that must not be used are
    /// closed: an admin command may have been issued while a server was moving between workers.
    ServersAvailable(PoolId),
    /// The result of [`CoreIo::listen`](crate::CoreIo::listen): the dedicated connection listens to
    /// the client's channels, or an error says why it cannot.
    ListenFinished(ClientId, Result<(), String>),
    /// The dedicated connection should listen to the channels of a client that was taken over from
    /// another process.
    Relisten(ClientId),
    /// A notification has arrived. Those of `clients` that listen to the channel receive it as soon
    /// as they are outside a transaction, unless their buffer is full.
    Notification {
        /// The name after NOTIFY.
        channel: &'a Channel,
        /// NotificationResponse, as the server sent it.
        message: &'a [u8],
        /// Clients that may listen to the channel.
        clients: &'a [ClientId],
    },
    /// These clients may have missed notifications, because the dedicated connection was lost, or
    /// could not be taken over from another process without a gap. They are warned.
    NotificationsMissed(&'a [ClientId]),
    /// States of cluster members have changed: waiting clients and requests that can be rerouted
    /// move to suitable members, servers that must not be used any more are closed, and their
    /// clients are disconnected.
    ClusterStateChanged,
    /// An [`AdminState`](crate::AdminState) has changed: idle servers that must not be used are
    /// closed, and waiting clients that may now have a server are served.
    AdminStateChanged,
    /// [`Core::set_pool`](crate::Core::set_pool) has changed pools. Changed mirrors apply to
    /// connected clients. Outdated or surplus servers are closed; those in use when they are
    /// released. Clients of removed databases are disconnected; those with a request or transaction
    /// when it ends. Waiting clients that may now have a server are served.
    PoolsChanged,
    /// The secret for logins to a pool's servers has changed. If the last login was refused, the
    /// next one need not wait.
    SecretChanged(PoolId),
    /// A pool should have [`PoolSpec::servers_min`](crate::PoolSpec::servers_min) servers, as far
    /// as limits allow, even if it has no client.
    FillMinPool(PoolId),
    /// KILL: all connected clients of a pool are disconnected, in whatever state they are, and its
    /// servers are closed, except those that are still being opened or used by an internal client.
    KillPool(PoolId),
    /// SUSPEND, or its end: while suspended, clients get no server, no server is opened, and no
    /// timer runs, so that no new data is sent. The worker must not read from any connection, and
    /// must pass the time at which the suspension started to all calls, so that the suspension does
    /// not count against timeouts. Events that it still reports (a new client, a server login, a
    /// broken connection) are handled as far as possible.
    Suspend(bool),
    /// The pooler shuts down: clients that are idle outside a transaction, logging in, or waiting
    /// for a server are disconnected, as by PgBouncer. Must be reported again after every event
    /// until no clients are left, so that the others are disconnected when they become idle.
    Drain,
    /// Servers for which no client waits are closed from now on, or kept again. During a takeover
    /// this frees connections for the new process.
    CloseIdleServers(bool),
}

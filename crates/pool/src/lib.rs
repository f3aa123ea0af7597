//! The connection pooler: many clients share few PostgreSQL server connections.
//!
//! This crate has everything that touches the outside: event loops and sockets (`worker`),
//! authentication, the admin console, metrics, takeovers, and the thread that writes captures.
//! Which client gets which server connection, and when, is decided by [`howdah_pool_core`], which
//! each worker runs on its thread. The settings are read by [`howdah_pool_config`].

pub mod auth;
mod console;
mod metrics;
mod recorder;
mod worker;

#[doc(hidden)]
pub use console::console_tag;
pub use console::{
    AdminView, ClientView, ConnectionNumber, DatabaseView, MemberView, MirrorView, PoolView,
    PoolerSnapshot, ServerView, SocketAddresses, log_level::LogControl,
};
pub use howdah_net::{ActivatedSocket, ActivationError, activated_sockets};
pub use metrics::METRICS;
pub use recorder::{CaptureRecorder, CaptureStartError, RecorderSettings, RecorderStatus};
#[doc(hidden)]
pub use worker::HostResolver;
pub use worker::{
    CancelPeerReport, CancelPeersReport, CaptureError, ConfigOrigin, MultiplexerReport, Pooler,
    PoolerHandle, PoolerStartError, Preflight, ReloadError, ReloadReport, ShutdownWaiter,
    preflight,
};

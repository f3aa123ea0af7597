//! The connection pooler: many clients share few PostgreSQL server connections.
//!
//! This crate decides which client gets which server connection, and when. `howdah-wire` handles
//! protocol bytes, and `howdah-net` handles sockets and timers.
//!
//! [`Core`] is the whole data path of one worker without I/O: bytes, time and logins go in, and
//! requests to send, open and close come out through [`CoreIo`]. Each worker has a separate core.
//! Workers share [`ConnectionLimit`]s, and a worker hands over an idle server when clients of
//! another worker are starving for one.
//!
//! # Cost
//!
//! A warm transaction whose request and reply each arrive in one piece costs one scan of message
//! headers and one call of [`CoreIo::send`] in each direction. Both calls send directly from the
//! receive buffer, without an allocation or a copy. An idle client has no buffer.

pub mod auth;
mod cluster;
pub mod config;
mod console;
mod core;
pub mod hba;
mod metrics;
mod recorder;
#[cfg(test)]
mod sim;
mod worker;

pub use cluster::{
    CheckFindings, ClusterMember, ClusterMembership, ClusterSpec, ClusterState, MemberBan,
    MemberHealth, MemberReport, TargetRole,
};
pub use config::Strategy;
#[doc(hidden)]
pub use console::console_tag;
pub use console::{
    ClientView, DatabaseView, MemberView, MirrorView, PoolView, PoolerSnapshot, ServerView,
    SocketAddresses,
};
pub use core::io::{Backlog, CoreIo};
pub use core::listen::channels::Channel;
pub use core::login::{CancelSecret, ClientLogin, ServerFailure, ServerLogin};
pub use core::mirror::target::{DropReason, Mirror, MirrorReport, MirrorResult, MirrorTarget};
pub use core::prepared::statements::StatementRegistry;
pub use core::refusal::ClientRefusal;
pub use core::session::connect_query::ConnectQuery;
pub use core::session::parameters::SessionParameter;
pub use core::spec::{CheckQuery, PoolSpec, PoolTimeouts, PoolingMode, ReservePool, ResetQuery};
pub use core::state::admin_state::AdminState;
pub use core::state::client::worker_of_key;
pub use core::state::ids::{ClientId, PeerId, PoolId, ServerId, WorkerId};
pub use core::state::limits::{ConnectionLimit, Permits};
pub use core::state::pool::WelcomeMessage;
pub use core::state::pool_stats::{DurationHistogram, PoolStats};
pub use core::time::Time;
pub use core::{
    ClientHandover, ClientPhase, ClientReport, Core, CoreReport, HandoverStatement, PoolCounts,
    PoolReport, ServerPhase, ServerReport, Transfer,
};
pub use howdah_net::{ActivatedSocket, ActivationError, activated_sockets};
pub use metrics::METRICS;
pub use recorder::{CaptureRecorder, CaptureStartError, RecorderSettings, RecorderStatus};
#[doc(hidden)]
pub use worker::HostResolver;
pub use worker::{
    CaptureError, ConfigOrigin, MultiplexerReport, Pooler, PoolerHandle, PoolerStartError,
    Preflight, ReloadError, ReloadReport, ShutdownWaiter, preflight,
};

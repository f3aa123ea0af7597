//! The connection pooler: many clients share few PostgreSQL server connections.
//!
//! Here is decided who gets which server connection and when. Protocol bytes are the business of
//! `howdah-wire`, sockets and timers that of `howdah-net`.
//!
//! [`Core`] is the whole data path of one worker without I/O: bytes, time and logins go in, and
//! through [`Io`] come orders to send, open and close. Each worker has a core of its own; workers
//! share [`Limit`]s, and hand idle servers over when one of them starves.
//!
//! # Cost
//!
//! What a warm transaction costs here, with one message each way: two walks over five-byte headers,
//! one [`Io::send`] to the server and one to the client, both of bytes where they were received, no
//! allocation, no copy. A client that is idle has no buffer.

mod again;
pub mod auth;
mod client;
mod cluster;
pub mod config;
mod connect_query;
mod console;
mod core;
mod deallocate;
mod dirt;
mod gate;
mod gather;
pub mod hba;
mod ids;
mod inlet;
mod io;
mod limits;
mod listen;
mod login;
mod metrics;
mod mirror;
mod owed;
mod parse_settings;
mod plain;
mod pool;
mod prepared;
pub mod proxy;
mod put_back;
mod refusal;
mod routing;
mod server;
mod settings;
#[cfg(test)]
mod sim;
mod slab;
mod spec;
mod spread;
mod statements;
mod tally;
mod time;
mod worker;
mod writes;

pub use client::worker_of_key;
pub use cluster::{
    Ban, Cluster, ClusterMember, ClusterState, Member, MemberPlace, MemberReport, MemberState,
    ServerRole, Strategy,
};
pub use connect_query::ConnectQuery;
#[doc(hidden)]
pub use console::console_tag;
pub use console::{
    ClientView, DatabaseView, MemberView, MirrorView, Place, PoolView, ServerView, View,
};
pub use core::{
    ClientHandover, ClientPhase, ClientReport, Core, Counts, MigrantStatement, PoolReport, Report,
    ServerPhase, ServerReport, Transfer,
};
pub use gate::Gate;
pub use howdah_net::{ActivatedSocket, PassedError, passed_sockets};
pub use ids::{ClientId, Peer, PoolId, ServerId, WorkerId};
pub use io::{Backlog, Io};
pub use limits::{Limit, Permits};
pub use listen::Channel;
pub use login::{CancelSecret, ClientLogin, ServerFailure, ServerLogin};
pub use metrics::METRICS;
pub use mirror::{DropReason, Mirror, MirrorReport, MirrorResult, MirrorTarget};
pub use pool::WelcomeMessage;
pub use refusal::Refusal;
pub use settings::Setting;
pub use spec::{Check, Mode, PoolSpec, Reserve, Reset, Timeouts};
pub use statements::Statements;
pub use tally::{Spans, Tally};
pub use time::Time;
#[doc(hidden)]
pub use worker::Names;
pub use worker::{
    CaptureError, Control, End, HubReport, Origin, Pooler, Preflight, ReloadError, Reloaded,
    StartError, preflight,
};

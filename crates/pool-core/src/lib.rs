//! The pooler without I/O: which client gets which server connection, when, and what goes over it.
//!
//! [`Core`] is the whole data path of one worker: bytes, time and logins go in, and requests to
//! send, open and close come out through [`CoreIo`]. Each worker has a separate core. Workers share
//! [`ConnectionLimit`]s, and a worker hands over an idle server when clients of another worker are
//! starving for one. [`ClusterTopology`] decides, from the reports of health checks, which server
//! of a cluster is the primary and which ones may be used.
//!
//! The crate opens no socket, reads no clock and no settings file: `howdah-pool` does. So all of it
//! runs as dialogues in unit tests, and under seeded faults in the simulator (`sim`).
//!
//! # Cost
//!
//! A warm transaction whose request and reply each arrive in one piece costs one scan of message
//! headers and one call of [`CoreIo::send`] in each direction. Both calls send directly from the
//! receive buffer, without an allocation or a copy. An idle client has no buffer.

mod call;
mod capture;
mod clients;
mod cluster;
mod core;
mod engines;
mod event;
mod fan_out;
mod internal_client;
mod io;
mod listen;
mod login;
mod messages;
mod mirror;
mod peers;
mod pinning;
mod pools;
mod prepared;
mod refusal;
mod report;
mod routing;
mod servers;
mod session;
#[cfg(test)]
mod sim;
mod spec;
mod state;
#[cfg(test)]
mod tests;
mod time;

pub use self::{
    capture::RunningCapture,
    clients::handover::{ClientHandover, HandoverStatement},
    cluster::{
        AssignedRole, BalancingStrategy, CheckFindings, CheckSeq, ClusterMember, ClusterMembership,
        ClusterSpec, ClusterState, ClusterTopology, HealthReport, MemberBan, MemberHealth,
        MemberIndex, MemberReport, PrimaryConflict, ServerStatus, TargetRole, TimelineRegression,
        TopologySettings, WriteTracker, end_of_wal,
    },
    core::{Core, takeover::Takeover},
    event::CoreEvent,
    io::{Backlog, CoreIo},
    listen::channels::Channel,
    login::{CancelSecret, ClientLogin, ServerFailure, ServerLogin},
    mirror::{
        outcome::{DropReason, MirrorResult},
        target::{Mirror, MirrorReport, MirrorTarget},
    },
    prepared::statements::StatementRegistry,
    refusal::ClientRefusal,
    report::{
        ClientPhase, ClientReport, CoreReport, PinReport, PoolCounts, PoolReport, ServerPhase,
        ServerReport,
    },
    session::{connect_query::ConnectQuery, parameter::SessionParameter},
    spec::{CheckQuery, PinningSpec, PoolSpec, PoolTimeouts, PoolingMode, ReservePool, ResetQuery},
    state::{
        admin_state::AdminState,
        client::worker_of_key,
        ids::{ClientId, PeerId, PoolId, ServerId, WorkerId},
        limits::{ConnectionLimit, Permits},
        pool_stats::{DurationHistogram, PoolStats, micros},
        server::Transfer,
        welcome::WelcomeMessage,
    },
    time::Time,
};

//! Reads a running PostgreSQL server with SQL: versioned statements for activity, locks and
//! statistics, and types for their rows.
//!
//! A [`MonitorConnection`] is one read-only connection. [`MonitorConnection::activity`] returns all
//! sessions; [`MonitorConnection::read`] returns one of the [`VIEWS`], whose columns have SQL for
//! each server version that supports them. [`rates()`] turns two samples of a view into rates.
//! Figures that the role may not read are missing, never zero, and [`Privileges::missing`] names
//! the grant that would help. [`MonitorConnection::waits`] is a sample so small that it can be
//! taken many times a second, and [`MonitorConnection::vitals`] one for a recorder that takes it
//! once a second. [`SignalConnection`] cancels statements and terminates sessions, and verifies the
//! target in the same statement. [`explain_generic`] plans another session's statement without
//! executing it. [`ConsoleConnection`] queries a pooler for the server sessions that its clients
//! use. [`PhysicalIdentity`] distinguishes a server from its copies, and has its position in the
//! WAL.
//!
//! Out of scope: drawing, history, and deciding what is slow.

mod activity;
mod blocking;
mod cell;
mod error;
mod explain;
mod identity;
mod overview;
mod pooler;
mod prepared_query;
mod privileges;
mod rates;
mod record;
mod server;
mod session_details;
pub mod settings;
mod signal;
mod text;
mod version;
mod view;
mod views;
mod vitals;
mod waits;

pub use activity::{Activity, BackendActivity, BackendState, BackendType, BackendWait, Blocker};
pub use blocking::{BlockingNode, BlockingTrees};
pub use cell::{ColumnUnit, ViewCell};
pub use error::CollectError;
pub use explain::{GenericPlan, GenericPlanError, explain_generic};
pub use identity::{IdentityRow, Lsn, ParseLsnError, PhysicalIdentity};
pub use overview::{Overview, WorkerLimits};
pub use pooler::{ConsoleConnection, PooledBackend, PoolerClient, PoolerClients};
pub use prepared_query::OWN_COMMENT;
pub use privileges::{MissingPrivilege, Privileges};
pub use rates::{RateView, rates};
pub use record::RecordFields;
pub use server::{BackendProcess, MonitorConnection, ServerInfo};
pub use session_details::{BackendIo, SessionDetails, SessionLock, SessionProgress};
pub use signal::{SignalAction, SignalConnection, SignalOutcome, SignalTarget};
pub use text::{SqlText, sanitized_line};
pub use version::ServerVersion;
pub use view::{ColumnKind, StatsView, ViewColumn, ViewSample};
pub use views::VIEWS;
pub use vitals::{PreparedTransaction, ServerVitals, SlowestStandby, WaitedLock};
pub use waits::{WaitCount, WaitCounts};

//! Resolves connection parameters, and connects to PostgreSQL servers with them.
//!
//! [`ConnectTarget::resolve`] resolves [`ConnParams`] and an [`Environment`] to endpoints, as libpq
//! does: URIs, keyword/value strings, `PG*` variables, the service file, the password file.
//! [`tls`] converts the TLS settings to a rustls configuration, and negotiates encryption at the
//! start of a connection. [`Client`] is a blocking connection for the control plane.
//!
//! The data plane is in the net crate, which handles thousands of connections at once and takes
//! targets and TLS settings from this crate.

mod auth_policy;
mod choice;
pub mod client;
mod conninfo;
pub mod deadline;
mod endpoint;
mod environment;
mod file_permissions;
mod keyword;
mod params;
mod passfile;
mod resolve_error;
mod service;
mod setting_origin;
mod settings;
mod target;
pub mod tls;
mod uri;
mod warning;

pub use auth_policy::{AuthFilter, AuthPolicy, LoginError, LoginRefused};
pub use client::{
    AttemptFailure, CancelError, CancelHandle, Client, ConnectError, ConnectFailure, QueryError,
    ResultRow, ResultSet, SqlError,
};
pub use endpoint::Endpoint;
pub use environment::Environment;
pub use howdah_wire::ValueFormat;
pub use params::ConnParams;
pub use resolve_error::{ResolveError, ServiceProblem};
pub use setting_origin::SettingOrigin;
pub use target::{ConnectTarget, Keepalive, LoadBalance, SessionAttributes};
pub use tls::{SslMode, TlsSettings};
pub use warning::Warning;

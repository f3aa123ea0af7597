//! From a person's connection words to a PostgreSQL connection.
//!
//! [`Target::resolve`] turns [`Words`] and an [`Environment`] into places to connect to, just as
//! libpq does: URIs, keyword/value strings, `PG*` variables, the service file, the password file.
//! [`tls`] turns its TLS settings into a rustls configuration and the first bytes of a connection.
//! [`Client`] is a blocking connection for the control plane.
//!
//! It is not the data plane: thousands of connections at once are the business of the net crate,
//! which takes targets and TLS from here.

mod choice;
pub mod client;
mod conninfo;
pub mod deadline;
mod endpoint;
mod environment;
mod guard;
mod keyword;
mod passfile;
mod resolve_error;
mod service;
mod settings;
mod target;
pub mod tls;
mod uri;
mod words;

pub use client::{
    CancelError, CancelHandle, Client, ConnectError, ConnectFailure, Failure, QueryError,
    ResultSet, Row, SqlError,
};
pub use endpoint::Endpoint;
pub use environment::Environment;
pub use guard::{AuthPolicy, GuardedInput, LoginFault, LoginRefused};
pub use howdah_wire::Format;
pub use resolve_error::{ResolveError, ServiceProblem};
pub use settings::Origin;
pub use target::{Keepalive, LoadBalance, SessionAttributes, Target, Warning};
pub use tls::{SslMode, TlsSettings};
pub use words::Words;

//! Throw-away PostgreSQL clusters. The crate finds or fetches binaries, then creates, starts, stops
//! and removes clusters, even if the process that started them is killed.
//!
//! ```no_run
//! let mut cluster = howdah_lab::Builder::new().major(17).setting("work_mem", "1MB").start()?;
//! println!("{}", cluster.uri("postgres"));
//! cluster.restart()?;
//! # Ok::<(), howdah_lab::ClusterError>(())
//! ```
//!
//! A [`Cluster`] belongs to the process that started it: when the value is dropped, or the process
//! dies (SIGKILL included), the server stops and its files are removed; see [`Cluster`] for how. A
//! [`Lab`] is a named cluster that can outlive the process that started it, until it is stopped;
//! [`Labs`] lists them.
//!
//! PostgreSQL refuses to run as root, so root's clusters (initdb, the server, its files) belong to
//! another system account; see [`OsUser`]. Other users of the host cannot connect: the server
//! listens on a unix socket in a private directory, and on TCP only on request, with a password.
//! Tests are the exception; see [`Builder::trusted_tcp`].
//!
//! The crate supports only Linux, because it reads `/proc` to distinguish a server from a process
//! that reuses its process id. The contents of a cluster and the assertions of tests are out of
//! scope.

mod access;
mod binaries;
mod builder;
mod cache;
mod cluster;
mod error;
#[cfg(feature = "fetch")]
mod fetch;
mod files;
mod find_error;
mod labs;
mod os_user;
mod paths;
mod port;
mod postmaster;
mod reaper;
mod search;
mod server;
mod settings;
mod skip;
mod standby;
mod template;
mod version;
mod wait;

pub use binaries::{Binaries, BinariesOrigin, client_tool};
pub use builder::Builder;
pub use cluster::Cluster;
pub use error::ClusterError;
pub use find_error::{FindError, UnusableBinaries};
pub use labs::{Lab, LabState, Labs, LabsError, StartedLab};
pub use os_user::{ACCOUNT_NAME, OsUser};
pub use search::BinariesSearch;
pub use skip::skip_without_postgres;
pub use version::Version;
pub use wait::{wait_for, wait_until};

/// The supported major versions of PostgreSQL; on x86-64 and arm64, all of them can be fetched.
pub const MAJORS: std::ops::RangeInclusive<u32> = 14..=18;

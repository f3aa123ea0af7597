//! Throw-away PostgreSQL clusters: binaries are found or fetched, a cluster is made, started,
//! stopped and cleaned up, whatever becomes of the process that asked for it.
//!
//! ```no_run
//! let mut cluster = howdah_lab::Builder::new().major(17).setting("work_mem", "1MB").start()?;
//! println!("{}", cluster.uri("postgres"));
//! cluster.restart()?;
//! # Ok::<(), howdah_lab::Error>(())
//! ```
//!
//! A [`Cluster`] belongs to the process that started it: when the value is dropped, or the process
//! dies (SIGKILL included), the server stops and the files go; see [`Cluster`] for how. A [`Lab`] is
//! a cluster with a name that outlives its maker until somebody stops it; [`Labs`] keeps their list.
//!
//! Run as root, everything that belongs to the server (initdb, the server, its files) belongs to
//! another account, because PostgreSQL refuses to run as root; see [`Account`]. Other users of the
//! host cannot connect: the server listens on a unix socket in a private directory, and on TCP only
//! if asked to, with a password. The exception are tests; see [`Builder::trusted_tcp`].
//!
//! Linux only in one respect: it reads `/proc` to tell a dead server from a process that got its
//! number. What a cluster holds, and what tests assert about it, is not this crate's business.

mod access;
mod account;
mod binaries;
mod builder;
mod cache;
mod cluster;
mod error;
#[cfg(feature = "fetch")]
mod fetch;
mod files;
mod for_tests;
mod janitor;
mod labs;
mod places;
mod port;
mod postmaster;
mod search;
mod server;
mod settings;
mod standby;
mod template;
mod version;
mod wait;

pub use account::{ACCOUNT_NAME, Account};
pub use binaries::{Binaries, Origin, client_tool};
pub use builder::Builder;
pub use cluster::Cluster;
pub use error::Error;
pub use for_tests::or_say_why_not;
pub use labs::{Lab, LabState, Labs, LabsError, StartedLab};
pub use search::{FindError, Search, Unfit};
pub use version::Version;
pub use wait::{wait_for, wait_until};

/// The majors of PostgreSQL that a cluster can be asked for, and that can be fetched.
pub const MAJORS: std::ops::RangeInclusive<u32> = 14..=18;

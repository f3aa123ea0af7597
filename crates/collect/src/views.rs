//! The views, one file per topic.
//!
//! The versions of columns are documented in the manual's chapter "The Cumulative Statistics
//! System" and in the release notes of each major version; tests read every view on every installed
//! major version.

mod databases;
mod io;
mod locks;
mod progress;
mod relations;
mod replication;
mod statements;
mod vacuum;
mod wal;

pub(crate) use self::locks::OBJECT as LOCKED_OBJECT;
pub(crate) use self::progress::PROGRESS;
use crate::StatsView;

/// The views, in the order of the screens' keys.
pub static VIEWS: &[StatsView] = &[
    databases::DATABASES,
    relations::TABLES,
    relations::INDEXES,
    statements::STATEMENTS,
    locks::WAITING,
    replication::REPLICATION,
    replication::SLOTS,
    wal::WAL,
    io::IO,
    PROGRESS,
    vacuum::VACUUM,
    vacuum::HORIZON,
];

//! The views, a file for each thing they are about.
//!
//! Which version has which column is from the manual's chapter "The Cumulative Statistics System" and the
//! release notes of each major; tests read every view of every major that is at hand.

mod databases;
mod io;
mod locks;
mod progress;
mod relations;
mod replication;
mod statements;
mod vacuum;
mod wal;

use crate::View;

/// Every view there is.
pub static VIEWS: &[View] = &[
    databases::DATABASES,
    relations::TABLES,
    relations::INDEXES,
    statements::STATEMENTS,
    locks::WAITING,
    replication::REPLICATION,
    replication::SLOTS,
    wal::WAL,
    io::IO,
    progress::PROGRESS,
    vacuum::VACUUM,
    vacuum::HORIZON,
];

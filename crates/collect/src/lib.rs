//! A running PostgreSQL server seen by SQL: one versioned set of statements for activity, locks and
//! statistics, and the types their rows become.
//!
//! A [`Server`] is one connection that reads. [`Server::activity`] gives who does what, in one
//! statement; [`Server::read`] gives one of the [`VIEWS`], each a table of columns that says from which
//! version on a column exists and where it comes from. [`rates()`] makes of two readings what happened
//! between them. What a role may not read is [`Cell::Unavailable`], never zero, and
//! [`Privileges::missing`] names the grant that would help. [`Server::waits`] is a reading so small that it
//! may be taken many times a second. [`Signals`] ends statements and sessions, and
//! proves in the same statement that it is still the one that was meant. [`plan()`] shows how a statement of
//! somebody else would be run, and runs nothing. A [`Pooler`] is asked who is behind
//! which of a server's sessions.
//!
//! What this crate does not do: draw, keep history, decide what is slow.

mod activity;
mod blocking;
mod cell;
mod error;
mod overview;
mod plan;
mod pooler;
mod prepared;
mod privileges;
mod rates;
mod record;
mod server;
mod signal;
mod text;
mod version;
mod view;
mod views;
mod waits;

pub use activity::{Activity, Backend, Blocker, Kind, State, Wait};
pub use blocking::{BlockingTrees, Node};
pub use cell::{Cell, Unit};
pub use error::CollectError;
pub use overview::Overview;
pub use plan::{Plan, PlanError, plan};
pub use pooler::{Held, Pooler, PoolerClient, PoolerClients};
pub use privileges::{Missing, Privileges};
pub use rates::{RateView, rates};
pub use record::RecordFields;
pub use server::{Identity, ServedBy, Server};
pub use signal::{Action, SignalTarget, Signalled, Signals};
pub use text::{SqlText, shown_line};
pub use version::Version;
pub use view::{Column, Meaning, Reading, View};
pub use views::VIEWS;
pub use waits::{WaitCount, WaitCounts};

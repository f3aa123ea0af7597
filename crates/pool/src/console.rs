//! The console: what operators ask and order, in PgBouncer's words, over PostgreSQL's protocol.
//!
//! Nothing here knows of sockets or workers: [`Session`] takes bytes, [`View`] is the pooler at one
//! moment, and what is ordered is an [`Operator`]'s to do.

mod command;
mod session;
mod table;
mod view;

pub(crate) use command::{Command, Databases, Shutdown};
pub(crate) use session::{Failure, Goodbye, Operator, Session};
pub(crate) use table::{Show, Value};
pub use view::{ClientView, DatabaseView, Place, PoolView, ServerView, View};

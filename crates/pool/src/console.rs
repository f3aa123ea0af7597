//! The console: what operators ask and order, in PgBouncer's words, over PostgreSQL's protocol.
//!
//! Nothing here knows of sockets or workers: [`Session`] takes bytes, [`View`] is the pooler at one
//! moment, and what is ordered is an [`Operator`]'s to do.

mod command;
mod session;
mod table;
mod view;

pub(crate) use command::{Command, Databases, Shutdown};
pub(crate) use session::{Disconnect, Failure, Operator, Session};
pub(crate) use table::{Show, Value};
pub use view::{
    ClientView, DatabaseView, MemberView, MirrorView, Place, PoolView, ServerView, View,
};

/// The word that tells that a command is done; `None` if there is no such command. For tests of damaged
/// input.
#[doc(hidden)]
pub fn console_tag(text: &str) -> Option<&'static str> {
    Command::parse(text).ok().map(|command| command.tag())
}

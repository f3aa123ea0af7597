//! The admin console: PgBouncer's commands and tables over PostgreSQL's protocol.
//!
//! Nothing here depends on sockets or threads: [`ConsoleSession`] processes bytes,
//! [`PoolerSnapshot`] is the state of the pooler at one moment, and a [`ConsoleBackend`] executes
//! commands.

mod command;
pub(crate) mod log_level;
mod session;
mod snapshot;
mod table;

pub(crate) use command::{ConsoleCommand, DatabaseSelector, ShutdownRequest};
pub(crate) use session::{ConsoleBackend, ConsoleError, ConsoleSession, Disconnect};
pub use snapshot::{
    AdminView, ClientView, ConnectionNumber, DatabaseView, MemberView, MirrorView, PoolView,
    PoolerSnapshot, ServerView, SocketAddresses,
};
pub(crate) use table::{CellValue, Show, setting_value};

/// The version that the console reports to clients: that of the PgBouncer whose console it has.
const SERVER_VERSION: &str = "1.25.2/howdah";

/// Returns the command tag of a console command; `None` if the command is invalid. For fuzzing.
#[doc(hidden)]
pub fn console_tag(text: &str) -> Option<std::borrow::Cow<'static, str>> {
    ConsoleCommand::parse(text).ok().map(|command| command.tag())
}

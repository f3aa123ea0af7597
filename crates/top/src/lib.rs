//! What servers are doing: on a terminal, as a person watches, or as rows for a program.
//!
//! ```text
//! server ──► sampler ──► snapshot ──► table ──► screen      a person
//!            (a thread    (Arc)          │
//!             each)                      └────► output      a program
//! keys ──────────────► update(model) ──► effects ──► signals (a thread), sampler
//! ```
//!
//! A *sampler* reads one server at an interval, on a thread and a connection of its own, and hands out
//! *snapshots*. A *table* is made of a snapshot; the screen and the output have the same, so they cannot
//! drift apart. The *model* is all that a screen shows; *update* changes it for one message and says what
//! has to be done; nothing in it waits for a server. Signals go over a connection that is made for them.
//!
//! What this crate does not do: SQL (that is `collect`), command lines, configuration files.

pub mod batch;
pub mod filter;
pub mod keys;
pub mod kill;
pub mod model;
pub mod output;
pub mod run;
pub mod sampler;
mod screen;
pub mod slow;
pub mod table;
mod terminal;
pub mod units;

pub use filter::{Filter, ParseFilterError};
pub use model::{Model, Settings};
pub use sampler::{Snapshot, Standing};
pub use table::{Screen, Table};

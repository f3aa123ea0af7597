//! What servers are doing: on a terminal, as a person watches, or as rows for a program.
//!
//! ```text
//! server ──► sampler ──► snapshot ──► table ──► screen      a person
//!            (a thread    (Arc) ▲        │
//!             each)         │   │        └────► output      a program
//!                           ▼   │
//!                          history ◄──► recording           the past
//! keys ──────────────► update(model) ──► effects ──► signals (a thread), sampler
//! ```
//!
//! A *sampler* reads one server at an interval, on a thread and a connection of its own, and hands out
//! *snapshots*. A *table* is made of a snapshot; the screen and the output have the same, so they cannot
//! drift apart. A *history* keeps snapshots, packed, and gives back any of them. A *lookout* sees every reading,
//! too, and tells what somebody wants to be told of. The *model* is all that a screen shows; *update* changes it
//! for one message and says what
//! has to be done; nothing in it waits for a server. Signals go over a connection that is made for them.
//!
//! What this crate does not do: SQL (that is `collect`), command lines, configuration files.

pub mod audit;
pub mod batch;
pub mod filter;
pub mod history;
pub mod host;
pub mod keys;
pub mod kill;
mod lookout;
mod metrics;
pub mod model;
pub mod output;
mod pooler;
pub mod rules;
pub mod run;
pub mod sampler;
mod screen;
pub mod slow;
pub mod table;
mod terminal;
pub mod units;
pub mod waits;
pub mod watch;
pub mod webhook;

pub use filter::{Filter, ParseFilterError};
pub use lookout::{AlertEngine, Plan, Sight};
pub use metrics::METRICS;
pub use model::{Model, Settings};
pub use pooler::{Pooled, Poolers};
pub use sampler::{Snapshot, Standing};
pub use screen::Palette;
pub use table::{Screen, Table};

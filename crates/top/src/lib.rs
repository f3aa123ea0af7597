//! Monitors PostgreSQL servers: interactively on a terminal, or as rows for programs.
//!
//! ```text
//! server ──► sampler ──► snapshot ──► table ──► screen      interactive
//!            (a thread    (Arc) ▲        │
//!             each)         │   │        └────► output      batch
//!                           ▼   │
//!                          history ◄──► recording           past
//! keys ──────────────► update(model) ──► effects ──► signals (a thread), sampler
//! ```
//!
//! A *sampler* reads one server at an interval, on its own thread and connection, and publishes
//! *snapshots*. A *table* is built from a snapshot; screen and output share it, so they cannot
//! differ. A *history* stores compressed snapshots and restores any of them. The *alert engine*
//! evaluates rules on every sample and sends notifications. The *model* is everything that a screen
//! shows; *update* changes it for one message and returns the effects to apply; it never waits for
//! a server. Signals are sent over their own connections.
//!
//! Out of scope: SQL (see `collect`), command lines and configuration files.

mod alert_engine;
pub mod audit;
pub mod batch;
pub mod filter;
pub mod history;
pub mod host;
pub mod interactive;
pub mod keys;
mod metrics;
pub mod model;
pub mod monitor;
pub mod output;
mod pooler;
pub mod rules;
pub mod sampler;
mod screen;
pub mod signal_plan;
pub mod slow_statements;
pub mod table;
mod terminal;
mod troubles;
pub mod units;
pub mod waits;
pub mod webhook;

pub use alert_engine::{AlertConfig, AlertEngine, AlertView};
pub use filter::{ParseFilterError, RowFilter};
pub use metrics::METRICS;
pub use model::{Model, TopSettings};
pub use pooler::{PooledClients, Poolers};
pub use sampler::{ServerHealth, ServerSnapshot};
pub use screen::Palette;
pub use table::{ColumnChoice, ColumnChoices, ScreenKind, ScreenTable};

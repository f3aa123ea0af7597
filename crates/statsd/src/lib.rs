//! The statsd server: receives metrics from applications, aggregates them and sends them to
//! backends.
//!
//! ```text
//!  UDP TCP unix        grammar            aggregate                     flush
//!  ┌────────┐ packet  ┌────────┐ sample  ┌────────┐ interval  ┌───────────┐ snapshot  ┌──────────┐
//!  │ reader ├────────►│ samples├────────►│ shard  ├──────────►│ registry  ├──────────►│ backend  │
//!  └────────┘         └────────┘         └────────┘  swapped  │ of keys   │ Arc, one  │ own      │
//!  ┌────────┐         ┌────────┐         ┌────────┐  at a     │ merge,    │ queue for │ thread   │
//!  │ reader ├────────►│ samples├────────►│ shard  ├──batch───►│ statistics│ each      ├──────────┤
//!  └────────┘         └────────┘         └────────┘  boundary └─────┬─────┘           │ backend  │
//!       │ kernel drops, backlog drops                               │                 └──────────┘
//!       └────────────────────────► loss ledger ────────► self metrics, management port, health
//! ```
//!
//! - [`receiver`]: sockets and the threads that read them. A reader owns a socket and a shard, and
//!   only receives packets and applies them.
//! - [`grammar`]: parses packets into borrowed [`grammar::StatsdSample`]s without allocating.
//! - [`aggregate`]: an [`aggregate::SampleShard`] aggregates samples. Its values are swapped out as
//!   an [`aggregate::ShardInterval`] between two batches, so receiving never waits for statistics.
//! - [`flush`]: merges the intervals of all shards into a [`flush::FlushSnapshot`] with etsy's
//!   statistics.
//! - [`rules`]: drop, rename and retag metrics when the registry gets a new key.
//! - [`backends`]: each [`backends::MetricBackend`] sends snapshots somewhere, on its own thread.
//! - [`server`]: the threads, the flush clock, startup and shutdown. [`management`]: the management
//!   port.
//! - `forwarding`: the protocol by which servers of a tree pass on their aggregates.
//! - [`proxy`]: routes packets to other statsd servers by key.
//! - [`settings`]: the configuration, read from any of the supported file formats.
//! - [`preview`]: shows the effect of rules on single metrics, without a server.
//! - `yaml`: reads YAML with line numbers, for mapping files and settings of other servers.
//! - [`js`]: formats numbers, dates and objects like JavaScript, as etsy's server does.
//! - [`self_metrics`]: the table of the server's own metrics.
//! - [`sketch`] and [`hyperloglog`]: sketches of distributions and of sets.
//! - [`ledger`]: losses and their location: *sent = delivered + socket drops + backlog drops +
//!   unread*.
//!
//! The crate does not parse command lines; the binary reads the settings and calls it.

pub mod aggregate;
pub mod backends;
mod binary;
pub mod flush;
mod forwarding;
pub mod grammar;
pub mod hyperloglog;
pub mod js;
pub mod ledger;
pub mod management;
pub mod name;
pub mod preview;
pub mod proxy;
pub mod receiver;
pub mod rules;
pub mod self_metrics;
pub mod server;
pub mod settings;
pub mod sketch;
mod template;
mod yaml;

pub use forwarding::{BatchError, batches_of_packet, merge_alone};
pub use name::MetricName;
pub use yaml::YamlProblem;

//! The statsd server: what applications count, aggregated and handed to the graphs people have.
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
//! - [`intake`]: sockets and the threads that read them. A reader owns a shard and a socket, and
//!   does nothing but receive and apply.
//! - [`grammar`]: bytes of a packet to [`grammar::Sample`]s, borrowed, without allocating.
//! - [`aggregate`]: a [`aggregate::Shard`] adds samples up. Its values leave as an
//!   [`aggregate::Interval`] by a swap between two batches, so receiving never waits for statistics.
//! - [`flush`]: intervals of all shards into one [`flush::Snapshot`], with etsy's statistics.
//! - [`backends`]: a [`backends::Backend`] takes snapshots somewhere, each on its own thread.
//! - [`server`]: the threads, the flush clock, start and end. [`management`]: the port that people
//!   and scripts ask.
//! - [`proxy`]: packets to other statsd servers, by their keys.
//! - [`settings`]: what a person can set, whatever file it was written in.
//! - [`js`]: numbers, dates and objects as JavaScript writes them, which is etsy's output.
//! - [`ledger`]: what was lost and where: *sent = delivered + socket drops + backlog drops + unread*.
//!
//! The crate knows nothing of command lines; the binary turns a file into settings and calls it.

pub mod aggregate;
pub mod backends;
pub mod flush;
pub mod grammar;
pub mod intake;
pub mod js;
pub mod ledger;
pub mod management;
pub mod name;
pub mod proxy;
pub mod server;
pub mod settings;
pub mod sketch;

pub use name::Name;

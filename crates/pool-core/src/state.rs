//! The state of one worker: its clients, servers and pools, and the limits that it shares with
//! others.

pub(crate) mod admin_state;
pub(crate) mod client;
pub(crate) mod flow;
pub(crate) mod ids;
pub(crate) mod limits;
pub(crate) mod pool;
pub(crate) mod pool_stats;
pub(crate) mod server;
pub(crate) mod slab;
pub(crate) mod welcome;

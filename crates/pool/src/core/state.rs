//! The state of one worker: clients, servers and pools, each in its table.

pub(crate) mod admin_state;
pub(crate) mod client;
pub(crate) mod ids;
pub(crate) mod limits;
pub(crate) mod pool;
pub(crate) mod pool_stats;
pub(crate) mod server;
pub(crate) mod slab;

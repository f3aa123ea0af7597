//! The path of messages between clients and servers, in both directions.
//!
//! ```text
//! client bytes ─► client_to_server ─► request ─► rewrite ─► outstanding ─► output ─► server
//!                 frames headers;      a route?   statement  what the       collects
//!                 needs a server?      LISTEN?    names      server must    one write
//!                 a route?             restore?              still answer
//!
//! server bytes ─► server_to_client ─► reply ─► outstanding ─► output ─► client
//!                 frames headers      tracks the   pairs it with
//!                                     transaction  its request
//! ```
//!
//! The output is a [`gather_buffer`]. [`linked_pair`] makes sure that the server has the statement
//! that a message refers to. [`batch_plan`] routes all messages up to a Sync or Flush at once, so
//! that they go to the same server; [`local_batch`] answers batches that need no server;
//! [`retry_buffer`] stores bytes that may be sent again; [`reply_repair`] hides differences that
//! clients would notice on shared servers.

pub(crate) mod batch_plan;
pub(crate) mod client_to_server;
pub(crate) mod fast_path;
pub(crate) mod frame_cursor;
pub(crate) mod gather_buffer;
pub(crate) mod handling;
pub(crate) mod linked_pair;
pub(crate) mod local_batch;
pub(crate) mod outstanding;
pub(crate) mod reply;
mod reply_observers;
pub(crate) mod reply_repair;
pub(crate) mod request;
pub(crate) mod retry_buffer;
pub(crate) mod rewrite;
pub(crate) mod server_to_client;
pub(crate) mod write;

use crate::{
    mirror::Mirrors, peers::Peers, pinning::effects_cache::SessionEffectsCache, pools::Pools,
    prepared::statements::StatementRegistry, routing::Routers, session::parameters::ParameterSets,
};

/// The engines on the path of messages, borrowed for the length of one call.
pub(crate) struct MessagePath<'a> {
    pub(crate) peers: &'a mut Peers,
    pub(crate) pools: &'a mut Pools,
    pub(crate) routers: &'a mut Routers,
    pub(crate) mirrors: &'a mut Mirrors,
    pub(crate) parameter_sets: &'a mut ParameterSets,
    pub(crate) effects: &'a mut SessionEffectsCache,
    pub(crate) statements: &'a StatementRegistry,
}

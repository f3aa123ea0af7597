//! Adaptive pooling: a client gives its server back after each transaction, as in transaction mode,
//! unless its session has state that cannot follow it to another server.
//!
//! PostgreSQL's grammar tells what a statement may leave in its session ([`effects_cache`]). If a
//! transaction may have left or removed state, the pooler asks the server before it releases it
//! ([`check_query`]): the answer counts, whatever was rolled back. Settings then follow the client,
//! as those that servers report do; with any other state the client is pinned to its server until
//! the state is gone ([`pin`]).
//!
//! ```text
//! transaction over ──► state suspected? ──no──► pinned? ──no──► release
//!                          │ yes                  │ yes
//!                          ▼                      ▼
//!                     ask the server ──► settings follow; pin or unpin ──► as above
//! ```
//!
//! The client does not wait for the answer: a request that arrives meanwhile goes to the same
//! server, after the question.

pub(crate) mod answer;
pub(crate) mod check_query;
pub(crate) mod effects_cache;
pub(crate) mod observer;
pub(crate) mod pin;

//! The life of a server connection: opened, logged in, set up for a client and assigned to it,
//! released, cleaned, handed to another worker, closed.
//!
//! ```text
//!              ┌───────────────── cleaning ◄───────── release
//!              ▼                     │                   ▲
//! opening ─► login ─► idle ─► assignment (setup) ─► in use by a client
//!                      │  ▲          ▲                   │
//!                      ▼  │          │                   ▼
//!                   checking      transfer           rerouting
//!                      └──────────► closing ◄── fencing
//! ```

pub(crate) mod assignment;
pub(crate) mod checking;
pub(crate) mod cleaning;
pub(crate) mod closing;
pub(crate) mod fencing;
pub(crate) mod login;
pub(crate) mod opening;
pub(crate) mod release;
pub(crate) mod rerouting;
pub(crate) mod session_check;
pub(crate) mod setup;
pub(crate) mod sharing;
pub(crate) mod transfer;

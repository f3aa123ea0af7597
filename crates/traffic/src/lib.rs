//! The event model: what the clients of a PostgreSQL server did, in one vocabulary.
//!
//! Importers of server logs and the pooler's tap produce [`Event`]s; captures store them; replay
//! plays them. [`EventRef`]
//! is the same, borrowed. This crate says what an event *is*. Files, sockets and SQL meaning live elsewhere.

mod conversation;
mod event;
mod hash;
mod name;
mod reorder;
mod text;
mod time;
mod view;
mod wire;

pub use conversation::conversation;
pub use event::{
    Action, Bound, CopyDirection, Event, Kind, Outcome, Parameter, SessionId, Source, SqlState,
};
pub use hash::{EventHash, Field};
pub use name::{name_bytes, name_text};
pub use reorder::Reorder;
pub use text::Text;
pub use time::{ParseTimestampError, Timestamp};
pub use view::{
    ActionRef, BoundRef, EventRef, Hashed, Identity, IdentityDigest, OutcomeRef, ParameterRef,
    Parameters, Slot,
};
pub use wire::{CopyIn, Named, Said, Wire};

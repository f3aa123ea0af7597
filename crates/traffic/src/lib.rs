//! The event model: the actions of a PostgreSQL server's clients, in one vocabulary.
//!
//! Log importers and the pooler produce [`Event`]s, captures store them, and the replay executes
//! them. [`EventRef`] is an event that borrows its data. This crate only defines events: other
//! crates handle files and sockets, and interpret SQL.

mod conversation;
mod event;
mod hash;
mod hash_field;
mod name;
mod reorder;
mod result;
mod text;
mod time;
mod view;
mod wire_detail;

pub use conversation::conversation;
pub use event::{
    Action, Bound, CapturedOutcome, CopyDirection, Event, Kind, Parameter, SessionId, Source,
    SqlState,
};
pub use hash::EventHash;
pub use hash_field::HashField;
pub use name::{name_bytes, name_text};
pub use reorder::ReorderBuffer;
pub use result::{CapturedResult, ResultDigest};
pub use text::Text;
pub use time::{ParseTimestampError, Timestamp};
pub use view::{
    ActionRef, BoundRef, EventIdentity, EventRef, Hashed, IdentityDigest, OutcomeRef, ParameterRef,
    ParameterSpan, ParametersRef, session_hash,
};
pub use wire_detail::{ClientMessage, CopyInData, NamedObject, WireDetail};

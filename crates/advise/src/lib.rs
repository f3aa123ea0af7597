//! Pool modes for captured clients: the session state that they leave after their transactions, how
//! many of them are in a transaction at once, and hence which mode and pool size suits them.
//!
//! The crate reads events and draws nothing. State is recognised by PostgreSQL's grammar
//! ([`howdah_sql::SessionEffects`]), so the feature `grammar` is needed; without it
//! [`Advisor::new`] fails.

mod advice;
mod advisor;
mod client_group;
mod concurrency;
mod session;
mod session_states;
mod state_kind;
#[cfg_attr(not(feature = "grammar"), expect(dead_code, reason = "only the grammar finds effects"))]
mod text_effects;
#[cfg(feature = "grammar")]
mod text_effects_of;

pub use advice::{
    CaptureFacts, ClientAdvice, FunctionCalls, LateSequenceReads, LeftState, ModeReason,
    PoolAdvice, PoolSizeAdvice, SuitableMode,
};
pub use advisor::{Advisor, GrammarMissing};
pub use concurrency::ConcurrencyFigures;
pub use state_kind::StateKind;

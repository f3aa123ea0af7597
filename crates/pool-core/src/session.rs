//! Tracks the changes that a client's session makes on its server connection, and undoes or
//! restores them.

pub(crate) mod connect_query;
pub(crate) mod parameter;
pub(crate) mod parameters;
pub(crate) mod restore;
pub(crate) mod state;
pub(crate) mod write_detection;

use std::sync::Arc;

use crate::{
    pinning::effects_cache::SessionEffectsCache, prepared::statements::StatementRegistry,
    session::parameters::ParameterSets,
};

/// Data that the sessions of a worker's clients have in common, stored once.
#[derive(Debug)]
pub(crate) struct Sessions {
    /// The sets of session parameters that clients expect.
    pub(crate) parameters: ParameterSets,
    /// The effects of recent statements on their sessions.
    pub(crate) effects: SessionEffectsCache,
    /// The prepared statements, shared by all workers.
    pub(crate) statements: Arc<StatementRegistry>,
}

//! What a session has changed on its server connection, and how that is undone or restored.

pub(crate) mod connect_query;
pub(crate) mod parameters;
pub(crate) mod restore;
pub(crate) mod state;
pub(crate) mod write_detection;

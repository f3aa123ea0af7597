//! Changes that a session has made on its server connection, and how they are undone or restored.

pub(crate) mod connect_query;
pub(crate) mod parameters;
pub(crate) mod restore;
pub(crate) mod state;
pub(crate) mod write_detection;

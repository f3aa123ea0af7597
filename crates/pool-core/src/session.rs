//! Tracks the changes that a client's session makes on its server connection, and undoes or
//! restores them.

pub(crate) mod connect_query;
pub(crate) mod parameters;
pub(crate) mod restore;
pub(crate) mod state;
pub(crate) mod write_detection;

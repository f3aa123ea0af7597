//! What `collect` says of real servers.

mod acting;
mod activity;
mod support;
mod views;

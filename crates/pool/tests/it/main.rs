//! The pooler against real servers.

mod server_login;

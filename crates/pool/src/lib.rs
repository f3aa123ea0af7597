//! The connection pooler: many clients share few PostgreSQL server connections.
//!
//! Here is decided who gets which server connection and when. Protocol bytes are the business of
//! `howdah-wire` and `howdah-session`, sockets and timers that of `howdah-net`.

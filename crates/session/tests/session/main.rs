//! Behaviour of [`howdah_session::ClientSession`]: dialogues with a scripted peer, and with a
//! PostgreSQL server.

// Helpers of tests may unwrap as tests do; `cfg(test)` is how clippy knows them.
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod describe;
#[cfg(test)]
mod dialogue;
#[cfg(test)]
mod login;
#[cfg(test)]
mod peer;
#[cfg(test)]
mod record;
#[cfg(test)]
mod server;

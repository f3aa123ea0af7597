//! What a [`howdah_session::Client`] says and understands: dialogues with a scripted peer, and with
//! a real server.

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

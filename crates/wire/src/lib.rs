//! PostgreSQL protocol 3 messages, framing and authentication, without I/O.
//!
//! Bytes are decoded to borrowed messages ([`frontend::FrontendMessage`],
//! [`backend::BackendMessage`]); values are encoded by appending to the caller's buffer
//! ([`frontend::encode`], [`backend::encode`], [`startup`]). Both roles are here, because a proxy
//! plays both. The session crate defines which message is valid at which moment; sockets, time and
//! limits are up to the caller.
//!
//! ```text
//! bytes ──► Header ──► Frame { tag, body } ──► FrontendMessage / BackendMessage
//!           5 bytes    whole message there      fields borrowed from the body
//! ```
//!
//! While a message is incomplete, splitting it off returns `Ok(None)`. Its length can be checked
//! before anything is allocated for it: the caller sets the limit, and
//! [`Frontend::body_bytes_max`] and [`Backend::body_bytes_max`] are limits that every valid message
//! of PostgreSQL stays within.
//!
//! ```
//! use howdah_wire::{Backend, Frame, backend, frontend};
//!
//! let mut to_server = Vec::new();
//! frontend::encode::query(&mut to_server, b"select 1")?;
//! assert_eq!(to_server, b"Q\0\0\0\x0dselect 1\0");
//!
//! let from_server = b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I";
//! let (frame, rest) = Frame::split(from_server, 1 << 20)?.expect("the whole message is there");
//! assert_eq!(Backend::from_tag(frame.tag), Some(Backend::CommandComplete));
//! let message = backend::BackendMessage::parse(frame)?;
//! let backend::BackendMessage::CommandComplete(tag) = message else { panic!() };
//! assert_eq!(tag.rows(), Some(1));
//! assert_eq!(rest[0], b'Z');
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source of all layouts: PostgreSQL manual, chapter "Frontend/Backend Protocol".

pub mod auth;
pub mod backend;
pub mod frontend;
pub mod startup;

mod header;
mod kinds;
mod lists;
mod reader;
mod secret;
mod writer;

pub use header::{Frame, Header, HeaderError, Tag};
pub use kinds::{Backend, Frontend};
pub use lists::{Cells, Formats, Oids, ValueFormat};
pub use reader::DecodeError;
pub use secret::Secret;
pub use writer::EncodeError;

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod testing;

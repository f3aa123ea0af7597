//! What clients of the pooler say and hear, recorded while they do, as a capture.
//!
//! ```text
//! worker ──CaptureBuffer──►  pieces of memory  ──►  Recorder's thread: Decoder ──► Session ──► CaptureWriter
//! (bytes as they come, never waits)        (frames, requests and replies, events, redaction, files)
//! ```
//!
//! A worker of the pooler writes on its [`CaptureBuffer`] the bytes that a client sent, when they arrived, and the few
//! messages it heard that end something. What these mean is found out by the [`Recorder`], on a thread of
//! its own. Where that is too slow, stretches of a tape are thrown away, and the capture says so; a client
//! waits for nothing here.
//!
//! Who gets which server, and when a client may enter the record, is the pooler's business.

mod by_name;
mod decoder;
mod digests;
mod record;
mod recorder;
mod reel;
mod script;
mod secrets;
mod session;
mod stream;
mod tally;
mod tape;
#[cfg(test)]
mod tests;
mod texts;

pub use decoder::WhoIs;
pub use recorder::{BeginError, CopyRows, Recorder, Settings, Status};
pub use reel::CaptureHarness;
pub use tally::Tally;
pub use tape::{CaptureBuffer, Entry, Mark};

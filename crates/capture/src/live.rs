//! Captures the traffic of the pooler's clients while it passes.
//!
//! ```text
//! worker ──► CaptureBuffer ──► chunks of memory     (bytes as they arrive, never blocks)
//!                                     │
//!                                     ▼
//!              CaptureRecorder's thread: Decoder ──► SessionDecoder ──► CaptureWriter
//!              (frames, requests and replies, events, redaction, files)
//! ```
//!
//! A worker of the pooler appends to its [`CaptureBuffer`] the bytes that a client sent, with their
//! arrival time, and the few server messages that complete a request. The [`CaptureRecorder`]
//! decodes them on a separate thread. If that is too slow, chunks are dropped, and the capture
//! reports it; clients never wait.
//!
//! The pooler decides which client gets which server, and when recording of a client can start.

mod buffer;
mod by_name;
mod counts;
mod decoder;
mod digest_cache;
mod harness;
mod pending_messages;
mod record;
mod recorder;
mod secrets;
mod session;
mod statement_cache;
mod stream;
#[cfg(test)]
mod tests;

pub use buffer::{CaptureBuffer, ClientMark, SessionStart};
pub use counts::RecorderCounts;
pub use decoder::PoolLookup;
pub use harness::CaptureHarness;
pub use recorder::{
    CaptureRecorder, CaptureStartError, CopyRows, RecorderSettings, RecorderStatus,
};

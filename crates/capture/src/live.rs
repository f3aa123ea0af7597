//! Decodes the traffic of the pooler's clients into events while they are connected.
//!
//! ```text
//! worker ──► CaptureBuffer ──► BufferChunk          (bytes as they arrive, never blocks)
//!                                   │
//!                                   ▼
//!        recorder's thread: TrafficDecoder ──► SessionDecoder ──► events
//!                           (records)          (frames, requests and replies)
//! ```
//!
//! A worker of the pooler appends to its [`CaptureBuffer`] the bytes that a client sent, with their
//! arrival time, and the few server messages that are needed to follow its requests. A
//! [`TrafficDecoder`] decodes these records on another thread. If decoding is too slow, chunks are
//! dropped and counted in the [`BufferQueue`]; clients never wait.
//!
//! The pooler assigns servers to clients, decides when the recording of a client can start, and
//! runs the thread that redacts and writes the events.

mod buffer;
mod by_name;
mod counts;
mod decoder;
mod harness;
mod parsed_statement;
mod pending_messages;
mod record;
mod secrets;
mod session;
mod statement_cache;
mod stream;
#[cfg(test)]
mod tests;

pub use buffer::{
    BufferChunk, BufferQueue, CaptureBuffer, CapturedParts, ClientMark, SessionStart,
};
pub use counts::RecorderCounts;
pub use decoder::{PoolLookup, TrafficDecoder};
pub use harness::CaptureHarness;
pub use session::CopyRows;

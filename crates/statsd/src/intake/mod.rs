//! Sockets, and the threads that read them.
//!
//! A reader thread owns one socket and one [`SharedShard`](crate::aggregate::SharedShard). Its loop:
//! receive a batch, lock the shard, give it each packet
//! ([`Shard::apply_packet`](crate::aggregate::Shard::apply_packet)), unlock. The lock is free
//! but for the few instructions of a swap, and never held while waiting for the network.

/// Sees raw packets before they are parsed: a repeater, a capture. One per reader thread.
///
/// It runs on the receive path, so it may not block; what it cannot take it drops and counts.
pub trait Tap: Send {
    /// One packet as it came from the socket.
    fn packet(&mut self, bytes: &[u8]);

    /// The reader's batch is over: time to send what was collected.
    fn end_of_batch(&mut self) {}
}

/// Makes the [`Tap`] of one more reader.
pub type MakeTap = Box<dyn Fn() -> Box<dyn Tap> + Send + Sync>;

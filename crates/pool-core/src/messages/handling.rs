//! [`MessageHandler`]: handles a client's messages, with or without a server; [`PartialMessage`]: a
//! message as it is handled, and the possible results.

use std::ops::Range;

use howdah_wire::{Frontend, Header};

use crate::{
    fan_out::active::FanOutRequest, messages::frame_cursor::FrameCursor, refusal::ClientRefusal,
};

/// Maximum number of bytes of a message or batch that are held until it can be processed: 4 MiB. A
/// client whose named Parse is longer is disconnected.
pub(crate) const HELD_BYTES_MAX: usize = 4 << 20;

/// The reason why processing a client's bytes stopped.
pub(crate) enum StopReason {
    /// The rest of the input, if any, is an incomplete message or batch, or is held for the reason
    /// in the client's [`InputHold`](crate::state::client::InputHold).
    NeedsMoreInput,
    /// The next message needs a server.
    NeedsServer,
    /// The server was just assigned and must accept the client's parameters first.
    NeedsParameters,
    /// The client has sent Terminate.
    Terminate,
    /// The client must be disconnected with this error.
    Fault(ClientRefusal),
    /// The meaning of the next message depends on replies that have not arrived yet.
    AwaitsReplies,
    /// The client's server can be released; the next message may need another server.
    ServerReleased,
    /// The next messages are for several shards.
    FanOut(Box<FanOutRequest>),
}

/// The result of handling a client's message: the part of it that is forwarded, if any.
pub(crate) enum RewriteResult {
    /// The header and this many bytes of the body have been replaced; the rest is forwarded.
    FrontReplaced(usize),
    /// The message was handled completely; nothing of it is forwarded.
    Consumed,
    /// The message is forwarded unchanged.
    AsIs,
    /// The message cannot be handled now, for this reason.
    Stop(StopReason),
}

/// A message of which the header and possibly only part of the body have been received.
#[derive(Clone, Copy)]
pub(crate) struct PartialMessage<'a> {
    pub(crate) header: Header,
    /// The part of the body that has been received.
    pub(crate) body: &'a [u8],
    /// Offset of the message's header in the input.
    pub(crate) at: usize,
}

impl<'a> PartialMessage<'a> {
    pub(crate) fn is_complete(&self) -> bool {
        self.body.len() == self.header.body_bytes as usize
    }

    /// Returns the length of the whole message, including its header.
    pub(crate) fn total_bytes(&self) -> usize {
        Header::BYTES + self.header.body_bytes as usize
    }

    /// Returns the zero-terminated string at offset `start` of the body, and the offset of the next
    /// field; `None` if its end has not been received.
    pub(crate) fn string(&self, start: usize) -> Option<(&'a [u8], usize)> {
        let rest = self.body.get(start..)?;
        let end = memchr::memchr(0, rest)?;
        Some((&rest[..end], start + end + 1))
    }

    pub(crate) fn too_long(&self) -> RewriteResult {
        let bytes = self.header.body_bytes as usize;
        RewriteResult::Stop(StopReason::Fault(ClientRefusal::TooLong { bytes }))
    }

    /// Returns the result for a message with a missing field: wait for more input or, if the
    /// message is complete or too long, disconnect the client.
    pub(crate) fn missing_field(&self) -> RewriteResult {
        if self.is_complete() {
            let kind = Frontend::from_tag(self.header.tag).map_or("message", Frontend::name);
            let what = format!("a name in {kind} is missing or not terminated");
            RewriteResult::Stop(StopReason::Fault(ClientRefusal::ProtocolViolation(what)))
        } else if self.body.len() > HELD_BYTES_MAX {
            self.too_long()
        } else {
            RewriteResult::Stop(StopReason::NeedsMoreInput)
        }
    }
}

/// Decides how to handle each message of a client. Implemented for clients with and without a
/// server.
pub(crate) trait MessageHandler {
    /// Returns the client's position in its input stream.
    fn input(&mut self) -> &mut FrameCursor;

    /// Forwards a range of the input to the server.
    fn forward(&mut self, range: Range<usize>);

    /// Tracks a message, and decides whether and how to forward it.
    fn handle(&mut self, kind: Frontend, message: PartialMessage<'_>) -> RewriteResult;

    /// Called after a message, or its first part, has been handled. `bytes` is the length of the
    /// whole message, including its header.
    #[inline]
    fn handled(&mut self, bytes: usize) {
        let _ = bytes;
    }
}

/// The reason why a LISTEN or UNLISTEN cannot run now.
pub(crate) enum ListenPrecondition {
    /// Not yet: the client's input is held until the dedicated connection listens, or replies
    /// arrive.
    Wait(RewriteResult),
    /// LISTEN is impossible: the statement must fail with this error.
    Refuse(Vec<u8>),
}

/// Returns the error for a message that is not allowed after the login.
pub(crate) fn misplaced_message(kind: Frontend) -> RewriteResult {
    RewriteResult::Stop(StopReason::Fault(ClientRefusal::ProtocolViolation(format!(
        "unexpected {kind} after login"
    ))))
}

//! [`InternalClient`]: the purpose of a client inside the core, which it has instead of a
//! connection.
//!
//! Such a client waits for a server and sets its parameters there, and its session state is reset
//! afterwards, as for any client. Only its replies, and the news of its end, go elsewhere.

use std::fmt;

use crate::{
    call::Step, fan_out::active::SubRequest, mirror::counters::MirrorError,
    prepared::names::ClientStatements, refusal::ClientRefusal,
};

/// The purpose of a client that exists only inside the core.
pub(crate) trait InternalClient: fmt::Debug + Send {
    /// Returns the part of a connected client's request that this client runs. Its replies are
    /// merged with those to the other parts; those to a client without such a part are discarded.
    fn sub_request(&self) -> Option<SubRequest>;

    /// Returns the step to take when the client has processed input or received replies.
    fn on_progress(&self) -> Step;

    /// Returns the step to take when the client is refused with an error.
    fn on_refusal(&self, refusal: &ClientRefusal) -> Option<Step>;

    /// Returns the step to take when the client is removed. It has prepared these statements, which
    /// may be taken.
    fn on_removal(&self, statements: &mut ClientStatements) -> Step;

    /// Called for each error that a server sends to the client.
    fn on_error(&mut self, body: &[u8]);

    /// Takes the first error that a server has sent, if it was recorded.
    fn take_error(&mut self) -> Option<Box<MirrorError>>;

    /// Whether the client works for a mirror, so that it does not count as one of the worker's.
    fn is_for_mirror(&self) -> bool;
}

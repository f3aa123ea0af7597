//! [`CoreCall`]: one call into the core, while it lasts. [`Step`]: work that a call leaves for its
//! end.
//!
//! Engines never call each other in circles. What follows from an event in another engine, such as
//! a client's buffered input that can be processed now that it has a server, is a step, and
//! [`Core`](crate::Core) takes all steps before its call returns, in order.

use std::collections::VecDeque;

use crate::{
    CoreIo, PoolId,
    mirror::target::{MirrorQueueId, MirroredClient},
    prepared::names::ClientStatements,
    refusal::ClientRefusal,
    state::ids::ClientId,
    time::Time,
};

/// The time and the I/O of one call into the core, and the steps that it has caused so far.
pub(crate) struct CoreCall<'a> {
    pub(crate) now: Time,
    pub(crate) io: &'a mut dyn CoreIo,
    pub(crate) steps: &'a mut StepQueue,
}

/// Work that follows from an event, for the end of the current call into the core.
#[derive(Debug)]
pub(crate) enum Step {
    /// Process a client's buffered input.
    Input(ClientId),
    /// Advance a client's fan-out request, and queue its completed transaction for its mirrors.
    Client(ClientId),
    /// Cancel a client's fan-out request.
    CancelFanOut(ClientId),
    /// Disconnect a client with an error.
    Refuse(ClientId, Box<ClientRefusal>),
    /// Mirror the input that a client has sent before its login was finished, and process it.
    LoggedIn(ClientId),
    /// Let the next fan-out request of an owner pool start, if one waits.
    NextFanOut(PoolId),
    /// Remove an internal client whose request is not needed any more.
    Remove(ClientId),
    /// Assign a pool's idle servers to its waiting clients, and open servers for the others.
    Serve(PoolId),
    /// Open servers for pools that could not, because a limit was reached that may have been
    /// released.
    OpenForStarved,
    /// Advance a client's queue of transactions for a mirror.
    MirrorQueue(MirrorQueueId),
    /// Record the error with which a mirror client is disconnected.
    MirrorFailed(MirrorQueueId, Box<ClientRefusal>),
    /// Close the mirror queues of a client that has disconnected.
    StopMirroring(Box<MirroredClient>),
    /// Keep the statements that a removed mirror client has prepared.
    KeepStatements(MirrorQueueId, Box<ClientStatements>),
}

/// Steps in the order in which they are taken. Empty between calls into the core.
#[derive(Debug, Default)]
pub(crate) struct StepQueue(VecDeque<Step>);

impl StepQueue {
    pub(crate) fn push(&mut self, step: Step) {
        self.0.push_back(step);
    }

    #[inline]
    pub(crate) fn push_if_any(&mut self, step: Option<Step>) {
        if let Some(step) = step {
            self.push(step);
        }
    }

    pub(crate) fn next(&mut self) -> Option<Step> {
        self.0.pop_front()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

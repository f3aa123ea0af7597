//! [`FlowState`]: whether bytes of a connection wait.

/// The flow of bytes over a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowState {
    /// Whether output for the peer is unsent, because its socket does not accept more. For a
    /// sub-request: whether its replies must wait, for the external client or for other shards.
    pub(crate) is_backlogged: bool,
    /// Whether the worker has been told to stop reading from the peer.
    pub(crate) is_paused: bool,
}

//! [`ServerConnection`]: all that the core knows about one server connection.

use howdah_wire::{backend::TransactionStatus, startup::CancelKey};

use crate::{
    listen::channels::PendingActions,
    messages::{
        fast_path, frame_cursor::FrameCursor, outstanding::OutstandingRequests,
        retry_buffer::RetryBuffer,
    },
    pinning::pin::SessionPin,
    prepared::{
        names::ServerStatements,
        parse_settings::{
            ParseSettingsChange, Uncertainty, change_of, is_parse_setting, skip_comments,
        },
    },
    session::{
        parameter::SessionParameter,
        parameters::{ServerParameters, TrackedParameters},
        restore as restore_parameters,
        restore::{ResettingPortal, SplicedQuery},
        state::{SessionStateFlags, SetKind},
        write_detection::WriteDetection,
    },
    state::{
        flow::FlowState,
        ids::{ClientId, PoolId},
        limits::Permits,
        pool_stats::PoolStats,
    },
    time::Time,
};

/// The current use of a server connection.
///
/// ```text
/// Opening ──► Idle ◄──────► Linked
///               ▲             │
///               └─► Cleaning ◄┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// The worker is connecting and logging in.
    Opening,
    /// The connection is in its pool, available to the next client.
    Idle,
    /// The connection is in use by a client.
    Linked(ClientId),
    /// The connection has no client: it is being reset after its last one, is being checked, or
    /// waits until a CancelRequest has finished.
    Cleaning,
}

/// A server connection, with all its state in the core.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    pub(crate) pool: PoolId,
    pub(crate) state: ServerState,
    /// Time at which the connection entered its current state; while linked, when the server last
    /// started or finished work.
    pub(crate) state_since: Time,
    pub(crate) opened_at: Time,
    /// The pool's epoch when the connection was opened. If the pool has another one, the connection
    /// is closed when it becomes free.
    pub(crate) epoch: u32,
    pub(crate) input: FrameCursor,
    pub(crate) outstanding: OutstandingRequests,
    /// Transaction status from the last ReadyForQuery, or `Failed` if an error has followed in a
    /// transaction.
    pub(crate) status: TransactionStatus,
    pub(crate) batch: BatchState,
    /// Number of CancelRequests in flight to the server.
    pub(crate) cancels_in_flight: u32,
    pub(crate) cancel_key: Option<CancelKey>,
    pub(crate) parameters: ServerParameters,
    pub(crate) statements: ServerStatements,
    /// Whether the reset query must run before the next client.
    pub(crate) is_reset_due: bool,
    /// Whether the server has announced that it closes the connection.
    pub(crate) is_ending: bool,
    pub(crate) check: CheckState,
    /// Time at which the current transaction or request started.
    pub(crate) work_started: Time,
    /// The session state that must be reset before the next client.
    pub(crate) session_state: SessionStateFlags,
    /// The most severe SET that the client prepared or used by the extended protocol since the
    /// connection was linked.
    pub(crate) set_kind: SetKind,
    /// The state of the session that keeps its client from leaving; `None` if nothing is suspected,
    /// as always in other modes than [`crate::PoolingMode::Adaptive`].
    pub(crate) pin: Option<Box<SessionPin>>,
    pub(crate) restore: RestoreState,
    /// The LISTEN and UNLISTEN statements in the client's transaction.
    pub(crate) pending_actions: Option<Box<PendingActions>>,
    /// Whether the client's writes are tracked, and whether one was detected.
    pub(crate) write_detection: WriteDetection,
    pub(crate) flow: FlowState,
    /// The connection's permits of all limits that apply; they are released when it is closed.
    pub(crate) permits: Permits,
}

/// The state of the batch that is being sent, or was sent last.
#[derive(Debug, Default)]
pub(crate) struct BatchState {
    /// Whether messages of the extended protocol were sent, but nothing that ends their batch, such
    /// as Sync.
    pub(crate) is_open: bool,
    /// Whether the batch has failed and its Sync has not been sent yet: the server skips all
    /// messages before the Sync.
    pub(crate) is_skipping: bool,
    /// Whether an unanswered request may deallocate prepared statements. Cleared at the first check
    /// after all requests are answered.
    pub(crate) may_deallocate: bool,
    /// Whether the server waits for COPY data, and ignores Sync.
    pub(crate) is_copying_in: bool,
    /// The client's name for the statement that a DEALLOCATE in flight, sent by the extended
    /// protocol, refers to.
    pub(crate) deallocated_name: Option<Box<[u8]>>,
    /// The bytes of the last batch, in case it must be sent again.
    pub(crate) retry_buffer: RetryBuffer,
    /// The client's request in its original bytes, until the first byte of a reply arrives, in case
    /// it is rerouted to another member. Empty if it cannot be rerouted.
    pub(crate) unanswered_request: Vec<u8>,
}

/// The check of a connection that was idle for long.
#[derive(Debug, Default)]
pub(crate) struct CheckState {
    /// Whether the check query is running on the connection.
    pub(crate) is_running: bool,
    /// The time of the call in which the connection has logged in or passed a check, so that a
    /// waiting client gets it without another one.
    pub(crate) passed_at: Option<Time>,
}

/// The restoring of the client's startup parameters after statements that reset them.
#[derive(Debug, Default)]
pub(crate) struct RestoreState {
    /// The startup parameters that are reset by the client's last statement that changes
    /// parameters.
    pub(crate) parameters: Vec<SessionParameter>,
    /// Whether they must be restored, because that statement has succeeded.
    pub(crate) is_due: bool,
    /// The query string, with inserted statements, that was sent in place of the client's.
    pub(crate) spliced_query: Option<Box<SplicedQuery>>,
    /// The portal of the client that resets parameters when it is executed.
    pub(crate) resetting_portal: Option<Box<ResettingPortal>>,
    /// Whether the pooler's own statements after a request (restored parameters, LISTEN markers)
    /// may be in flight, so that later requests must wait.
    pub(crate) is_in_flight: bool,
}

impl RestoreState {
    /// Clears the state of the previous client, without freeing the vector.
    fn clear(&mut self) {
        self.parameters.clear();
        self.is_due = false;
        self.spliced_query = None;
        self.resetting_portal = None;
        self.is_in_flight = false;
    }
}

impl ServerConnection {
    pub(crate) fn opening(pool: PoolId, epoch: u32, permits: Permits, now: Time) -> Self {
        Self {
            pool,
            state: ServerState::Opening,
            state_since: now,
            opened_at: now,
            epoch,
            input: FrameCursor::default(),
            outstanding: OutstandingRequests::default(),
            status: TransactionStatus::Idle,
            batch: BatchState::default(),
            cancels_in_flight: 0,
            cancel_key: None,
            parameters: ServerParameters::default(),
            statements: ServerStatements::default(),
            is_reset_due: false,
            is_ending: false,
            check: CheckState::default(),
            work_started: now,
            session_state: SessionStateFlags::NONE,
            set_kind: SetKind::NotSet,
            pin: None,
            restore: RestoreState::default(),
            pending_actions: None,
            write_detection: WriteDetection::Disabled,
            flow: FlowState::default(),
            permits,
        }
    }

    /// Links the connection to a client, and clears the state of the previous link.
    pub(crate) fn link(&mut self, client: ClientId, now: Time) {
        self.state = ServerState::Linked(client);
        self.state_since = now;
        self.batch.unanswered_request.clear();
        self.statements.unnamed_is_ours = false;
        self.set_kind = SetKind::NotSet;
        self.pin = None;
        self.check.passed_at = None;
        self.restore.clear();
        self.pending_actions = None;
        self.batch.deallocated_name = None;
        self.parameters.parse_state.start_link();
    }

    /// Records which of the client's startup parameters a query string resets, if it changes any
    /// parameters.
    #[inline]
    pub(crate) fn record_reset_parameters(&mut self, sql: &[u8], startup: &TrackedParameters) {
        if !startup.list().is_empty()
            && let Some(reset) = restore_parameters::parameters_reset_by(sql, startup.list())
        {
            self.restore.parameters = reset;
        }
    }

    /// Records how a query string that is about to be sent changes the parse settings.
    pub(crate) fn record_parse_settings_change(&mut self, sql: &[u8]) {
        let uncertainty = self.parse_settings_uncertainty(sql, || Uncertainty::Unreported);
        self.parameters.parse_state.record_change(uncertainty);
    }

    /// Returns the uncertainty about the parse settings after `sql` has run. `by_parameter` is
    /// called if the name of the setting that it changes is a bound value.
    pub(crate) fn parse_settings_uncertainty(
        &self,
        sql: &[u8],
        by_parameter: impl FnOnce() -> Uncertainty,
    ) -> Uncertainty {
        let parameters = &self.parameters;
        let uncertainty = match change_of(sql, |name| parameters.reports(name)) {
            ParseSettingsChange::Known(uncertainty) => uncertainty,
            ParseSettingsChange::ByParameter => by_parameter(),
        };
        if fast_path::is_non_transaction(skip_comments(sql)) {
            return uncertainty;
        }
        // The text may end the transaction, and so undo an earlier change, or reset all parameters.
        let earlier = parameters.parse_state.max_uncertainty();
        if uncertainty == Uncertainty::Reported && parameters.has_unreported(is_parse_setting) {
            Uncertainty::Unreported
        } else {
            uncertainty.max(earlier)
        }
    }

    /// Records that the next message ends the open batch: a Sync, or a request that is answered by
    /// ReadyForQuery like a Sync. Returns whether a batch was open.
    #[inline]
    pub(crate) fn finish_batch(&mut self) -> bool {
        // Outside a transaction block, the batch was an implicit transaction.
        if self.batch.is_open && self.status != TransactionStatus::InTransaction {
            self.parameters.parse_state.finish_implicit_transaction();
        }
        std::mem::take(&mut self.batch.is_open)
    }

    /// Marks the recorded parameters as due to be restored, after a SET or a reset of the last
    /// batch has succeeded. Does nothing while later batches are outstanding.
    pub(crate) fn mark_parameters_reset(&mut self) {
        self.restore.is_due |=
            !self.restore.parameters.is_empty() && self.outstanding.is_last_batch();
    }

    /// Ends the pin of the client that leaves, and counts its time. Returns whether the session may
    /// have state that a reset does not remove.
    pub(crate) fn end_pin(&mut self, stats: &mut PoolStats, now: Time) -> bool {
        let Some(mut pin) = self.pin.take() else { return false };
        pin.clear_pinned(stats, now);
        if pin.needs_reset() {
            self.session_state = SessionStateFlags::UNKNOWN;
        }
        pin.needs_close()
    }

    /// Whether the session's state keeps the client from leaving.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pin.as_ref().is_some_and(|pin| pin.is_pinned())
    }

    /// Whether all requests are answered and no transaction or batch is open, so that a client
    /// could release the connection.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.outstanding.is_empty()
            && !self.batch.is_open
            && !self.batch.is_skipping
            && self.status == TransactionStatus::Idle
    }
}

/// A server that moves from one worker to another: its whole state except the socket.
#[derive(Debug)]
pub struct Transfer {
    pub(crate) server: ServerConnection,
}

impl Transfer {
    /// Returns the pool that the server belongs to.
    pub fn pool(&self) -> PoolId {
        self.server.pool
    }
}

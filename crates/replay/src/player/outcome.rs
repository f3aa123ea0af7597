//! An event of a replay, and its outcome.

use std::{sync::Arc, time::Instant};

use howdah_traffic::{Event, ResultDigest, Timestamp};

use crate::{link::ReplayFailure, order::OrderPosition};

/// An event with its due time.
#[derive(Debug)]
pub(crate) struct ScheduledEvent {
    pub(crate) event: Box<Event>,
    /// The event's captured time, without idle times that are left out.
    pub(crate) time: Timestamp,
    /// When the event is due by the schedule.
    pub(crate) scheduled: Instant,
    /// When the event is due: as scheduled, or later or earlier if its session keeps the captured
    /// times between statements.
    pub(crate) due: Instant,
    /// When the event could be sent: when due, or later if its source was late.
    pub(crate) available: Instant,
    pub(crate) bytes: usize,
    /// The event's position in the captured order of commits.
    pub(crate) position: OrderPosition,
    /// When the event was no longer held back for the order, if it was.
    pub(crate) held_until: Option<Instant>,
    /// Deduced types of the parameters, if the capture has none and the statement needs some.
    pub(crate) types: Option<Arc<[u32]>>,
    /// Whether the event's batch was refused without types and is sent again.
    pub(crate) is_retried: bool,
    /// Whether the session had a transaction block open before the event, if the replay spreads its
    /// transactions over several connections.
    pub(crate) is_in_block: bool,
}

impl ScheduledEvent {
    pub(crate) fn new(event: Box<Event>, due: Instant, here: Instant, bytes: usize) -> Self {
        Self {
            time: event.time,
            event,
            scheduled: due,
            due,
            available: here,
            bytes,
            position: OrderPosition::default(),
            held_until: None,
            types: None,
            is_retried: false,
            is_in_block: false,
        }
    }

    /// Moves the event to another due time.
    pub(super) fn postpone(&mut self, due: Instant) {
        let input_late = self.available.saturating_duration_since(self.due);
        self.available = if input_late.is_zero() { due } else { self.available.max(due) };
        self.due = due;
    }

    /// Returns the captured time at which the event ended, without idle times that are left out.
    pub(super) fn captured_end(&self) -> Timestamp {
        self.time + self.event.captured_end().saturating_since(self.event.time)
    }

    /// Returns the types for the event's Parse: captured or deduced ones.
    pub(super) fn types(&self) -> &[u32] {
        match &self.event.wire {
            Some(wire) => &wire.types,
            None => self.types.as_deref().unwrap_or_default(),
        }
    }
}

/// An event with its outcome.
#[derive(Debug)]
pub(crate) struct FinishedEvent {
    pub(crate) item: ScheduledEvent,
    /// When the event was sent, or when the login or cancel request that it stands for started;
    /// `None` if neither happened.
    pub(crate) sent: Option<Instant>,
    /// When the server could start on the event: when it was sent, or when the previous statement
    /// in its pipeline was done.
    pub(crate) started: Option<Instant>,
    /// When the last reply arrived, or when the event ended without one.
    pub(crate) ended: Instant,
    /// When the session became free to send the event.
    pub(crate) free_since: Instant,
    pub(crate) rows: Option<u64>,
    /// The results, if results are read.
    pub(crate) result: Option<Box<ResultDigest>>,
    pub(crate) end: EventEnd,
}

impl FinishedEvent {
    /// Creates the outcome of an event that ended at `now` without being sent.
    pub(crate) fn unsent(item: ScheduledEvent, now: Instant, free: Instant, end: EventEnd) -> Self {
        Self {
            item,
            sent: None,
            started: None,
            ended: now,
            free_since: free,
            rows: None,
            result: None,
            end,
        }
    }
}

/// The outcome of an event.
#[derive(Clone, Debug)]
pub(crate) enum EventEnd {
    Done,
    Failed(ReplayFailure),
    Skipped(SkipCause),
    Dropped(DropCause),
}

/// The policy or limit for which an event was not sent. The texts appear in reports and in the
/// run's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DropCause {
    Late,
    QueueLimit,
}

impl DropCause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Late => "later than drop-late allows",
            Self::QueueLimit => "session too far behind, queue limit reached",
        }
    }
}

/// The reason why an event was not sent, or was given up when the replay was interrupted. The texts
/// appear in reports and in the run's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SkipCause {
    CopyData,
    CallArguments,
    RemovedPassword,
    UnknownParameters,
    TruncatedParameter,
    PortalNotOpen,
    TransactionLost,
    Conflict,
    NothingToCancel,
    Interrupted,
    Cancelled,
    Abandoned,
}

impl SkipCause {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::CopyData => "rows of COPY FROM STDIN not captured",
            Self::CallArguments => "arguments of function call not captured",
            Self::RemovedPassword => "password removed from the capture",
            Self::UnknownParameters => "parameter values not captured",
            Self::TruncatedParameter => "parameter value truncated in capture",
            Self::PortalNotOpen => "portal was not opened",
            Self::TransactionLost => "its transaction was lost with the connection",
            Self::Conflict => "failed in the capture by a conflict with another session",
            Self::NothingToCancel => "nothing left to cancel",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "in flight when interrupted, cancelled on the target",
            Self::Abandoned => "in flight when interrupted, not answered in time",
        }
    }
}

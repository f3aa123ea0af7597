//! An event on its way through a replay, and what became of it.

use std::{sync::Arc, time::Instant};

use howdah_traffic::Event;

use crate::link::Failure;

/// An event with its due time.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) event: Event,
    pub(crate) due: Instant,
    /// When it was there to be sent: when it was due, or later where its source was late.
    pub(crate) here: Instant,
    pub(crate) bytes: usize,
    /// Types of its parameters that were deduced, because its capture holds none and it needs some.
    pub(crate) types: Option<Arc<[u32]>>,
    /// It was refused without types, and is sent once more.
    pub(crate) is_retried: bool,
}

impl Item {
    pub(crate) fn new(event: Event, due: Instant, here: Instant, bytes: usize) -> Self {
        Self { event, due, here, bytes, types: None, is_retried: false }
    }

    /// Types that its Parse gives: those captured, or those deduced.
    pub(super) fn types(&self) -> &[u32] {
        match &self.event.wire {
            Some(wire) => &wire.types,
            None => self.types.as_deref().unwrap_or_default(),
        }
    }
}

/// What became of an event.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) item: Item,
    /// When it was sent, if it was.
    pub(crate) sent: Option<Instant>,
    /// When the server could begin with it, if it was sent: then, or when the statement before it in
    /// its pipeline was done.
    pub(crate) begun: Option<Instant>,
    /// When its answer was complete.
    pub(crate) ended: Instant,
    /// From when its session could have sent it.
    pub(crate) free: Instant,
    pub(crate) rows: Option<u64>,
    pub(crate) end: End,
}

impl Finished {
    /// An event that ended at `now` without having been sent.
    pub(super) fn unsent(item: Item, now: Instant, free: Instant, end: End) -> Self {
        Self { item, sent: None, begun: None, ended: now, free, rows: None, end }
    }
}

/// How an event ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Done,
    Failed(Failure),
    Skipped(Skip),
}

/// Why an event was not sent. The words appear in reports and in the run's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Skip {
    CopyData,
    CallArguments,
    UnknownParameters,
    TruncatedParameter,
    PortalNotOpen,
    TransactionLost,
    NothingToCancel,
    TooFarBehind,
    Interrupted,
    Cancelled,
    Abandoned,
}

impl Skip {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::CopyData => "rows of COPY FROM STDIN not captured",
            Self::CallArguments => "arguments of function call not captured",
            Self::UnknownParameters => "parameter values not captured",
            Self::TruncatedParameter => "parameter value truncated in capture",
            Self::PortalNotOpen => "portal was not opened",
            Self::TransactionLost => "its transaction was lost with the connection",
            Self::NothingToCancel => "nothing left to cancel",
            Self::TooFarBehind => "session too far behind, queue limit reached",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "in flight when interrupted, cancelled on the target",
            Self::Abandoned => "in flight when interrupted, not answered in time",
        }
    }
}

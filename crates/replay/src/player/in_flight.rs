//! [`InFlightBatch`]: the messages of one batch, from sending until the reply to its Sync.

use std::time::{Duration, Instant};

use howdah_session::RequestId;
use howdah_traffic::{Kind, ResultDigest};

use super::{EventEnd, FinishedEvent, ScheduledEvent};
use crate::{
    link::ReplayFailure,
    types::{TrialResult, TypeTrial},
};

/// Minimum time between a statement and its cancel request: a server ignores a request that arrives
/// before the statement, and a log may have times in whole seconds.
const CANCEL_GAP_MIN: Duration = Duration::from_millis(50);

/// Messages sent up to a Sync whose replies have not all arrived.
pub(super) struct InFlightBatch {
    pub(super) parts: Vec<BatchPart>,
    pub(super) sent: Instant,
    pub(super) failure: Option<ReplayFailure>,
    /// A trial of types that is sent before the batch. Meanwhile `parts` is empty, and the events
    /// of the batch remain queued.
    pub(super) trial: Option<(Box<TypeTrial>, TrialResult)>,
    /// The rows of the next reply, if results are read.
    pub(super) next_result: Option<Box<ResultDigest>>,
}

pub(super) struct BatchPart {
    pub(super) item: ScheduledEvent,
    /// The message whose reply completes the event.
    pub(super) request: Option<RequestId>,
    /// When the reply to `request` arrived. Not set for a Query, which is completed only by
    /// ReadyForQuery.
    pub(super) completed: Option<Instant>,
    pub(super) rows: u64,
    /// The results, if results are read.
    pub(super) result: Option<Box<ResultDigest>>,
    /// Number of COPYs whose rows were sent.
    pub(super) copies: usize,
    /// Whether the Bind of the event's portal was sent.
    pub(super) is_bound: bool,
    /// The Bind sent for the event's Execute; `is_bind_done` is set when its reply arrives.
    pub(super) bind: Option<RequestId>,
    pub(super) is_bind_done: bool,
    /// Whether a Parse was sent first that has no event in the capture.
    pub(super) is_prepared: bool,
}

impl InFlightBatch {
    pub(super) fn new(
        parts: Vec<BatchPart>,
        sent: Instant,
        failure: Option<ReplayFailure>,
    ) -> Self {
        Self { parts, sent, failure, trial: None, next_result: None }
    }

    /// Returns when to send the request that cancels this batch. A statement that was sent late
    /// gets as much time as it had when captured.
    pub(super) fn cancel_at(&self, cancel: &ScheduledEvent, paced: bool) -> Instant {
        let Some(BatchPart { item: cancelled, .. }) = self.parts.first() else { return cancel.due };
        let gap = if paced {
            cancel.scheduled.saturating_duration_since(cancelled.scheduled)
        } else {
            cancel.event.time.saturating_since(cancelled.event.time)
        };
        cancel.due.max(self.sent + gap.max(CANCEL_GAP_MIN))
    }

    /// Handles the reply to a request, with its row count.
    pub(super) fn complete(&mut self, request: Option<RequestId>, rows: u64, now: Instant) {
        let matches_request = |part: &&mut BatchPart| part.request == request && request.is_some();
        let result = self.next_result.take();
        if let Some(part) = self.parts.iter_mut().find(matches_request) {
            part.rows += rows;
            if let Some(result) = result {
                part.result.get_or_insert_default().append(&result);
            }
            // A Query may contain several statements: only ReadyForQuery shows that all are done.
            if !matches!(part.item.event.action.kind(), Kind::Simple | Kind::Copy) {
                part.completed = Some(now);
            }
        }
    }

    /// Records the reply to a Bind.
    pub(super) fn on_bind_complete(&mut self, request: Option<RequestId>) {
        let binds = |part: &&mut BatchPart| part.bind == request && request.is_some();
        if let Some(part) = self.parts.iter_mut().find(binds) {
            part.is_bind_done = true;
        }
    }

    /// Adds the outcomes of the batch's events to `finished`.
    pub(super) fn finish(self, now: Instant, free: Instant, finished: &mut Vec<FinishedEvent>) {
        let Self { parts, sent, failure, .. } = self;
        let executes = |part: &BatchPart| part.item.event.action.kind().is_execution();
        let last = parts.iter().rposition(executes);
        let mut begun = sent;
        for (at, part) in parts.into_iter().enumerate() {
            let execution = executes(&part);
            let is_done = part.completed.is_some() || failure.is_none();
            // The last part is complete only when the server is ready for the next query.
            let is_early = execution && last.is_some_and(|last| at < last);
            let ended = part.completed.filter(|_| is_early).unwrap_or(now);
            finished.push(FinishedEvent {
                sent: Some(sent),
                started: Some(begun),
                ended,
                free_since: free,
                rows: (execution && is_done).then_some(part.rows),
                result: part.result.filter(|_| is_done),
                end: match &failure {
                    Some(failure) if !is_done => EventEnd::Failed(failure.clone()),
                    _ => EventEnd::Done,
                },
                item: part.item,
            });
            if is_early {
                begun = ended;
            }
        }
    }
}

impl BatchPart {
    pub(super) fn new(item: ScheduledEvent) -> Self {
        Self {
            item,
            request: None,
            completed: None,
            rows: 0,
            result: None,
            copies: 0,
            is_bound: false,
            bind: None,
            is_bind_done: false,
            is_prepared: false,
        }
    }
}

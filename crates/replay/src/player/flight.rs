//! What is in flight: the messages of one batch, from when they are sent until their Sync is answered.

use std::time::{Duration, Instant};

use howdah_session::RequestId;
use howdah_traffic::Kind;

use super::{End, Finished, Item};
use crate::{
    link::Failure,
    types::{Probe, ProbeResult},
};

/// The least time a statement gets before its cancel is sent. A server ignores a request that comes
/// before the statement, and the times in a log may be whole seconds.
const CANCEL_GAP_MIN: Duration = Duration::from_millis(50);

/// Messages on their way, up to one Sync.
pub(super) struct Flight {
    pub(super) parts: Vec<Part>,
    pub(super) sent: Instant,
    pub(super) failure: Option<Failure>,
    /// A try of types that goes before the parts, which wait in the queue.
    pub(super) probe: Option<(Box<Probe>, ProbeResult)>,
}

pub(super) struct Part {
    pub(super) item: Item,
    /// The message whose answer completes it.
    pub(super) request: Option<RequestId>,
    /// When that answer arrived.
    pub(super) completed: Option<Instant>,
    pub(super) rows: u64,
    /// How many COPYs of it have been given their rows.
    pub(super) copies: usize,
    /// The Bind of its portal is on its way.
    pub(super) is_bound: bool,
    /// The Bind that its Execute needs, and whether that was answered.
    pub(super) bind: Option<RequestId>,
    pub(super) is_bind_done: bool,
    /// Before that a Parse that it has none of its own for.
    pub(super) is_prepared: bool,
}

impl Flight {
    pub(super) fn new(parts: Vec<Part>, sent: Instant, failure: Option<Failure>) -> Self {
        Self { parts, sent, failure, probe: None }
    }

    /// When to send the request that cancels this: a statement that was sent late has as much time
    /// as it had when it was captured.
    pub(super) fn cancel_at(&self, cancel: &Item, paced: bool) -> Instant {
        let Some(Part { item: cancelled, .. }) = self.parts.first() else { return cancel.due };
        let gap = match paced {
            true => cancel.due.saturating_duration_since(cancelled.due),
            false => cancel.event.time.saturating_since(cancelled.event.time),
        };
        cancel.due.max(self.sent + gap.max(CANCEL_GAP_MIN))
    }

    /// Takes the answer to a request, and the rows it told of.
    pub(super) fn complete(&mut self, request: Option<RequestId>, rows: u64, now: Instant) {
        let answered = |part: &&mut Part| part.request == request && request.is_some();
        if let Some(part) = self.parts.iter_mut().find(answered) {
            part.rows += rows;
            // Of a Query it is one of several statements, perhaps: ReadyForQuery tells when all are done.
            if !matches!(part.item.event.action.kind(), Kind::Simple | Kind::Copy) {
                part.completed = Some(now);
            }
        }
    }

    /// Takes note that a Bind was answered.
    pub(super) fn bound(&mut self, request: Option<RequestId>) {
        let binds = |part: &&mut Part| part.bind == request && request.is_some();
        if let Some(part) = self.parts.iter_mut().find(binds) {
            part.is_bind_done = true;
        }
    }

    pub(super) fn finish(self, now: Instant, free: Instant) -> Vec<Finished> {
        let Self { parts, sent, failure, .. } = self;
        let executes = |part: &Part| part.item.event.action.kind().is_execution();
        let last = parts.iter().rposition(executes);
        let mut begun = sent;
        let mut finished = Vec::with_capacity(parts.len());
        for (at, part) in parts.into_iter().enumerate() {
            let execution = executes(&part);
            let is_done = part.completed.is_some() || failure.is_none();
            // The answer to the last is complete when the server is ready for more.
            let is_early = execution && last.is_some_and(|last| at < last);
            let ended = part.completed.filter(|_| is_early).unwrap_or(now);
            finished.push(Finished {
                sent: Some(sent),
                begun: Some(begun),
                ended,
                free,
                rows: (execution && is_done).then_some(part.rows),
                end: match &failure {
                    Some(failure) if !is_done => End::Failed(failure.clone()),
                    _ => End::Done,
                },
                item: part.item,
            });
            if is_early {
                begun = ended;
            }
        }
        finished
    }
}

impl Part {
    pub(super) fn new(item: Item) -> Self {
        Self {
            item,
            request: None,
            completed: None,
            rows: 0,
            copies: 0,
            is_bound: false,
            bind: None,
            is_bind_done: false,
            is_prepared: false,
        }
    }
}

//! Emits the event of an action when the action starts or ends.

use howdah_traffic::{ActionRef, EventIdentity, EventRef, OutcomeRef, Source, Timestamp};

use super::{action_buffer::ActionBuffer, session::TrackedSession, vxid::Vxid};
use crate::{
    options::Emit,
    summary::{ImportSummary, LogPosition},
};

/// A consumer of events.
pub(crate) trait EventSink {
    /// Handles an event, which is valid only during the call.
    fn event(&mut self, event: &EventRef<'_>);
}

/// Destination of the events and counts that result from a record.
pub(super) struct EventOutput<'a> {
    pub(super) emit: Emit,
    pub(super) sink: &'a mut dyn EventSink,
    pub(super) summary: &'a mut ImportSummary,
    pub(super) position: LogPosition<'a>,
    /// Whether the texts that go into the next event are known to be ASCII.
    pub(super) is_ascii: bool,
}

/// An event without its session's fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventDraft<'a> {
    pub(super) time: Timestamp,
    pub(super) action: ActionRef<'a>,
    pub(super) outcome: OutcomeRef<'a>,
    pub(super) source: Source,
    pub(super) vxid: Option<Vxid>,
    pub(super) query_id: Option<i64>,
    pub(super) pipeline: Option<u32>,
    /// Number of executions now known to have an unknown pipeline: see
    /// [`Membership::unknown`](super::pipelines::Membership::unknown).
    pub(super) unknown_syncs: u64,
}

/// A session's action whose outcome is not known yet, as long as `is_open`.
#[derive(Debug)]
pub(super) struct OpenAction {
    pub(super) is_open: bool,
    pub(super) time: Timestamp,
    pub(super) action: ActionBuffer,
    pub(super) source: Source,
    vxid: Option<Vxid>,
    pub(super) query_id: Option<i64>,
    pipeline: Option<u32>,
    is_ascii: bool,
}

impl Default for OpenAction {
    fn default() -> Self {
        Self {
            is_open: false,
            time: Timestamp::from_micros(0),
            action: ActionBuffer::default(),
            source: Source::Session,
            vxid: None,
            query_id: None,
            pipeline: None,
            is_ascii: false,
        }
    }
}

impl OpenAction {
    fn set(&mut self, draft: &EventDraft<'_>, is_ascii: bool) {
        self.is_open = true;
        self.action.set(&draft.action);
        self.is_ascii = is_ascii;
        (self.time, self.source) = (draft.time, draft.source);
        (self.vxid, self.query_id, self.pipeline) = (draft.vxid, draft.query_id, draft.pipeline);
    }
}

impl EventOutput<'_> {
    /// Starts an action whose outcome may follow, after finishing the open one without an outcome.
    pub(super) fn start_action(&mut self, session: &mut TrackedSession, draft: &EventDraft<'_>) {
        self.abandon_action(session);
        self.count_unknown_syncs(draft);
        if self.emit == Emit::Start {
            self.emit(session.identity(), draft, self.is_ascii);
        }
        session.open.set(draft, self.is_ascii);
    }

    /// Counts executions whose pipeline is unknown.
    #[inline]
    fn count_unknown_syncs(&mut self, draft: &EventDraft<'_>) {
        let facts = &mut self.summary.facts;
        facts.executions_of_unknown_pipeline += draft.unknown_syncs;
        if draft.vxid.is_none() {
            facts.executions_of_unknown_transaction += draft.unknown_syncs;
        }
    }

    /// Finishes the open action, if any, with its outcome.
    #[inline]
    pub(super) fn finish_action(&mut self, session: &mut TrackedSession, outcome: OutcomeRef<'_>) {
        if session.open.is_open {
            self.finish_open_action(session, outcome);
        }
    }

    #[inline(never)]
    fn finish_open_action(&mut self, session: &mut TrackedSession, outcome: OutcomeRef<'_>) {
        let open = &session.open;
        self.summary.count_outcome(open.action.kind(), &outcome);
        if self.emit == Emit::End {
            let event = EventRef {
                time: open.time,
                identity: session.open_identity(),
                action: open.action.action(),
                outcome,
                source: open.source,
                vxid: open.vxid.as_ref().map(Vxid::as_str),
                query_id: open.query_id,
                pipeline: open.pipeline,
                wire: None,
            };
            self.send(&event, open.is_ascii);
        }
        session.open.is_open = false;
        session.clear_previous_names();
        session.open.action.clear();
    }

    /// Finishes the open action, if any, without an outcome.
    pub(super) fn abandon_action(&mut self, session: &mut TrackedSession) {
        self.finish_action(session, OutcomeRef::default());
    }

    /// Emits an action that is completely known, after finishing the open one without an outcome.
    pub(super) fn emit_complete(&mut self, session: &mut TrackedSession, draft: &EventDraft<'_>) {
        self.abandon_action(session);
        self.count_unknown_syncs(draft);
        self.summary.count_outcome(draft.action.kind(), &draft.outcome);
        self.emit(session.identity(), draft, self.is_ascii);
    }

    #[inline(always)]
    fn emit(&mut self, identity: EventIdentity<'_>, draft: &EventDraft<'_>, is_ascii: bool) {
        let event = EventRef {
            time: draft.time,
            identity,
            action: draft.action,
            outcome: draft.outcome,
            source: draft.source,
            vxid: draft.vxid.as_ref().map(Vxid::as_str),
            query_id: draft.query_id,
            pipeline: draft.pipeline,
            wire: None,
        };
        self.send(&event, is_ascii);
    }

    /// Counts an event and passes it to the sink.
    #[inline]
    fn send(&mut self, event: &EventRef<'_>, is_ascii: bool) {
        self.summary.count_event(event, is_ascii);
        self.sink.event(event);
    }
}

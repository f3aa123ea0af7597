//! Finished events on their way out, and the two ways of emitting.

use howdah_traffic::{ActionRef, EventRef, Identity, OutcomeRef, Source, Timestamp};

use super::{held::Held, session::Session, vxid::Vxid};
use crate::{
    options::Emit,
    summary::{Place, Summary},
};

/// Whoever is shown events, one after another.
pub(crate) trait EventSink {
    /// Looks at an event, which is there no longer than that.
    fn event(&mut self, event: &EventRef<'_>);
}

/// Where events and what is to be said of a record go.
pub(super) struct Output<'a> {
    pub(super) emit: Emit,
    pub(super) visit: &'a mut dyn EventSink,
    pub(super) summary: &'a mut Summary,
    pub(super) place: Place<'a>,
    /// The record that is being taken is ASCII.
    pub(super) is_ascii: bool,
}

/// An event of which only whose it is is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft<'a> {
    pub(super) time: Timestamp,
    pub(super) action: ActionRef<'a>,
    pub(super) outcome: OutcomeRef<'a>,
    pub(super) source: Source,
    pub(super) vxid: Option<Vxid>,
    pub(super) query_id: Option<i64>,
    pub(super) pipeline: Option<u32>,
    /// See [`Membership::unknown`](super::pipelines::Membership::unknown).
    pub(super) unknown_syncs: u64,
}

/// The action of a session whose outcome is not known yet.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) is_open: bool,
    pub(super) time: Timestamp,
    pub(super) held: Held,
    pub(super) source: Source,
    vxid: Option<Vxid>,
    pub(super) query_id: Option<i64>,
    pipeline: Option<u32>,
    is_ascii: bool,
}

impl Default for Open {
    fn default() -> Self {
        Self {
            is_open: false,
            time: Timestamp::from_micros(0),
            held: Held::default(),
            source: Source::Session,
            vxid: None,
            query_id: None,
            pipeline: None,
            is_ascii: false,
        }
    }
}

impl Open {
    fn set(&mut self, draft: &Draft<'_>, is_ascii: bool) {
        self.is_open = true;
        self.held.set(&draft.action);
        self.is_ascii = is_ascii;
        (self.time, self.source) = (draft.time, draft.source);
        (self.vxid, self.query_id, self.pipeline) = (draft.vxid, draft.query_id, draft.pipeline);
    }
}

impl Output<'_> {
    /// An action whose outcome may come later.
    pub(super) fn open(&mut self, session: &mut Session, draft: &Draft<'_>) {
        self.close(session);
        self.count_unknown_syncs(draft);
        if self.emit == Emit::Start {
            self.push(session.identity(), draft, self.is_ascii);
        }
        session.open.set(draft, self.is_ascii);
    }

    /// Counts executions of which the log does not tell the pipeline.
    #[inline]
    fn count_unknown_syncs(&mut self, draft: &Draft<'_>) {
        let facts = &mut self.summary.facts;
        facts.executions_of_unknown_pipeline += draft.unknown_syncs;
        if draft.vxid.is_none() {
            facts.executions_of_unknown_transaction += draft.unknown_syncs;
        }
    }

    /// The outcome of the open action, if one is open.
    #[inline]
    pub(super) fn conclude(&mut self, session: &mut Session, outcome: OutcomeRef<'_>) {
        if session.open.is_open {
            self.conclude_open(session, outcome);
        }
    }

    #[inline(never)]
    fn conclude_open(&mut self, session: &mut Session, outcome: OutcomeRef<'_>) {
        let open = &session.open;
        self.summary.count_outcome(open.held.kind(), &outcome);
        if self.emit == Emit::End {
            let event = EventRef {
                time: open.time,
                identity: session.identity_of_open(),
                action: open.held.action(),
                outcome,
                source: open.source,
                vxid: open.vxid.as_ref().map(Vxid::as_str),
                query_id: open.query_id,
                pipeline: open.pipeline,
                wire: None,
            };
            self.show(&event, open.is_ascii);
        }
        session.open.is_open = false;
        session.forget_former();
        session.open.held.clear();
    }

    /// No outcome of the open action will come any more.
    pub(super) fn close(&mut self, session: &mut Session) {
        self.conclude(session, OutcomeRef::default());
    }

    /// An action of which all is known.
    pub(super) fn emit_whole(&mut self, session: &mut Session, draft: &Draft<'_>) {
        self.close(session);
        self.count_unknown_syncs(draft);
        self.summary.count_outcome(draft.action.kind(), &draft.outcome);
        self.push(session.identity(), draft, self.is_ascii);
    }

    #[inline(always)]
    fn push(&mut self, identity: Identity<'_>, draft: &Draft<'_>, is_ascii: bool) {
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
        self.show(&event, is_ascii);
    }

    /// Counts an event and lends it.
    #[inline]
    fn show(&mut self, event: &EventRef<'_>, is_ascii: bool) {
        self.summary.count_event(event, is_ascii);
        self.visit.event(event);
    }
}

//! Decodes the fields of a line's prefix.

use howdah_traffic::SqlState;

use crate::{
    clock::{LogClock, read_epoch},
    prefix::{Match, PrefixField},
    record::{
        frame::{RecordFrame, SessionFields},
        spans::{FieldSpan, known_name, parse_i64, parse_pid, parse_session_id, parse_u64},
    },
};

/// The decoded fields of one line's prefix. The frame has no texts of the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefixFields {
    pub(super) frame: RecordFrame,
    pub(super) session: SessionFields,
}

impl PrefixFields {
    /// The fields before any of them is set.
    pub(super) const EMPTY: Self =
        Self { frame: RecordFrame::EMPTY, session: SessionFields::EMPTY };

    /// Decodes the prefix of the line from `start` to the end of `input`; `None` if it has no valid
    /// time.
    pub(super) fn from_match(
        found: &Match,
        start: usize,
        input: &[u8],
        clock: &mut LogClock,
    ) -> Option<Self> {
        clock.take_assumption();
        let mut fields = Self::EMPTY;
        for (field, range) in found.fields()? {
            let span = FieldSpan::input(start + range.start, start + range.end);
            fields.set(field, span, input, clock)?;
        }
        fields.frame.assumption = clock.take_assumption();
        Some(fields)
    }

    /// Sets a field, in any order; returns `None` if it is a time that is not valid.
    #[inline]
    pub(super) fn set(
        &mut self,
        field: PrefixField,
        span: FieldSpan,
        input: &[u8],
        clock: &mut LogClock,
    ) -> Option<()> {
        let Self { frame, session } = self;
        let text = span.text(input, &[]);
        match field {
            PrefixField::Millis | PrefixField::Seconds => frame.time = clock.read(text)?,
            PrefixField::Epoch => frame.time = read_epoch(text)?,
            PrefixField::User => session.user = known_name(span, input, &[]),
            PrefixField::Database => session.database = known_name(span, input, &[]),
            PrefixField::Application => session.application = known_name(span, input, &[]),
            PrefixField::BackendType => session.backend_type = span,
            PrefixField::Pid => session.pid = parse_pid(text).or(session.pid),
            PrefixField::SessionId => self.set_session_id(span, parse_session_id(text)),
            PrefixField::Start => {
                // A session id contains the same start.
                session.session_start = session.session_start.or_else(|| clock.read_start(text));
            }
            PrefixField::Remote if !text.is_empty() => {
                session.remote = known_name(span, input, &[]);
            }
            PrefixField::Host if session.remote == FieldSpan::ABSENT => {
                session.remote = known_name(span, input, &[]);
            }
            PrefixField::LeaderPid => session.has_leader = !text.is_empty(),
            PrefixField::Tag => frame.tag = span,
            PrefixField::Vxid => frame.vxid = span,
            PrefixField::QueryId => frame.query_id = parse_i64(text),
            PrefixField::Line => frame.lines = parse_u64(text).map(|line| (line, line)),
            PrefixField::SqlState => frame.sqlstate = SqlState::new(text),
            PrefixField::Remote
            | PrefixField::Host
            | PrefixField::LocalAddress
            | PrefixField::Txid => {}
        }
        Some(())
    }

    /// Sets the session id, with the start and the process id in it.
    #[inline]
    pub(super) fn set_session_id(&mut self, span: FieldSpan, id: Option<(i64, u32)>) {
        let session = &mut self.session;
        session.session_id = span;
        session.session_start = id.map(|(start, _)| start).or(session.session_start);
        session.pid = session.pid.or(id.map(|(_, pid)| pid));
    }
}

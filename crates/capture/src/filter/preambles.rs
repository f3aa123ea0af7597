//! Preambles: the events of a session that its later statements depend on.
//!
//! The later part of a session has the same effect only if the session is logged in and has its
//! named statements and settings. Cursors and temporary tables are not included: recreating them
//! would run excluded statements.

use std::collections::HashMap;

use howdah_sql::SqlCommand;
use howdah_traffic::{Action, Event, SessionId, Text};

/// The preambles of all open sessions.
///
/// At most [`BYTES_MAX`] bytes are stored for all sessions together, in addition to their logins.
#[derive(Debug)]
pub(crate) struct SessionPreambles<Tag> {
    sessions: HashMap<SessionId, SessionPreamble<Tag>>,
    bytes: usize,
}

/// The preamble of a session, in order.
#[derive(Debug)]
pub(crate) struct SessionPreamble<Tag> {
    pub(crate) events: Vec<(Event, Tag)>,
}

/// Maximum bytes of stored events for all sessions together, with [`EVENT_BYTES`] for each event.
const BYTES_MAX: usize = 64 << 20;
/// Approximate memory of an event in addition to its SQL, in bytes.
const EVENT_BYTES: usize = 256;

/// Whether later statements of the session depend on an event.
pub(crate) fn is_preamble(action: &Action) -> bool {
    match action {
        Action::Connect => true,
        Action::Parse { statement, .. } => !statement.is_empty(),
        Action::Simple { sql } => is_setting(sql),
        Action::Execute(bound) => is_setting(&bound.sql),
        _ => false,
    }
}

/// Whether a text is a `SET` or `RESET` that outlasts its transaction, unlike `SET LOCAL`, `SET
/// TRANSACTION` and `SET CONSTRAINTS`.
fn is_setting(sql: &Text) -> bool {
    let sql = sql.as_bytes();
    if !matches!(SqlCommand::from_sql(sql), SqlCommand::Set | SqlCommand::Reset) {
        return false;
    }
    let mut tokens = howdah_sql::Lexer::new(sql).filter(|token| {
        !matches!(token.kind, howdah_sql::TokenKind::Space | howdah_sql::TokenKind::Comment)
    });
    let second = tokens.nth(1).map_or(&b""[..], |token| token.text);
    !["local", "transaction", "constraints"]
        .iter()
        .any(|word| second.eq_ignore_ascii_case(word.as_bytes()))
}

impl<Tag> SessionPreambles<Tag> {
    /// Stores an event if later statements may depend on it and there is room, which a login always
    /// has. A login or a disconnect first removes the session's preamble.
    pub(crate) fn record(&mut self, event: &Event, tag: Tag) {
        if matches!(event.action, Action::Disconnect) {
            self.remove(&event.session);
            return;
        }
        if !is_preamble(&event.action) {
            return;
        }
        let bytes = size(event);
        let is_login = matches!(event.action, Action::Connect);
        if is_login {
            // A reused session name is a new session.
            self.remove(&event.session);
        } else if self.bytes + bytes > BYTES_MAX {
            return;
        }
        let start = self.sessions.entry(event.session.clone()).or_default();
        if let Action::Parse { statement: new, .. } = &event.action {
            // After a Close, which logs do not show, a name can be prepared again.
            let same = |(old, _): &(Event, Tag)| matches!(&old.action, Action::Parse { statement, .. } if statement == new);
            if let Some(at) = start.events.iter().position(same) {
                let (old, _) = start.events.remove(at);
                self.bytes -= size(&old);
            }
        }
        self.bytes += bytes;
        start.events.push((event.clone(), tag));
    }

    /// Removes a session and returns its preamble.
    pub(crate) fn remove(&mut self, session: &str) -> SessionPreamble<Tag> {
        let start = self.sessions.remove(session).unwrap_or_default();
        self.bytes -= start.events.iter().map(|(event, _)| size(event)).sum::<usize>();
        start
    }

    /// Returns the preamble of a session.
    pub(crate) fn get(&self, session: &str) -> &[(Event, Tag)] {
        self.sessions.get(session).map_or(&[], |start| &start.events)
    }
}

impl<Tag> Default for SessionPreambles<Tag> {
    fn default() -> Self {
        Self { sessions: HashMap::new(), bytes: 0 }
    }
}

impl<Tag> Default for SessionPreamble<Tag> {
    fn default() -> Self {
        Self { events: Vec::new() }
    }
}

fn size(event: &Event) -> usize {
    EVENT_BYTES + event.action.sql().map_or(0, Text::len)
}

/// Returns an event repeated at the time of a later one. It is marked as inferred, because the
/// client did not send it at that time, and has no outcome.
pub(crate) fn repeat_at(mut event: Event, at: &Event) -> Event {
    event.time = at.time;
    event.source = howdah_traffic::Source::Inferred;
    event.outcome = howdah_traffic::CapturedOutcome::default();
    (event.vxid, event.query_id, event.pipeline) = (None, None, None);
    if matches!(event.action, Action::Connect) {
        // The log has these names only after the login.
        for (mine, theirs) in [
            (&mut event.user, &at.user),
            (&mut event.database, &at.database),
            (&mut event.application, &at.application),
        ] {
            if mine.is_empty() {
                mine.clone_from(theirs);
            }
        }
    }
    event
}

//! What sessions have done that later statements depend on.
//!
//! A session that is looked at from its middle only works as it did if it is logged in, has its named
//! statements, and its settings. Cursors and temporary tables are not remembered: making them again
//! means running statements again that were to be left out.

use std::collections::HashMap;

use howdah_sql::Command;
use howdah_traffic::{Action, Event, SessionId, Text};

/// The events to begin a session with, for each session that is open.
///
/// Bounded: of what all sessions prepare and set, up to [`BYTES_MAX`] is remembered.
#[derive(Debug)]
pub(crate) struct Memory<Tag> {
    sessions: HashMap<SessionId, Start<Tag>>,
    bytes: usize,
}

/// How a session began, in order.
#[derive(Debug)]
pub(crate) struct Start<Tag> {
    pub(crate) events: Vec<(Event, Tag)>,
}

/// Bytes of SQL that are remembered of all sessions together.
const BYTES_MAX: usize = 64 << 20;
/// What an event costs beside its SQL, roughly.
const EVENT_BYTES: usize = 256;

/// Whether later statements of its session depend on an event.
pub(crate) fn is_remembered(action: &Action) -> bool {
    match action {
        Action::Connect => true,
        Action::Parse { statement, .. } => !statement.is_empty(),
        Action::Simple { sql } => is_setting(sql),
        Action::Execute(bound) => is_setting(&bound.sql),
        _ => false,
    }
}

/// `SET` and `RESET` of the session. A `SET LOCAL` ends with its transaction.
fn is_setting(sql: &Text) -> bool {
    let sql = sql.as_bytes();
    if !matches!(Command::of(sql), Command::Set | Command::Reset) {
        return false;
    }
    let mut words = howdah_sql::Lexer::new(sql).filter(|token| {
        !matches!(token.kind, howdah_sql::TokenKind::Space | howdah_sql::TokenKind::Comment)
    });
    let second = words.nth(1).map_or(&b""[..], |token| token.text);
    !["local", "transaction", "constraints"]
        .iter()
        .any(|word| second.eq_ignore_ascii_case(word.as_bytes()))
}

impl<Tag> Memory<Tag> {
    /// Takes note of an event, if anything depends on it.
    pub(crate) fn note(&mut self, event: &Event, tag: Tag) {
        if matches!(event.action, Action::Disconnect) {
            self.take(&event.session);
            return;
        }
        if !is_remembered(&event.action) {
            return;
        }
        let bytes = size(event);
        let is_login = matches!(event.action, Action::Connect);
        if is_login {
            // A name that is used again is another session.
            self.take(&event.session);
        } else if self.bytes + bytes > BYTES_MAX {
            return;
        }
        let start = self.sessions.entry(event.session.clone()).or_default();
        if let Action::Parse { statement: new, .. } = &event.action {
            // A name can be prepared again once it was closed, which no log tells.
            let same = |(old, _): &(Event, Tag)| matches!(&old.action, Action::Parse { statement, .. } if statement == new);
            if let Some(at) = start.events.iter().position(same) {
                let (old, _) = start.events.remove(at);
                self.bytes -= size(&old);
            }
        }
        self.bytes += bytes;
        start.events.push((event.clone(), tag));
    }

    /// Forgets a session, and says how it began.
    pub(crate) fn take(&mut self, session: &str) -> Start<Tag> {
        let start = self.sessions.remove(session).unwrap_or_default();
        self.bytes -= start.events.iter().map(|(event, _)| size(event)).sum::<usize>();
        start
    }

    /// How a session began.
    pub(crate) fn of(&self, session: &str) -> &[(Event, Tag)] {
        self.sessions.get(session).map_or(&[], |start| &start.events)
    }
}

impl<Tag> Default for Memory<Tag> {
    fn default() -> Self {
        Self { sessions: HashMap::new(), bytes: 0 }
    }
}

impl<Tag> Default for Start<Tag> {
    fn default() -> Self {
        Self { events: Vec::new() }
    }
}

fn size(event: &Event) -> usize {
    EVENT_BYTES + event.action.sql().map_or(0, Text::len)
}

/// The event as it is repeated later: known from before, so not from the log of that time.
pub(crate) fn again(mut event: Event, at: &Event) -> Event {
    event.time = at.time;
    event.source = howdah_traffic::Source::Inferred;
    event.outcome = howdah_traffic::Outcome::default();
    (event.vxid, event.query_id, event.pipeline) = (None, None, None);
    if matches!(event.action, Action::Connect) {
        // Names that the log told later than the login.
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

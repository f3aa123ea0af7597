//! [`EventRef`]: an event that borrows its texts.
//!
//! A log reader produces millions of events a second, most of which are examined only once. So it
//! returns views of the bytes where they already are: in the log, or in a buffer of the session. To
//! retain an event, convert it to an [`Event`].

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    Action, Bound, CapturedOutcome, CopyDirection, Event, Kind, Parameter, SessionId, Source,
    SqlState, Text, Timestamp, WireDetail,
    hash_field::{FieldSum, HashField},
};

/// An [`Event`], borrowed.
#[derive(Clone, Copy, Debug)]
pub struct EventRef<'a> {
    /// Time of the action; see [`Event::time`].
    pub time: Timestamp,
    /// Session, user, database and application.
    pub identity: EventIdentity<'a>,
    /// The client's request or other act; see [`Event::action`].
    pub action: ActionRef<'a>,
    /// Duration and result; see [`Event::outcome`].
    pub outcome: OutcomeRef<'a>,
    /// The way in which the capture obtained the event.
    pub source: Source,
    /// Virtual transaction id; see [`Event::vxid`].
    pub vxid: Option<&'a str>,
    /// Query identifier; see [`Event::query_id`].
    pub query_id: Option<i64>,
    /// Number of the pipeline; see [`Event::pipeline`].
    pub pipeline: Option<u32>,
    /// Details from the protocol; see [`Event::wire`].
    pub wire: Option<&'a WireDetail>,
}

/// The names of an event's session, user, database and application, with their contribution to the
/// event's [hash](crate::EventHash), which is computed once because the names rarely change.
#[derive(Clone, Copy, Debug)]
pub struct EventIdentity<'a> {
    session: &'a SessionId,
    user: &'a Arc<str>,
    database: &'a Arc<str>,
    application: &'a Arc<str>,
    digest: IdentityDigest,
}

/// The precomputed hashes of an [`EventIdentity`]: that of the session's name, and the contribution
/// of all four names to the hash of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdentityDigest {
    session: u64,
    field_sum: FieldSum,
}

/// An [`Action`], borrowed.
#[derive(Clone, Copy, Debug)]
pub enum ActionRef<'a> {
    /// The borrowed form of [`Action::Connect`].
    Connect,
    /// The borrowed form of [`Action::Disconnect`].
    Disconnect,
    /// The borrowed form of [`Action::Simple`].
    Simple {
        /// The whole text of the message.
        sql: Hashed<'a>,
    },
    /// The borrowed form of [`Action::Copy`].
    Copy {
        /// The whole text of the message.
        sql: Hashed<'a>,
        /// Direction of the rows.
        direction: CopyDirection,
    },
    /// The borrowed form of [`Action::Parse`].
    Parse {
        /// Name of the prepared statement.
        statement: &'a [u8],
        /// The statement's text.
        sql: Hashed<'a>,
    },
    /// The borrowed form of [`Action::Bind`].
    Bind(BoundRef<'a>),
    /// The borrowed form of [`Action::Execute`].
    Execute(BoundRef<'a>),
    /// The borrowed form of [`Action::Fetch`].
    Fetch(BoundRef<'a>),
    /// The borrowed form of [`Action::Call`].
    Call {
        /// Name of the function, as logged.
        function: &'a [u8],
    },
    /// The borrowed form of [`Action::Cancel`].
    Cancel,
}

/// A [`Bound`], borrowed.
#[derive(Clone, Copy, Debug)]
pub struct BoundRef<'a> {
    /// Name of the prepared statement.
    pub statement: &'a [u8],
    /// Name of the portal.
    pub portal: &'a [u8],
    /// Text of the prepared statement.
    pub sql: Hashed<'a>,
    /// The values, or `None` if the capture does not contain them.
    pub parameters: Option<ParametersRef<'a>>,
}

/// Bytes with their XXH3-64 hash, which is computed once for all lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed<'a> {
    bytes: &'a [u8],
    hash: u64,
}

/// The values of a [`BoundRef`].
#[derive(Clone, Copy, Debug)]
pub enum ParametersRef<'a> {
    /// Separate values, as an [`Event`] stores them.
    List(&'a [Parameter]),
    /// Values concatenated in one byte string.
    Flat {
        /// The bytes of all values, and possibly more.
        bytes: &'a [u8],
        /// The position of each value in `bytes`.
        spans: &'a [ParameterSpan],
    },
}

/// The position of a value in the bytes of [`ParametersRef::Flat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterSpan {
    /// SQL NULL.
    Null,
    /// A complete value: start and end (exclusive) in the bytes.
    Value(u32, u32),
    /// A value that the server truncated: start and end (exclusive) in the bytes.
    Truncated(u32, u32),
}

/// A [`Parameter`], borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterRef<'a> {
    /// SQL NULL.
    Null,
    /// The complete value.
    Value(&'a [u8]),
    /// The start of a value that the server truncated.
    Truncated(&'a [u8]),
}

/// A [`CapturedOutcome`], borrowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutcomeRef<'a> {
    /// Time that the server took, in microseconds; see [`CapturedOutcome::duration_us`].
    pub duration_us: Option<u64>,
    /// The SQLSTATE if the action failed and the capture contains the code.
    pub sqlstate: Option<SqlState>,
    /// The server's primary error message if the action failed.
    pub error: Option<&'a [u8]>,
}

impl<'a> EventRef<'a> {
    /// Creates a view of an event.
    pub fn from_event(event: &'a Event) -> Self {
        let Event { session, user, database, application, .. } = event;
        Self::with_digest(event, IdentityDigest::new(session, user, database, application))
    }

    /// Creates a view with a precomputed digest of session, user, database and application.
    pub fn with_digest(event: &'a Event, digest: IdentityDigest) -> Self {
        let Event { session, user, database, application, .. } = event;
        let outcome = &event.outcome;
        Self {
            time: event.time,
            identity: EventIdentity::with_digest(session, user, database, application, digest),
            action: ActionRef::from_action(&event.action),
            outcome: OutcomeRef {
                duration_us: outcome.duration_us,
                sqlstate: outcome.sqlstate,
                error: outcome.error.as_ref().map(Text::as_bytes),
            },
            source: event.source,
            vxid: event.vxid.as_deref(),
            query_id: event.query_id,
            pipeline: event.pipeline,
            wire: event.wire.as_deref(),
        }
    }

    /// Converts the view to an owned event. `text` creates SQL texts and names, and may share
    /// memory between equal ones; values and error messages are copied.
    pub fn to_event(&self, text: &mut impl FnMut(Hashed<'_>) -> Text) -> Event {
        let EventIdentity { session, user, database, application, .. } = self.identity;
        Event {
            time: self.time,
            session: session.clone(),
            user: user.clone(),
            database: database.clone(),
            application: application.clone(),
            action: self.action.to_action(text),
            outcome: CapturedOutcome {
                duration_us: self.outcome.duration_us,
                sqlstate: self.outcome.sqlstate,
                error: self.outcome.error.map(Text::from),
            },
            source: self.source,
            vxid: self.vxid.map(Arc::from),
            query_id: self.query_id,
            pipeline: self.pipeline,
            wire: self.wire.cloned().map(Box::new),
        }
    }
}

impl<'a> EventIdentity<'a> {
    /// Creates an identity and computes the digest of its names.
    pub fn new(
        session: &'a SessionId,
        user: &'a Arc<str>,
        database: &'a Arc<str>,
        application: &'a Arc<str>,
    ) -> Self {
        let digest = IdentityDigest::new(session, user, database, application);
        Self { session, user, database, application, digest }
    }

    /// Creates an identity with a digest that [`IdentityDigest::new`] has computed for the same
    /// names.
    pub fn with_digest(
        session: &'a SessionId,
        user: &'a Arc<str>,
        database: &'a Arc<str>,
        application: &'a Arc<str>,
        digest: IdentityDigest,
    ) -> Self {
        Self { session, user, database, application, digest }
    }

    /// Returns the session's name; see [`Event::session`].
    pub fn session(&self) -> &'a SessionId {
        self.session
    }

    /// Returns the role; see [`Event::user`].
    pub fn user(&self) -> &'a Arc<str> {
        self.user
    }

    /// Returns the database; see [`Event::database`].
    pub fn database(&self) -> &'a Arc<str> {
        self.database
    }

    /// Returns the application name; see [`Event::application`].
    pub fn application(&self) -> &'a Arc<str> {
        self.application
    }

    /// Returns the XXH3-64 of the session's name.
    pub fn session_hash(&self) -> u64 {
        self.digest.session
    }

    /// Returns the contribution of the four names to an event's hash.
    pub(crate) fn field_sum(&self) -> FieldSum {
        self.digest.field_sum
    }
}

/// Returns the hash of a session's name, XXH3-64 with seed 0, which distributes sessions over the
/// buckets of a capture and the workers of a replay.
pub fn session_hash(session: &str) -> u64 {
    xxh3_64(session.as_bytes())
}

impl IdentityDigest {
    /// Computes the hashes. User, database and application do not count if they are empty.
    pub fn new(session: &str, user: &str, database: &str, application: &str) -> Self {
        let session = session_hash(session);
        let mut part = FieldSum::default();
        part.number(HashField::Session, session);
        for (field, text) in [
            (HashField::User, user),
            (HashField::Database, database),
            (HashField::Application, application),
        ] {
            if !text.is_empty() {
                part.number(field, xxh3_64(text.as_bytes()));
            }
        }
        Self { session, field_sum: part }
    }
}

impl<'a> ActionRef<'a> {
    fn from_action(action: &'a Action) -> Self {
        let sql_of = |sql: &'a Text| Hashed::new(sql.as_bytes());
        match action {
            Action::Connect => Self::Connect,
            Action::Disconnect => Self::Disconnect,
            Action::Simple { sql } => Self::Simple { sql: sql_of(sql) },
            Action::Copy { sql, direction } => {
                Self::Copy { sql: sql_of(sql), direction: *direction }
            }
            Action::Parse { statement, sql } => {
                Self::Parse { statement: statement.as_bytes(), sql: sql_of(sql) }
            }
            Action::Bind(bound) => Self::Bind(BoundRef::from_bound(bound)),
            Action::Execute(bound) => Self::Execute(BoundRef::from_bound(bound)),
            Action::Fetch(bound) => Self::Fetch(BoundRef::from_bound(bound)),
            Action::Call { function } => Self::Call { function: function.as_bytes() },
            Action::Cancel => Self::Cancel,
        }
    }

    fn to_action(self, text: &mut impl FnMut(Hashed<'_>) -> Text) -> Action {
        match self {
            Self::Connect => Action::Connect,
            Self::Disconnect => Action::Disconnect,
            Self::Simple { sql } => Action::Simple { sql: text(sql) },
            Self::Copy { sql, direction } => Action::Copy { sql: text(sql), direction },
            Self::Parse { statement, sql } => {
                Action::Parse { statement: text(Hashed::new(statement)), sql: text(sql) }
            }
            Self::Bind(bound) => Action::Bind(bound.to_bound(text)),
            Self::Execute(bound) => Action::Execute(bound.to_bound(text)),
            Self::Fetch(bound) => Action::Fetch(bound.to_bound(text)),
            Self::Call { function } => Action::Call { function: text(Hashed::new(function)) },
            Self::Cancel => Action::Cancel,
        }
    }

    /// Returns the kind, without the data.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Connect => Kind::Connect,
            Self::Disconnect => Kind::Disconnect,
            Self::Simple { .. } => Kind::Simple,
            Self::Copy { .. } => Kind::Copy,
            Self::Parse { .. } => Kind::Parse,
            Self::Bind(_) => Kind::Bind,
            Self::Execute(_) => Kind::Execute,
            Self::Fetch(_) => Kind::Fetch,
            Self::Call { .. } => Kind::Call,
            Self::Cancel => Kind::Cancel,
        }
    }

    /// Returns the SQL text of the action, if it has one.
    pub fn sql(&self) -> Option<Hashed<'a>> {
        match self {
            Self::Simple { sql } | Self::Copy { sql, .. } | Self::Parse { sql, .. } => Some(*sql),
            _ => self.bound().map(|bound| bound.sql),
        }
    }

    /// Returns the bound statement of a Bind, an Execute or a Fetch.
    pub fn bound(&self) -> Option<&BoundRef<'a>> {
        match self {
            Self::Bind(bound) | Self::Execute(bound) | Self::Fetch(bound) => Some(bound),
            _ => None,
        }
    }

    /// Returns the name of the prepared statement, if the action has one.
    pub fn statement(&self) -> Option<&'a [u8]> {
        match self {
            Self::Parse { statement, .. } => Some(statement),
            _ => self.bound().map(|bound| bound.statement),
        }
    }
}

impl<'a> BoundRef<'a> {
    fn from_bound(bound: &'a Bound) -> Self {
        Self {
            statement: bound.statement.as_bytes(),
            portal: bound.portal.as_bytes(),
            sql: Hashed::new(bound.sql.as_bytes()),
            parameters: bound.parameters.as_deref().map(ParametersRef::List),
        }
    }

    fn to_bound(self, text: &mut impl FnMut(Hashed<'_>) -> Text) -> Bound {
        let values =
            |parameters: ParametersRef<'_>| parameters.iter().map(Parameter::from).collect();
        Bound {
            statement: text(Hashed::new(self.statement)),
            portal: text(Hashed::new(self.portal)),
            sql: text(self.sql),
            parameters: self.parameters.map(values),
        }
    }
}

impl<'a> Hashed<'a> {
    /// Computes the hash of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, hash: xxh3_64(bytes) }
    }

    /// Combines bytes with their hash, which was computed earlier.
    pub fn with_hash(bytes: &'a [u8], hash: u64) -> Self {
        Self { bytes, hash }
    }

    /// Returns the bytes, without the hash.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the XXH3-64 of the bytes, with seed 0.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

impl<'a> ParametersRef<'a> {
    /// No values, for a statement without parameters.
    pub const NONE: Self = Self::List(&[]);

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::List(values) => values.len(),
            Self::Flat { spans: slots, .. } => slots.len(),
        }
    }

    /// Whether the list has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of values that the server truncated.
    pub fn truncated(&self) -> u64 {
        let count = match self {
            Self::List(values) => {
                values.iter().filter(|value| matches!(value, Parameter::Truncated(_))).count()
            }
            Self::Flat { spans: slots, .. } => {
                slots.iter().filter(|slot| matches!(slot, ParameterSpan::Truncated(..))).count()
            }
        };
        count as u64
    }

    /// Returns the value at an index, from 0.
    pub fn at(&self, index: usize) -> Option<ParameterRef<'a>> {
        Some(match self {
            Self::List(values) => match values.get(index)? {
                Parameter::Null => ParameterRef::Null,
                Parameter::Value(text) => ParameterRef::Value(text.as_bytes()),
                Parameter::Truncated(text) => ParameterRef::Truncated(text.as_bytes()),
            },
            Self::Flat { bytes, spans: slots } => slots.get(index)?.resolve(bytes),
        })
    }

    /// Iterates over the values, in order.
    pub fn iter(self) -> impl Iterator<Item = ParameterRef<'a>> {
        (0..self.len()).map_while(move |index| self.at(index))
    }
}

impl ParameterSpan {
    /// Returns the value. A span beyond the bytes, which is a bug of its creator, yields an empty
    /// text.
    #[inline]
    pub(crate) fn resolve(self, bytes: &[u8]) -> ParameterRef<'_> {
        let text =
            |start: u32, end: u32| bytes.get(start as usize..end as usize).unwrap_or_default();
        match self {
            Self::Null => ParameterRef::Null,
            Self::Value(start, end) => ParameterRef::Value(text(start, end)),
            Self::Truncated(start, end) => ParameterRef::Truncated(text(start, end)),
        }
    }
}

impl<'a> ParameterRef<'a> {
    /// Returns the available bytes of the value, unless it is NULL.
    pub fn text(self) -> Option<&'a [u8]> {
        match self {
            Self::Null => None,
            Self::Value(text) | Self::Truncated(text) => Some(text),
        }
    }
}

impl From<ParameterRef<'_>> for Parameter {
    fn from(value: ParameterRef<'_>) -> Self {
        match value {
            ParameterRef::Null => Self::Null,
            ParameterRef::Value(text) => Self::Value(Text::from(text)),
            ParameterRef::Truncated(text) => Self::Truncated(Text::from(text)),
        }
    }
}

impl OutcomeRef<'_> {
    /// Whether the server reported an error.
    pub fn failed(&self) -> bool {
        self.sqlstate.is_some() || self.error.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_and_owned_event_are_equal() {
        let values =
            vec![Parameter::Null, Parameter::Value("a".into()), Parameter::Truncated("b".into())];
        let bound = Bound {
            statement: "S_1".into(),
            portal: "C_2".into(),
            sql: "select $1, $2, $3".into(),
            parameters: Some(values),
        };
        let sql = || Text::from("select 1");
        for action in [
            Action::Connect,
            Action::Disconnect,
            Action::Simple { sql: sql() },
            Action::Copy { sql: sql(), direction: CopyDirection::Out },
            Action::Parse { statement: "S_1".into(), sql: sql() },
            Action::Bind(bound.clone()),
            Action::Execute(bound.clone()),
            Action::Fetch(Bound { parameters: None, ..bound }),
            Action::Call { function: "random".into() },
            Action::Cancel,
        ] {
            let event = Event {
                time: Timestamp::from_micros(7),
                session: "s".into(),
                user: "u".into(),
                database: "d".into(),
                application: "a".into(),
                action,
                outcome: CapturedOutcome {
                    duration_us: Some(1),
                    sqlstate: SqlState::new(b"23505"),
                    error: Some("no".into()),
                },
                source: Source::Error,
                vxid: Some("3/4".into()),
                query_id: Some(-5),
                pipeline: Some(6),
                wire: Some(Box::new(WireDetail { rows: Some(2), ..WireDetail::default() })),
            };
            let owned =
                EventRef::from_event(&event).to_event(&mut |text| Text::from(text.as_bytes()));
            assert_eq!(owned, event);
            assert_eq!(EventRef::from_event(&event).action.kind(), event.action.kind());
        }
    }

    #[test]
    fn flat_values_are_found_by_span() {
        let slots = [
            ParameterSpan::Value(1, 3),
            ParameterSpan::Null,
            ParameterSpan::Truncated(3, 3),
            ParameterSpan::Value(9, 10),
        ];
        let flat = ParametersRef::Flat { bytes: b"'ab'", spans: &slots };
        let expected = [
            ParameterRef::Value(b"ab"),
            ParameterRef::Null,
            ParameterRef::Truncated(b""),
            ParameterRef::Value(b""),
        ];
        assert_eq!(flat.iter().collect::<Vec<_>>(), expected);
        assert_eq!(flat.at(4), None);
    }
}

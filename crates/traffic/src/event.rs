//! [`Event`]: an action of a client, and its parts.

use std::{fmt, sync::Arc, time::Duration};

use crate::{Text, Timestamp, WireDetail};

/// One action of one client, with its outcome if that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Time at which the client's action started. If a log records only the end of a statement, it
    /// is computed from that and the duration; if only an error, it is the time of the error.
    pub time: Timestamp,
    /// Name of the client's session, unique within the capture.
    pub session: SessionId,
    /// The role that the session logged in as; empty if unknown.
    pub user: Arc<str>,
    /// The database that the session is connected to; empty if unknown.
    pub database: Arc<str>,
    /// The session's `application_name`; empty if unknown.
    pub application: Arc<str>,
    /// The request or other act of the client, with its data.
    pub action: Action,
    /// Duration and result of the action when it was captured.
    pub outcome: CapturedOutcome,
    /// The way in which the capture obtained the event.
    pub source: Source,
    /// PostgreSQL's virtual transaction id, `backend/local` (`%v`): equal for all statements of one
    /// transaction, including the implicit one of a pipeline. `None` if unknown.
    pub vxid: Option<Arc<str>>,
    /// PostgreSQL's query identifier, if the server computed one and the capture contains it.
    pub query_id: Option<i64>,
    /// Number of the pipeline in which the event was sent, counted from 1 in each session. A
    /// pipeline is the sequence of extended-protocol messages up to a Sync: events of one session
    /// with the same number shared a Sync, those with different numbers did not. `None` if unknown,
    /// and for events outside the extended protocol.
    pub pipeline: Option<u32>,
    /// Details that only protocol messages reveal; `None` for events from a log.
    pub wire: Option<Box<WireDetail>>,
}

/// The name of a session, unique within one capture: the `%c` of its log lines if they have it.
pub type SessionId = Arc<str>;

/// A request of a client, or the start or end of its session.
///
/// `statement` and `portal` are the client's own names; an empty name is the unnamed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A session was authorized.
    Connect,
    /// A session ended.
    Disconnect,
    /// A Query message, which may contain several statements.
    Simple {
        /// The whole text of the message.
        sql: Text,
    },
    /// A Query message that starts a COPY from or to the client.
    Copy {
        /// The whole text of the message.
        sql: Text,
        /// Direction of the rows.
        direction: CopyDirection,
    },
    /// A Parse message.
    Parse {
        /// Name of the prepared statement.
        statement: Text,
        /// The statement's text.
        sql: Text,
    },
    /// A Bind message.
    Bind(Bound),
    /// The first Execute of a portal.
    Execute(Bound),
    /// A further Execute of a portal that still had rows.
    Fetch(Bound),
    /// A FunctionCall message. Logs do not contain the arguments.
    Call {
        /// Name of the function, as logged; its oid if the message was captured by the pooler.
        function: Text,
    },
    /// A request to cancel the session's statement: a CancelRequest or, in a log, also
    /// `pg_cancel_backend`, because the server reports both in the same way.
    Cancel,
}

/// A prepared statement with values: the subject of Bind, Execute and Fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Name of the prepared statement; empty for the unnamed one.
    pub statement: Text,
    /// Name of the portal; empty for the unnamed one.
    pub portal: Text,
    /// Text of the prepared statement.
    pub sql: Text,
    /// The values, or `None` if the capture does not contain them.
    pub parameters: Option<Vec<Parameter>>,
}

/// One bound value, in text format unless [`WireDetail::is_binary`] is true for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// SQL NULL.
    Null,
    /// The complete value.
    Value(Text),
    /// The start of a value that the server truncated (`log_parameter_max_length`). Cannot be
    /// replayed.
    Truncated(Text),
}

/// The direction of the rows of a COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// `COPY … FROM STDIN`: the client sends rows. Logs do not contain them.
    In,
    /// `COPY … TO STDOUT`: the server sends rows.
    Out,
}

/// The captured outcome of an action. All fields are `None` if it is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedOutcome {
    /// Time that the server took, in microseconds: as logged, or as the pooler observed it.
    pub duration_us: Option<u64>,
    /// The SQLSTATE if the action failed and the capture contains the code.
    pub sqlstate: Option<SqlState>,
    /// The server's primary error message if the action failed; a placeholder if it might quote a
    /// password.
    pub error: Option<Text>,
}

impl CapturedOutcome {
    /// Whether the server reported an error.
    pub fn failed(&self) -> bool {
        self.sqlstate.is_some() || self.error.is_some()
    }
}

impl Event {
    /// Returns the time at which the action ended when it was captured; its start if the duration
    /// is unknown.
    pub fn captured_end(&self) -> Timestamp {
        self.time + Duration::from_micros(self.outcome.duration_us.unwrap_or(0))
    }

    /// Returns the event's [`WireDetail::messages`], if it has any.
    pub fn messages(&self) -> Option<&Text> {
        self.wire.as_ref()?.messages.as_ref()
    }
}

impl Action {
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
    pub fn sql(&self) -> Option<&Text> {
        match self {
            Self::Simple { sql } | Self::Copy { sql, .. } | Self::Parse { sql, .. } => Some(sql),
            Self::Bind(bound) | Self::Execute(bound) | Self::Fetch(bound) => Some(&bound.sql),
            Self::Connect | Self::Disconnect | Self::Call { .. } | Self::Cancel => None,
        }
    }
}

macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All values, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name used in files and output.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Returns the value with the name `word`; `None` if there is none.
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($text => Some(Self::$variant),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

named_enum! {
    /// The kind of an [`Action`].
    Kind {
        /// The kind of [`Action::Connect`].
        Connect = "connect",
        /// The kind of [`Action::Disconnect`].
        Disconnect = "disconnect",
        /// The kind of [`Action::Simple`].
        Simple = "simple",
        /// The kind of [`Action::Copy`].
        Copy = "copy",
        /// The kind of [`Action::Parse`].
        Parse = "parse",
        /// The kind of [`Action::Bind`].
        Bind = "bind",
        /// The kind of [`Action::Execute`].
        Execute = "execute",
        /// The kind of [`Action::Fetch`].
        Fetch = "fetch",
        /// The kind of [`Action::Call`].
        Call = "call",
        /// The kind of [`Action::Cancel`].
        Cancel = "cancel",
    }
}

impl Kind {
    /// Whether events of this kind make the server execute statements or a function, so that they
    /// count as executions.
    pub fn is_execution(self) -> bool {
        matches!(self, Self::Simple | Self::Copy | Self::Execute | Self::Fetch | Self::Call)
    }
}

named_enum! {
    /// The way in which a capture obtained an event.
    Source {
        /// A line that `log_statement` wrote at the start of the statement.
        Statement = "statement",
        /// A line with the duration of a statement, or of its parse or bind step, written at the
        /// end.
        Duration = "duration",
        /// Only the report of an error: the time is that of the error, not of the start.
        Error = "error",
        /// A connection or disconnection line, or an error that shows a cancel request or the end
        /// of the session.
        Session = "session",
        /// Observed by the pooler: the time is that of the arrival of the client's message, or of
        /// the start or end of its session.
        Wire = "wire",
        /// Deduced rather than observed: for example, the connect of a session that existed before
        /// the log or the capture started.
        Inferred = "inferred",
    }
}

/// A five-character error code, such as `23505`.
///
/// Source: PostgreSQL manual, Appendix A.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// `successful_completion`.
    pub const SUCCESS: Self = Self(*b"00000");
    /// `query_canceled`: a cancel request or a statement timeout.
    pub const QUERY_CANCELED: Self = Self(*b"57014");

    /// Creates a code from five ASCII digits or capitals; returns `None` for any other text.
    pub fn new(code: &[u8]) -> Option<Self> {
        let code: [u8; 5] = code.try_into().ok()?;
        code.iter()
            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
            .then_some(Self(code))
    }

    /// Returns the code as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits and upper-case letters only")
    }

    /// Whether this is a success code, class `00`.
    pub fn is_success(self) -> bool {
        self.0.starts_with(b"00")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[test]
fn names_round_trip() {
    for kind in Kind::ALL {
        assert_eq!(Kind::parse(kind.as_str()), Some(*kind));
    }
    for source in Source::ALL {
        assert_eq!(Source::parse(source.as_str()), Some(*source));
    }
    assert_eq!(SqlState::new(b"23505").map(|code| code.to_string()), Some("23505".to_owned()));
    assert_eq!(SqlState::new(b"2350"), None);
    assert_eq!(SqlState::new(b"2350\xff"), None);
}

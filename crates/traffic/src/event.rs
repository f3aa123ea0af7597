//! [`Event`] and the words it is made of.

use std::{fmt, sync::Arc};

use crate::{Text, Timestamp, Wire};

/// One thing that one client did, with what the server made of it when that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When the client's action began. Logs that record only the end of a statement give
    /// `end - duration` here.
    pub time: Timestamp,
    /// The server session it belongs to.
    pub session: SessionId,
    /// The role the session logged in as; empty while not known.
    pub user: Arc<str>,
    /// The database the session is connected to; empty while not known.
    pub database: Arc<str>,
    /// `application_name` of the session; empty if not known.
    pub application: Arc<str>,
    /// What was done.
    pub action: Action,
    /// What the capture says came of it.
    pub outcome: Outcome,
    /// Where the capture learnt of it.
    pub source: Source,
    /// PostgreSQL's virtual transaction id, `backend/local` (`%v`): equal for all statements of one
    /// transaction, including the implicit one of a pipeline.
    pub vxid: Option<Arc<str>>,
    /// PostgreSQL's query identifier, if the server computed one.
    pub query_id: Option<i64>,
    /// Which of its session's pipelines it was sent in, counted from 1 in each session. A pipeline is
    /// what a client sends of the extended protocol up to one Sync: events of one session with the
    /// same number shared a Sync, those with different numbers did not. `None` where that is not
    /// known, and for what is not of the extended protocol.
    pub pipeline: Option<u32>,
    /// What only the protocol's messages tell; `None` of what was learnt from a log.
    pub wire: Option<Box<Wire>>,
}

/// Names a session within one capture: `%c` of the log line where there is one.
pub type SessionId = Arc<str>;

/// What a client asked for.
///
/// `statement` and `portal` are the client's own names; the empty name is the unnamed one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A session was authorised.
    Connect,
    /// A session ended.
    Disconnect,
    /// One Query message, which may hold several statements.
    Simple {
        /// The whole text of the message.
        sql: Text,
    },
    /// A Query message that starts a COPY from or to the client.
    Copy {
        /// The whole text of the message.
        sql: Text,
        /// Which way the rows go.
        direction: CopyDirection,
    },
    /// A Parse message.
    Parse {
        /// Name given to the prepared statement.
        statement: Text,
        /// Text to prepare.
        sql: Text,
    },
    /// A Bind message.
    Bind(Bound),
    /// The first Execute of a portal.
    Execute(Bound),
    /// A further Execute of a portal that still had rows.
    Fetch(Bound),
    /// A FunctionCall message. Logs do not hold the arguments.
    Call {
        /// Name of the function, as logged.
        function: Text,
    },
    /// A CancelRequest that reached this session.
    Cancel,
}

/// A prepared statement with values: what Bind, Execute and Fetch speak of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Name of the prepared statement.
    pub statement: Text,
    /// Name of the portal.
    pub portal: Text,
    /// Text of the prepared statement.
    pub sql: Text,
    /// The values, or `None` when the capture does not hold them.
    pub parameters: Option<Vec<Parameter>>,
}

/// One bound value, in text form; in binary form where [`Wire::is_binary`] says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// SQL NULL.
    Null,
    /// The whole value.
    Value(Text),
    /// The beginning of a value that the server cut (`log_parameter_max_length`). Not fit for replay.
    Truncated(Text),
}

/// Which way the rows of a COPY go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// `COPY … FROM STDIN`: the client sends. Logs do not hold the rows.
    In,
    /// `COPY … TO STDOUT`: the server sends.
    Out,
}

/// What the capture says came of an action. All empty when it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How long the server worked on it, in microseconds.
    pub duration_us: Option<u64>,
    /// SQLSTATE if it failed and the log holds the code.
    pub sqlstate: Option<SqlState>,
    /// The server's primary error message if it failed.
    pub error: Option<Text>,
}

impl Outcome {
    /// Whether the server reported an error.
    pub fn failed(&self) -> bool {
        self.sqlstate.is_some() || self.error.is_some()
    }
}

impl Event {
    /// The messages that are known to have been sent for it and around it.
    pub fn messages(&self) -> Option<&Text> {
        self.wire.as_ref()?.messages.as_ref()
    }
}

impl Action {
    /// The kind, without the data.
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

    /// The SQL text it carries, if it carries one.
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
            /// Every value, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The word used in files and output.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The value a word stands for.
            pub fn from_word(word: &str) -> Option<Self> {
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
    /// What sort of [`Action`] an event is.
    Kind {
        /// [`Action::Connect`].
        Connect = "connect",
        /// [`Action::Disconnect`].
        Disconnect = "disconnect",
        /// [`Action::Simple`].
        Simple = "simple",
        /// [`Action::Copy`].
        Copy = "copy",
        /// [`Action::Parse`].
        Parse = "parse",
        /// [`Action::Bind`].
        Bind = "bind",
        /// [`Action::Execute`].
        Execute = "execute",
        /// [`Action::Fetch`].
        Fetch = "fetch",
        /// [`Action::Call`].
        Call = "call",
        /// [`Action::Cancel`].
        Cancel = "cancel",
    }
}

impl Kind {
    /// Whether it asks the server to run a statement, so that it counts as one execution.
    pub fn is_execution(self) -> bool {
        matches!(self, Self::Simple | Self::Copy | Self::Execute | Self::Fetch | Self::Call)
    }
}

named_enum! {
    /// Where a capture learnt of an event.
    Source {
        /// A line that `log_statement` wrote when the statement began.
        Statement = "statement",
        /// A line that `log_min_duration_statement` or `log_duration` wrote at its end.
        Duration = "duration",
        /// Only the `STATEMENT` of an error: the time is that of the error, not of the start.
        Error = "error",
        /// A connection or disconnection line, or another message about the session itself.
        Session = "session",
        /// The client's own message, seen on its way: the time is that of its arrival.
        Wire = "wire",
        /// Deduced, not logged: say, the connect of a session that was open before the log began.
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
    /// `query_canceled`: a cancel request, a statement timeout, or a lock timeout's cousin.
    pub const QUERY_CANCELED: Self = Self(*b"57014");

    /// The code, if `code` is five digits or upper-case letters.
    pub fn new(code: &[u8]) -> Option<Self> {
        let code: [u8; 5] = code.try_into().ok()?;
        code.iter()
            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
            .then_some(Self(code))
    }

    /// The code as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits and upper-case letters only")
    }

    /// Whether it is a success code, class `00`.
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
fn words_and_values_match_both_ways() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_word(kind.as_str()), Some(*kind));
    }
    for source in Source::ALL {
        assert_eq!(Source::from_word(source.as_str()), Some(*source));
    }
    assert_eq!(SqlState::new(b"23505").map(|code| code.to_string()), Some("23505".to_owned()));
    assert_eq!(SqlState::new(b"2350"), None);
    assert_eq!(SqlState::new(b"2350\xff"), None);
}

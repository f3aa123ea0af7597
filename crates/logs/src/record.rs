//! [`LogRecord`]: a server message in a form common to all three formats.

pub(crate) mod frame;
pub(crate) mod message_fields;
pub(crate) mod spans;

use howdah_log_input::LogSeverity;
use howdah_traffic::{SqlState, Timestamp};

use self::{
    frame::{RecordFrame, SessionFields},
    message_fields::MessageFields,
};

/// A message: a [`RecordFrame`] and its [`SessionFields`], with the bytes that they refer to. Texts
/// are resolved on access, because most records need few of them. An empty text means that the
/// field is empty or not in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRecord<'a> {
    frame: &'a RecordFrame,
    fields: &'a SessionFields,
    input: &'a [u8],
    scratch: &'a [u8],
    /// Whether the texts of the record are known to be ASCII.
    is_ascii: bool,
}

macro_rules! accessors {
    ($of:ident: $($(#[$doc:meta])* $name:ident: $type:ty;)*) => {
        $($(#[$doc])* #[inline] pub(crate) fn $name(&self) -> $type { self.$of.$name })*
    };
}

macro_rules! texts {
    ($of:ident: $($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])* #[inline] pub(crate) fn $name(&self) -> &'a [u8] {
            self.$of.$name.text(self.input, self.scratch)
        })*
    };
}

impl<'a> LogRecord<'a> {
    /// Creates the record of a frame whose spans refer to `input` and `scratch`.
    pub(crate) fn new(
        (frame, fields): (&'a RecordFrame, &'a SessionFields),
        input: &'a [u8],
        scratch: &'a [u8],
        is_ascii: bool,
    ) -> Self {
        Self { frame, fields, input, scratch, is_ascii }
    }

    accessors! { frame:
        /// Time stamp of the message.
        time: Timestamp;
        query_id: Option<i64>;
        /// Line numbers within the session (`%l`) of the message's first and last line.
        lines: Option<(u64, u64)>;
        severity: LogSeverity;
        /// The fields that framing read from the message.
        message_fields: MessageFields;
        sqlstate: Option<SqlState>;
    }

    accessors! { fields:
        /// Start of the server process, in seconds since the Unix epoch.
        session_start: Option<i64>;
        pid: Option<u32>;
        /// Whether the message comes from a parallel worker.
        has_leader: bool;
    }

    texts! { frame:
        vxid;
        /// The command tag in the process title: that of the running statement or step, or `idle`.
        tag;
        message;
        detail;
        context;
        /// The server function that wrote the message.
        function;
    }

    texts! { fields:
        /// The session id (`%c`).
        session_id;
        /// Client address, with the port if the log has it.
        remote;
        user;
        database;
        application;
        backend_type;
    }

    /// Returns the running statement, if the server logged it.
    pub(crate) fn statement(&self) -> Option<&'a [u8]> {
        self.frame.statement.get(self.input, self.scratch)
    }

    /// Whether all texts of the record are known to be ASCII.
    pub(crate) fn is_ascii(&self) -> bool {
        self.is_ascii
    }
}

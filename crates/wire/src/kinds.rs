//! The table of message kinds: one row per kind and direction, with tag, name, and maximum body
//! length. Parsers, encoders and tests take their tags from it.

use std::fmt;

use crate::Tag;

/// Maximum body length, in bytes, of messages other than those of [`LONG`].
const SHORT: u32 = 64 * 1024;
/// Maximum body length, in bytes, of a message that contains SQL, values, COPY data, descriptions
/// of columns or parameters, errors, notices or notifications: PostgreSQL's values are smaller than
/// a gigabyte (`MaxAllocSize`), and it refuses messages that would need more.
const LONG: u32 = 0x3fff_ffff;

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $tag:literal, $limit:ident;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// All kinds, in the order of the manual.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            const BY_TAG: [Option<Self>; 256] = {
                let mut kinds = [None; 256];
                $(kinds[$tag as usize] = Some(Self::$variant);)*
                kinds
            };

            /// Returns the kind with this tag, if it is valid.
            #[inline]
            pub const fn from_tag(tag: Tag) -> Option<Self> {
                Self::BY_TAG[tag.0 as usize]
            }

            /// Returns the tag byte.
            pub const fn tag(self) -> Tag {
                match self { $(Self::$variant => Tag($tag),)* }
            }

            /// Returns the name in the manual, or `Authentication`, which stands for several of
            /// the manual's messages with one tag.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }

            /// Returns the maximum body length, in bytes, that a reader without stricter limits
            /// should accept: 1 GiB less a byte for messages that contain SQL, values, COPY data,
            /// descriptions of columns or parameters, errors, notices or notifications; 64 KiB for
            /// all other messages.
            pub const fn body_bytes_max(self) -> u32 {
                match self { $(Self::$variant => $limit,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

kinds! {
    /// Kinds of tagged messages that a frontend sends.
    ///
    /// Source: PostgreSQL manual, "Message Formats"; the long kinds follow `SocketBackend` in
    /// `postgres.c`.
    Frontend {
        /// Binds values to a prepared statement, which makes a portal.
        Bind = b'B', LONG;
        /// Closes a prepared statement or portal.
        Close = b'C', SHORT;
        /// A piece of COPY data.
        CopyData = b'd', LONG;
        /// The COPY data is complete.
        CopyDone = b'c', SHORT;
        /// Makes the COPY fail.
        CopyFail = b'f', SHORT;
        /// Requests a description of a prepared statement or portal.
        Describe = b'D', SHORT;
        /// Runs a portal.
        Execute = b'E', SHORT;
        /// Requests pending output, without waiting for a Sync.
        Flush = b'H', SHORT;
        /// Calls a function by its OID.
        FunctionCall = b'F', LONG;
        /// Prepares a statement.
        Parse = b'P', LONG;
        /// A password, or a GSSAPI, SSPI or SASL response, depending on the request.
        Authentication = b'p', SHORT;
        /// Runs the text of one or more statements.
        Query = b'Q', LONG;
        /// Ends a batch of extended-protocol messages.
        Sync = b'S', SHORT;
        /// Ends the session.
        Terminate = b'X', SHORT;
    }
}

kinds! {
    /// Kinds of messages that a backend sends.
    ///
    /// Source: PostgreSQL manual, "Message Formats"; the long kinds follow
    /// `VALID_LONG_MESSAGE_TYPE` in libpq, with ParameterDescription added, because 65,535
    /// parameters are valid.
    Backend {
        /// An authentication request, or AuthenticationOk.
        Authentication = b'R', SHORT;
        /// The key for a CancelRequest to this session.
        BackendKeyData = b'K', SHORT;
        /// Reply to Bind.
        BindComplete = b'2', SHORT;
        /// Reply to Close.
        CloseComplete = b'3', SHORT;
        /// A statement succeeded.
        CommandComplete = b'C', SHORT;
        /// A piece of COPY data.
        CopyData = b'd', LONG;
        /// The COPY data is complete.
        CopyDone = b'c', SHORT;
        /// The server waits for COPY data.
        CopyInResponse = b'G', SHORT;
        /// COPY data follows.
        CopyOutResponse = b'H', SHORT;
        /// Both sides may send COPY data: streaming replication.
        CopyBothResponse = b'W', SHORT;
        /// One row of a result.
        DataRow = b'D', LONG;
        /// The query string contained no statement.
        EmptyQueryResponse = b'I', SHORT;
        /// A statement or the session failed.
        ErrorResponse = b'E', LONG;
        /// The value of a function call.
        FunctionCallResponse = b'V', LONG;
        /// The server does not support the requested protocol version or options. Contains the
        /// newest supported version and the unsupported options.
        NegotiateProtocolVersion = b'v', SHORT;
        /// The described statement or portal returns no rows.
        NoData = b'n', SHORT;
        /// A warning or other notice, at any time.
        NoticeResponse = b'N', LONG;
        /// A notification that a session sent with NOTIFY, at any time.
        NotificationResponse = b'A', LONG;
        /// Types of the parameters of the described statement.
        ParameterDescription = b't', LONG;
        /// A session parameter's value, at the start and after each change.
        ParameterStatus = b'S', SHORT;
        /// Reply to Parse.
        ParseComplete = b'1', SHORT;
        /// Execute reached its row limit.
        PortalSuspended = b's', SHORT;
        /// The server waits for the next query.
        ReadyForQuery = b'Z', SHORT;
        /// Descriptions of the columns of a result.
        RowDescription = b'T', LONG;
    }
}

#[test]
fn tags_and_kinds_match_both_ways() {
    for kind in Frontend::ALL {
        assert_eq!(Frontend::from_tag(kind.tag()), Some(*kind));
    }
    for kind in Backend::ALL {
        assert_eq!(Backend::from_tag(kind.tag()), Some(*kind));
    }
    let named = |byte| Frontend::from_tag(Tag(byte)).is_some();
    assert_eq!((0..=255).filter(|byte| named(*byte)).count(), Frontend::ALL.len());
    assert_eq!(Backend::from_tag(Tag(0)), None);
}

//! [`WireDetail`]: details of an event that only an observer of the protocol sees. Logs contain
//! none of them.

use crate::{CapturedResult, Text};

/// Details of an event from the protocol's messages, beyond what logs contain.
///
/// The kind of the event determines which fields apply; the others are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireDetail {
    /// Number of rows returned or changed, over all statements of the message; `None` if no reply
    /// contained a number.
    pub rows: Option<u64>,
    /// OIDs of the statement's first parameters, from Parse; 0 for those whose type the server
    /// inferred.
    pub types: Vec<u32>,
    /// Formats of the bound values, from Bind: none (all are text), one for all, or one for each. 0
    /// is text, 1 is binary.
    pub formats: Vec<u16>,
    /// Requested formats of the result columns: none, one for all, or one for each, as in
    /// `formats`.
    pub result_formats: Vec<u16>,
    /// Row limit of the Execute; 0 for no limit.
    pub rows_max: u32,
    /// Names and values of the session's parameters when its capture started; only for Connect.
    pub settings: Vec<(Text, Text)>,
    /// The client's data for `COPY … FROM STDIN`; `None` if the server requested none, or neither
    /// the data nor its size was captured.
    pub copy_in: Option<CopyInData>,
    /// Arguments of a function call; `formats` applies to them, and `result_formats` to the result.
    /// `None` if they were not captured.
    pub arguments: Option<Vec<Option<Text>>>,
    /// The messages sent since the previous event, the event's own message and, for the last event
    /// of a pipeline, the rest of the pipeline, in the form of [`ClientMessage`]. `None` if
    /// unknown, and for a Query or a FunctionCall that no other message precedes.
    pub messages: Option<Text>,
    /// The result, if results were captured and the statement returned rows.
    pub result: Option<CapturedResult>,
}

/// A client's message, as stored in [`WireDetail::messages`].
///
/// ```text
/// P, E, Q, F   the Parse, Execute, Query or FunctionCall of the event itself
/// B name 0     the Bind of a portal, of this event or another one with the same pipeline
/// D S name 0   Describe of a statement;   D P name 0   of a portal
/// C S name 0   Close of a statement;      C P name 0   of a portal
/// H            Flush
/// S            Sync
/// ```
///
/// The capitals are the tags of the protocol, the zeros are bytes. Messages without an event are
/// stored with the next event, but those after the last event of a pipeline, up to its Sync, are
/// stored with that event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientMessage<'a> {
    /// The Parse, Execute, Query or FunctionCall of the event itself.
    EventMessage,
    /// A Bind of the portal with this name.
    Bind(&'a [u8]),
    /// A Describe of the object with this name.
    Describe(NamedObject<'a>),
    /// A Close of the object with this name.
    Close(NamedObject<'a>),
    /// A Flush, which requests pending replies.
    Flush,
    /// A Sync, which ends the pipeline.
    Sync,
}

/// The object of a Describe or a Close, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedObject<'a> {
    /// The prepared statement with this name.
    Statement(&'a [u8]),
    /// The portal with this name.
    Portal(&'a [u8]),
}

impl<'a> ClientMessage<'a> {
    /// Returns the first message and the bytes after it; `None` at the end, or if the message is
    /// invalid.
    pub fn split_first(messages: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (tag, rest) = messages.split_first()?;
        let name = |from: &'a [u8]| {
            let end = memchr::memchr(0, from)?;
            Some((from.get(..end)?, from.get(end + 1..)?))
        };
        let named = || {
            let (kind, rest) = rest.split_first()?;
            let (name, rest) = name(rest)?;
            match kind {
                b'S' => Some((NamedObject::Statement(name), rest)),
                b'P' => Some((NamedObject::Portal(name), rest)),
                _ => None,
            }
        };
        Some(match tag {
            b'P' | b'E' | b'Q' | b'F' => (Self::EventMessage, rest),
            b'B' => name(rest).map(|(name, rest)| (Self::Bind(name), rest))?,
            b'D' => named().map(|(named, rest)| (Self::Describe(named), rest))?,
            b'C' => named().map(|(named, rest)| (Self::Close(named), rest))?,
            b'H' => (Self::Flush, rest),
            b'S' => (Self::Sync, rest),
            _ => return None,
        })
    }

    /// Iterates over all messages, up to the first invalid one.
    pub fn all(mut messages: &'a [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let (first, rest) = Self::split_first(messages)?;
            messages = rest;
            Some(first)
        })
    }
}

/// The data that a client sent for the COPYs of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyInData {
    /// Number of bytes, over all COPYs of the message.
    pub bytes: u64,
    /// The rows, as sent, of each COPY of the message; `None` if they were not captured.
    pub data: Vec<Option<Text>>,
    /// Whether the client ended the last COPY with CopyFail.
    pub failed: bool,
}

impl WireDetail {
    /// Whether the value with this index, from 0, was bound in binary format.
    pub fn is_binary(&self, index: usize) -> bool {
        is_binary(&self.formats, index)
    }

    /// Whether the client requested the result column with this index, from 0, in binary format.
    pub fn is_binary_result(&self, index: usize) -> bool {
        is_binary(&self.result_formats, index)
    }

    /// Returns the approximate memory of the texts and lists, in bytes.
    pub fn bytes(&self) -> usize {
        let settings =
            self.settings.iter().map(|(name, value)| name.len() + value.len() + ENTRY_BYTES);
        let copies = self.copy_in.iter().flat_map(|copy| &copy.data);
        let copied = copies.map(|data| data.as_ref().map_or(0, Text::len) + ENTRY_BYTES);
        let numbers = self.types.len() + self.formats.len() + self.result_formats.len();
        let arguments = self.arguments.iter().flatten();
        let arguments = arguments.map(|one| one.as_ref().map_or(0, Text::len) + ENTRY_BYTES);
        let messages = self.messages.as_ref().map_or(0, Text::len);
        let first_row = self.result.iter().filter_map(|result| result.first_row.as_ref());
        let first_row =
            first_row.flatten().map(|it| it.as_ref().map_or(0, Text::len) + ENTRY_BYTES);
        let texts = settings.chain(copied).chain(arguments).chain(first_row);
        texts.sum::<usize>() + numbers * ENTRY_BYTES + messages
    }
}

/// Whether format codes of a Bind select binary for this index: none is text for all, one is for
/// all.
fn is_binary(codes: &[u16], index: usize) -> bool {
    match codes {
        [] => false,
        [all] => *all == BINARY,
        each => each.get(index) == Some(&BINARY),
    }
}

/// The format code of a binary value.
const BINARY: u16 = 1;

/// Approximate cost of a list entry in addition to its bytes.
const ENTRY_BYTES: usize = 8;

#[test]
fn single_format_applies_to_all_values() {
    let wire = |formats: &[u16]| WireDetail { formats: formats.to_vec(), ..WireDetail::default() };
    assert!(!wire(&[]).is_binary(0));
    assert!(wire(&[1]).is_binary(5));
    assert!(!wire(&[0, 1]).is_binary(0));
    assert!(wire(&[0, 1]).is_binary(1));
    assert!(!wire(&[0, 1]).is_binary(2));
}

#[test]
fn messages_are_split_in_order() {
    let all = |messages| ClientMessage::all(messages).collect::<Vec<_>>();
    assert_eq!(
        all(b"CSold\0SPDSa\0Bp\0DP\0EHCPp\0S"),
        [
            ClientMessage::Close(NamedObject::Statement(b"old")),
            ClientMessage::Sync,
            ClientMessage::EventMessage,
            ClientMessage::Describe(NamedObject::Statement(b"a")),
            ClientMessage::Bind(b"p"),
            ClientMessage::Describe(NamedObject::Portal(b"")),
            ClientMessage::EventMessage,
            ClientMessage::Flush,
            ClientMessage::Close(NamedObject::Portal(b"p")),
            ClientMessage::Sync,
        ]
    );
    for cut in [&b"QB"[..], b"QBp", b"QD", b"QDS", b"QDX\0", b"Qx"] {
        assert_eq!(all(cut), [ClientMessage::EventMessage], "{cut:?}");
    }
}

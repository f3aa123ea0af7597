//! [`Wire`]: what of an event only somebody on the wire sees. A server's log has none of it.

use crate::Text;

/// What the protocol's messages told of an event, beside what logs tell too.
///
/// Which fields mean something depends on the kind of the event; the others are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Rows that the server said it returned or changed, of all statements of the message; `None` where
    /// it did not say.
    pub rows: Option<u64>,
    /// OIDs of the statement's first parameters, as Parse had them; 0 for those that the server was to
    /// deduce.
    pub types: Vec<u32>,
    /// Formats of the bound values, as Bind had them: none (all are text), one for all, or one for each.
    /// 0 is text, 1 is binary.
    pub formats: Vec<u16>,
    /// Formats that the client asked for, of the columns of the result; counted as `formats` is.
    pub result_formats: Vec<u16>,
    /// Most rows that the Execute asked for; 0 is all of them.
    pub rows_max: u32,
    /// Names and values of the settings that a session began with.
    pub settings: Vec<(Text, Text)>,
    /// What the client sent for `COPY … FROM STDIN`, if there was one.
    pub copy_in: Option<CopyIn>,
    /// Arguments of a function call; `formats` are theirs, and `result_formats` has that of the result.
    /// `None` where they were not kept.
    pub arguments: Option<Vec<Option<Text>>>,
    /// The messages that were sent for the event and between it and its neighbours, in their order; see
    /// [`Said`] for how they are written. `None` if they are not known, and where it is the one message of a
    /// Query or a FunctionCall.
    pub messages: Option<Text>,
}

/// A message of a client's, as it stands in [`Wire::messages`].
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
/// The letters are those of the protocol, the zeros bytes. What stands behind the event's own message ends
/// with its pipeline's Sync, or goes with the next event. Pipelines without any event stand in front of the
/// next one's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// The message that the event is of.
    Own,
    /// A Bind of the portal with this name.
    Bind(&'a [u8]),
    /// A Describe.
    Describe(Named<'a>),
    /// A Close.
    Close(Named<'a>),
    /// A Flush.
    Flush,
    /// A Sync.
    Sync,
}

/// What a Describe or a Close is about, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// A prepared statement.
    Statement(&'a [u8]),
    /// A portal.
    Portal(&'a [u8]),
}

impl<'a> Said<'a> {
    /// The first of some messages, and those behind it; `None` at the end, and of what is none.
    pub fn first(messages: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (tag, rest) = messages.split_first()?;
        let name = |from: &'a [u8]| {
            let end = memchr::memchr(0, from)?;
            Some((from.get(..end)?, from.get(end + 1..)?))
        };
        let named = || {
            let (sort, rest) = rest.split_first()?;
            let (name, rest) = name(rest)?;
            match sort {
                b'S' => Some((Named::Statement(name), rest)),
                b'P' => Some((Named::Portal(name), rest)),
                _ => None,
            }
        };
        Some(match tag {
            b'P' | b'E' | b'Q' | b'F' => (Self::Own, rest),
            b'B' => name(rest).map(|(name, rest)| (Self::Bind(name), rest))?,
            b'D' => named().map(|(named, rest)| (Self::Describe(named), rest))?,
            b'C' => named().map(|(named, rest)| (Self::Close(named), rest))?,
            b'H' => (Self::Flush, rest),
            b'S' => (Self::Sync, rest),
            _ => return None,
        })
    }

    /// All of some messages, up to what is none.
    pub fn all(mut messages: &'a [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let (first, rest) = Self::first(messages)?;
            messages = rest;
            Some(first)
        })
    }
}

/// What a client sent while a server copied from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyIn {
    /// Bytes of it, of all COPYs of the message.
    pub bytes: u64,
    /// The rows, as they were sent, of each COPY of the message; `None` where they were not kept.
    pub data: Vec<Option<Text>>,
    /// Whether the client ended the last of them by CopyFail.
    pub failed: bool,
}

impl Wire {
    /// Whether the value with this index, from 0, was bound in binary form.
    pub fn is_binary(&self, index: usize) -> bool {
        match self.formats[..] {
            [] => false,
            [all] => all == BINARY,
            ref each => each.get(index) == Some(&BINARY),
        }
    }

    /// Bytes of its texts and lists.
    pub fn bytes(&self) -> usize {
        let settings = self.settings.iter().map(|(name, value)| name.len() + value.len() + PLACE);
        let copies = self.copy_in.iter().flat_map(|copy| &copy.data);
        let copied = copies.map(|data| data.as_ref().map_or(0, Text::len) + PLACE);
        let numbers = self.types.len() + self.formats.len() + self.result_formats.len();
        let arguments = self.arguments.iter().flatten();
        let arguments = arguments.map(|one| one.as_ref().map_or(0, Text::len) + PLACE);
        let messages = self.messages.as_ref().map_or(0, Text::len);
        settings.chain(copied).chain(arguments).sum::<usize>() + numbers * PLACE + messages
    }
}

/// The format code of a binary value.
const BINARY: u16 = 1;

/// What an entry of a list costs beside its bytes.
const PLACE: usize = 8;

#[test]
fn one_format_is_for_all_values() {
    let wire = |formats: &[u16]| Wire { formats: formats.to_vec(), ..Wire::default() };
    assert!(!wire(&[]).is_binary(0));
    assert!(wire(&[1]).is_binary(5));
    assert!(!wire(&[0, 1]).is_binary(0));
    assert!(wire(&[0, 1]).is_binary(1));
    assert!(!wire(&[0, 1]).is_binary(2));
}

#[test]
fn messages_are_read_one_by_one() {
    let all = |messages| Said::all(messages).collect::<Vec<_>>();
    assert_eq!(
        all(b"CSold\0SPDSa\0Bp\0DP\0EHCPp\0S"),
        [
            Said::Close(Named::Statement(b"old")),
            Said::Sync,
            Said::Own,
            Said::Describe(Named::Statement(b"a")),
            Said::Bind(b"p"),
            Said::Describe(Named::Portal(b"")),
            Said::Own,
            Said::Flush,
            Said::Close(Named::Portal(b"p")),
            Said::Sync,
        ]
    );
    for cut in [&b"QB"[..], b"QBp", b"QD", b"QDS", b"QDX\0", b"Qx"] {
        assert_eq!(all(cut), [Said::Own], "{cut:?}");
    }
}

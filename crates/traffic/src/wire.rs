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
        settings.chain(copied).sum::<usize>() + numbers * PLACE
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

//! [`MessageStream`]: splits the bytes from a client, in pieces of any size, into messages.

use howdah_wire::{Header, Tag};

/// Maximum length of a body that is recorded, sufficient for a value of 64 MiB. Of longer messages,
/// only the start is recorded.
pub(crate) const BODY_BYTES_MAX: u32 = 65 << 20;

/// Number of bytes that are recorded of a longer message, to include the name at its start.
const FRONT_BYTES_MAX: usize = 1 << 10;

/// A complete or omitted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientItem<'a> {
    /// A complete message.
    Message { tag: Tag, body: &'a [u8] },
    /// A message with a body that was omitted at least in part. If the body was too long, `front`
    /// is its start.
    Omitted { tag: Tag, body_bytes: u32, front: &'a [u8] },
}

/// A splitter of the bytes from a client into messages, which holds the incomplete last one.
#[derive(Debug, Default)]
pub(crate) struct MessageStream {
    front: Vec<u8>,
    body: Option<PartialBody>,
}

#[derive(Debug)]
struct PartialBody {
    header: Header,
    bytes_left: u32,
    bytes: Vec<u8>,
    /// Whether part of the body is missing.
    is_omitted: bool,
}

/// An error after which the rest of the stream cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl MessageStream {
    /// Adds bytes, and emits each message that they complete.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        emit: &mut impl FnMut(ClientItem<'_>),
    ) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            if let Some(body) = &mut self.body {
                let (now, later) = bytes.split_at(bytes.len().min(body.bytes_left as usize));
                body.bytes_left -= now.len() as u32;
                // A body that is too long is cut. Only its front is recorded, because it contains
                // the name of the statement or portal that the message replaces.
                match body.header.body_bytes > BODY_BYTES_MAX {
                    _ if !body.is_omitted => body.bytes.extend_from_slice(now),
                    true => {
                        let free = FRONT_BYTES_MAX.saturating_sub(body.bytes.len());
                        body.bytes.extend_from_slice(&now[..now.len().min(free)]);
                    }
                    false => {}
                }
                bytes = later;
                self.emit_if_complete(emit);
                continue;
            }
            // The usual case: the whole message is in this piece and is passed on without a copy.
            if self.front.is_empty()
                && let Ok(Some(header)) = Header::parse(bytes)
                && let Some(body) =
                    bytes.get(Header::BYTES..Header::BYTES + header.body_bytes as usize)
            {
                emit(ClientItem::Message { tag: header.tag, body });
                bytes = &bytes[Header::BYTES + body.len()..];
                continue;
            }
            // The header itself may be cut into pieces, so its bytes are collected first.
            let missing = Header::BYTES - self.front.len();
            let (now, later) = bytes.split_at(bytes.len().min(missing));
            self.front.extend_from_slice(now);
            bytes = later;
            match Header::parse(&self.front) {
                Ok(None) => {}
                Ok(Some(header)) => {
                    self.front.clear();
                    let (left, is_bare) = (header.body_bytes, header.body_bytes > BODY_BYTES_MAX);
                    self.body = Some(PartialBody {
                        header,
                        bytes_left: left,
                        bytes: Vec::new(),
                        is_omitted: is_bare,
                    });
                    self.emit_if_complete(emit);
                }
                Err(_) => return Err(Malformed),
            }
        }
        Ok(())
    }

    /// Skips omitted bytes of the current body.
    ///
    /// # Errors
    ///
    /// The current body has fewer bytes left, or there is none.
    pub(crate) fn omit(
        &mut self,
        bytes: u32,
        emit: &mut impl FnMut(ClientItem<'_>),
    ) -> Result<(), Malformed> {
        let body = self.body.as_mut().filter(|body| body.bytes_left >= bytes).ok_or(Malformed)?;
        (body.is_omitted, body.bytes_left) = (true, body.bytes_left - bytes);
        body.bytes = Vec::new();
        self.emit_if_complete(emit);
        Ok(())
    }

    fn emit_if_complete(&mut self, emit: &mut impl FnMut(ClientItem<'_>)) {
        let Some(body) = self.body.take_if(|body| body.bytes_left == 0) else { return };
        let (tag, body_bytes) = (body.header.tag, body.header.body_bytes);
        emit(if body.is_omitted {
            ClientItem::Omitted { tag, body_bytes, front: &body.bytes }
        } else {
            ClientItem::Message { tag, body: &body.bytes }
        });
    }
}

#[test]
fn message_is_independent_of_splits() {
    let bytes = b"Q\0\0\0\x0aabc\0de\0\0\0\0S\0\0\0\x04d\0\0\0\x06xy";
    let messages = |cuts: &[usize]| {
        let mut stream = MessageStream::default();
        let mut messages = Vec::new();
        let mut emit = |one: ClientItem<'_>| messages.push(format!("{one:?}"));
        let mut from = 0;
        for cut in cuts.iter().chain([&bytes.len()]) {
            let result = stream.push(&bytes[from..*cut], &mut emit);
            from = *cut;
            if result == Err(Malformed) {
                emit(ClientItem::Omitted { tag: Tag(0), body_bytes: 0, front: b"" });
                break;
            }
        }
        messages
    };
    let whole = messages(&[]);
    for first in 0..bytes.len() {
        for second in first..bytes.len() {
            assert_eq!(messages(&[first, second]), whole, "{first} {second}");
        }
    }
    let mut stream = MessageStream::default();
    let mut count = 0;
    stream.push(b"p\0\0\0\x08", &mut |_| count += 1).unwrap();
    assert_eq!(stream.omit(5, &mut |_| ()), Err(Malformed));
    stream
        .omit(4, &mut |emit| assert!(matches!(emit, ClientItem::Omitted { body_bytes: 4, .. })))
        .unwrap();
    assert_eq!(count, 0);
}

#[test]
fn start_of_oversized_message_is_kept() {
    let mut stream = MessageStream::default();
    let bytes = (BODY_BYTES_MAX + 5).to_be_bytes();
    let (mut fronts, filler) = (Vec::new(), vec![b'x'; 1 << 20]);
    let mut emit = |one: ClientItem<'_>| match one {
        ClientItem::Omitted { front, .. } => fronts.push(front.to_vec()),
        ClientItem::Message { .. } => panic!("{one:?}"),
    };
    stream.push(&[b"B", &bytes[..], b"portal\0"].concat(), &mut emit).unwrap();
    let mut left = BODY_BYTES_MAX as usize + 1 - 7;
    while left > 0 {
        let some = left.min(filler.len());
        stream.push(&filler[..some], &mut emit).unwrap();
        left -= some;
    }
    assert_eq!(fronts.len(), 1);
    assert!(fronts[0].starts_with(b"portal\0x") && fronts[0].len() == FRONT_BYTES_MAX);
}

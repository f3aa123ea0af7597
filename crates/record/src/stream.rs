//! [`Stream`]: from the bytes that a client sent, in pieces of any size, to its messages.

use howdah_wire::{Header, Tag};

/// Longest body that is kept, which a value of 64 MiB fits in; of longer messages only that they were there.
pub(crate) const BODY_BYTES_MAX: u32 = 65 << 20;

/// Bytes that are kept of a longer one, for the name that it begins with.
const FRONT_BYTES_MAX: usize = 1 << 10;

/// A message, or a piece of one that is not held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard<'a> {
    /// A whole message.
    Message { tag: Tag, body: &'a [u8] },
    /// One of which the body, or a part, is not kept. If it was too long, its front is there.
    Bare { tag: Tag, body_bytes: u32, front: &'a [u8] },
}

/// Position in a client's stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    front: Vec<u8>,
    body: Option<Body>,
}

#[derive(Debug)]
struct Body {
    header: Header,
    left: u32,
    held: Vec<u8>,
    /// Something of it is not here.
    is_bare: bool,
}

/// The stream has no messages from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Stream {
    /// Takes bytes, and gives each message that they complete.
    pub(crate) fn take(
        &mut self,
        mut bytes: &[u8],
        heard: &mut impl FnMut(Heard<'_>),
    ) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            if let Some(body) = &mut self.body {
                let (now, later) = bytes.split_at(bytes.len().min(body.left as usize));
                body.left -= now.len() as u32;
                match body.header.body_bytes > BODY_BYTES_MAX {
                    _ if !body.is_bare => body.held.extend_from_slice(now),
                    true => {
                        let room = FRONT_BYTES_MAX.saturating_sub(body.held.len());
                        body.held.extend_from_slice(&now[..now.len().min(room)]);
                    }
                    false => {}
                }
                bytes = later;
                self.give_if_whole(heard);
                continue;
            }
            if self.front.is_empty()
                && let Ok(Some(header)) = Header::parse(bytes)
                && let Some(body) =
                    bytes.get(Header::BYTES..Header::BYTES + header.body_bytes as usize)
            {
                heard(Heard::Message { tag: header.tag, body });
                bytes = &bytes[Header::BYTES + body.len()..];
                continue;
            }
            let wanted = Header::BYTES - self.front.len();
            let (now, later) = bytes.split_at(bytes.len().min(wanted));
            self.front.extend_from_slice(now);
            bytes = later;
            match Header::parse(&self.front) {
                Ok(None) => {}
                Ok(Some(header)) => {
                    self.front.clear();
                    let (left, is_bare) = (header.body_bytes, header.body_bytes > BODY_BYTES_MAX);
                    self.body = Some(Body { header, left, held: Vec::new(), is_bare });
                    self.give_if_whole(heard);
                }
                Err(_) => return Err(Malformed),
            }
        }
        Ok(())
    }

    /// So many bytes of the body that is under way are not kept.
    pub(crate) fn leave_out(
        &mut self,
        bytes: u32,
        heard: &mut impl FnMut(Heard<'_>),
    ) -> Result<(), Malformed> {
        let body = self.body.as_mut().filter(|body| body.left >= bytes).ok_or(Malformed)?;
        (body.is_bare, body.left) = (true, body.left - bytes);
        body.held = Vec::new();
        self.give_if_whole(heard);
        Ok(())
    }

    fn give_if_whole(&mut self, heard: &mut impl FnMut(Heard<'_>)) {
        let Some(body) = self.body.take_if(|body| body.left == 0) else { return };
        let (tag, body_bytes) = (body.header.tag, body.header.body_bytes);
        heard(match body.is_bare {
            true => Heard::Bare { tag, body_bytes, front: &body.held },
            false => Heard::Message { tag, body: &body.held },
        });
    }
}

#[test]
fn a_message_is_the_same_however_it_is_cut() {
    let bytes = b"Q\0\0\0\x0aabc\0de\0\0\0\0S\0\0\0\x04d\0\0\0\x06xy";
    let words = |cuts: &[usize]| {
        let mut stream = Stream::default();
        let mut words = Vec::new();
        let mut heard = |one: Heard<'_>| words.push(format!("{one:?}"));
        let mut from = 0;
        for cut in cuts.iter().chain([&bytes.len()]) {
            let result = stream.take(&bytes[from..*cut], &mut heard);
            from = *cut;
            if result == Err(Malformed) {
                heard(Heard::Bare { tag: Tag(0), body_bytes: 0, front: b"" });
                break;
            }
        }
        words
    };
    let whole = words(&[]);
    for first in 0..bytes.len() {
        for second in first..bytes.len() {
            assert_eq!(words(&[first, second]), whole, "{first} {second}");
        }
    }
    let mut stream = Stream::default();
    let mut count = 0;
    stream.take(b"p\0\0\0\x08", &mut |_| count += 1).unwrap();
    assert_eq!(stream.leave_out(5, &mut |_| ()), Err(Malformed));
    stream
        .leave_out(4, &mut |heard| assert!(matches!(heard, Heard::Bare { body_bytes: 4, .. })))
        .unwrap();
    assert_eq!(count, 0);
}

#[test]
fn of_a_message_that_is_too_long_the_front_is_kept() {
    let mut stream = Stream::default();
    let bytes = (BODY_BYTES_MAX + 5).to_be_bytes();
    let (mut fronts, piece) = (Vec::new(), vec![b'x'; 1 << 20]);
    let mut heard = |one: Heard<'_>| match one {
        Heard::Bare { front, .. } => fronts.push(front.to_vec()),
        Heard::Message { .. } => panic!("{one:?}"),
    };
    stream.take(&[b"B", &bytes[..], b"portal\0"].concat(), &mut heard).unwrap();
    let mut left = BODY_BYTES_MAX as usize + 1 - 7;
    while left > 0 {
        let some = left.min(piece.len());
        stream.take(&piece[..some], &mut heard).unwrap();
        left -= some;
    }
    assert_eq!(fronts.len(), 1);
    assert!(fronts[0].starts_with(b"portal\0x") && fronts[0].len() == FRONT_BYTES_MAX);
}

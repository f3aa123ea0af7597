//! Virtual transaction ids, small enough to copy.

/// A virtual transaction id as logged: `3/17`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Vxid {
    bytes: [u8; BYTES_MAX],
    len: u8,
}

/// Size of the text buffer in bytes. The longest id, `2147483647/4294967295`, has 21; two more make
/// a [`Vxid`] 24 bytes long.
const BYTES_MAX: usize = 23;

impl Vxid {
    /// Parses an id. Returns `None` for one such as `3/0`, which marks the absence of a
    /// transaction, and for a text that is empty, too long, or not ASCII.
    #[inline]
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        if text.is_empty() || text.len() > BYTES_MAX || text.ends_with(b"/0") || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text);
        Some(Self { bytes, len: text.len() as u8 })
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl std::fmt::Debug for Vxid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[test]
fn vxids_are_parsed() {
    let read = |text: &str| Vxid::parse(text.as_bytes()).map(|vxid| vxid.as_str().to_owned());
    assert_eq!(read("2147483647/4294967295").as_deref(), Some("2147483647/4294967295"));
    for none in ["", "3/0", "3/1é", "123456789/123456789012345"] {
        assert_eq!(read(none), None, "{none}");
    }
    assert_eq!(Vxid::parse(b"3/1"), Vxid::parse(b"3/1"));
    assert_ne!(Vxid::parse(b"3/1"), Vxid::parse(b"3/11"));
}

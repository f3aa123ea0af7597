//! The records of a capture buffer. All but StatementText and Gap are about one client.
//!
//! ```text
//! record = kind: u8, session: u32, time: u64 (nanoseconds of the worker's clock), then by kind
//!   SessionStart   is_new: u8, pool: u32, unnamed: bytes, settings: count of (bytes, bytes),
//!                  statements: count of (bytes, u64)
//!   StatementText  u64, bytes
//!   Frontend       bytes             the next bytes of the client's stream
//!   Omitted        u32               number of bytes of the stream that are omitted
//!   Backend        tag: u8, completed requests: u16, bytes
//!   Result         complete: u8, checksum: u64, bytes    the rows of the next reply, and the first
//!   ServerAssigned, Cancel, SessionEnd   nothing
//!   Gap            lost: u64         bytes of records that were dropped here
//! bytes  = u32, that many bytes;   count = u32, that many entries
//! ```
//!
//! All numbers are little-endian. Records are passed between threads and never stored.

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal,)*) => {
        /// The kind of a record, as its number in the buffer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum RecordKind { $($(#[$doc])* $kind = $number,)* }

        impl RecordKind {
            fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$kind),)* _ => None }
            }
        }
    };
}

kinds! {
    /// Recording of a session starts, or resumes after a gap.
    SessionStart = 1,
    /// The text of a prepared statement that session starts refer to.
    StatementText = 2,
    /// Bytes from a client.
    Frontend = 3,
    /// Bytes from a client that are omitted.
    Omitted = 4,
    /// A message to a client.
    Backend = 5,
    /// The client was assigned a server connection.
    ServerAssigned = 6,
    /// A request to cancel the client's statement.
    Cancel = 7,
    /// The client has disconnected.
    SessionEnd = 8,
    /// Records are missing.
    Gap = 9,
    /// The rows of the reply that follows.
    Result = 10,
}

/// The header of a record; [`RecordReader`] reads the rest.
#[derive(Debug)]
pub(crate) struct BufferRecord {
    pub(crate) kind: RecordKind,
    pub(crate) session: u32,
    pub(crate) time: u64,
}

/// A reader of the records in a chunk.
#[derive(Debug)]
pub(crate) struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Reads the next record's header; the caller must read the rest with the other methods. `None`
    /// at the end or at an invalid record.
    pub(crate) fn record(&mut self) -> Option<BufferRecord> {
        let kind = RecordKind::from_number(self.byte()?)?;
        Some(BufferRecord { kind, session: self.u32()?, time: self.u64()? })
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }
}

/// Appends bytes, preceded by their length. Bytes beyond the range of the length, 4 GiB, are cut
/// off.
#[inline]
pub(crate) fn write_bytes(buf: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    buf.extend_from_slice(&len.to_le_bytes());
    buf.extend_from_slice(&bytes[..len as usize]);
}

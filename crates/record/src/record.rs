//! What is written on a tape: records, each of one client.
//!
//! ```text
//! record = kind: u8, session: u32, time: u64 (nanoseconds of the worker's clock), then by kind
//!   Enter      is_new: u8, pool: u32, unnamed: bytes, settings: count of (bytes, bytes),
//!              statements: count of (bytes, u64)
//!   Text       u64, bytes
//!   Said       bytes             the client's stream goes on with these
//!   LeftOut    u32               and with so many that are not kept
//!   Heard      tag: u8, answered: u16, bytes
//!   Granted, Cancelled, Left     nothing
//!   Gap        lost: u64         what was to come here was thrown away
//! bytes  = u32, so many bytes;   count = u32, so many of them
//! ```
//!
//! All numbers are little-endian. It goes from one thread to another and is never stored.

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal,)*) => {
        /// What a record says.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind { $($(#[$doc])* $kind = $number,)* }

        impl Kind {
            fn of(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$kind),)* _ => None }
            }
        }
    };
}

kinds! {
    /// A session is recorded from here on.
    Enter = 1,
    /// A prepared text that entries speak of.
    Text = 2,
    /// What a client sent.
    Said = 3,
    /// What it sent and is not kept.
    LeftOut = 4,
    /// What it was told.
    Heard = 5,
    /// It has a server.
    Granted = 6,
    /// It is to be cancelled.
    Cancelled = 7,
    /// It is gone.
    Left = 8,
    /// There is something missing.
    Gap = 9,
}

/// A record's beginning, and a reader for the rest.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) session: u32,
    pub(crate) time: u64,
}

/// Reads a piece of a tape.
#[derive(Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next record, whose rest is to be read by the other methods; `None` at the end, and of what
    /// is no record.
    pub(crate) fn record(&mut self) -> Option<Record> {
        let kind = Kind::of(self.byte()?)?;
        Some(Record { kind, session: self.u32()?, time: self.u64()? })
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

/// Appends bytes and how many they are. A record is of what was read at once, so they are few.
#[inline]
pub(crate) fn put_bytes(buf: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    buf.extend_from_slice(&len.to_le_bytes());
    buf.extend_from_slice(&bytes[..len as usize]);
}

//! The binary encoding of values that servers hand over or forward to each other, on top of
//! [`howdah_codec`].
//!
//! ```text
//! f64    = eight bytes, little-endian IEEE 754, so that sums arrive to the last bit
//! total  = varint of at most 2^53
//! bool   = one byte, 0 or 1
//! time   = varint: milliseconds since 1970
//! option = bool, then the value if it is 1
//! bytes  = varint: the length, then the bytes
//! ```
//!
//! Numbers and texts are those of [`howdah_codec`]. The reader does not trust its input: counts are
//! bounded by the bytes that are left, and numbers must be finite. The writer clamps numbers that
//! have grown out of these bounds, so that another process can continue with them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use howdah_codec::{ByteReader, ByteWriter as _, CodecError};

use crate::MetricName;

/// The reason why handed-over or forwarded bytes cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandoverFormatError {
    /// The bytes cannot be decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A value is not allowed here.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Appends values to a buffer.
pub(crate) trait BinaryWriter {
    /// Appends a number; an infinite one becomes the largest.
    fn write_f64(&mut self, value: f64);
    /// Appends a total or a time, which becomes 2^53 if it is larger.
    fn write_total(&mut self, value: u64);
    fn write_bool(&mut self, value: bool);
    fn write_bytes(&mut self, bytes: &[u8]);
    /// Appends a time, in milliseconds since 1970.
    fn write_time(&mut self, time: SystemTime);
    /// Appends an option, whose value `write` appends.
    fn write_option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T));
}

impl BinaryWriter for Vec<u8> {
    fn write_f64(&mut self, value: f64) {
        let finite = if value.is_nan() { 0.0 } else { value.clamp(f64::MIN, f64::MAX) };
        self.extend_from_slice(&finite.to_bits().to_le_bytes());
    }

    fn write_total(&mut self, value: u64) {
        self.write_varint(value.min(TOTAL_MAX));
    }

    fn write_bool(&mut self, value: bool) {
        self.push(value.into());
    }

    fn write_bytes(&mut self, bytes: &[u8]) {
        self.write_count(bytes.len());
        self.extend_from_slice(bytes);
    }

    fn write_time(&mut self, time: SystemTime) {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.write_total(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    }

    fn write_option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.write_bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}

/// Largest total: the largest integer up to which a double is exact.
const TOTAL_MAX: u64 = 1 << 53;

/// Reads values from the front of a slice. After an error, the reader's position is unspecified.
#[derive(Debug)]
pub(crate) struct BinaryReader<'b> {
    bytes: ByteReader<'b>,
    /// Bytes of memory that values may still take.
    memory: usize,
}

impl<'b> BinaryReader<'b> {
    /// Memory of a name on the heap, in addition to its text.
    const NAME_BYTES: usize = 64;

    /// Creates a reader at the start of `bytes`.
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self::with_memory(bytes, usize::MAX)
    }

    /// Creates a reader whose values may take about `memory` bytes of memory; it returns an error
    /// before they take more.
    pub(crate) fn with_memory(bytes: &'b [u8], memory: usize) -> Self {
        Self { bytes: ByteReader::new(bytes), memory }
    }

    /// Records that the next value takes `bytes` bytes of memory, in addition to its part of a
    /// [`list`](Self::list).
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<(), HandoverFormatError> {
        let left = self.memory.checked_sub(bytes);
        self.memory =
            left.ok_or(HandoverFormatError::Invalid("the values take too much memory"))?;
        Ok(())
    }

    pub(crate) fn number<T: TryFrom<u64>>(&mut self) -> Result<T, HandoverFormatError> {
        Ok(self.bytes.narrow()?)
    }

    /// Reads a signed number of at most 53 bits.
    pub(crate) fn signed(&mut self) -> Result<i64, HandoverFormatError> {
        match self.bytes.signed()? {
            value if value.unsigned_abs() <= TOTAL_MAX => Ok(value),
            _ => Err(HandoverFormatError::Invalid("a number is too large")),
        }
    }

    /// Reads a total or a time, which has at most 53 bits, so that two of them can be added.
    pub(crate) fn total(&mut self) -> Result<u64, HandoverFormatError> {
        match self.bytes.varint()? {
            value if value <= TOTAL_MAX => Ok(value),
            _ => Err(HandoverFormatError::Invalid("a number is too large")),
        }
    }

    /// Reads a time.
    pub(crate) fn time(&mut self) -> Result<SystemTime, HandoverFormatError> {
        let since = Duration::from_millis(self.total()?);
        Ok(UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH))
    }

    /// Reads the stamp of a gauge's value, to which others can be added.
    pub(crate) fn stamp(&mut self) -> Result<u64, HandoverFormatError> {
        match self.bytes.varint()? {
            value if value <= 1 << 62 => Ok(value),
            _ => Err(HandoverFormatError::Invalid("a stamp is too large")),
        }
    }

    /// Reads the lower and the upper end of a range.
    pub(crate) fn range(&mut self) -> Result<(f64, f64), HandoverFormatError> {
        let (lower, upper) = (self.f64()?, self.f64()?);
        if lower <= upper {
            Ok((lower, upper))
        } else {
            Err(HandoverFormatError::Invalid("a range ends before it starts"))
        }
    }

    /// Reads the number of entries that follow, each of at least one byte.
    pub(crate) fn count(&mut self) -> Result<usize, HandoverFormatError> {
        Ok(self.bytes.count()?)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, HandoverFormatError> {
        Ok(self.bytes.byte()?)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, HandoverFormatError> {
        match self.bytes.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(HandoverFormatError::Invalid("a truth value is neither 0 nor 1")),
        }
    }

    /// Reads a finite number.
    pub(crate) fn f64(&mut self) -> Result<f64, HandoverFormatError> {
        let value = f64::from_bits(u64::from_le_bytes(self.bytes.array()?));
        if value.is_finite() {
            Ok(value)
        } else {
            Err(HandoverFormatError::Invalid("a number is not finite"))
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'b [u8], HandoverFormatError> {
        let count = self.bytes.count()?;
        Ok(self.bytes.bytes(count)?)
    }

    pub(crate) fn text(&mut self) -> Result<&'b str, HandoverFormatError> {
        Ok(self.bytes.text()?)
    }

    /// Reads a metric's name.
    pub(crate) fn name(&mut self) -> Result<MetricName, HandoverFormatError> {
        let text = self.bytes.text()?;
        self.charge(text.len() + Self::NAME_BYTES)?;
        Ok(MetricName::new(text))
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, HandoverFormatError>,
    ) -> Result<Option<T>, HandoverFormatError> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Reads a count and that many entries.
    pub(crate) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, HandoverFormatError>,
    ) -> Result<Vec<T>, HandoverFormatError> {
        let count = self.count()?;
        // The vector grows as entries are read: an entry may take more memory than its bytes.
        let mut list = Vec::new();
        for _ in 0..count {
            self.charge(size_of::<T>())?;
            list.push(read(self)?);
        }
        Ok(list)
    }

    /// Returns the bytes that are left.
    pub(crate) fn rest(mut self) -> &'b [u8] {
        let count = self.bytes.remaining();
        self.bytes.bytes(count).unwrap_or_default()
    }

    /// Checks that everything has been read.
    pub(crate) fn finish(self) -> Result<(), HandoverFormatError> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(HandoverFormatError::Invalid("bytes are left over"))
        }
    }
}

#[test]
fn numbers_out_of_bounds_are_clamped() {
    let mut out = Vec::new();
    out.write_total(TOTAL_MAX + 1);
    [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0].iter().for_each(|one| out.write_f64(*one));
    let mut from = BinaryReader::new(&out);
    assert_eq!(from.total(), Ok(TOTAL_MAX));
    let numbers: Vec<_> = (0..4).map(|_| from.f64().unwrap().to_bits()).collect();
    assert_eq!(numbers, [f64::MAX, f64::MIN, 0.0, -0.0].map(f64::to_bits));
    assert_eq!(from.finish(), Ok(()));
}

#[test]
fn values_beyond_the_memory_limit_are_refused() {
    let mut out = Vec::new();
    out.write_count(1000);
    out.extend([7; 1000]);
    let read = |memory| BinaryReader::with_memory(&out, memory).list(BinaryReader::byte);
    assert_eq!(read(1000).map(|list| list.len()), Ok(1000));
    assert!(read(999).is_err());
}

//! The binary encoding of values that servers hand over or forward to each other, on top of
//! [`howdah_codec`].
//!
//! ```text
//! f64    = eight bytes, little-endian IEEE 754, so that sums arrive to the last bit
//! bool   = one byte, 0 or 1
//! time   = varint: milliseconds since 1970
//! option = bool, then the value if it is 1
//! bytes  = varint: the length, then the bytes
//! ```
//!
//! Numbers and texts are those of [`howdah_codec`]. The reader does not trust its input: counts are
//! bounded by the bytes that are left, and numbers must be finite.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use howdah_codec::{ByteReader, ByteWriter as _, CodecError};

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
    fn write_f64(&mut self, value: f64);
    fn write_bool(&mut self, value: bool);
    fn write_bytes(&mut self, bytes: &[u8]);
    /// Appends a time, in milliseconds since 1970.
    fn write_time(&mut self, time: SystemTime);
    /// Appends an option, whose value `write` appends.
    fn write_option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T));
}

impl BinaryWriter for Vec<u8> {
    fn write_f64(&mut self, value: f64) {
        self.extend_from_slice(&value.to_bits().to_le_bytes());
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
        self.write_varint(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
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
pub(crate) struct BinaryReader<'b>(ByteReader<'b>);

impl<'b> BinaryReader<'b> {
    /// Creates a reader at the start of `bytes`.
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self(ByteReader::new(bytes))
    }

    pub(crate) fn number<T: TryFrom<u64>>(&mut self) -> Result<T, HandoverFormatError> {
        Ok(self.0.narrow()?)
    }

    /// Reads a signed number of at most 53 bits.
    pub(crate) fn signed(&mut self) -> Result<i64, HandoverFormatError> {
        match self.0.signed()? {
            value if value.unsigned_abs() <= TOTAL_MAX => Ok(value),
            _ => Err(HandoverFormatError::Invalid("a number is too large")),
        }
    }

    /// Reads a total or a time, which has at most 53 bits, so that two of them can be added.
    pub(crate) fn total(&mut self) -> Result<u64, HandoverFormatError> {
        match self.0.varint()? {
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
        match self.0.varint()? {
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
        Ok(self.0.count()?)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, HandoverFormatError> {
        Ok(self.0.byte()?)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, HandoverFormatError> {
        match self.0.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(HandoverFormatError::Invalid("a truth value is neither 0 nor 1")),
        }
    }

    /// Reads a finite number.
    pub(crate) fn f64(&mut self) -> Result<f64, HandoverFormatError> {
        let value = f64::from_bits(u64::from_le_bytes(self.0.array()?));
        if value.is_finite() {
            Ok(value)
        } else {
            Err(HandoverFormatError::Invalid("a number is not finite"))
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'b [u8], HandoverFormatError> {
        let count = self.0.count()?;
        Ok(self.0.bytes(count)?)
    }

    pub(crate) fn text(&mut self) -> Result<&'b str, HandoverFormatError> {
        Ok(self.0.text()?)
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
            list.push(read(self)?);
        }
        Ok(list)
    }

    /// Returns the bytes that are left.
    pub(crate) fn rest(mut self) -> &'b [u8] {
        let count = self.0.remaining();
        self.0.bytes(count).unwrap_or_default()
    }

    /// Checks that everything has been read.
    pub(crate) fn finish(self) -> Result<(), HandoverFormatError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(HandoverFormatError::Invalid("bytes are left over"))
        }
    }
}

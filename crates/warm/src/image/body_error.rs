//! Errors of reading the body of an image file.

use howdah_codec::CodecError;

/// The reason why bytes are not a valid image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The magic number is missing, or the file is shorter than a header.
    #[error("it does not start with the header of a cache image")]
    NotAnImage,
    /// The format has another version, usually a later one.
    #[error("its format has version {found}; this howdah reads up to version {known}")]
    Version {
        /// Format version of the file.
        found: u32,
        /// The latest version that this program reads.
        known: u32,
    },
    /// The data ends early.
    #[error("it is truncated")]
    Truncated,
    /// The checksum does not match.
    #[error("its checksum is {found:016x} instead of {expected:016x}: it is corrupted")]
    Checksum {
        /// Checksum computed from the data.
        found: u64,
        /// Checksum in the header.
        expected: u64,
    },
    /// The stated size exceeds the limit.
    #[error("its uncompressed size of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// The uncompressed size that the file states.
        bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// There are more pages than a cache of the stated size can contain.
    #[error("it claims more pages than a cache of {buffers} buffers can contain")]
    TooManyPages {
        /// Number of buffers that the image states.
        buffers: u32,
    },
    /// Decompression failed.
    #[error("its compressed part cannot be decompressed")]
    Decompression(#[source] std::io::Error),
    /// A number is out of range.
    #[error("a number in it is out of range")]
    NumberOutOfRange,
    /// A count or size contradicts another one, or the length of the data.
    #[error("a count or size in it does not match its contents")]
    InconsistentCounts,
    /// A text is not UTF-8.
    #[error("a name in it is not UTF-8")]
    InvalidUtf8,
    /// An enumeration has an unknown value.
    #[error("it contains the unknown {what} {found}")]
    Unknown {
        /// Name of the enumeration, such as `fork`.
        what: &'static str,
        /// The value found in the file.
        found: u8,
    },
}

impl From<CodecError> for BodyError {
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Truncated => Self::Truncated,
            CodecError::NumberTooLarge => Self::NumberOutOfRange,
            CodecError::CountTooLarge => Self::InconsistentCounts,
            CodecError::InvalidUtf8 => Self::InvalidUtf8,
        }
    }
}

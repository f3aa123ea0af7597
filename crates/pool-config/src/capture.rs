//! `[pool.capture]`: settings for capturing clients' traffic.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// Settings for capturing clients' traffic: `[pool.capture]`. Changes do not affect a running
/// capture.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct CaptureConfig {
    /// The folder for captures, each in its own subfolder. `None` disables captures.
    pub path: Option<PathBuf>,
    /// Whether the pooler starts a capture when it starts.
    pub start: bool,
    /// The captured part of the rows that clients send for COPY.
    pub copy: CopyCapture,
    /// Maximum bytes of rows captured for the COPYs of one message, from 0 to 128 MiB. A COPY
    /// beyond the limit is captured without its rows.
    pub copy_bytes_max: u32,
    /// Whether checksums of the results that clients receive are captured, and the first rows of
    /// results with generated values. Not with `redact`, because rows contain values.
    pub results: bool,
    /// Whether captured values are replaced by other values of the same shape.
    pub redact: bool,
    /// A file with the secret from which the replacements are derived, at least 16 bytes; a random
    /// secret, which is not stored, if `None`.
    pub redact_key: Option<PathBuf>,
    /// Maximum bytes of traffic buffered for writing, for all workers together; at least 4 MiB.
    /// Traffic that does not fit is dropped, and the capture records the gap.
    pub buffer_bytes: u32,
    /// Bytes of statement text and values after which a file is finished, from 1 to 64 MiB. A file
    /// is also finished after 128 Ki events.
    pub file_bytes: u32,
    /// Maximum age of a file before it is finished, counted from its first event; at least a
    /// second. A crash loses the events that are not in a finished file.
    #[serde(with = "howdah_settings::duration")]
    pub file_time: Duration,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self {
            path: None,
            start: false,
            copy: CopyCapture::Full,
            copy_bytes_max: 16 << 20,
            results: false,
            redact: false,
            redact_key: None,
            buffer_bytes: 64 << 20,
            file_bytes: 64 << 20,
            file_time: Duration::from_secs(60),
        }
    }
}

/// The captured part of the rows that clients send for COPY: `capture.copy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyCapture {
    /// The complete rows, unless a COPY exceeds `copy_bytes_max`.
    #[default]
    Full,
    /// Only the rows' length in bytes.
    Length,
    /// Neither the rows nor their length.
    Off,
}

impl CopyCapture {
    /// Returns the keyword of this value in configuration files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Length => "length",
            Self::Off => "off",
        }
    }
}

impl CaptureConfig {
    /// Calls `rule` for each rule: whether it is violated, its key, and the reason.
    pub(super) fn check(&self, rule: &mut impl FnMut(bool, &str, &str)) {
        const MIB: u32 = 1 << 20;
        let no_path = self.start && self.path.is_none();
        rule(no_path, "capture.start", "needs capture.path, the folder for captures");
        let unused_key = self.redact_key.is_some() && !self.redact;
        rule(unused_key, "capture.redact-key", "has no effect without capture.redact");
        let both = self.results && self.redact;
        rule(both, "capture.results", "cannot be used with capture.redact: rows contain values");
        let large = self.copy_bytes_max > 128 * MIB;
        rule(large, "capture.copy-bytes-max", "must be at most 128 MiB");
        rule(self.buffer_bytes < 4 * MIB, "capture.buffer-bytes", "must be at least 4 MiB");
        let fits = (MIB..=64 * MIB).contains(&self.file_bytes);
        rule(!fits, "capture.file-bytes", "must be from 1 to 64 MiB");
        let too_short = self.file_time < Duration::from_secs(1);
        rule(too_short, "capture.file-time", "must be at least a second");
    }
}

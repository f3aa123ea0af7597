//! What is recorded of clients' traffic, and where.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::durations;

/// How traffic is captured: `[pool.capture]`. A capture that is under way goes on as it began.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Capture {
    /// The folder that captures are put into, each in a folder of its own. Without one there are none.
    pub path: Option<PathBuf>,
    /// Whether a capture begins with the pooler.
    pub start: bool,
    /// What is kept of the rows that clients send for COPY.
    pub copy: CopyCapture,
    /// Most bytes of them that are kept of one message, from 0 to 128 MiB.
    pub copy_bytes_max: u32,
    /// Whether values are replaced by others of the same shape.
    pub redact: bool,
    /// A file with the secret that the replacements depend on, of at least 16 bytes; a random one, which
    /// nobody knows, if none is given.
    pub redact_key: Option<PathBuf>,
    /// Bytes of traffic that may wait to be written, of all workers; at least 4 MiB. What finds no room
    /// is missing in the capture, which says so.
    pub buffer_bytes: u32,
    /// Bytes of texts and values after which a file is finished, from 1 MiB to 1 GiB.
    pub file_bytes: u32,
    /// How long the first event of a file waits until it is finished; at least a second. A crash loses
    /// no more than that.
    #[serde(with = "durations::whole")]
    pub file_time: Duration,
}

impl Default for Capture {
    fn default() -> Self {
        Self {
            path: None,
            start: false,
            copy: CopyCapture::Full,
            copy_bytes_max: 16 << 20,
            redact: false,
            redact_key: None,
            buffer_bytes: 64 << 20,
            file_bytes: 64 << 20,
            file_time: Duration::from_secs(60),
        }
    }
}

/// What is kept of the rows that clients send for COPY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CopyCapture {
    /// All of them.
    #[default]
    Full,
    /// How many bytes they had.
    Length,
    /// Nothing.
    Off,
}

impl CopyCapture {
    /// The word that stands for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Length => "length",
            Self::Off => "off",
        }
    }
}

impl Capture {
    /// What cannot be: key and reason.
    pub(super) fn check(&self, rule: &mut impl FnMut(bool, &str, &str)) {
        const MIB: u32 = 1 << 20;
        let nowhere = self.start && self.path.is_none();
        rule(nowhere, "capture.start", "needs capture.path, the folder for captures");
        let keyless = self.redact_key.is_some() && !self.redact;
        rule(keyless, "capture.redact-key", "means nothing without capture.redact");
        let large = self.copy_bytes_max > 128 * MIB;
        rule(large, "capture.copy-bytes-max", "must be at most 128 MiB");
        rule(self.buffer_bytes < 4 * MIB, "capture.buffer-bytes", "must be at least 4 MiB");
        let fits = (MIB..=1024 * MIB).contains(&self.file_bytes);
        rule(!fits, "capture.file-bytes", "must be from 1 MiB to 1 GiB");
        let instant = self.file_time < Duration::from_secs(1);
        rule(instant, "capture.file-time", "must be at least a second");
    }
}

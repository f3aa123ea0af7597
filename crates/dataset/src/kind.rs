//! [`DatasetKind`]: captures and runs, with the names and versions of their formats.

use std::fmt;

use crate::run::MACHINE_FILE_NAME;

/// The two kinds of datasets that this crate stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// Events captured from clients.
    Capture,
    /// Outcomes of replaying events.
    Run,
}

impl DatasetKind {
    pub(crate) const ALL: [Self; 2] = [Self::Capture, Self::Run];

    /// Returns the file name of the manifest.
    pub const fn manifest_name(self) -> &'static str {
        match self {
            Self::Capture => "capture.json",
            Self::Run => "run.json",
        }
    }

    /// Returns the `format` in the manifest and `howdah.format` in the files.
    pub const fn format(self) -> &'static str {
        match self {
            Self::Capture => "howdah-capture",
            Self::Run => "howdah-run",
        }
    }

    /// Returns the format version that this build writes. It reads all versions up to this one.
    pub const fn version(self) -> u32 {
        match self {
            Self::Capture => 5,
            Self::Run => 3,
        }
    }

    /// Whether this build can read a version.
    pub(crate) const fn supports(self, version: u32) -> bool {
        1 <= version && version <= self.version()
    }

    /// Returns the prefixes of file names: `events` for `events-000001.parquet`.
    pub(crate) const fn file_prefixes(self) -> &'static [&'static str] {
        match self {
            Self::Capture => &["events"],
            Self::Run => &["outcomes", "statements"],
        }
    }

    /// Returns the names of the JSON documents of this kind, other than the manifest.
    pub(crate) const fn documents(self) -> &'static [&'static str] {
        match self {
            Self::Capture => &[],
            Self::Run => &[MACHINE_FILE_NAME],
        }
    }

    /// Returns the other kind.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Capture => Self::Run,
            Self::Run => Self::Capture,
        }
    }
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Capture => "capture",
            Self::Run => "run",
        })
    }
}

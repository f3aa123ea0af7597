//! [`DatasetKind`]: captures and runs, with the names and versions of their formats.

use std::fmt;

use crate::run::MACHINE_FILE_NAME;

/// The kind of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetKind {
    /// Events captured from clients.
    Capture,
    /// Outcomes of replaying them.
    Run,
}

impl DatasetKind {
    pub(crate) const ALL: [Self; 2] = [Self::Capture, Self::Run];

    /// File name of the manifest.
    pub const fn manifest_name(self) -> &'static str {
        match self {
            Self::Capture => "capture.json",
            Self::Run => "run.json",
        }
    }

    /// The `format` in the manifest and `howdah.format` in the files.
    pub const fn format(self) -> &'static str {
        match self {
            Self::Capture => "howdah-capture",
            Self::Run => "howdah-run",
        }
    }

    /// The version that this build writes. It reads all versions up to this one.
    pub const fn version(self) -> u32 {
        match self {
            Self::Capture => 4,
            Self::Run => 2,
        }
    }

    /// Whether this build can read a version.
    pub(crate) const fn supports(self, version: u32) -> bool {
        1 <= version && version <= self.version()
    }

    /// Prefixes of the names of its files: `events` for `events-000001.parquet`.
    pub(crate) const fn file_prefixes(self) -> &'static [&'static str] {
        match self {
            Self::Capture => &["events"],
            Self::Run => &["outcomes", "statements"],
        }
    }

    /// Names of its JSON documents other than the manifest.
    pub(crate) const fn documents(self) -> &'static [&'static str] {
        match self {
            Self::Capture => &[],
            Self::Run => &[MACHINE_FILE_NAME],
        }
    }

    /// The other kind.
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

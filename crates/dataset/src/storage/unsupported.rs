//! The substitute for object stores in builds without them.

use std::{io, ops::Range, path::Path};

use bytes::Bytes;

use super::Listing;

/// An object store, which this build does not support.
pub(super) enum UnsupportedStore {}

impl UnsupportedStore {
    /// Fails.
    pub(super) fn of(_url: &Path) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this build of howdah does not support object stores (build it with --features stores)",
        ))
    }

    pub(super) fn list(&self, _dir: &Path) -> io::Result<Listing> {
        match *self {}
    }

    pub(super) fn read(&self, _url: &Path, _limit: u64) -> io::Result<Bytes> {
        match *self {}
    }

    pub(super) fn read_end(&self, _url: &Path, _length: u64) -> io::Result<(Bytes, u64)> {
        match *self {}
    }

    pub(super) fn read_range(&self, _url: &Path, _range: Range<u64>) -> io::Result<Bytes> {
        match *self {}
    }

    pub(super) fn remove(&self, _url: &Path) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn upload(&self, _url: &Path, _bytes: Bytes) -> io::Result<()> {
        match *self {}
    }
}

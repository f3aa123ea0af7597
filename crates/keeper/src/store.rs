//! The folder of a keeper: the newest image and older ones, and a lock, so that no two keepers write
//! there.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use howdah_warm::{
    CacheImage,
    image::{Generations, ImageError},
};
use rustix::fs::{FlockOperation, flock};

use crate::watch::WatchError;

/// The newest image's name; older ones are `newest.cache.1` and so on.
pub(crate) const NEWEST: &str = "newest.cache";

/// The name of an image that could be loaded in part only, and is kept until the cache is as full again.
pub(crate) const ASIDE: &str = "aside.cache";

/// A folder that is ours as long as this lives.
#[derive(Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    keep: Generations,
    _lock: File,
}

impl Store {
    pub(crate) fn open(folder: &Path, keep: Generations) -> Result<Self, WatchError> {
        let failed = |source| WatchError::Folder { folder: folder.to_path_buf(), source };
        howdah_files::create_dir_all(folder).map_err(failed)?;
        let lock = howdah_files::create(&folder.join("lock")).map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(WatchError::FolderInUse { folder: folder.to_path_buf() });
            }
            Err(errno) => return Err(failed(errno.into())),
        }
        Ok(Self { folder: folder.to_path_buf(), keep, _lock: lock })
    }

    pub(crate) fn save(&self, image: &CacheImage) -> Result<(), ImageError> {
        image.save(self.folder.join(NEWEST), self.keep)
    }

    /// Replaces the newest, whatever is kept of older ones.
    pub(crate) fn replace(&self, image: &CacheImage) -> Result<(), ImageError> {
        image.save(self.folder.join(NEWEST), Generations(0))
    }

    /// Keeps an image beside the newest ones, so that they do not replace it.
    pub(crate) fn put_aside(&self, image: &CacheImage) -> Result<(), ImageError> {
        image.save(self.folder.join(ASIDE), Generations(0))
    }

    /// The image that was put aside, if it can be read.
    pub(crate) fn aside(&self) -> Option<CacheImage> {
        let path = self.folder.join(ASIDE);
        if !path.exists() {
            return None;
        }
        CacheImage::open(&path)
            .inspect_err(|error| {
                tracing::warn!(error = causes(error), "the image put aside cannot be read");
            })
            .ok()
    }

    /// Removes what was put aside.
    pub(crate) fn remove_aside(&self) -> std::io::Result<()> {
        match fs::remove_file(self.folder.join(ASIDE)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// The newest image that can be read. Damaged ones are said and passed over.
    pub(crate) fn newest(&self) -> Option<CacheImage> {
        let older = (1..=self.keep.0).map(|number| format!("{NEWEST}.{number}"));
        let names = std::iter::once(NEWEST.to_owned()).chain(older);
        for path in names.map(|name| self.folder.join(name)).filter(|path| path.exists()) {
            match CacheImage::open(&path) {
                Ok(image) => return Some(image),
                Err(error) => tracing::warn!(
                    error = causes(&error),
                    "an image cannot be read: the one before it is tried"
                ),
            }
        }
        None
    }
}

/// An error and what is behind it, in one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some errors repeat what is behind them.
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use howdah_warm::image::{Origin, Source};

    use super::*;

    fn image(taken_at_us: i64) -> CacheImage {
        CacheImage {
            origin: Origin {
                server_version: 150_000,
                system_identifier: 1,
                page_bytes: 8192,
                buffers: 100,
                taken_at_us,
                source: Source::Memory,
            },
            databases: BTreeMap::new(),
            relations: Vec::new(),
        }
    }

    #[test]
    fn a_damaged_image_gives_way_to_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), Generations(2)).unwrap();
        assert!(store.newest().is_none());
        for taken_at_us in [1, 2, 3] {
            store.save(&image(taken_at_us)).unwrap();
        }
        assert_eq!(store.newest().unwrap().origin.taken_at_us, 3);
        fs::write(folder.path().join(NEWEST), "cut").unwrap();
        assert_eq!(store.newest().unwrap().origin.taken_at_us, 2);
        store.replace(&image(4)).unwrap();
        assert_eq!(store.newest().unwrap().origin.taken_at_us, 4);
        fs::remove_file(folder.path().join(NEWEST)).unwrap();
        assert_eq!(store.newest().unwrap().origin.taken_at_us, 2, "replacing shifts nothing");
    }

    #[test]
    fn image_put_aside_stays_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path(), Generations(1)).unwrap();
        assert!(store.aside().is_none());
        store.remove_aside().unwrap();
        store.put_aside(&image(1)).unwrap();
        for taken_at_us in 2..6 {
            store.save(&image(taken_at_us)).unwrap();
        }
        assert_eq!(store.aside().unwrap().origin.taken_at_us, 1);
        store.remove_aside().unwrap();
        assert!(store.aside().is_none() && store.newest().is_some());
    }

    #[test]
    fn a_folder_has_one_keeper() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        let first = Store::open(&below, Generations(0)).unwrap();
        let second = Store::open(&below, Generations(0));
        assert!(matches!(second, Err(WatchError::FolderInUse { .. })));
        drop(first);
        Store::open(&below, Generations(0)).unwrap();
    }
}

//! The image folder of a daemon: the newest image, older ones, and a lock that keeps other daemons
//! out.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use crate::{
    CacheImage,
    image::{Generations, ImageError},
};
use rustix::fs::{FlockOperation, flock};

use crate::daemon::{error_chain::error_chain, watch::WatchError};

/// File name of the newest image; older ones are `newest.cache.1` and so on.
pub(crate) const NEWEST_FILE: &str = "newest.cache";

/// File name of an image that could be loaded only in part, or not at all. It is retained until a
/// newer image has about as many pages, or fills nearly all of the server's buffers.
pub(crate) const ASIDE_FILE: &str = "aside.cache";

/// An image folder, locked as long as this value lives.
#[derive(Debug)]
pub(crate) struct ImageStore {
    folder: PathBuf,
    generations: Generations,
    _lock: File,
}

impl ImageStore {
    pub(crate) fn open(folder: &Path, generations: Generations) -> Result<Self, WatchError> {
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
        Ok(Self { folder: folder.to_path_buf(), generations, _lock: lock })
    }

    pub(crate) fn save(&self, image: &CacheImage) -> Result<(), ImageError> {
        image.save(self.folder.join(NEWEST_FILE), self.generations)
    }

    /// Replaces the newest image without shifting the older ones.
    pub(crate) fn replace(&self, image: &CacheImage) -> Result<(), ImageError> {
        image.save(self.folder.join(NEWEST_FILE), Generations(0))
    }

    /// Saves an image as [`ASIDE_FILE`], where newer images do not replace it.
    pub(crate) fn save_aside(&self, image: &CacheImage) -> Result<(), ImageError> {
        image.save(self.folder.join(ASIDE_FILE), Generations(0))
    }

    /// Opens the image at [`ASIDE_FILE`], if it exists and can be read.
    pub(crate) fn open_aside(&self) -> Option<CacheImage> {
        let path = self.folder.join(ASIDE_FILE);
        if !path.exists() {
            return None;
        }
        CacheImage::open(&path)
            .inspect_err(|error| {
                tracing::warn!(error = error_chain(error), "aside.cache cannot be read");
            })
            .ok()
    }

    /// Removes [`ASIDE_FILE`], if it exists.
    pub(crate) fn remove_aside(&self) -> std::io::Result<()> {
        match fs::remove_file(self.folder.join(ASIDE_FILE)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Opens the newest image that can be read. Unreadable ones are logged and skipped.
    pub(crate) fn open_newest(&self) -> Option<CacheImage> {
        let older = (1..=self.generations.0).map(|number| format!("{NEWEST_FILE}.{number}"));
        let names = std::iter::once(NEWEST_FILE.to_owned()).chain(older);
        for path in names.map(|name| self.folder.join(name)).filter(|path| path.exists()) {
            match CacheImage::open(&path) {
                Ok(image) => return Some(image),
                Err(error) => tracing::warn!(
                    path = %path.display(),
                    error = error_chain(&error),
                    "image cannot be read; trying the one before it"
                ),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::image::{ImageOrigin, ImageSource};

    use super::*;

    fn image(taken_at_us: i64) -> CacheImage {
        CacheImage {
            origin: ImageOrigin {
                server_version: 150_000,
                system_identifier: 1,
                page_bytes: 8192,
                buffers: 100,
                taken_at_us,
                source: ImageSource::Memory,
            },
            databases: BTreeMap::new(),
            relations: Vec::new(),
        }
    }

    #[test]
    fn damaged_newest_image_falls_back_to_previous() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::open(folder.path(), Generations(2)).unwrap();
        assert!(store.open_newest().is_none());
        for taken_at_us in [1, 2, 3] {
            store.save(&image(taken_at_us)).unwrap();
        }
        assert_eq!(store.open_newest().unwrap().origin.taken_at_us, 3);
        fs::write(folder.path().join(NEWEST_FILE), "cut").unwrap();
        assert_eq!(store.open_newest().unwrap().origin.taken_at_us, 2);
        store.replace(&image(4)).unwrap();
        assert_eq!(store.open_newest().unwrap().origin.taken_at_us, 4);
        fs::remove_file(folder.path().join(NEWEST_FILE)).unwrap();
        assert_eq!(
            store.open_newest().unwrap().origin.taken_at_us,
            2,
            "replacing does not shift older images"
        );
    }

    #[test]
    fn aside_image_survives_newer_ones_until_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::open(folder.path(), Generations(1)).unwrap();
        assert!(store.open_aside().is_none());
        store.remove_aside().unwrap();
        store.save_aside(&image(1)).unwrap();
        for taken_at_us in 2..6 {
            store.save(&image(taken_at_us)).unwrap();
        }
        assert_eq!(store.open_aside().unwrap().origin.taken_at_us, 1);
        store.remove_aside().unwrap();
        assert!(store.open_aside().is_none() && store.open_newest().is_some());
    }

    #[test]
    fn folder_is_locked_by_one_store() {
        let folder = tempfile::tempdir().unwrap();
        let nested = folder.path().join("a/b");
        let first = ImageStore::open(&nested, Generations(0)).unwrap();
        let second = ImageStore::open(&nested, Generations(0));
        assert!(matches!(second, Err(WatchError::FolderInUse { .. })));
        drop(first);
        ImageStore::open(&nested, Generations(0)).unwrap();
    }
}

//! [`FileWatch`]: notices that a settings file has changed.

use std::{fs, path::PathBuf, time::SystemTime};

/// A file whose time of modification and size are compared with those of the last call.
#[derive(Debug)]
pub(super) struct FileWatch {
    path: Option<PathBuf>,
    last: Option<(SystemTime, u64)>,
}

impl FileWatch {
    /// Starts to watch a file; without a path nothing ever changes.
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        let mut watch = Self { path, last: None };
        watch.last = watch.sample();
        watch
    }

    /// Whether the file has changed since the last call. A file that is missing is being replaced:
    /// it has changed once it is there again.
    pub(super) fn poll(&mut self) -> bool {
        let now = self.sample();
        let is_changed = now.is_some() && now != self.last;
        if is_changed {
            self.last = now;
        }
        is_changed
    }

    fn sample(&self) -> Option<(SystemTime, u64)> {
        let metadata = fs::metadata(self.path.as_ref()?).ok()?;
        // A pipe can be read only once.
        metadata.is_file().then_some(())?;
        Some((metadata.modified().ok()?, metadata.len()))
    }
}

#[test]
fn change_is_noticed_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.js");
    fs::write(&path, "{}").unwrap();
    let mut watch = FileWatch::new(Some(path.clone()));
    assert!(!watch.poll());
    fs::write(&path, "{ }").unwrap();
    assert!(watch.poll());
    assert!(!watch.poll());
    fs::rename(&path, folder.path().join("old.js")).unwrap();
    assert!(!watch.poll());
    fs::write(&path, "{  }").unwrap();
    assert!(watch.poll());
    assert!(!FileWatch::new(None).poll());
}

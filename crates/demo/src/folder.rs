//! [`OutputFolder`]: the folder of a demo. A demo replaces the results of an earlier one there, but
//! refuses a folder with a capture or a rehearsal that no demo made.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::error::DemoError;

/// Name of the file that marks a folder as written by a demo.
const MARKER: &str = ".howdah-demo";

/// Name of the subfolder for the capture.
pub(crate) const CAPTURE: &str = "capture";

/// Names that other commands also use, and that a demo replaces.
const REPLACED: [&str; 3] = [CAPTURE, "runs", "rehearsal.json"];

/// A folder that is ready for the files of a demo.
#[derive(Debug)]
pub(crate) struct OutputFolder(PathBuf);

impl OutputFolder {
    /// Creates the folder if it is missing, marks it as written by a demo, and removes the capture
    /// of an earlier demo. Refuses a folder that has one of the names in [`REPLACED`], unless a
    /// demo has marked it.
    pub(crate) fn prepare(dir: &Path) -> Result<Self, DemoError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| DemoError::File { path, source }
        };
        howdah_files::create_dir_all(dir).map_err(failed(dir))?;
        let marker = dir.join(MARKER);
        if !marker.exists() {
            if let Some(path) =
                REPLACED.map(|name| dir.join(name)).into_iter().find(|it| it.exists())
            {
                return Err(DemoError::ForeignFolder { path });
            }
            howdah_files::write(&marker, "").map_err(failed(&marker))?;
        }
        let capture = dir.join(CAPTURE);
        match fs::remove_dir_all(&capture) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&capture)(error)),
            _ => Ok(Self(dir.to_owned())),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn capture(&self) -> PathBuf {
        self.0.join(CAPTURE)
    }

    /// Returns the path of production's cache image.
    pub(crate) fn cache_image(&self) -> PathBuf {
        self.0.join("production.cache")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_of_earlier_demo_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("demo");
        let folder = OutputFolder::prepare(&dir).unwrap();
        fs::create_dir(folder.capture()).unwrap();
        fs::write(folder.capture().join("events"), "old").unwrap();
        let again = OutputFolder::prepare(&dir).unwrap();
        assert!(!again.capture().exists());
    }

    #[test]
    fn results_of_other_commands_are_kept() {
        for name in REPLACED {
            let scratch = tempfile::tempdir().unwrap();
            let path = scratch.path().join(name);
            fs::write(&path, "precious").unwrap();
            let error = OutputFolder::prepare(scratch.path()).unwrap_err();
            assert!(matches!(&error, DemoError::ForeignFolder { path: it } if *it == path));
            assert_eq!(fs::read(&path).unwrap(), b"precious");
            assert!(!scratch.path().join(MARKER).exists());
        }
    }

    #[test]
    fn folder_with_unrelated_files_is_used() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("demo.log"), "").unwrap();
        OutputFolder::prepare(scratch.path()).unwrap();
    }
}

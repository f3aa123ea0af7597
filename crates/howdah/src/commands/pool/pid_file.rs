//! [`ProcessIdFile`]: a file with the id of the process, for supervisors and monitoring.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, test_kill_process};

/// A file with the id of this process. It is removed on drop, unless another process has written
/// its own id by then, as after a takeover.
#[derive(Debug)]
pub(super) struct ProcessIdFile(PathBuf);

impl ProcessIdFile {
    /// Checks that the file does not name a process that runs; a file of a process that has ended
    /// is removed.
    ///
    /// # Errors
    ///
    /// The process runs, or the file contains something else than a process id.
    pub(super) fn check(path: &Path) -> anyhow::Result<()> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let Some(pid) = text.trim().parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw)
        else {
            bail!("the pid file {} does not contain a process id", path.display());
        };
        let is_own = pid.as_raw_nonzero().get().unsigned_abs() == process::id();
        // A process of another user cannot be signalled, but exists.
        let runs = !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
        if runs && !is_own {
            bail!(
                "the pid file {} names process {pid}, which runs: is another pooler running?",
                path.display(),
                pid = pid.as_raw_nonzero()
            );
        }
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))
    }

    /// Writes the file.
    pub(super) fn write(path: PathBuf) -> anyhow::Result<Self> {
        fs::write(&path, format!("{}\n", process::id()))
            .with_context(|| format!("cannot write the pid file {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for ProcessIdFile {
    fn drop(&mut self) {
        let own = process::id().to_string();
        if fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == own) {
            let _ = fs::remove_file(&self.0);
        }
    }
}

#[test]
fn pid_file_of_a_running_process_is_an_error_and_another_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.pid");
    assert!(ProcessIdFile::check(&path).is_ok());
    fs::write(&path, "1\n").unwrap();
    assert!(ProcessIdFile::check(&path).unwrap_err().to_string().contains("process 1, which runs"));
    fs::write(&path, "not a number\n").unwrap();
    assert!(ProcessIdFile::check(&path).is_err());
    fs::write(&path, "4194304\n").unwrap();
    ProcessIdFile::check(&path).unwrap();
    assert!(!path.exists());
    let file = ProcessIdFile::write(path.clone()).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", process::id()));
    drop(file);
    assert!(!path.exists());
    let file = ProcessIdFile::write(path.clone()).unwrap();
    fs::write(&path, "7\n").unwrap();
    drop(file);
    assert!(path.exists(), "the file of another process stays");
}

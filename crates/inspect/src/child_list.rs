//! Reads the children of a process repeatedly, with a few system calls each time.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
};

use crate::{error::ProcessError, process::OsProcess};

/// The children of a process, read cheaply if it has a single thread, as a postmaster does.
#[derive(Debug)]
pub struct ChildList {
    process: OsProcess,
    /// The kernel's list, kept open; `None` if the kernel does not provide one or the process has
    /// several threads.
    list: Option<File>,
    bytes: Vec<u8>,
}

impl OsProcess {
    /// Creates a reusable reader for the children of this process.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn child_list(self) -> Result<ChildList, ProcessError> {
        ChildList::for_process(self)
    }
}

impl ChildList {
    pub(crate) fn for_process(process: OsProcess) -> Result<Self, ProcessError> {
        let tasks = process.file("task");
        let threads = fs::read_dir(&tasks).map_err(|source| process.error(tasks, source))?.count();
        let list = process.file(&format!("task/{}/children", process.pid()));
        let list = File::open(list).ok().filter(|_| threads == 1);
        Ok(Self { process, list, bytes: vec![0; FIRST_BYTES] })
    }

    /// Returns the children's process ids, in no particular order. While a child starts or exits,
    /// others may be missing. Empty for an exited process whose list was kept open.
    ///
    /// # Errors
    ///
    /// `/proc` cannot be read, or the process has exited and its list was not kept open.
    pub fn read(&mut self) -> Result<Vec<u32>, ProcessError> {
        let Some(list) = &self.list else {
            return Ok(self.process.children()?.into_iter().map(OsProcess::pid).collect());
        };
        let mut filled = 0;
        loop {
            let read = list.read_at(&mut self.bytes[filled..], filled as u64);
            let read =
                read.map_err(|source| self.process.error(self.process.file("task"), source))?;
            if read == 0 {
                break;
            }
            filled += read;
            if filled == self.bytes.len() {
                self.bytes.resize(filled * 2, 0);
            }
        }
        let text = String::from_utf8_lossy(&self.bytes[..filled]);
        Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    }
}

/// Initial buffer size, enough for the children of a typical server: seven digits and a space each.
const FIRST_BYTES: usize = 8192;

#[cfg(test)]
mod tests {
    use std::{
        process::{Command, Stdio},
        time::Duration,
    };

    use howdah_lab::wait_until;

    use super::*;

    #[test]
    fn child_list_follows_starts_and_exits() {
        // A shell has a single thread; this process has several.
        let script = "sleep 1000 & a=$!; sleep 1000 & b=$!; read end; kill $a $b; wait";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh is installed");
        let process = OsProcess::from_pid(shell.id()).expect("shell is running");
        let mut list = process.child_list().expect("shell is running");
        wait_until("two children", Duration::from_secs(60), || {
            list.read().expect("shell is running").len() == 2
        });
        let mut from_proc: Vec<_> =
            process.children().expect("shell is running").into_iter().map(OsProcess::pid).collect();
        let mut from_list = list.read().expect("shell is running");
        from_proc.sort_unstable();
        from_list.sort_unstable();
        assert_eq!(from_list, from_proc);
        drop(shell.stdin.take());
        shell.wait().expect("shell exits");
        assert!(list.read().expect("list of an exited process is readable").is_empty());
    }
}

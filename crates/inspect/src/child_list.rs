//! The children of a process, asked for again and again: one system call each time.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
};

use crate::{error::ProcessError, process::Process};

/// The children of a process that has one thread, as a postmaster has.
#[derive(Debug)]
pub struct ChildList {
    process: Process,
    /// The kernel's list, kept open; absent where the kernel keeps none or there are more threads.
    list: Option<File>,
    bytes: Vec<u8>,
}

impl ChildList {
    pub(crate) fn of(process: Process) -> Result<Self, ProcessError> {
        let tasks = process.file("task");
        let threads = fs::read_dir(&tasks).map_err(|source| process.error(tasks, source))?.count();
        let list = process.file(&format!("task/{}/children", process.pid()));
        let list = File::open(list).ok().filter(|_| threads == 1);
        Ok(Self { process, list, bytes: vec![0; FIRST_BYTES] })
    }

    /// Their process ids, in no order. While one begins or ends, others may be missing. None of a process
    /// that has ended.
    ///
    /// # Errors
    ///
    /// `/proc` cannot be read.
    pub fn read(&mut self) -> Result<Vec<u32>, ProcessError> {
        let Some(list) = &self.list else {
            return Ok(self.process.children()?.into_iter().map(Process::pid).collect());
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

/// Room for the children of a usual server: seven digits and a space each.
const FIRST_BYTES: usize = 8192;

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_come_and_go() {
        // A shell has one thread, which this process has not.
        let script = "sleep 1000 & a=$!; sleep 1000 & b=$!; read end; kill $a $b; wait";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let process = Process::of(shell.id()).expect("it runs");
        let mut list = process.child_list().expect("it runs");
        while list.read().expect("it runs").len() < 2 {
            std::thread::yield_now();
        }
        let mut slow: Vec<_> =
            process.children().expect("it runs").into_iter().map(Process::pid).collect();
        let mut quick = list.read().expect("it runs");
        slow.sort_unstable();
        quick.sort_unstable();
        assert_eq!(quick, slow);
        drop(shell.stdin.take());
        shell.wait().expect("it ends");
        assert_eq!(list.read().expect("nothing is there to read"), []);
    }
}

//! The reaper: a small process that cleans up when the process that started it ("this process") no
//! longer can.
//!
//! ```text
//!   this process ── commands (pipe) ──► reaper       end of file: this process has ended
//!   server ──────── liveness (pipe) ──► reaper       end of file: all its processes have ended
//! ```
//!
//! A process killed by SIGKILL cannot clean up. But the kernel closes its files, and a process that
//! reads the other end of a pipe sees the end of file at once. The reaper is such a process:
//! `/bin/sh` in its own process group, so that Ctrl-C does not reach it. At the end of its commands
//! it stops the running program, waits until all the program's processes have ended, and removes
//! the files. A program is started by a shell that reports its process id to the reaper and then
//! executes the program, so no program ever runs unknown to the reaper.
//!
//! A normal shutdown takes the same path: stop the server, close the pipes, wait for the reaper.

use std::{
    ffi::OsStr,
    io::{self, PipeWriter, Write as _, pipe},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::{error::ClusterError, os_user::OsUser};

const SHELL: &str = "/bin/sh";

/// The reaper's script. It reads commands from standard input, one per line: a process id to
/// remember, an empty line to forget it, `leave` to exit without cleaning up. Standard output is
/// the reading end of the liveness pipe.
///
/// A program may miss SIGQUIT: one that a shell starts in the background ignores it until it sets
/// its own handler. So SIGQUIT is repeated, and after ten seconds the process group is killed. A
/// server needs about five seconds at most for an immediate shutdown (`SIGKILL_CHILDREN_AFTER_SECS`
/// in `postmaster.c`).
const REAPER: &str = r#"
pid=
while read -r command; do
    case $command in
        leave) exit 0 ;;
        *) pid=$command ;;
    esac
done
if [ -n "$pid" ]; then
    {
        for second in 1 2 3 4 5 6 7 8 9 10; do
            kill -s QUIT "$pid"
            sleep 1
        done
        kill -s KILL -- "-$pid"
    } 2>/dev/null &
    force=$!
fi
cat <&1 >/dev/null
[ -n "$pid" ] && kill "$force" 2>/dev/null
[ $# -eq 0 ] || rm -rf -- "$@"
"#;

/// The script that starts a program. Standard output is the writing end of the command pipe,
/// standard input that of the liveness pipe, which the program and its children inherit as
/// descriptor 3.
const LAUNCHER: &str = r#"echo "$$"; exec 3<&0 </dev/null >&2; exec "$@""#;

/// A reaper process, which stops a program and removes files when this value is dropped or the
/// process that holds it dies.
#[derive(Debug)]
pub(crate) struct Reaper {
    process: Child,
    // Both are `Some` until the reaper is disarmed or dropped.
    commands: Option<PipeWriter>,
    liveness: Option<PipeWriter>,
}

impl Reaper {
    /// Starts a reaper that stops a program, and removes nothing.
    pub(crate) fn spawn_without_files() -> Result<Self, ClusterError> {
        Self::spawn(std::iter::empty::<&OsStr>())
    }

    /// Starts a reaper that will remove these files and directories. They need not exist yet.
    pub(crate) fn spawn<P: AsRef<OsStr>>(
        remove: impl IntoIterator<Item = P>,
    ) -> Result<Self, ClusterError> {
        let failed = |source| ClusterError::Spawn { program: SHELL.into(), source };
        let (commands_reader, commands) = pipe().map_err(failed)?;
        let (liveness_reader, liveness) = pipe().map_err(failed)?;
        let process = Command::new(SHELL)
            .args(["-c", REAPER, "howdah-lab"])
            .args(remove)
            .current_dir("/")
            .process_group(0)
            .stdin(commands_reader)
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(liveness_reader)))
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Self { process, commands: Some(commands), liveness: Some(liveness) })
    }

    /// Starts a program that must not outlive the calling process, with its output redirected to
    /// `output`. Only one program may run at a time: call [`Reaper::program_exited`] after waiting
    /// for it.
    pub(crate) fn launch(
        &self,
        os_user: &OsUser,
        program: &Path,
        arguments: &[&OsStr],
        output: impl Into<Stdio>,
    ) -> Result<Child, ClusterError> {
        let failed = |source| ClusterError::Spawn { program: program.to_owned(), source };
        let (Some(commands), Some(liveness)) = (&self.commands, &self.liveness) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        os_user
            .command(SHELL)
            .args(["-c", LAUNCHER, "howdah-lab"])
            .arg(program)
            .args(arguments)
            .process_group(0)
            .stdin(liveness.try_clone().map_err(failed)?)
            .stdout(commands.try_clone().map_err(failed)?)
            .stderr(output)
            .spawn()
            .map_err(failed)
    }

    /// Forgets the program: it has exited, and its process id may be reused.
    pub(crate) fn program_exited(&mut self) {
        self.send("\n");
    }

    /// Ends the reaper without stopping or removing anything.
    pub(crate) fn disarm(&mut self) {
        self.send("leave\n");
        self.commands = None;
    }

    /// Removes the files, and waits until they are removed. The program must have exited, or be
    /// about to exit.
    pub(crate) fn finish(self) {
        drop(self);
    }

    fn send(&mut self, line: &str) {
        if let Some(commands) = &mut self.commands
            && let Err(error) = commands.write_all(line.as_bytes())
        {
            tracing::warn!(%error, "the reaper process is gone; files may be left behind");
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.liveness = None;
        self.commands = None;
        if let Err(error) = self.process.wait() {
            tracing::warn!(%error, "cannot wait for the reaper process");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Read as _, os::unix::process::ExitStatusExt as _, path::PathBuf};

    use super::*;

    fn scratch() -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("it's a \"dir\" -rf");
        fs::create_dir_all(dir.join("inner")).unwrap();
        (parent, dir)
    }

    #[test]
    fn drop_removes_files() {
        let (_parent, dir) = scratch();
        drop(Reaper::spawn([&dir]).unwrap());
        assert!(!dir.exists());
    }

    #[test]
    fn disarmed_reaper_removes_nothing() {
        let (_parent, dir) = scratch();
        Reaper::spawn([&dir]).unwrap().disarm();
        assert!(dir.join("inner").exists());
    }

    #[test]
    fn drop_stops_program_before_removing_files() {
        let (_parent, dir) = scratch();
        let reaper = Reaper::spawn([&dir]).unwrap();
        let arguments = [OsStr::new("-c"), OsStr::new("exec sleep 1000")];
        let mut program = reaper
            .launch(&OsUser::for_servers().unwrap(), Path::new(SHELL), &arguments, Stdio::null())
            .unwrap();
        // Dropped without waiting: the reaper knows the process id before the program runs.
        drop(reaper);
        let signal = program.wait().unwrap().signal();
        assert!(matches!(signal, Some(SIGQUIT | SIGKILL)), "{signal:?}");
        assert!(!dir.exists());
    }

    #[test]
    fn program_that_ignores_signals_is_killed_with_its_children() {
        let (_parent, dir) = scratch();
        let reaper = Reaper::spawn([&dir]).unwrap();
        let script = "trap '' QUIT INT TERM; sleep 1000 & echo ready; exec sleep 1000";
        let arguments = [OsStr::new("-c"), OsStr::new(script)];
        let (mut reader, output) = pipe().unwrap();
        let mut program = reaper
            .launch(&OsUser::for_servers().unwrap(), Path::new(SHELL), &arguments, output)
            .unwrap();
        reader.read_exact(&mut [0; "ready".len()]).unwrap();
        drop(reaper);
        assert_eq!(program.wait().unwrap().signal(), Some(SIGKILL));
        assert!(!dir.exists());
    }

    const SIGQUIT: i32 = 3;
    const SIGKILL: i32 = 9;
}

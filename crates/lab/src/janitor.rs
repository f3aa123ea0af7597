//! The janitor: a small process that cleans up when we no longer can.
//!
//! ```text
//!   us ──────── orders (pipe) ───────► janitor        end of orders: we are gone
//!   server ──── presence (pipe) ─────► janitor        end of presence: every process is gone
//! ```
//!
//! A process that dies by SIGKILL cleans up nothing. But the kernel closes its files, and a process
//! that waits for that on the other end of a pipe is told at once. The janitor is such a process:
//! `/bin/sh` in a process group of its own, so that Ctrl-C does not reach it. At the end of its
//! orders it stops the program that runs, waits until nothing of it is left, and removes the files.
//! Programs report their process id to it before they become what they are to run, in the same
//! shell; so there is no moment in which one is running and the janitor does not know.
//!
//! Ending well takes the same way: we stop the server, close the pipes, wait for the janitor.

use std::{
    ffi::OsStr,
    io::{self, PipeWriter, Write as _, pipe},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::{account::Account, error::Error};

const SHELL: &str = "/bin/sh";

/// Standard input brings orders, one per line: a process id to remember, an empty line to forget
/// it, `leave` to go away and leave all as it is. Standard output is the reading end of presence.
///
/// A program may miss SIGQUIT: one that was started by a shell in the background has it ignored until
/// it sets its own handler. So it is sent until the end, and then its process group is killed. A
/// server in immediate shutdown needs about five seconds at most (`SIGKILL_CHILDREN_AFTER_SECS` in
/// `postmaster.c`).
const JANITOR: &str = r#"
pid=
while read -r order; do
    case $order in
        leave) exit 0 ;;
        *) pid=$order ;;
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

/// Standard output is the writing end of orders, standard input that of presence: the program and
/// all it starts hold it open as descriptor 3.
const LAUNCHER: &str = r#"echo "$$"; exec 3<&0 </dev/null >&2; exec "$@""#;

/// Stops a program and removes files once the value is gone, by whatever way.
#[derive(Debug)]
pub(crate) struct Reaper {
    process: Child,
    // Both `Some` until the janitor is dismissed.
    orders: Option<PipeWriter>,
    presence: Option<PipeWriter>,
}

impl Reaper {
    /// Starts one that stops a program, and removes nothing.
    pub(crate) fn hire_to_stop() -> Result<Self, Error> {
        Self::hire(std::iter::empty::<&OsStr>())
    }

    /// Starts one that will remove these files and directories. They need not exist yet.
    pub(crate) fn hire<P: AsRef<OsStr>>(
        remove: impl IntoIterator<Item = P>,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Spawn { program: SHELL.into(), source };
        let (their_orders, orders) = pipe().map_err(failed)?;
        let (their_presence, presence) = pipe().map_err(failed)?;
        let process = Command::new(SHELL)
            .args(["-c", JANITOR, "howdah-lab"])
            .args(remove)
            .current_dir("/")
            .process_group(0)
            .stdin(their_orders)
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(their_presence)))
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        Ok(Self { process, orders: Some(orders), presence: Some(presence) })
    }

    /// Starts a program that is not to outlive us, its output going to `output`. At most one at a
    /// time; when it has ended and was waited for, [`Reaper::forget_program`].
    pub(crate) fn launch(
        &self,
        account: &Account,
        program: &Path,
        arguments: &[&OsStr],
        output: impl Into<Stdio>,
    ) -> Result<Child, Error> {
        let failed = |source| Error::Spawn { program: program.to_owned(), source };
        let (Some(orders), Some(presence)) = (&self.orders, &self.presence) else {
            return Err(failed(io::ErrorKind::BrokenPipe.into()));
        };
        account
            .command(SHELL)
            .args(["-c", LAUNCHER, "howdah-lab"])
            .arg(program)
            .args(arguments)
            .process_group(0)
            .stdin(presence.try_clone().map_err(failed)?)
            .stdout(orders.try_clone().map_err(failed)?)
            .stderr(output)
            .spawn()
            .map_err(failed)
    }

    /// The program has ended, and its process id may be given to another.
    pub(crate) fn forget_program(&mut self) {
        self.order("\n");
    }

    /// From now on nothing is stopped or removed.
    pub(crate) fn leave_everything(&mut self) {
        self.order("leave\n");
        self.orders = None;
    }

    /// Has the files removed. The program must have ended, or be about to.
    pub(crate) fn dismiss(self) {
        drop(self);
    }

    fn order(&mut self, line: &str) {
        if let Some(orders) = &mut self.orders
            && let Err(error) = orders.write_all(line.as_bytes())
        {
            tracing::warn!(%error, "the process that cleans up after us is gone");
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.presence = None;
        self.orders = None;
        if let Err(error) = self.process.wait() {
            tracing::warn!(%error, "cannot wait for the process that cleans up");
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
    fn files_go_with_the_value() {
        let (_parent, dir) = scratch();
        drop(Reaper::hire([&dir]).unwrap());
        assert!(!dir.exists());
    }

    #[test]
    fn files_stay_when_told_so() {
        let (_parent, dir) = scratch();
        Reaper::hire([&dir]).unwrap().leave_everything();
        assert!(dir.join("inner").exists());
    }

    #[test]
    fn a_running_program_is_stopped_before_files_go() {
        let (_parent, dir) = scratch();
        let janitor = Reaper::hire([&dir]).unwrap();
        let arguments = [OsStr::new("-c"), OsStr::new("exec sleep 1000")];
        let mut program = janitor
            .launch(&Account::for_servers().unwrap(), Path::new(SHELL), &arguments, Stdio::null())
            .unwrap();
        // Without a wait: the janitor knows of the program before it runs.
        drop(janitor);
        let signal = program.wait().unwrap().signal();
        assert!(matches!(signal, Some(SIGQUIT | SIGKILL)), "{signal:?}");
        assert!(!dir.exists());
    }

    #[test]
    fn a_program_that_ignores_signals_is_stopped_with_all_it_started() {
        let (_parent, dir) = scratch();
        let janitor = Reaper::hire([&dir]).unwrap();
        let script = "trap '' QUIT INT TERM; sleep 1000 & echo ready; exec sleep 1000";
        let arguments = [OsStr::new("-c"), OsStr::new(script)];
        let (mut said, output) = pipe().unwrap();
        let mut program = janitor
            .launch(&Account::for_servers().unwrap(), Path::new(SHELL), &arguments, output)
            .unwrap();
        said.read_exact(&mut [0; "ready".len()]).unwrap();
        drop(janitor);
        assert_eq!(program.wait().unwrap().signal(), Some(SIGKILL));
        assert!(!dir.exists());
    }

    const SIGQUIT: i32 = 3;
    const SIGKILL: i32 = 9;
}

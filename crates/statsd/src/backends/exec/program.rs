//! Runs a program with a given input, within a time limit.

use std::{
    io::{self, Read as _, Write as _},
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use howdah_http::client::quote;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionbio},
    process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open},
};

use super::super::{StopDeadline, outbox::SendError};

/// Time between the signals TERM and KILL for a program that runs too long.
const KILL_DELAY: Duration = Duration::from_secs(1);
/// Number of bytes of standard error that are retained; the rest is read and dropped.
const OUTPUT_BYTES_MAX: usize = 4 << 10;
/// The exit status of a program that refuses its input: `EX_DATAERR`.
const REFUSED: i32 = 65;

/// The reason why a program did not accept its input.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("cannot start the program")]
    Start(#[source] io::Error),
    #[error("cannot wait for the program")]
    Wait(#[source] io::Error),
    #[error("{}{}", ended(.status), quoted(.output))]
    Exit { status: ExitStatus, output: String },
    #[error("stopped after {:.1} s{}", .after.as_secs_f64(), quoted(.output))]
    Timeout { after: Duration, output: String },
}

impl SendError for ExecError {
    fn is_refusal(&self) -> bool {
        matches!(self, Self::Exit { status, .. } if status.code() == Some(REFUSED))
    }
}

fn ended(status: &ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn quoted(output: &str) -> String {
    if output.is_empty() { String::new() } else { format!(": {output}") }
}

/// Runs a program with `input` as its standard input, and waits until it has ended. Returns the
/// beginning of what it wrote to standard error. A program that runs longer than `timeout`, or
/// beyond the stop deadline, is ended with all processes of its group.
///
/// # Errors
///
/// The program cannot be started, did not end in time, or its exit status is not 0.
pub(super) fn run(
    command: &[String],
    input: &[u8],
    timeout: Duration,
    stop: &StopDeadline,
) -> Result<String, ExecError> {
    let start = Instant::now();
    let Some((program, arguments)) = command.split_first() else {
        return Err(ExecError::Start(io::ErrorKind::InvalidInput.into()));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(ExecError::Start)?;
    let group = Pid::from_child(&child);
    let mut running = match RunningProgram::new(&mut child, group, input) {
        Ok(running) => running,
        Err(error) => {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            return Err(ExecError::Wait(error));
        }
    };
    let waited = running.wait(start + timeout, stop);
    // A program that has read everything may still succeed after the signal.
    let has_read_all = running.stdin.is_none() && running.input.is_empty();
    let RunningProgram { output, .. } = running;
    let output = quote(&output);
    if !matches!(waited, Ok(EndReason::Exited)) {
        // It may ignore TERM, and its children may still run.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let status = child.wait().map_err(ExecError::Wait)?;
    match waited.map_err(ExecError::Wait)? {
        EndReason::Stopped if has_read_all && status.success() => Ok(output),
        EndReason::Stopped => Err(ExecError::Timeout { after: start.elapsed(), output }),
        EndReason::Exited if status.success() => Ok(output),
        EndReason::Exited => Err(ExecError::Exit { status, output }),
    }
}

/// The reason why waiting for a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    /// The program has ended by itself.
    Exited,
    /// It was signalled to end, because it ran too long.
    Stopped,
}

/// A program while it reads its input.
struct RunningProgram<'i> {
    group: Pid,
    /// Readable once the program has ended.
    exit: OwnedFd,
    stdin: Option<ChildStdin>,
    stderr: Option<ChildStderr>,
    input: &'i [u8],
    output: Vec<u8>,
}

impl<'i> RunningProgram<'i> {
    fn new(child: &mut Child, group: Pid, input: &'i [u8]) -> io::Result<Self> {
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        if let Some(stdin) = &stdin {
            ioctl_fionbio(stdin, true)?;
        }
        if let Some(stderr) = &stderr {
            ioctl_fionbio(stderr, true)?;
        }
        let exit = pidfd_open(group, PidfdFlags::empty())?;
        Ok(Self { group, exit, stdin, stderr, input, output: Vec::new() })
    }

    /// Writes the input and reads standard error until the program has ended, or until `deadline`
    /// or the stop deadline. Then the program gets a moment to end.
    fn wait(&mut self, deadline: Instant, stop: &StopDeadline) -> io::Result<EndReason> {
        let mut reason = EndReason::Exited;
        let mut kill_at = None;
        loop {
            let now = Instant::now();
            let term_at = stop.limit(deadline);
            let limit = match kill_at {
                Some(kill_at) if now >= kill_at => return Ok(EndReason::Stopped),
                Some(kill_at) => kill_at,
                None if now >= term_at => {
                    let _ = kill_process_group(self.group, Signal::TERM);
                    reason = EndReason::Stopped;
                    *kill_at.insert(now + stop.kill_delay(KILL_DELAY))
                }
                None => term_at,
            };
            if self.poll(limit.saturating_duration_since(now), stop)? {
                return Ok(reason);
            }
        }
    }

    /// Waits until a descriptor is ready, at most for `timeout`, and reads and writes. Returns true
    /// once the program has ended.
    fn poll(&mut self, timeout: Duration, stop: &StopDeadline) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(&self.exit, PollFlags::IN)];
        // Once the deadline is set, the eventfd stays readable.
        if !stop.is_set() {
            fds.push(PollFd::new(stop.event(), PollFlags::IN));
        }
        fds.extend(self.stdin.as_ref().map(|stdin| PollFd::new(stdin, PollFlags::OUT)));
        fds.extend(self.stderr.as_ref().map(|stderr| PollFd::new(stderr, PollFlags::IN)));
        // Rounded up, so that an expired timeout is never seen as a moment too early.
        let timeout = timeout + Duration::from_millis(1);
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_ended = !fds[0].revents().is_empty();
        drop(fds);
        self.write();
        self.read();
        Ok(has_ended)
    }

    /// Writes as much of the input as the pipe accepts, and closes it after the last byte.
    fn write(&mut self) {
        while let Some(stdin) = &mut self.stdin {
            if self.input.is_empty() {
                self.stdin = None;
                return;
            }
            match stdin.write(self.input) {
                Ok(bytes) => self.input = &self.input[bytes..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The program does not read the rest. Its exit status decides.
                Err(_) => self.stdin = None,
            }
        }
    }

    /// Reads what the program has written to standard error.
    fn read(&mut self) {
        let mut buffer = [0; 4096];
        // Limited, so that a program that never stops writing is still stopped in time.
        for _ in 0..64 {
            let Some(stderr) = &mut self.stderr else { return };
            match stderr.read(&mut buffer) {
                Ok(0) => self.stderr = None,
                Ok(bytes) => {
                    let room = OUTPUT_BYTES_MAX - self.output.len();
                    self.output.extend_from_slice(&buffer[..bytes.min(room)]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.stderr = None,
            }
        }
    }
}

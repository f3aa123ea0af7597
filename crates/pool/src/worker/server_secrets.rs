//! [`ServerSecrets`]: passwords for logins to servers that come from a file or a program, such as
//! the short-lived tokens of cloud providers.
//!
//! A file is read at each login to a server, so that a replaced file takes effect at once. The
//! password that a program prints is used until a tenth of its lifetime is left, at most a minute;
//! then the next login runs the program again. If that fails, the old password is used to its end.
//! A password that a server has refused is not used again.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use howdah_pool_config::{SECRET_BYTES_MAX, SecretSource};
use howdah_wire::Secret;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use zeroize::Zeroizing;

/// Maximum run time of a program. Then it is killed, with the processes that it has started.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length of a program's output: the longest password, and its lifetime.
const OUTPUT_BYTES_MAX: u64 = SECRET_BYTES_MAX as u64 + 64;

/// Maximum length of the part of a program's error output that is reported.
const REASON_BYTES_MAX: usize = 200;

/// Passwords are replaced so long before their end, or a tenth of their lifetime before.
const REFRESH_BEFORE_MAX: Duration = Duration::from_secs(60);

/// The passwords that programs have printed.
#[derive(Debug, Default)]
pub(super) struct ServerSecrets(Mutex<HashMap<SecretSource, Arc<CommandSecret>>>);

/// The password of one program. The lock is held while it runs, so it does not run twice.
#[derive(Debug, Default)]
struct CommandSecret(Mutex<Option<PrintedSecret>>);

#[derive(Debug)]
struct PrintedSecret {
    password: Secret,
    refresh_at: Instant,
    ends_at: Instant,
}

impl ServerSecrets {
    /// Returns the password of a source; blocks while a file is read or a program runs.
    ///
    /// # Errors
    ///
    /// The reason, without secrets, why the password is missing.
    pub(super) fn fetch(&self, source: &SecretSource) -> Result<Secret, String> {
        let (command, lifetime) = match source {
            SecretSource::File(path) => return read_secret_file(path),
            SecretSource::Command { command, lifetime } => (command, *lifetime),
        };
        let entry = Arc::clone(self.0.lock().entry(source.clone()).or_default());
        let mut cached = entry.0.lock();
        let now = Instant::now();
        if let Some(fresh) = cached.as_ref().filter(|cached| now < cached.refresh_at) {
            return Ok(fresh.password.clone());
        }
        match run(command, lifetime) {
            Ok(printed) => Ok(cached.insert(printed).password.clone()),
            Err(why) => {
                let program = command.first().map_or("", String::as_str);
                let usable = cached.as_ref().filter(|cached| now < cached.ends_at);
                let Some(usable) = usable else { return Err(format!("{program} {why}")) };
                tracing::warn!(program, why, "no new password for servers: the old one is used");
                Ok(usable.password.clone())
            }
        }
    }

    /// Discards the password of a program, because a server has refused it.
    pub(super) fn discard(&self, source: &SecretSource) {
        let entry = self.0.lock().get(source).cloned();
        // While the program runs, nothing is cached.
        if let Some(mut cached) = entry.as_ref().and_then(|entry| entry.0.try_lock()) {
            *cached = None;
        }
    }
}

fn read_secret_file(path: &Path) -> Result<Secret, String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", path.display());
    let bytes = File::open(path).and_then(read_bounded).map_err(failed)?;
    parse_password(&bytes).map_err(|why| format!("{}: {why}", path.display()))
}

/// Reads up to one byte more than [`OUTPUT_BYTES_MAX`], which is then too much.
fn read_bounded(from: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // Allocated once: a growing buffer would leave copies of the secret in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(OUTPUT_BYTES_MAX as usize + 1));
    from.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the first line, which must not be empty.
fn parse_password(bytes: &[u8]) -> Result<Secret, &'static str> {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line {
        [] => Err("the first line, the password, is empty"),
        line if line.len() > SECRET_BYTES_MAX => Err("the password is longer than 65,530 bytes"),
        line if line.contains(&0) => Err("the password contains a zero byte"),
        line => Ok(Secret::from(line)),
    }
}

/// Returns the number of seconds in the second line of a program's output, if there is one.
fn parse_lifetime(bytes: &[u8]) -> Result<Option<Duration>, &'static str> {
    let line = bytes.split(|byte| *byte == b'\n').nth(1).unwrap_or_default();
    let text = line.trim_ascii();
    if text.is_empty() {
        return Ok(None);
    }
    let seconds = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let seconds: u32 = seconds.ok_or("the second line is not a number of seconds")?;
    Ok(Some(Duration::from_secs(seconds.into())))
}

/// Runs a program, without a shell, and returns what it prints.
fn run(command: &[String], lifetime: Duration) -> Result<PrintedSecret, String> {
    let [program, args @ ..] = command else { return Err("is missing".to_owned()) };
    let started = Instant::now();
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot be started: {error}"))?;
    let output = read_outputs(&mut child);
    if output.is_err() {
        kill_group(&child);
    }
    let status = child.wait().map_err(|error| format!("cannot be waited for: {error}"));
    let (output, errors) = output?;
    let status = status?;
    if !status.success() {
        let reason = String::from_utf8_lossy(&errors).trim().escape_debug().to_string();
        return Err(format!("failed ({status}): {reason}"));
    }
    let password = parse_password(&output).map_err(|why| format!("printed no password: {why}"))?;
    let lifetime = parse_lifetime(&output)?.unwrap_or(lifetime);
    let ends_at = started + lifetime;
    let refresh_at = ends_at.checked_sub((lifetime / 10).min(REFRESH_BEFORE_MAX));
    Ok(PrintedSecret { password, refresh_at: refresh_at.unwrap_or(ends_at), ends_at })
}

/// A program's output, and the beginning of its error output.
type Outputs = (Zeroizing<Vec<u8>>, Vec<u8>);

/// Reads both outputs of a program to their end, within [`COMMAND_TIMEOUT`].
fn read_outputs(child: &mut Child) -> Result<Outputs, String> {
    let deadline = Instant::now() + COMMAND_TIMEOUT;
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("has no output".to_owned());
    };
    let (to_output, from_output) = mpsc::channel();
    let (to_errors, from_errors) = mpsc::channel();
    let cannot_read = |error: io::Error| format!("cannot be read from: {error}");
    // The threads end with the program, which is killed if it takes too long.
    let reader = thread::Builder::new().name("secret-output".to_owned());
    reader.spawn(move || to_output.send(read_bounded(output))).map_err(cannot_read)?;
    let reader = thread::Builder::new().name("secret-errors".to_owned());
    reader
        .spawn(move || {
            let (mut head, mut errors) = (Vec::new(), errors);
            let result = (&mut errors).take(REASON_BYTES_MAX as u64).read_to_end(&mut head);
            let _ = to_errors.send(result.map(|_| head));
            // The rest is read, so that the program is not stopped by a full pipe.
            let _ = io::copy(&mut errors, &mut io::sink());
        })
        .map_err(cannot_read)?;
    let left = || deadline.saturating_duration_since(Instant::now());
    let too_late = |_| format!("did not finish within {COMMAND_TIMEOUT:?}");
    let output = from_output.recv_timeout(left()).map_err(too_late)?.map_err(cannot_read)?;
    if output.len() as u64 > OUTPUT_BYTES_MAX {
        return Err("printed more than a password".to_owned());
    }
    let errors = from_errors.recv_timeout(left()).map_err(too_late)?.map_err(cannot_read)?;
    Ok((output, errors))
}

/// Kills a program and the processes that it has started. Best effort: they may have ended.
fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests;

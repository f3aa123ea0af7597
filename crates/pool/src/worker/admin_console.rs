//! Console connections. Each has a thread outside the data path, which passes bytes between a
//! socket and a [`ConsoleSession`].

use std::{
    io, thread,
    time::{Duration, Instant, SystemTime},
};

use howdah_net::{Interest, Poller, Received, SocketReadiness, Stream, Token};
use howdah_pool_config::{CONSOLE_DATABASES, SetError};
use howdah_pool_core::Permits;
use howdah_wire::{
    backend::{Severity, encode},
    startup::CancelKey,
};

use super::{
    capture::CaptureError,
    control::{AdminError, BanError, NoSuchDatabase, PoolerHandle, UserResume},
    reload::{ReloadReport, SetFailure, error_chain},
    tls::describe_tls,
};
use crate::{
    AdminView, ConnectionNumber, SocketAddresses,
    console::{
        CellValue, ConsoleBackend, ConsoleCommand, ConsoleError, ConsoleSession, Disconnect, Show,
        log_level::{self, LogLevelError},
        setting_value,
    },
    recorder::RecorderStatus,
};

/// An authenticated user of the console.
#[derive(Debug)]
pub(super) struct AdminClient {
    pub(super) user: String,
    pub(super) application_name: String,
    /// Whether the user may run commands that are not read-only.
    pub(super) is_admin: bool,
    /// Output to send before the welcome message.
    pub(super) output: Vec<u8>,
    /// Bytes that the client has already sent.
    pub(super) received: Vec<u8>,
    /// A permit from the limit on console connections.
    pub(super) permits: Permits,
}

/// Interval at which to check whether the pooler has stopped, or the connection is killed.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Starts a thread for a console connection.
pub(super) fn spawn(client: AdminClient, stream: Stream, control: PoolerHandle) {
    let run = move || {
        if let Err(error) = serve(client, stream, control) {
            tracing::debug!(%error, "console connection lost");
        }
    };
    if let Err(error) = thread::Builder::new().name("console".to_owned()).spawn(run) {
        tracing::warn!(%error, "cannot start a console thread");
    }
}

/// Removes a connection from the list of console connections when it ends.
struct ListedClient {
    id: ConnectionNumber,
    control: PoolerHandle,
}

impl Drop for ListedClient {
    fn drop(&mut self) {
        self.control.shared.console.remove(self.id);
    }
}

fn serve(client: AdminClient, mut stream: Stream, control: PoolerHandle) -> io::Result<()> {
    let AdminClient { user, application_name, is_admin, mut output, received, permits } = client;
    let view = AdminView {
        id: 0,
        user,
        application_name,
        connected: SystemTime::now(),
        addresses: SocketAddresses {
            peer: stream.peer_address(),
            local: stream.local_address(),
            tls: stream.protection().map(describe_tls),
        },
    };
    let id = control.shared.console.add(view);
    let _listed = ListedClient { id, control: control.clone() };
    let mut console = PoolerConsole { control };
    let mut session = ConsoleSession::new(is_admin);
    let mut poller = Poller::new()?;
    poller.add_with_interest(&stream, Token(0), Interest::Both)?;
    // Console commands cannot be cancelled: the key is a placeholder.
    let key = CancelKey::new(0, &[0; 4]).ok_or(io::ErrorKind::InvalidData)?;
    ConsoleSession::write_welcome(&mut output, &key);
    let mut result = session.receive(&received, &mut console, &mut output);
    let mut ready = Vec::new();
    let mut buffer = vec![0; 4096];
    loop {
        let is_killed = console.control.shared.console.is_killed(id);
        if is_killed {
            let text = b"terminating connection due to administrator command";
            let fields = encode::essentials(Severity::Fatal, b"57P01", text);
            encode::error_response(&mut output, fields).map_err(io::Error::other)?;
        }
        let sent = stream.send(&output)?;
        output.drain(..sent);
        if is_killed || result == Err(Disconnect) && output.is_empty() {
            stream.close();
            drop(permits);
            return Ok(());
        }
        // No commands are read while output is pending, so that the output stays bounded.
        let received =
            if output.is_empty() { stream.receive(&mut buffer)? } else { Received::Drained(0) };
        match received {
            Received::Closed => return Ok(()),
            Received::Drained(0) => wait(&mut poller, &console.control, id, &mut ready)?,
            Received::Bytes(some) | Received::Drained(some) => {
                result = session.receive(&buffer[..some], &mut console, &mut output);
            }
        }
    }
}

/// Waits until the socket is ready or the connection is killed.
///
/// # Errors
///
/// The pooler has ended, or polling failed.
fn wait(
    poller: &mut Poller,
    control: &PoolerHandle,
    id: ConnectionNumber,
    ready: &mut Vec<SocketReadiness>,
) -> io::Result<()> {
    ready.clear();
    while ready.is_empty() && !control.shared.console.is_killed(id) {
        if control.shared.is_stopped() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        poller.wait(Some(Instant::now() + STOP_CHECK_INTERVAL), ready)?;
    }
    Ok(())
}

/// Maximum number of warnings and changed settings in the reply to RELOAD. The log contains all of
/// them.
const NOTICES_MAX: usize = 200;

/// Returns the first [`NOTICES_MAX`] texts and, if there are more, a note with the number of texts
/// left out.
fn truncated(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<_> = texts.collect();
    if texts.len() > NOTICES_MAX {
        let more = texts.len() - NOTICES_MAX;
        texts.truncate(NOTICES_MAX);
        texts.push(format!("and {more} more, which are in the log"));
    }
    texts
}

fn not_banned(server: &str, why: BanError) -> ConsoleError {
    match why {
        BanError::Unknown => {
            let known = "SHOW MEMBERS lists the servers";
            ConsoleError::new(*b"42704", format!("no database has a server {server}; {known}"))
        }
        BanError::Primary => {
            ConsoleError::new(*b"55000", format!("{server} is the primary, which cannot be banned"))
        }
        BanError::NotBanned => ConsoleError::new(*b"55000", format!("{server} is not banned")),
    }
}

/// The [`ConsoleBackend`] of a running pooler.
struct PoolerConsole {
    control: PoolerHandle,
}

impl From<CaptureError> for ConsoleError {
    fn from(error: CaptureError) -> Self {
        let sqlstate = match &error {
            CaptureError::AlreadyRunning { .. } | CaptureError::NotRunning => *b"55000",
            CaptureError::Name { .. } => *b"42602",
            _ => *b"58030",
        };
        Self::new(sqlstate, error_chain(&error))
    }
}

/// Returns a number and its noun, such as `1 event` or `3 events`.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the notices for a capture that was stopped, or the error that ended the capture.
fn capture_summary(status: &RecorderStatus) -> Result<Vec<String>, ConsoleError> {
    let RecorderStatus { path, tally, error, .. } = status;
    if let Some(error) = error {
        return Err(ConsoleError::new(
            *b"58030",
            format!("the capture could not be written: {error}"),
        ));
    }
    let mut notices = vec![format!(
        "{} of {} in {}",
        counted(tally.events, "event"),
        counted(tally.sessions, "session"),
        path.display()
    )];
    if !tally.is_complete() {
        notices
            .push("the capture is incomplete: see SHOW CAPTURE and howdah capture info".to_owned());
    }
    Ok(notices)
}

impl From<NoSuchDatabase> for ConsoleError {
    fn from(NoSuchDatabase(name): NoSuchDatabase) -> Self {
        if CONSOLE_DATABASES.contains(&name.as_str()) {
            Self::new(*b"42809", format!("the console has no servers: {name}"))
        } else {
            Self::new(*b"3D000", format!("no such database: {name}"))
        }
    }
}

impl From<AdminError> for ConsoleError {
    fn from(unfit: AdminError) -> Self {
        match unfit {
            AdminError::NoDatabase(none) => none.into(),
            AdminError::Suspended => Self::new(*b"55000", "already suspended, use RESUME first"),
            AdminError::Interrupted => Self::new(
                *b"55000",
                "not suspended: RESUME was issued meanwhile, or the pooler is stopping",
            ),
            AdminError::Paused => {
                Self::new(*b"55000", "cannot suspend with paused databases, use RESUME first")
            }
        }
    }
}

impl ConsoleBackend for PoolerConsole {
    fn show(&mut self, show: Show) -> Result<Vec<Vec<CellValue>>, ConsoleError> {
        self.control.shared.console.record_command();
        Ok(show.rows(&self.control.snapshot(show.needs_connections())))
    }

    fn setting(&mut self, name: &str) -> Option<String> {
        setting_value(&self.control.config(), name)
    }

    fn execute_command(&mut self, command: &ConsoleCommand) -> Result<Vec<String>, ConsoleError> {
        self.control.shared.console.record_command();
        let control = &self.control;
        match command {
            ConsoleCommand::Reload => {
                let ReloadReport { changes, warnings } = control
                    .reload()
                    .map_err(|error| ConsoleError::new(*b"F0000", error_chain(&error)))?;
                let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
                return Ok(truncated(warnings.chain(changes.iter().map(ToString::to_string))));
            }
            ConsoleCommand::Set { name, value } if log_level::is_log_level(name) => {
                let set = log_level::set_log_level(name, value);
                let failed = |error: LogLevelError| {
                    let sqlstate = match error {
                        LogLevelError::Value { .. } => *b"22023",
                        LogLevelError::Fixed { .. } => *b"55P02",
                    };
                    ConsoleError::new(sqlstate, error.to_string())
                };
                return set.map(|change| change.into_iter().collect()).map_err(failed);
            }
            ConsoleCommand::Set { name, value } => {
                let failed = |error: SetFailure| {
                    let sqlstate = match &error {
                        SetFailure::Set(SetError::NeedsRestart(_) | SetError::FileOnly(_)) => {
                            *b"55P02"
                        }
                        SetFailure::Set(SetError::Unknown(_)) => *b"42704",
                        _ => *b"22023",
                    };
                    ConsoleError::new(sqlstate, error_chain(&error))
                };
                return control.set(name, value).map_err(failed);
            }
            ConsoleCommand::Pause(databases) => control.pause(databases)?,
            ConsoleCommand::PauseUser { database, user } => control.pause_user(database, user)?,
            ConsoleCommand::Suspend => control.suspend()?,
            ConsoleCommand::Resume(databases) => {
                if !control.resume(databases)? {
                    return Err(ConsoleError::new(*b"55000", "pooler is not paused/suspended"));
                }
            }
            ConsoleCommand::ResumeUser { database, user } => {
                let (state, resume) = (*b"55000", "use RESUME");
                match control.resume_user(database, user)? {
                    UserResume::Resumed => {}
                    UserResume::NotPaused => {
                        return Err(ConsoleError::new(state, format!("{user} is not paused")));
                    }
                    UserResume::AllPaused => {
                        let text =
                            format!("all users of {database} are paused: {resume} {database}");
                        return Err(ConsoleError::new(state, text));
                    }
                }
            }
            ConsoleCommand::Enable(database, enable) => control.set_enabled(database, *enable)?,
            ConsoleCommand::Kill(databases) => control.kill(databases)?,
            ConsoleCommand::KillClient(id) => {
                if !control.kill_client(*id) {
                    return Err(ConsoleError::new(*b"42704", "client not found"));
                }
            }
            ConsoleCommand::Reconnect(databases) => control.reconnect(databases)?,
            ConsoleCommand::Ban(server, lasts) => {
                let banned = control.ban(server, *lasts).map_err(|why| not_banned(server, why))?;
                return Ok(banned.iter().map(|server| format!("{server} is banned")).collect());
            }
            ConsoleCommand::Unban(server) => {
                let back = control.unban(server).map_err(|why| not_banned(server, why))?;
                return Ok(back.iter().map(|server| format!("{server} is unbanned")).collect());
            }
            ConsoleCommand::ResetCluster(database) => {
                return control.reset_cluster(database).ok_or_else(|| {
                    let text = format!("{database} is not a cluster, or has not been used yet");
                    ConsoleError::new(*b"42704", text)
                });
            }
            ConsoleCommand::StartCapture(name) => {
                let path = control.start_capture(name.as_deref())?;
                return Ok(vec![format!("capturing to {}", path.display())]);
            }
            ConsoleCommand::StopCapture => return capture_summary(&control.stop_capture()?),
            ConsoleCommand::WaitClose(databases) => control.wait_close(databases)?,
            ConsoleCommand::Shutdown(how) => control.shut_down(*how),
            ConsoleCommand::Empty
            | ConsoleCommand::Show(_)
            | ConsoleCommand::Invalid(_)
            | ConsoleCommand::ShowSetting(_)
            | ConsoleCommand::Value { .. }
            | ConsoleCommand::Transaction(_)
            | ConsoleCommand::Help
            | ConsoleCommand::SetSessionParameter => {}
        }
        Ok(Vec::new())
    }
}

#[test]
fn nouns_are_singular_for_one_thing() {
    assert_eq!([0, 1, 2].map(|count| counted(count, "event")), ["0 events", "1 event", "2 events"]);
}

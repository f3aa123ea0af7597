//! Where an operator sits: a thread for each, beside the data path, between a socket and the console's
//! [`Session`].

use std::{
    io, thread,
    time::{Duration, Instant},
};

use howdah_net::{Interest, Poller, Readiness, Received, Stream, Token};
use howdah_record::Status;
use howdah_wire::startup::CancelKey;

use super::{
    capture::CaptureError,
    control::{Control, NoDatabase, NotBanned, Unfit, UserPause},
    log_level::LogLevelError,
    reload::{Reloaded, SetFailure, chain},
};
use crate::{
    Permits,
    config::SetError,
    console::{Command, Disconnect, Failure, Operator, Session, Show, Value},
};

/// An operator who has proven to be one.
#[derive(Debug)]
pub(super) struct Visitor {
    /// Whether it may change things.
    pub(super) is_admin: bool,
    /// What it is owed before its greeting.
    pub(super) owed: Vec<u8>,
    /// What it has sent already.
    pub(super) received: Vec<u8>,
    /// Its share of the limit on operators.
    pub(super) permits: Permits,
}

/// So many operators there may be.
pub(super) const VISITORS_MAX: u32 = 64;

/// Between two looks at whether the pooler is still there.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Begins a thread for an operator.
pub(super) fn welcome(visitor: Visitor, stream: Stream, control: Control) {
    let sit = move || {
        if let Err(error) = sit(visitor, stream, control) {
            tracing::debug!(%error, "a console's connection broke");
        }
    };
    if let Err(error) = thread::Builder::new().name("console".to_owned()).spawn(sit) {
        tracing::warn!(%error, "cannot start a console");
    }
}

fn sit(visitor: Visitor, mut stream: Stream, control: Control) -> io::Result<()> {
    let Visitor { is_admin, owed, received, permits } = visitor;
    let mut desk = Desk { control };
    let mut session = Session::new(is_admin);
    let mut poller = Poller::new()?;
    poller.add_for(&stream, Token(0), Interest::Both)?;
    let mut output = owed;
    // Nothing that it does can be cancelled: the key is good for nothing.
    let key = CancelKey::new(0, &[0; 4]).ok_or(io::ErrorKind::InvalidData)?;
    Session::greet(&mut output, &key);
    let mut over = session.receive(&received, &mut desk, &mut output);
    let mut ready = Vec::new();
    let mut buffer = vec![0; 4096];
    loop {
        let sent = stream.send(&output)?;
        output.drain(..sent);
        if over == Err(Disconnect) && output.is_empty() {
            stream.close();
            drop(permits);
            return Ok(());
        }
        // One who does not take its answers is not listened to.
        let received =
            if output.is_empty() { stream.receive(&mut buffer)? } else { Received::Drained(0) };
        match received {
            Received::Closed => return Ok(()),
            Received::Drained(0) => wait(&mut poller, &desk.control, &mut ready)?,
            Received::Bytes(some) | Received::Drained(some) => {
                over = session.receive(&buffer[..some], &mut desk, &mut output);
            }
        }
    }
}

/// Waits for the socket.
///
/// # Errors
///
/// The pooler has ended.
fn wait(poller: &mut Poller, control: &Control, ready: &mut Vec<Readiness>) -> io::Result<()> {
    ready.clear();
    while ready.is_empty() {
        if control.front.is_over() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        poller.wait(Some(Instant::now() + LOOK_EVERY), ready)?;
    }
    Ok(())
}

/// Most notices about changed settings; the log has all of them.
const NOTICES_MAX: usize = 200;

/// As many texts as may be said, and how many were not.
fn shortened(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<_> = texts.collect();
    if texts.len() > NOTICES_MAX {
        let more = texts.len() - NOTICES_MAX;
        texts.truncate(NOTICES_MAX);
        texts.push(format!("and {more} more, which are in the log"));
    }
    texts
}

fn not_banned(server: &str, why: NotBanned) -> Failure {
    match why {
        NotBanned::Unknown => {
            let known = "SHOW MEMBERS has those that there are";
            Failure::new(*b"42704", format!("no database has a server {server}; {known}"))
        }
        NotBanned::Primary => Failure::new(*b"55000", format!("{server} is the primary")),
        NotBanned::NoBan => Failure::new(*b"55000", format!("{server} is not banned")),
    }
}

/// Does what the console is told.
struct Desk {
    control: Control,
}

impl From<CaptureError> for Failure {
    fn from(error: CaptureError) -> Self {
        let sqlstate = match &error {
            CaptureError::UnderWay { .. } | CaptureError::None => *b"55000",
            CaptureError::Name { .. } => *b"42602",
            _ => *b"58030",
        };
        Self::new(sqlstate, chain(&error))
    }
}

/// What an ended capture has to say.
fn captured(status: &Status) -> Result<Vec<String>, Failure> {
    let Status { path, tally, error, .. } = status;
    if let Some(error) = error {
        return Err(Failure::new(*b"58030", format!("the capture could not be written: {error}")));
    }
    let mut said = vec![format!(
        "{} events of {} sessions in {}",
        tally.events,
        tally.sessions,
        path.display()
    )];
    if !tally.is_complete() {
        said.push("it is not complete: see SHOW CAPTURE and howdah capture info".to_owned());
    }
    Ok(said)
}

impl From<NoDatabase> for Failure {
    fn from(NoDatabase(name): NoDatabase) -> Self {
        Self::new(*b"3D000", format!("no such database: {name}"))
    }
}

impl From<Unfit> for Failure {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::NoDatabase(none) => none.into(),
            Unfit::Suspended => Self::new(*b"55000", "already suspended, say RESUME first"),
            Unfit::Ended => {
                Self::new(*b"55000", "not suspended: somebody said RESUME, or the pooler ends")
            }
            Unfit::Paused => {
                Self::new(*b"55000", "cannot suspend with paused databases, say RESUME first")
            }
        }
    }
}

impl Operator for Desk {
    fn show(&mut self, show: Show) -> Result<Vec<Vec<Value>>, Failure> {
        Ok(show.rows(&self.control.view(show.needs_peers())))
    }

    fn order(&mut self, command: &Command) -> Result<Vec<String>, Failure> {
        let control = &self.control;
        match command {
            Command::Reload => {
                let Reloaded { changes, warnings } =
                    control.reload().map_err(|error| Failure::new(*b"F0000", chain(&error)))?;
                let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
                return Ok(shortened(warnings.chain(changes.iter().map(ToString::to_string))));
            }
            Command::Set { name, value } if Control::is_log_level(name) => {
                let set = Control::set_log_level(name, value);
                let failed = |error: LogLevelError| {
                    let sqlstate = match error {
                        LogLevelError::Value { .. } => *b"22023",
                        LogLevelError::Fixed { .. } => *b"55P02",
                    };
                    Failure::new(sqlstate, error.to_string())
                };
                return set.map(|change| change.into_iter().collect()).map_err(failed);
            }
            Command::Set { name, value } => {
                let failed = |error: SetFailure| {
                    let sqlstate = match &error {
                        SetFailure::Set(SetError::Fixed(_)) => *b"55P02",
                        SetFailure::Set(SetError::Unknown(_)) => *b"42704",
                        _ => *b"22023",
                    };
                    Failure::new(sqlstate, chain(&error))
                };
                return control.set(name, value).map_err(failed);
            }
            Command::Pause(databases) => control.pause(databases)?,
            Command::PauseUser { database, user } => control.pause_user(database, user)?,
            Command::Suspend => control.suspend()?,
            Command::Resume(databases) => {
                if !control.resume(databases)? {
                    return Err(Failure::new(*b"55000", "nothing is paused"));
                }
            }
            Command::ResumeUser { database, user } => {
                let (state, resume) = (*b"55000", "say RESUME");
                match control.resume_user(database, user)? {
                    UserPause::Ended => {}
                    UserPause::None => {
                        return Err(Failure::new(state, format!("{user} is not paused")));
                    }
                    UserPause::OfAll => {
                        let text =
                            format!("all users of {database} are paused: {resume} {database}");
                        return Err(Failure::new(state, text));
                    }
                }
            }
            Command::Enable(database, enable) => control.enable(database, *enable)?,
            Command::Kill(databases) => control.kill(databases)?,
            Command::KillClient(id) => {
                if !control.kill_client(*id) {
                    return Err(Failure::new(*b"42704", format!("no such client: {id}")));
                }
            }
            Command::Reconnect(databases) => control.reconnect(databases)?,
            Command::Ban(server, lasts) => {
                let banned = control.ban(server, *lasts).map_err(|why| not_banned(server, why))?;
                return Ok(banned.iter().map(|server| format!("{server} is banned")).collect());
            }
            Command::Unban(server) => {
                let back = control.unban(server).map_err(|why| not_banned(server, why))?;
                return Ok(back.iter().map(|server| format!("{server} is back")).collect());
            }
            Command::ResetCluster(database) => {
                return control.reset_cluster(database).ok_or_else(|| {
                    let text = format!("{database} has no servers that are watched (cluster)");
                    Failure::new(*b"42704", text)
                });
            }
            Command::StartCapture(name) => {
                let path = control.start_capture(name.as_deref())?;
                return Ok(vec![format!("capturing to {}", path.display())]);
            }
            Command::StopCapture => return captured(&control.stop_capture()?),
            Command::WaitClose(databases) => control.wait_close(databases)?,
            Command::Shutdown(how) => control.shut_down(*how),
            Command::Empty | Command::Show(_) | Command::Help | Command::SetOfSession => {}
        }
        Ok(Vec::new())
    }
}

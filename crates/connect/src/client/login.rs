//! From an open socket to a session that is ready.

use howdah_session::{self as session, Event};

use super::{error::ConnectFailure, run::log_notice, socket::Socket};
use crate::{AuthPolicy, GuardedInput};

/// Logs in over an open socket.
pub(super) fn log_in(
    socket: &mut Socket,
    session: &mut session::Client,
    guard: AuthPolicy,
) -> Result<(), ConnectFailure> {
    let mut input = GuardedInput::new(guard);
    while !is_logged_in(session)? {
        socket.send(session.transmit()).map_err(ConnectFailure::Lost)?;
        session.transmitted(session.transmit().len());
        let mut buffer = [0; 4096];
        let bytes = match socket.receive(&mut buffer).map_err(ConnectFailure::Lost)? {
            0 => return Err(ConnectFailure::Closed),
            bytes => &buffer[..bytes],
        };
        input.handle(bytes, session)?;
    }
    Ok(())
}

fn is_logged_in(session: &mut session::Client) -> Result<bool, ConnectFailure> {
    while let Some(event) = session.poll_event().map_err(ConnectFailure::Protocol)? {
        match event {
            Event::LoggedIn => return Ok(true),
            Event::Error(error) => return Err(ConnectFailure::Sql(Box::new((&error).into()))),
            Event::Notice(notice) => log_notice(&notice),
            _ => {}
        }
    }
    Ok(false)
}

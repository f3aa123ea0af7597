//! Logging in over an open socket.

use howdah_session::{self as session, SessionEvent};

use super::{error::ConnectFailure, request::log_notice, socket::Socket};
use crate::{AuthFilter, AuthPolicy};

/// Logs in over an open socket, and waits until the server is ready for statements.
pub(super) fn log_in(
    socket: &mut Socket,
    session: &mut session::ClientSession,
    policy: AuthPolicy,
) -> Result<(), ConnectFailure> {
    let mut input = AuthFilter::new(policy);
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

fn is_logged_in(session: &mut session::ClientSession) -> Result<bool, ConnectFailure> {
    while let Some(event) = session.poll_event().map_err(ConnectFailure::Protocol)? {
        match event {
            SessionEvent::LoggedIn => return Ok(true),
            SessionEvent::Error(error) => {
                return Err(ConnectFailure::Sql(Box::new((&error).into())));
            }
            SessionEvent::Notice(notice) => log_notice(&notice),
            _ => {}
        }
    }
    Ok(false)
}

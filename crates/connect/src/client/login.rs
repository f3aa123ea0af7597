//! From an open socket to a session that is ready.

use howdah_session::{self as session, Event};
use howdah_wire::{Backend, Frame, Header, backend::Message};

use super::{error::ConnectFailure, run::log_notice, socket::Socket};
use crate::LoginGuard;

/// Most bytes of one message before the login is complete. Nobody has proved anything yet.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Logs in over an open socket.
pub(super) fn log_in(
    socket: &mut Socket,
    session: &mut session::Client,
    mut guard: LoginGuard,
) -> Result<(), ConnectFailure> {
    let mut received = Vec::new();
    while !is_logged_in(session)? {
        socket.send(session.transmit()).map_err(ConnectFailure::Lost)?;
        session.transmitted(session.transmit().len());
        // One message at a time: none may be answered before the guard has seen it.
        let message_bytes = loop {
            match judge_message(&received, &mut guard)? {
                Some(message_bytes) => break message_bytes,
                None => receive(socket, &mut received)?,
            }
        };
        session.handle_input(&received[..message_bytes]);
        received.drain(..message_bytes);
    }
    session.handle_input(&received);
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

/// Shows the guard the first message, and gives its length; `None` while it is not all there.
fn judge_message(received: &[u8], guard: &mut LoginGuard) -> Result<Option<usize>, ConnectFailure> {
    let protocol = ConnectFailure::Protocol;
    let split =
        Frame::split(received, MESSAGE_BYTES_MAX).map_err(|error| protocol(error.into()))?;
    let Some((frame, _)) = split else { return Ok(None) };
    if Backend::from_tag(frame.tag) == Some(Backend::Authentication)
        && let Message::Authentication(request) =
            Message::parse(frame).map_err(|error| protocol(error.into()))?
    {
        guard.check(&request)?;
    }
    Ok(Some(Header::BYTES + frame.body.len()))
}

fn receive(socket: &mut Socket, received: &mut Vec<u8>) -> Result<(), ConnectFailure> {
    let mut buffer = [0; 4096];
    match socket.receive(&mut buffer).map_err(ConnectFailure::Lost)? {
        0 => Err(ConnectFailure::Closed),
        bytes => {
            received.extend_from_slice(&buffer[..bytes]);
            Ok(())
        }
    }
}

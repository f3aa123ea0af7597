//! Forwards CancelRequests to peers.

use howdah_net::{Received, Stream};

use super::LoginProgress;
use crate::worker::cancel_peers::ForwardRequest;

/// A CancelRequest to a peer. Its connection is closed by the peer, which shows that the peer has
/// read the request.
pub(super) fn advance(request: &mut ForwardRequest, stream: &mut Option<Stream>) -> LoginProgress {
    let stream = match stream {
        Some(stream) => stream,
        none => match request.dial() {
            Ok(dialled) => none.insert(dialled),
            Err(_) => return LoginProgress::Close,
        },
    };
    match stream.open() {
        Ok(true) => {}
        Ok(false) => return LoginProgress::Waiting,
        Err(_) => return LoginProgress::Close,
    }
    if let Some(packet) = request.unsent() {
        // A few bytes into the empty buffer of a new socket are never written partially.
        if stream.send(packet).is_err() {
            return LoginProgress::Close;
        }
        request.set_sent();
    }
    let mut none = [0; 64];
    loop {
        match stream.receive(&mut none) {
            Ok(Received::Drained(_)) => return LoginProgress::Waiting,
            // A peer sends nothing on this connection; unexpected bytes are ignored.
            Ok(Received::Bytes(_)) => {}
            Ok(Received::Closed) | Err(_) => return LoginProgress::Close,
        }
    }
}

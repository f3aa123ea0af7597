//! Dials servers, and sends CancelRequests.

use std::{net::SocketAddr, sync::Arc};

use howdah_net::{Received, Stream};
use howdah_pool_core::ServerId;
use howdah_wire::startup::{self, CancelKey};

use super::LoginProgress;
use crate::worker::directory::{PoolEntry, ServerRoute};

/// Starts to connect to a route, at this address if the route has a host name. Does not block.
///
/// # Errors
///
/// The connection attempt could not be started, or failed at once; returns the reason as text.
pub(super) fn dial(
    entry: &PoolEntry,
    route: &ServerRoute,
    address: Option<SocketAddr>,
) -> Result<Stream, String> {
    entry.dialer(route, address)?.dial().map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    })
}

/// A CancelRequest to a server, with the connection that it is sent over.
#[derive(Debug)]
pub(in crate::worker) struct PendingCancel {
    server: ServerId,
    entry: Arc<PoolEntry>,
    route: ServerRoute,
    key: CancelKey,
    is_sent: bool,
    /// The resolved address, if the route has a host name.
    address: Option<Result<SocketAddr, String>>,
}

impl PendingCancel {
    pub(in crate::worker) fn new(
        server: ServerId,
        entry: Arc<PoolEntry>,
        route: ServerRoute,
        key: CancelKey,
    ) -> Self {
        Self { server, entry, route, key, is_sent: false, address: None }
    }

    pub(super) fn host(&self) -> Option<(String, u16)> {
        self.route.host()
    }

    pub(super) fn set_address(&mut self, address: Result<SocketAddr, String>) {
        self.address = Some(address);
    }

    pub(super) fn server(&self) -> ServerId {
        self.server
    }

    pub(super) fn advance(&mut self, stream: &mut Option<Stream>) -> LoginProgress {
        let done = LoginProgress::Cancelled(self.server);
        let stream = match stream {
            Some(stream) => stream,
            None if self.route.host().is_some() && self.address.is_none() => {
                return LoginProgress::Resolve;
            }
            none => {
                let address = self.address.take().transpose();
                match address.and_then(|address| dial(&self.entry, &self.route, address)) {
                    Ok(dialled) => none.insert(dialled),
                    Err(_) => return done,
                }
            }
        };
        match stream.open() {
            Ok(true) => {}
            Ok(false) => return LoginProgress::Waiting,
            Err(_) => return done,
        }
        if !self.is_sent {
            let mut packet = Vec::new();
            startup::cancel_request(&mut packet, &self.key);
            // A few bytes into the empty buffer of a new socket are never written partially.
            if stream.send(&packet).is_err() {
                return done;
            }
            self.is_sent = true;
        }
        let mut none = [0; 64];
        loop {
            match stream.receive(&mut none) {
                Ok(Received::Drained(_)) => return LoginProgress::Waiting,
                // A server sends nothing on this connection; unexpected bytes are ignored.
                Ok(Received::Bytes(_)) => {}
                Ok(Received::Closed) | Err(_) => return done,
            }
        }
    }
}

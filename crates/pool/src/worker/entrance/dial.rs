//! Dialling, and the CancelRequest, which needs little more than that.

use std::{net::SocketAddr, sync::Arc};

use howdah_net::{Received, Stream};
use howdah_wire::startup::{self, CancelKey};

use super::Progress;
use crate::{
    ServerId,
    worker::directory::{PoolEntry, Route},
};

/// Dials, at this address if the route's host has a name. The connection is not open yet.
///
/// # Errors
///
/// What stood in the way, in words.
pub(super) fn dial(
    entry: &PoolEntry,
    route: &Route,
    address: Option<SocketAddr>,
) -> Result<Stream, String> {
    entry.dialer(route, address)?.dial().map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    })
}

/// A CancelRequest to a server, on a connection of its own.
#[derive(Debug)]
pub(in crate::worker) struct CancelEntrance {
    server: ServerId,
    entry: Arc<PoolEntry>,
    route: Route,
    key: CancelKey,
    sent: bool,
    /// Where the route leads, if its host has a name.
    address: Option<Result<SocketAddr, String>>,
}

impl CancelEntrance {
    pub(in crate::worker) fn new(
        server: ServerId,
        entry: Arc<PoolEntry>,
        route: Route,
        key: CancelKey,
    ) -> Self {
        Self { server, entry, route, key, sent: false, address: None }
    }

    pub(super) fn host(&self) -> Option<(String, u16)> {
        self.route.host()
    }

    pub(super) fn resolved(&mut self, address: Result<SocketAddr, String>) {
        self.address = Some(address);
    }

    pub(super) fn server(&self) -> ServerId {
        self.server
    }

    pub(super) fn advance(&mut self, stream: &mut Option<Stream>) -> Progress {
        let over = Progress::Cancelled(self.server);
        let stream = match stream {
            Some(stream) => stream,
            None if self.route.host().is_some() && self.address.is_none() => {
                return Progress::Resolve;
            }
            none => {
                let address = self.address.take().transpose();
                match address.and_then(|address| dial(&self.entry, &self.route, address)) {
                    Ok(dialled) => none.insert(dialled),
                    Err(_) => return over,
                }
            }
        };
        match stream.open() {
            Ok(true) => {}
            Ok(false) => return Progress::Waiting,
            Err(_) => return over,
        }
        if !self.sent {
            let mut packet = Vec::new();
            startup::cancel_request(&mut packet, &self.key);
            // Some bytes into the empty buffer of a new socket: never a short write.
            if stream.send(&packet).is_err() {
                return over;
            }
            self.sent = true;
        }
        let mut none = [0; 64];
        loop {
            match stream.receive(&mut none) {
                Ok(Received::Drained(_)) => return Progress::Waiting,
                // It says nothing, and if it does, nobody asked.
                Ok(Received::Bytes(_)) => {}
                Ok(Received::Closed) | Err(_) => return over,
            }
        }
    }
}

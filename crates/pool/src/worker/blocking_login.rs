//! [`log_in`]: a login to a server on the calling thread, for connections outside the pools.

use std::{io, sync::Arc, time::Instant};

use howdah_net::{Interest, Poller, Stream, Token};
use howdah_pool_core::{ServerFailure, ServerId};

use super::{
    directory::PoolEntry,
    pending_login::{LoginProgress, PendingLogin, PendingServer},
    resolver_threads,
    shared_state::SharedState,
};
use crate::auth::ServerReady;

/// The reason why a login to a server failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum BlockingLoginError {
    /// The server cannot be reached or refuses the login.
    #[error("{}", .0.message)]
    Failed(ServerFailure),
    #[error("the login timed out")]
    Timeout,
    #[error(transparent)]
    Poll(#[from] io::Error),
}

/// Returns a login to the server of a pool, as one of the pooler's own connections.
pub(super) fn pending_server(entry: &Arc<PoolEntry>) -> PendingServer {
    let id = ServerId::new(0, 0); // An id that belongs to no core.
    PendingServer::new(id, Arc::clone(entry)).for_pooler()
}

/// Logs in to a server. The stream is then registered with `poller`, under token 0.
///
/// # Errors
///
/// The login failed or was not complete at `deadline`.
pub(super) fn log_in(
    poller: &mut Poller,
    server: PendingServer,
    shared: &SharedState,
    deadline: Instant,
) -> Result<(Stream, Box<ServerReady>), BlockingLoginError> {
    let mut pending = PendingLogin::server(server);
    loop {
        match pending.advance(shared, true) {
            LoginProgress::Server(_, ready, _) => {
                let stream = pending.stream.take();
                let stream = stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
                if pending.watched.is_none() {
                    poller.add_with_interest(&stream, Token(0), Interest::Both)?;
                }
                return Ok((stream, ready));
            }
            LoginProgress::NoServer(_, failure) => return Err(BlockingLoginError::Failed(failure)),
            LoginProgress::Resolve => {
                resolver_threads::resolve_blocking(&mut pending, shared);
                continue;
            }
            // A login to a server has no other results.
            _ => {}
        }
        if let Some(stream) = pending.stream.as_ref().filter(|_| pending.watched.is_none()) {
            poller.add_with_interest(stream, Token(0), Interest::Both)?;
            pending.watched = Some(Interest::Both);
        }
        if Instant::now() >= deadline {
            return Err(BlockingLoginError::Timeout);
        }
        poller.wait(Some(deadline), &mut Vec::new())?;
    }
}

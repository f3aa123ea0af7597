//! [`LocalSocket`]: the unix socket by which a server may be reached instead of TCP, and whether
//! both lead to the same server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::Endpoint;
use parking_lot::Mutex;

use super::PoolKey;

/// How long the result of a check is used for new connections.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A server's unix socket (`local-socket`), and the result of the last check.
#[derive(Debug)]
pub(in crate::worker) struct LocalSocket {
    pub(in crate::worker) tcp: Arc<Endpoint>,
    pub(in crate::worker) socket: Arc<Endpoint>,
    last_check: Mutex<Option<SocketCheck>>,
}

#[derive(Debug)]
struct SocketCheck {
    at: Instant,
    /// The reason why the socket must not be used, if any.
    refusal: Option<String>,
}

impl LocalSocket {
    pub(super) fn new(tcp: Arc<Endpoint>, socket: Endpoint) -> Self {
        Self { tcp, socket: Arc::new(socket), last_check: Mutex::default() }
    }

    /// Whether the socket can be used; `None` if that must be checked first.
    pub(in crate::worker) fn is_usable(&self) -> Option<bool> {
        let last = self.last_check.lock();
        let last = last.as_ref().filter(|last| last.at.elapsed() < CHECK_INTERVAL);
        last.map(|last| last.refusal.is_none())
    }

    /// Sets the result of a check, or of a login: the reason why the socket must not be used, if
    /// any. Returns whether it differs from the last one.
    pub(in crate::worker) fn set_result(&self, refusal: Option<String>) -> bool {
        let mut last = self.last_check.lock();
        let is_new = last.as_ref().is_none_or(|last| last.refusal != refusal);
        *last = Some(SocketCheck { at: Instant::now(), refusal });
        is_new
    }

    /// Logs why a pool does not use the socket.
    pub(in crate::worker) fn report_refusal(&self, pool: &PoolKey, why: &str) {
        let PoolKey { database, user, .. } = pool;
        let (socket, server) = (self.socket.to_string(), self.tcp.to_string());
        tracing::warn!(
            database,
            user,
            server,
            socket,
            why,
            "server connections use TCP, not the configured unix socket"
        );
    }
}

#[test]
fn result_of_a_check_is_reported_when_it_changes() {
    let tcp = Endpoint::Tcp { host: "h".to_owned(), hostaddr: None, port: 1 };
    let local = LocalSocket::new(Arc::new(tcp), Endpoint::in_directory("/run", 1));
    assert_eq!(local.is_usable(), None);
    assert!(local.set_result(None) && !local.set_result(None));
    assert_eq!(local.is_usable(), Some(true));
    assert!(local.set_result(Some("another server".to_owned())));
    assert!(!local.set_result(Some("another server".to_owned())));
    assert_eq!(local.is_usable(), Some(false));
}

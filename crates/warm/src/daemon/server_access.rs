//! How the servers and poolers of `follow` are reached.

use std::time::Duration;

use howdah_connect::Endpoint;

/// Maximum time to wait for the reply when a server's role is queried, and to connect to a server
/// unless `connect_timeout` is set. Also the maximum pause between rounds while no server, or more
/// than one, is a primary.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the endpoint of a server as a pooler shows it: a host, or the directory of a socket.
pub(super) fn pooler_endpoint(host: &str, port: u16) -> Endpoint {
    if host.starts_with(['/', '@']) {
        Endpoint::in_directory(host, port)
    } else {
        Endpoint::Tcp { host: host.to_owned(), hostaddr: None, port }
    }
}

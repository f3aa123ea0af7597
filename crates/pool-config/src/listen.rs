//! [`ListenConfig`]: where the pooler listens. [`PeerList`]: the other poolers at the same address.

mod peers;
mod proxy_source;

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

pub use self::{
    peers::{PEERS_MAX, PeerAddress, PeerList},
    proxy_source::ProxySource,
};

/// Addresses and unix sockets on which the pooler listens: `[pool.listen]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct ListenConfig {
    /// Host names or addresses to listen on; `*` means all addresses of the machine. `host:port`
    /// overrides `port`. Default: 127.0.0.1.
    pub addresses: Vec<String>,
    /// The TCP port, which is also part of the names of unix sockets. 0 picks a free port.
    pub port: u16,
    /// Directories of unix sockets; a name that starts with `@` is in Linux's abstract namespace.
    pub unix_directories: Vec<PathBuf>,
    /// Permission bits of unix sockets, such as 0o770.
    pub unix_mode: u32,
    /// Group of unix sockets; the group of the process if `None`.
    pub unix_group: Option<String>,
    /// Length of the kernel's queue of connections not yet accepted.
    pub backlog: u32,
    /// The unix socket through which a new process takes over from this one. With `None`, it is in
    /// the first of `unix_directories` outside the abstract namespace; there is none without such a
    /// directory or with `port` 0.
    pub takeover: Option<PathBuf>,
    /// Trusted proxies: networks, and `unix` for unix sockets. Their connections must start with a
    /// header of the PROXY protocol, version 1 or 2; all other connections must not.
    pub proxy_from: Vec<ProxySource>,
    /// Time that the kernel waits for a TCP client's first data before it reports the connection
    /// anyway (TCP_DEFER_ACCEPT). The kernel rounds it up to whole seconds and may wait longer; 0
    /// turns this off.
    #[serde(with = "howdah_settings::duration")]
    pub defer_accept: Duration,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            addresses: vec!["127.0.0.1".to_owned()],
            port: 6432,
            unix_directories: vec![PathBuf::from("/tmp")],
            unix_mode: 0o777,
            unix_group: None,
            backlog: 128,
            takeover: None,
            proxy_from: Vec::new(),
            defer_accept: Duration::from_secs(1),
        }
    }
}

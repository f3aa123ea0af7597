//! [`ListenSockets`]: the sockets that a pooler listens on, opened as configured or passed to it.

use std::net::{SocketAddr, ToSocketAddrs as _};

use howdah_net::Listener;
use howdah_pool_config::Config;

use super::{PoolerStartError, group};

/// The listening sockets of a pooler.
#[derive(Debug)]
pub(super) struct ListenSockets {
    /// The listeners of each worker, by worker ID.
    pub(super) listeners: Vec<Vec<Listener>>,
    /// The TCP addresses, with actual ports.
    pub(super) addresses: Vec<SocketAddr>,
    /// The unix sockets to remove at shutdown.
    pub(super) owned_unix: Vec<Listener>,
    /// A handle to each socket, for a process that takes over.
    pub(super) handles: Vec<Listener>,
    /// Whether the sockets were passed to the process, so that the configured addresses are not
    /// used.
    pub(super) are_passed: bool,
}

impl ListenSockets {
    /// Uses the sockets in `inherited` that the settings name, and opens the other configured ones.
    pub(super) fn from_config(
        config: &Config,
        mut inherited: Vec<Listener>,
        workers: usize,
    ) -> Result<Self, PoolerStartError> {
        let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
        listeners.resize_with(workers, Vec::new);
        listen_tcp(config, &mut inherited, &mut listeners, &mut addresses)?;
        let owned_unix = listen_unix(config, &mut inherited, &addresses, &mut listeners)?;
        let tcp = listeners.iter().flatten().filter(|it| it.tcp_address().is_some());
        let handles = tcp.chain(&owned_unix).map(Listener::try_clone).collect::<Result<_, _>>()?;
        Ok(Self { listeners, addresses, owned_unix, handles, are_passed: false })
    }

    /// Uses the passed sockets and no others; all workers poll each of them.
    pub(super) fn from_passed(
        config: &Config,
        passed: Vec<Listener>,
        workers: usize,
    ) -> Result<Self, PoolerStartError> {
        tracing::info!(
            sockets = passed.len(),
            "listening on passed sockets: listen.addresses, listen.port and \
             listen.unix-directories are not used"
        );
        let mut listeners = Vec::new();
        for _ in 0..workers {
            listeners.push(passed.iter().map(Listener::try_clone).collect::<Result<_, _>>()?);
        }
        let tcp = passed.iter().filter(|listener| listener.tcp_address().is_some());
        tcp.clone().try_for_each(|listener| config.tcp.options().apply(listener))?;
        let addresses = tcp.filter_map(Listener::tcp_address).collect();
        Ok(Self { listeners, addresses, owned_unix: Vec::new(), handles: passed, are_passed: true })
    }
}

/// Opens one listener per address and worker, except where there is an inherited one.
fn listen_tcp(
    config: &Config,
    inherited: &mut Vec<Listener>,
    listeners: &mut [Vec<Listener>],
    addresses: &mut Vec<SocketAddr>,
) -> Result<(), PoolerStartError> {
    let listen = &config.listen;
    for text in &listen.addresses {
        for address in resolve_address(text, listen.port)? {
            let mut found = address;
            let is_it = |listener: &mut Listener| {
                let there = listener.tcp_address();
                there.is_some_and(|it| {
                    it.ip() == address.ip() && [0, it.port()].contains(&address.port())
                })
            };
            let mut ready = inherited.extract_if(.., is_it).collect::<Vec<_>>().into_iter();
            if let Some(first) = ready.as_slice().first() {
                found = first.tcp_address().unwrap_or(found);
            } else if found.port() != 0 {
                Listener::check_free(found)?;
            }
            for worker_listeners in &mut *listeners {
                if let Some(listener) = ready.next() {
                    worker_listeners.push(listener);
                    continue;
                }
                let listener = Listener::tcp(found, listen.backlog, listen.defer_accept)?;
                config.tcp.options().apply(&listener)?;
                found = listener.tcp_address().unwrap_or(found);
                worker_listeners.push(listener);
            }
            // There may be more inherited listeners than workers. All of them are used, because
            // connections may be queued at each.
            ready
                .zip((0..listeners.len()).cycle())
                .for_each(|(it, worker)| listeners[worker].push(it));
            addresses.push(found);
        }
    }
    Ok(())
}

pub(super) fn resolve_address(text: &str, port: u16) -> Result<Vec<SocketAddr>, PoolerStartError> {
    if text == "*" {
        return Ok(vec![([0, 0, 0, 0], port).into(), ([0_u16; 8], port).into()]);
    }
    let wrong = || PoolerStartError::Address { text: text.to_owned() };
    let (host, port) = howdah_pool_config::host_and_port(text, port).map_err(|_| wrong())?;
    let found: Vec<_> = (host, port).to_socket_addrs().map_err(|_| wrong())?.collect();
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}

/// Opens one listener per directory, or uses an inherited one. All workers poll each of them.
fn listen_unix(
    config: &Config,
    inherited: &mut Vec<Listener>,
    addresses: &[SocketAddr],
    listeners: &mut [Vec<Listener>],
) -> Result<Vec<Listener>, PoolerStartError> {
    let listen = &config.listen;
    let port = match (listen.port, addresses.first()) {
        (0, Some(found)) => found.port(),
        (port, _) => port,
    };
    let group = listen.unix_group.as_deref().map(group::gid).transpose()?;
    let mut owned_unix = Vec::new();
    for directory in &listen.unix_directories {
        let path = directory.join(format!(".s.PGSQL.{port}"));
        let is_it = |listener: &Listener| listener.unix_path() == Some(&path);
        let listener = match inherited.iter().position(is_it) {
            Some(at) => inherited.swap_remove(at),
            None => Listener::unix(&path, listen.unix_mode, group, listen.backlog)?,
        };
        for worker_listeners in &mut *listeners {
            worker_listeners.push(listener.try_clone()?);
        }
        owned_unix.push(listener);
    }
    Ok(owned_unix)
}

//! Where a pooler listens: at places that the settings name, or at sockets that it was given.

use std::net::{SocketAddr, ToSocketAddrs as _};

use howdah_net::Listener;

use super::{StartError, group};
use crate::config::Config;

/// Where a pooler listens.
#[derive(Debug)]
pub(super) struct Places {
    /// Each worker's.
    pub(super) listeners: Vec<Vec<Listener>>,
    /// TCP addresses, with the ports that were found.
    pub(super) addresses: Vec<SocketAddr>,
    /// Unix sockets that are ours to remove.
    pub(super) unix: Vec<Listener>,
    /// One handle to each socket, for a process that takes over.
    pub(super) shown: Vec<Listener>,
    /// Whether somebody else opened them: then the settings do not say which they are.
    pub(super) are_given: bool,
}

impl Places {
    /// Those that settings name, of which some may be there already.
    pub(super) fn named(
        config: &Config,
        mut inherited: Vec<Listener>,
        workers: usize,
    ) -> Result<Self, StartError> {
        let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
        listeners.resize_with(workers, Vec::new);
        listen_tcp(config, &mut inherited, &mut listeners, &mut addresses)?;
        let unix = listen_unix(config, &mut inherited, &addresses, &mut listeners)?;
        let tcp = listeners.iter().flatten().filter(|it| it.tcp_address().is_some());
        let shown = tcp.chain(&unix).map(Listener::try_clone).collect::<Result<_, _>>()?;
        Ok(Self { listeners, addresses, unix, shown, are_given: false })
    }

    /// Those that were given, and no others: each is watched by all workers.
    pub(super) fn given(
        config: &Config,
        given: Vec<Listener>,
        workers: usize,
    ) -> Result<Self, StartError> {
        tracing::info!(
            sockets = given.len(),
            "listening at the sockets that were passed: addresses, port and unix-directories of the \
             settings are not used"
        );
        let mut listeners = Vec::new();
        for _ in 0..workers {
            listeners.push(given.iter().map(Listener::try_clone).collect::<Result<_, _>>()?);
        }
        let tcp = given.iter().filter(|listener| listener.tcp_address().is_some());
        tcp.clone().try_for_each(|listener| config.tcp.options().apply(listener))?;
        let addresses = tcp.filter_map(Listener::tcp_address).collect();
        Ok(Self { listeners, addresses, unix: Vec::new(), shown: given, are_given: true })
    }
}

/// One listener per address and worker.
fn listen_tcp(
    config: &Config,
    inherited: &mut Vec<Listener>,
    listeners: &mut [Vec<Listener>],
    addresses: &mut Vec<SocketAddr>,
) -> Result<(), StartError> {
    let listen = &config.listen;
    for text in &listen.addresses {
        for address in resolve(text, listen.port)? {
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
            for own in &mut *listeners {
                if let Some(listener) = ready.next() {
                    own.push(listener);
                    continue;
                }
                let listener = Listener::tcp(found, listen.backlog, listen.defer_accept)?;
                config.tcp.options().apply(&listener)?;
                found = listener.tcp_address().unwrap_or(found);
                own.push(listener);
            }
            // Connections wait at each of them.
            ready
                .zip((0..listeners.len()).cycle())
                .for_each(|(it, worker)| listeners[worker].push(it));
            addresses.push(found);
        }
    }
    Ok(())
}

pub(super) fn resolve(text: &str, port: u16) -> Result<Vec<SocketAddr>, StartError> {
    if text == "*" {
        return Ok(vec![([0, 0, 0, 0], port).into(), ([0_u16; 8], port).into()]);
    }
    let wrong = || StartError::Address { text: text.to_owned() };
    let (host, port) = crate::config::host_and_port(text, port).map_err(|_| wrong())?;
    let found: Vec<_> = (host, port).to_socket_addrs().map_err(|_| wrong())?.collect();
    if found.is_empty() { Err(wrong()) } else { Ok(found) }
}

/// One listener per directory, which all workers watch.
fn listen_unix(
    config: &Config,
    inherited: &mut Vec<Listener>,
    addresses: &[SocketAddr],
    listeners: &mut [Vec<Listener>],
) -> Result<Vec<Listener>, StartError> {
    let listen = &config.listen;
    let port = match (listen.port, addresses.first()) {
        (0, Some(found)) => found.port(),
        (port, _) => port,
    };
    let group = listen.unix_group.as_deref().map(group::number).transpose()?;
    let mut unix = Vec::new();
    for directory in &listen.unix_directories {
        let path = directory.join(format!(".s.PGSQL.{port}"));
        let is_it = |listener: &Listener| listener.unix_path() == Some(&path);
        let listener = match inherited.iter().position(is_it) {
            Some(at) => inherited.swap_remove(at),
            None => Listener::unix(&path, listen.unix_mode, group, listen.backlog)?,
        };
        for own in &mut *listeners {
            own.push(listener.try_clone()?);
        }
        unix.push(listener);
    }
    Ok(unix)
}

//! [`Endpoint`]: the address of a server. Parses the lists of hosts, addresses and ports in
//! connection parameters.

use std::{
    borrow::Cow,
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
};

use crate::{environment::Environment, resolve_error::ResolveError, settings::KeywordValues};

/// An address where a server may listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A TCP port.
    Tcp {
        /// The given name, used for certificate verification and the password file lookup. The text
        /// of the address if no name was given.
        host: String,
        /// The address to connect to, if the name must not be resolved.
        hostaddr: Option<IpAddr>,
        /// Port number, from 1.
        port: u16,
    },
    /// A unix socket.
    Unix {
        /// The path of the socket, `directory/.s.PGSQL.port`. A leading `@` denotes Linux's
        /// abstract namespace.
        path: PathBuf,
    },
}

/// The file name of a socket, without the port at its end.
const SOCKET_PREFIX: &str = ".s.PGSQL.";

/// PostgreSQL's default port.
pub(crate) const DEFAULT_PORT: u16 = 5432;

impl Endpoint {
    /// Returns the socket in `directory` of a server with this port.
    pub fn in_directory(directory: impl AsRef<Path>, port: u16) -> Self {
        Self::Unix { path: directory.as_ref().join(format!("{SOCKET_PREFIX}{port}")) }
    }

    /// Returns the port; for a unix socket the number at the end of its name, or 5432 without one.
    pub fn port(&self) -> u16 {
        match self {
            Self::Tcp { port, .. } => *port,
            Self::Unix { path } => path
                .file_name()
                .and_then(|name| name.to_str()?.strip_prefix(SOCKET_PREFIX)?.parse().ok())
                .unwrap_or(DEFAULT_PORT),
        }
    }

    /// Returns the value for `host` in a connection string: a name, or the directory of the socket.
    pub fn host(&self) -> Cow<'_, str> {
        match self {
            Self::Tcp { host, .. } => Cow::Borrowed(host),
            Self::Unix { path } => path.parent().unwrap_or(path).to_string_lossy(),
        }
    }

    /// Returns the value to match with the first field of a password file.
    pub(crate) fn passfile_host(&self) -> Cow<'_, str> {
        match self.host() {
            // libpq knows one default directory, which depends on how it was built.
            host if ["/var/run/postgresql", "/tmp"].contains(&&*host) => Cow::Borrowed("localhost"),
            host => host,
        }
    }
}

/// Writes `name:port`, `[address]:port` or the path of the socket.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix { path } => path.display().fmt(f),
        }
    }
}

/// Returns the endpoints that `host`, `hostaddr` and `port` describe, in order. At least one.
///
/// Source: PostgreSQL manual, "Specifying Multiple Hosts".
pub(crate) fn resolve(
    settings: &KeywordValues,
    environment: &Environment,
) -> Result<Vec<Endpoint>, ResolveError> {
    let hosts = list(settings.value("host"));
    let addresses = list(settings.value("hostaddr"));
    let ports = list(settings.value("port"));
    let count = match (hosts.len(), addresses.len()) {
        (0, 0) => 1,
        (0, addresses) => addresses,
        (hosts, 0) => hosts,
        (hosts, addresses) if hosts == addresses => hosts,
        (hosts, addresses) => return Err(ResolveError::HostCount { hosts, addresses }),
    };
    if ports.len() > 1 && ports.len() != count {
        return Err(ResolveError::PortCount { hosts: count, ports: ports.len() });
    }
    (0..count)
        .map(|index| {
            let port = parse_port(at(&ports, if ports.len() == 1 { 0 } else { index }), settings)?;
            let hostaddr = parse_address(at(&addresses, index), settings)?;
            Ok(one(at(&hosts, index), hostaddr, port, environment))
        })
        .collect()
}

fn list(value: Option<&str>) -> Vec<&str> {
    value.map(|value| value.split(',').collect()).unwrap_or_default()
}

/// Returns the element at `index` of a list, or the empty string if the list is shorter.
fn at<'a>(list: &[&'a str], index: usize) -> &'a str {
    list.get(index).copied().unwrap_or("")
}

fn parse_port(text: &str, settings: &KeywordValues) -> Result<u16, ResolveError> {
    match text.trim_ascii() {
        "" => Ok(DEFAULT_PORT),
        port => match port.parse() {
            Ok(port @ 1..) => Ok(port),
            _ => Err(settings.invalid("port", port, "a port from 1 to 65535")),
        },
    }
}

fn parse_address(text: &str, settings: &KeywordValues) -> Result<Option<IpAddr>, ResolveError> {
    match text {
        "" => Ok(None),
        text => match text.parse() {
            Ok(address) => Ok(Some(address)),
            Err(_) => Err(settings.invalid("hostaddr", text, "an IP address")),
        },
    }
}

fn one(host: &str, hostaddr: Option<IpAddr>, port: u16, environment: &Environment) -> Endpoint {
    match (host, hostaddr) {
        ("", Some(address)) => Endpoint::Tcp { host: address.to_string(), hostaddr, port },
        ("", None) => local(port, environment),
        (directory, None) if directory.starts_with(['/', '@']) => {
            Endpoint::in_directory(directory, port)
        }
        _ => Endpoint::Tcp { host: host.to_owned(), hostaddr, port },
    }
}

/// Returns the endpoint of a local server: the first socket that exists, otherwise TCP.
fn local(port: u16, environment: &Environment) -> Endpoint {
    environment
        .socket_directories()
        .iter()
        .map(|directory| Endpoint::in_directory(directory, port))
        .find(|socket| matches!(socket, Endpoint::Unix { path } if path.exists()))
        .unwrap_or_else(|| Endpoint::Tcp { host: "localhost".to_owned(), hostaddr: None, port })
}

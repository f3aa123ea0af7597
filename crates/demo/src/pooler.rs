//! [`CapturingPooler`]: the pooler in front of production.

use std::{collections::BTreeMap, num::NonZeroUsize, path::Path};

use howdah_connect::{ConnParams, ConnectTarget};
use howdah_pool::{Pooler, RecorderStatus};
use howdah_pool_config::{
    AuthConfig, AuthMethod, CaptureConfig, Config, DatabaseConfig, ListenConfig, PoolMode,
};

use crate::{
    error::DemoError,
    folder::{CAPTURE, OutputFolder},
    servers::{DATABASE, ROLE, ShopServer, resolve},
};

/// Port numbers for the name of the pooler's unix socket. The second one is used if the server has
/// the first.
const PORTS: [u16; 2] = [6432, 6433];

/// Maximum number of server connections that all clients share.
const SERVERS_MAX: u32 = 4;

/// A pooler in front of a server. It captures the traffic of its clients, and stops when dropped.
#[derive(Debug)]
pub(crate) struct CapturingPooler {
    pooler: Pooler,
    target: ConnectTarget,
}

impl CapturingPooler {
    /// Starts the pooler and the capture.
    ///
    /// The pooler listens only on a unix socket next to that of the server, in a folder that other
    /// users cannot enter, so it needs no password.
    pub(crate) fn start(server: &ShopServer, folder: &OutputFolder) -> Result<Self, DemoError> {
        let cluster = server.cluster();
        let dir = cluster.socket_dir();
        let port = if cluster.port() == PORTS[0] { PORTS[1] } else { PORTS[0] };
        let config = config(dir, cluster.port(), port, folder.path());
        let pooler = Pooler::start(config).map_err(|error| DemoError::Pooler(Box::new(error)))?;
        pooler.control().start_capture(Some(CAPTURE))?;
        let target = resolve(&ConnParams {
            host: Some(dir.display().to_string()),
            port: Some(port.to_string()),
            user: Some(ROLE.to_owned()),
            database: Some(DATABASE.to_owned()),
            ..ConnParams::default()
        })?;
        Ok(Self { pooler, target })
    }

    /// Returns the address and role by which clients connect to the pooler.
    pub(crate) fn target(&self) -> &ConnectTarget {
        &self.target
    }

    /// Finishes the capture and stops the pooler. Fails if the capture ended early.
    pub(crate) fn finish(self) -> Result<RecorderStatus, DemoError> {
        let status = self.pooler.control().stop_capture()?;
        match status.error {
            Some(reason) => Err(DemoError::CaptureEnded { reason }),
            None => Ok(status),
        }
    }
}

fn config(socket_dir: &Path, server_port: u16, port: u16, captures: &Path) -> Config {
    let database = DatabaseConfig {
        hosts: vec![socket_dir.display().to_string()],
        port: server_port,
        user: Some(ROLE.to_owned()),
        pool_size: Some(SERVERS_MAX),
        ..DatabaseConfig::default()
    };
    Config {
        listen: ListenConfig {
            addresses: Vec::new(),
            port,
            unix_directories: vec![socket_dir.to_owned()],
            unix_mode: 0o700,
            ..ListenConfig::default()
        },
        workers: Some(NonZeroUsize::MIN),
        mode: PoolMode::Transaction,
        auth: AuthConfig { method: AuthMethod::Any, ..AuthConfig::default() },
        capture: CaptureConfig { path: Some(captures.to_owned()), ..CaptureConfig::default() },
        databases: BTreeMap::from([(DATABASE.to_owned(), database)]),
        ..Config::default()
    }
}

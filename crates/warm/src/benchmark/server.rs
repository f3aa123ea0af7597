//! The server of a benchmark: a temporary one, or an existing one with a command to restart it.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::dump::local_server;
use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_inspect::OsProcess;
use howdah_lab::{BinariesSearch, Builder, Cluster};

use crate::benchmark::{
    data,
    error::{BenchmarkError, StepContext as _},
    experiment::DropCaches,
};

/// The server to measure.
#[derive(Clone, Debug)]
pub enum BenchmarkServer {
    /// A server that is created for the benchmark and removed afterwards.
    Temporary(TemporaryServer),
    /// A server that exists already.
    Existing(Box<ExistingServer>),
}

/// A server that is created for the benchmark and removed afterwards.
#[derive(Clone, Debug)]
pub struct TemporaryServer {
    /// Search that finds the PostgreSQL binaries to use.
    pub search: BinariesSearch,
    /// `shared_buffers` of the server. By default, the size of the table and its index, plus a
    /// quarter and 32 MB.
    pub shared_buffers: Option<String>,
}

/// A server that exists already. The benchmark creates a schema `howdah_benchmark` in the database,
/// replacing an existing one of this name, and drops it at the end. If autoprewarm can be measured,
/// the benchmark also creates the extension `pg_prewarm`, which stays, and changes
/// `pg_prewarm.autoprewarm` by `ALTER SYSTEM`, which it undoes at the end.
#[derive(Clone, Debug)]
pub struct ExistingServer {
    /// Address of the server.
    pub target: ConnectTarget,
    /// A shell command that restarts the server and exits once the restart is complete.
    pub restart_command: String,
}

/// The server during a benchmark.
pub(crate) struct ServerUnderTest {
    target: ConnectTarget,
    control: ServerControl,
}

/// Control over the server: what is needed to restart it, and to undo changes at the end.
enum ServerControl {
    Temporary(Box<Cluster>),
    Existing {
        restart_command: String,
        /// Data directory of the server, if it is on this host and readable.
        data_dir: Option<PathBuf>,
        /// A statement that restores the previous value of `pg_prewarm.autoprewarm`.
        undo: Option<String>,
    },
}

/// Interval between connection attempts during a restart.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time until the server accepts connections after a restart.
const RESTART_TIMEOUT: Duration = Duration::from_secs(300);

impl ServerUnderTest {
    /// Creates a temporary server, or connects to an existing one.
    pub(crate) fn start(server: &BenchmarkServer, scale: u32) -> Result<Self, BenchmarkError> {
        match server {
            BenchmarkServer::Temporary(settings) => Self::create(settings, scale),
            BenchmarkServer::Existing(existing) => {
                let target = existing.target.clone();
                let mut client = Client::connect(&target)?;
                let data_dir =
                    local_server(&mut client).ok().and_then(|server| server.data_dir().ok());
                let restart_command = existing.restart_command.clone();
                let control = ServerControl::Existing { restart_command, data_dir, undo: None };
                Ok(Self { target, control })
            }
        }
    }

    fn create(server: &TemporaryServer, scale: u32) -> Result<Self, BenchmarkError> {
        let bytes = u64::from(scale) * data::BYTES_PER_SCALE * 5 / 4;
        let default = format!("{}MB", (bytes >> 20) + 32);
        let buffers = server.shared_buffers.clone().unwrap_or(default);
        let settings = [
            ("shared_buffers", &*buffers),
            ("autovacuum", "off"),
            ("checkpoint_timeout", "1h"),
            ("max_wal_size", "16GB"),
            ("wal_level", "minimal"),
            ("max_wal_senders", "0"),
        ];
        let mut builder = Builder::new().search(server.search.clone()).name("benchmark");
        for (name, value) in settings {
            builder = builder.setting(name, value);
        }
        let mut cluster = builder.start()?;
        let params = ConnParams::from_conninfo(cluster.uri("postgres"));
        // Ignore PGHOST and similar variables, which refer to other servers.
        let target = ConnectTarget::resolve(&params, &Environment::empty())?;
        let mut client = Client::connect(&target)?;
        let available = "SELECT 1 FROM pg_available_extensions WHERE name = 'pg_prewarm'";
        if client.one_value(available).step("check whether pg_prewarm is available")?.is_some() {
            let preload = "ALTER SYSTEM SET shared_preload_libraries = 'pg_prewarm'";
            client.query(preload).step("set shared_preload_libraries")?;
            drop(client);
            cluster.restart()?;
        }
        Ok(Self { target, control: ServerControl::Temporary(Box::new(cluster)) })
    }

    pub(crate) fn target(&self) -> &ConnectTarget {
        &self.target
    }

    /// Returns the postmaster of the server, if it runs on this host and may be inspected.
    pub(crate) fn postmaster(&self) -> Option<OsProcess> {
        match &self.control {
            ServerControl::Temporary(cluster) => OsProcess::from_pid(cluster.pid()?).ok(),
            ServerControl::Existing { .. } => {
                let mut client = Client::connect(&self.target).ok()?;
                local_server(&mut client).ok().map(|server| server.postmaster())
            }
        }
    }

    /// Creates the extension `pg_prewarm` and makes autoprewarm write its file. Returns a reason,
    /// without doing either, if autoprewarm cannot be measured.
    pub(crate) fn prepare_autoprewarm(
        &mut self,
        client: &mut Client,
    ) -> Result<Option<String>, BenchmarkError> {
        let step = "query pg_prewarm.autoprewarm";
        let setting = "SELECT setting FROM pg_settings WHERE name = 'pg_prewarm.autoprewarm'";
        let Some(value) = client.one_value(setting).step(step)? else {
            return Ok(Some("pg_prewarm is not in shared_preload_libraries".to_owned()));
        };
        let before = client
            .one_value(
                "SELECT setting FROM pg_file_settings WHERE name = 'pg_prewarm.autoprewarm'
                 AND sourcefile LIKE '%postgresql.auto.conf'",
            )
            .step(step)?;
        if let ServerControl::Existing { undo, .. } = &mut self.control {
            *undo = Some(match before {
                Some(value) => set_autoprewarm_sql(&value),
                None => "ALTER SYSTEM RESET pg_prewarm.autoprewarm".to_owned(),
            });
        }
        if value == "off" {
            return Ok(Some("pg_prewarm.autoprewarm is off".to_owned()));
        }
        client
            .query("CREATE EXTENSION IF NOT EXISTS pg_prewarm")
            .step("create the extension pg_prewarm")?;
        client.query("SELECT autoprewarm_dump_now()").step("write autoprewarm.blocks")?;
        Ok(None)
    }

    /// Restarts the server with cold caches, and with autoprewarm on or off unless it is `None`.
    /// Returns a note on what was done to the operating system's cache.
    pub(crate) fn restart(
        &mut self,
        drop_caches: DropCaches,
        autoprewarm: Option<bool>,
    ) -> Result<String, BenchmarkError> {
        let mut client = Client::connect(&self.target)?;
        if let Some(on) = autoprewarm {
            let sql = set_autoprewarm_sql(if on { "on" } else { "off" });
            client.query(&sql).step("set pg_prewarm.autoprewarm")?;
        }
        match &mut self.control {
            ServerControl::Temporary(cluster) => {
                drop(client);
                cluster.stop()?;
                let note = drop_os_caches(drop_caches, Some(cluster.data_dir()))?;
                cluster.start()?;
                Ok(note)
            }
            ServerControl::Existing { restart_command, data_dir, .. } => {
                // Without a checkpoint, the shutdown would write dirty pages, and the operating
                // system would cache them again.
                let checkpoint = client.query("CHECKPOINT");
                let note = drop_os_caches(drop_caches, data_dir.as_deref())?;
                let start_time = query_start_time(&mut client)?;
                drop((client, checkpoint));
                run_shell(restart_command)?;
                wait_for_restart(&self.target, &start_time, restart_command)?;
                Ok(note)
            }
        }
    }

    /// Restores the previous setting of autoprewarm on an existing server, and drops the schema.
    pub(crate) fn restore(self) -> Result<(), BenchmarkError> {
        let ServerControl::Existing { undo, .. } = &self.control else { return Ok(()) };
        let mut client = Client::connect(&self.target)?;
        if let Some(undo) = undo {
            client.query(undo).step("restore pg_prewarm.autoprewarm")?;
        }
        data::remove(&mut client)
    }
}

fn set_autoprewarm_sql(value: &str) -> String {
    let value = if value == "off" { "off" } else { "on" };
    format!("ALTER SYSTEM SET pg_prewarm.autoprewarm = {value}")
}

fn drop_os_caches(
    drop_caches: DropCaches,
    data_dir: Option<&Path>,
) -> Result<String, BenchmarkError> {
    const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
    match (drop_caches, data_dir) {
        (DropCaches::System, _) => {
            rustix::fs::sync();
            std::fs::write(DROP_CACHES, "1\n")
                .map_err(|source| BenchmarkError::DropCaches { path: DROP_CACHES, source })?;
            Ok("the operating system's whole cache was dropped".to_owned())
        }
        (DropCaches::Files, Some(dir)) => {
            let evicted = crate::os_cache::evict(dir)?;
            let (files, bytes) = (evicted.files, evicted.bytes >> 20);
            Ok(format!("{files} data files, {bytes} MiB, were dropped from the system's cache"))
        }
        (DropCaches::Files, None) => {
            Ok("the operating system's cache was not dropped: the server's \
                                   files are not on this host, or not readable"
                .to_owned())
        }
        (DropCaches::Nothing, _) => Ok("the operating system's cache was not dropped".to_owned()),
    }
}

fn query_start_time(client: &mut Client) -> Result<String, BenchmarkError> {
    let sql = "SELECT pg_postmaster_start_time()";
    Ok(client.one_value(sql).step("query the start time of the server")?.unwrap_or_default())
}

fn run_shell(command: &str) -> Result<(), BenchmarkError> {
    let status = Command::new("/bin/sh").args(["-c", command]).status();
    let status =
        status.map_err(|source| BenchmarkError::Command { command: command.to_owned(), source })?;
    if status.success() {
        Ok(())
    } else {
        Err(BenchmarkError::CommandFailed { command: command.to_owned(), status })
    }
}

/// Waits until the server accepts connections, and checks that its start time differs from
/// `before`.
fn wait_for_restart(
    target: &ConnectTarget,
    before: &str,
    command: &str,
) -> Result<(), BenchmarkError> {
    let deadline = Instant::now() + RESTART_TIMEOUT;
    loop {
        match Client::connect(target) {
            Ok(mut client) => {
                return if query_start_time(&mut client)? == before {
                    Err(BenchmarkError::NotRestarted { command: command.to_owned() })
                } else {
                    Ok(())
                };
            }
            Err(error) if Instant::now() >= deadline => return Err(error.into()),
            Err(_) => thread::sleep(RETRY_INTERVAL),
        }
    }
}

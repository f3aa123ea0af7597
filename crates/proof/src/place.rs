//! The server of an experiment: a throw-away one, or one whose restart somebody told us how to do.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_inspect::Process;
use howdah_lab::{Builder, Cluster, Search};
use howdah_warm::dump::local_server;

use crate::{
    data,
    error::{InStep as _, ProofError},
    experiment::Cold,
};

/// Where the experiment takes place.
#[derive(Clone, Debug)]
pub enum Place {
    /// On a server of our own, which is gone afterwards.
    Throwaway(Throwaway),
    /// On a server that is there.
    Given(Box<Given>),
}

/// A throw-away server.
#[derive(Clone, Debug)]
pub struct Throwaway {
    /// Which PostgreSQL.
    pub search: Search,
    /// Its `shared_buffers`; without it, as much as the table and its key take, and a quarter more.
    pub shared_buffers: Option<String>,
}

/// A server that is there. A schema `howdah_proof` is made in the database, and removed at the end.
#[derive(Clone, Debug)]
pub struct Given {
    /// Its address.
    pub target: Target,
    /// A command of the shell that restarts it, and returns.
    pub restart: String,
}

/// A server under way.
pub(crate) struct Server {
    target: Target,
    kind: Kind,
}

enum Kind {
    Throwaway(Box<Cluster>),
    Given { restart: String, data_dir: Option<PathBuf>, undo: Option<String> },
}

/// How often a server is asked whether it is back.
const LOOK: Duration = Duration::from_millis(20);
/// How long it may take to come back.
const PATIENCE: Duration = Duration::from_secs(300);

impl Server {
    pub(crate) fn of(place: &Place, scale: u32) -> Result<Self, ProofError> {
        match place {
            Place::Throwaway(how) => Self::throwaway(how, scale),
            Place::Given(given) => {
                let target = given.target.clone();
                let mut client = Client::connect(&target)?;
                let data_dir =
                    local_server(&mut client).ok().and_then(|server| server.data_dir().ok());
                let kind = Kind::Given { restart: given.restart.clone(), data_dir, undo: None };
                Ok(Self { target, kind })
            }
        }
    }

    fn throwaway(how: &Throwaway, scale: u32) -> Result<Self, ProofError> {
        let bytes = u64::from(scale) * data::BYTES_PER_SCALE * 5 / 4;
        let enough = format!("{}MB", (bytes >> 20) + 32);
        let buffers = how.shared_buffers.clone().unwrap_or(enough);
        let settings = [
            ("shared_buffers", &*buffers),
            ("autovacuum", "off"),
            ("checkpoint_timeout", "1h"),
            ("max_wal_size", "16GB"),
            ("wal_level", "minimal"),
            ("max_wal_senders", "0"),
        ];
        let mut builder = Builder::new().search(how.search.clone()).name("proof");
        for (name, value) in settings {
            builder = builder.setting(name, value);
        }
        let mut cluster = builder.start()?;
        let words = Words::from_conninfo(cluster.uri("postgres"));
        // PGHOST and the like are about other servers.
        let target = Target::resolve(&words, &Environment::empty())?;
        let mut client = Client::connect(&target)?;
        let available = "SELECT 1 FROM pg_available_extensions WHERE name = 'pg_prewarm'";
        if client.one_value(available).step("a question about extensions")?.is_some() {
            let preload = "ALTER SYSTEM SET shared_preload_libraries = 'pg_prewarm'";
            client.query(preload).step("preloading pg_prewarm")?;
            drop(client);
            cluster.restart()?;
        }
        Ok(Self { target, kind: Kind::Throwaway(Box::new(cluster)) })
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Its first process, if it is on this host.
    pub(crate) fn postmaster(&self) -> Option<Process> {
        match &self.kind {
            Kind::Throwaway(cluster) => Process::of(cluster.pid()?).ok(),
            Kind::Given { .. } => {
                let mut client = Client::connect(&self.target).ok()?;
                local_server(&mut client).ok().map(|server| server.postmaster())
            }
        }
    }

    /// Why contrib's autoprewarm cannot take part, if so; else its file is written now.
    pub(crate) fn autoprewarm(
        &mut self,
        client: &mut Client,
    ) -> Result<Option<String>, ProofError> {
        let step = "a question about autoprewarm";
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
        if let Kind::Given { undo, .. } = &mut self.kind {
            *undo = Some(match before {
                Some(value) => alter(&value),
                None => "ALTER SYSTEM RESET pg_prewarm.autoprewarm".to_owned(),
            });
        }
        if value == "off" {
            return Ok(Some("pg_prewarm.autoprewarm is off".to_owned()));
        }
        client.query("CREATE EXTENSION IF NOT EXISTS pg_prewarm").step("making pg_prewarm")?;
        client.query("SELECT autoprewarm_dump_now()").step("writing autoprewarm.blocks")?;
        Ok(None)
    }

    /// Stops and starts it, with cold caches in between, with or without autoprewarm (where it can be
    /// set). Says what was done to the operating system's cache.
    pub(crate) fn restart(
        &mut self,
        cold: Cold,
        autoprewarm: Option<bool>,
    ) -> Result<String, ProofError> {
        let mut client = Client::connect(&self.target)?;
        if let Some(on) = autoprewarm {
            let sql = alter(if on { "on" } else { "off" });
            client.query(&sql).step("setting pg_prewarm.autoprewarm")?;
        }
        match &mut self.kind {
            Kind::Throwaway(cluster) => {
                drop(client);
                cluster.stop()?;
                let done = cool(cold, Some(cluster.data_dir()))?;
                cluster.start()?;
                Ok(done)
            }
            Kind::Given { restart, data_dir, .. } => {
                // What is dirty would be written back into the cache that is to be cold.
                let checkpoint = client.query("CHECKPOINT");
                let done = cool(cold, data_dir.as_deref())?;
                let before = started(&mut client)?;
                drop((client, checkpoint));
                run(restart)?;
                wait_for(&self.target, &before, restart)?;
                Ok(done)
            }
        }
    }

    /// Leaves everything as it was found.
    pub(crate) fn end(self) -> Result<(), ProofError> {
        let Kind::Given { undo, .. } = &self.kind else { return Ok(()) };
        let mut client = Client::connect(&self.target)?;
        if let Some(undo) = undo {
            client.query(undo).step("setting pg_prewarm.autoprewarm back")?;
        }
        data::remove(&mut client)
    }
}

fn alter(value: &str) -> String {
    let value = if value == "off" { "off" } else { "on" };
    format!("ALTER SYSTEM SET pg_prewarm.autoprewarm = {value}")
}

fn cool(cold: Cold, data_dir: Option<&Path>) -> Result<String, ProofError> {
    const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
    match (cold, data_dir) {
        (Cold::System, _) => {
            rustix::fs::sync();
            std::fs::write(DROP_CACHES, "1\n")
                .map_err(|source| ProofError::DropCaches { path: DROP_CACHES, source })?;
            Ok("the whole cache of the operating system was dropped".to_owned())
        }
        (Cold::Files, Some(dir)) => {
            let evicted = howdah_warm::os_cache::evict(dir)?;
            let (files, bytes) = (evicted.files, evicted.bytes >> 20);
            Ok(format!("{files} data files, {bytes} MiB, were thrown out of the system's cache"))
        }
        (Cold::Files, None) => Ok("the operating system's cache was left as it is: the server's \
                                   files are not on this host, or closed to us"
            .to_owned()),
        (Cold::Nothing, _) => Ok("the operating system's cache was left as it is".to_owned()),
    }
}

fn started(client: &mut Client) -> Result<String, ProofError> {
    let sql = "SELECT pg_postmaster_start_time()";
    Ok(client.one_value(sql).step("a question about its start")?.unwrap_or_default())
}

fn run(command: &str) -> Result<(), ProofError> {
    let status = Command::new("/bin/sh").args(["-c", command]).status();
    let status =
        status.map_err(|source| ProofError::Command { command: command.to_owned(), source })?;
    match status.success() {
        true => Ok(()),
        false => Err(ProofError::CommandFailed { command: command.to_owned(), status }),
    }
}

/// Waits until the server lets in again, as another than before.
fn wait_for(target: &Target, before: &str, command: &str) -> Result<(), ProofError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match Client::connect(target) {
            Ok(mut client) => {
                return match started(&mut client)? == before {
                    true => Err(ProofError::NotRestarted { command: command.to_owned() }),
                    false => Ok(()),
                };
            }
            Err(error) if Instant::now() >= until => return Err(error.into()),
            Err(_) => thread::sleep(LOOK),
        }
    }
}

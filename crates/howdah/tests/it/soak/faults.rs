//! [`Faults`]: the servers and the pooler, and what happens to them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use howdah_lab::{Cluster, wait_until};
use rustix::process::Signal;

use super::{Service, TIMEOUT, as_this_user, replays::ReplayLoop, value};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// The primary is killed and its standby promoted, which gets a new standby.
    Failover,
    /// The pooler reloads changed settings.
    PoolReload,
    /// A new process takes over from the pooler.
    PoolTakeover,
    /// The primary ends the pooler's connections.
    LostConnections,
    /// The statsd server reloads its settings.
    StatsdReload,
    /// The replays' server is restarted; the cache is loaded again, and the recording continues.
    TargetRestart,
}

const ALL: [Fault; 6] = [
    Fault::Failover,
    Fault::PoolReload,
    Fault::PoolTakeover,
    Fault::LostConnections,
    Fault::StatsdReload,
    Fault::TargetRestart,
];

/// The order of the faults: all of them in random order, then again in another.
pub(super) struct FaultPlan {
    random: u64,
    next: Vec<Fault>,
    counts: BTreeMap<Fault, u32>,
}

impl FaultPlan {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: seed, next: Vec::new(), counts: BTreeMap::new() }
    }

    pub(super) fn next_fault(&mut self) -> Fault {
        if self.next.is_empty() {
            self.next = ALL.to_vec();
        }
        // Knuth's MMIX generator; its high bits are the random ones.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let index = (self.random >> 33) as usize % self.next.len();
        let fault = self.next.swap_remove(index);
        *self.counts.entry(fault).or_default() += 1;
        fault
    }

    pub(super) fn summary(&self) -> String {
        let each = self.counts.iter().map(|(fault, count)| format!("{fault:?} {count}"));
        each.collect::<Vec<_>>().join(", ")
    }
}

/// A primary with a synchronous standby, and the pooler in front of them.
pub(super) struct Faults {
    folder: PathBuf,
    primary: Cluster,
    standby: Cluster,
    pool: Service,
    reloads: u32,
    failovers: u32,
}

impl Faults {
    pub(super) fn new(folder: &Path, primary: Cluster, standby: Cluster) -> Self {
        await_synchronous_standby(&primary);
        write_settings(folder, [&primary, &standby], 0);
        let user = as_this_user();
        let pool = Service::start(folder, "pool", &["pool", &user, "-c", "howdah.toml"]);
        pool.wait_for("listening: ");
        Self { folder: folder.to_owned(), primary, standby, pool, reloads: 0, failovers: 0 }
    }

    /// Returns host and port of the pooler, for a connection string.
    pub(super) fn pool_address(&self) -> String {
        let place = self.pool.wait_for("listening: ");
        let (_, port) = place.rsplit_once(':').unwrap();
        format!("host=127.0.0.1 port={port} connect_timeout=60")
    }

    pub(super) fn primary(&self) -> &Cluster {
        &self.primary
    }

    pub(super) fn sample(&mut self) {
        self.pool.sample();
    }

    pub(super) fn finish(self) -> Service {
        self.pool
    }

    pub(super) fn inject(&mut self, fault: Fault, services: &[Service; 3], replays: &ReplayLoop) {
        let [statsd, _, warm] = services;
        match fault {
            Fault::Failover => self.fail_over(),
            Fault::PoolReload => self.reload(),
            Fault::PoolTakeover => self.take_over(),
            Fault::LostConnections => {
                let others = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                              where backend_type = 'client backend' and pid <> pg_backend_pid()";
                value(&self.primary, others);
            }
            Fault::StatsdReload => {
                let reloads = statsd.count("settings");
                statsd.signal(Signal::HUP);
                wait_until("statsd to reload", TIMEOUT, || statsd.count("settings") > reloads);
            }
            Fault::TargetRestart => {
                let mut target = replays.pause();
                let loads = warm.count("image loaded");
                target.restart().unwrap();
                drop(target);
                wait_until("the cache", TIMEOUT, || warm.count("image loaded") > loads);
            }
        }
    }

    fn fail_over(&mut self) {
        self.primary.kill().unwrap();
        value(&self.standby, "select pg_promote(false)");
        wait_until("the promotion", TIMEOUT, || {
            value(&self.standby, "select pg_is_in_recovery()") == "f"
        });
        // Commits would wait for the next standby.
        value(&self.standby, "alter system reset synchronous_standby_names");
        value(&self.standby, "select pg_reload_conf()");
        self.failovers += 1;
        let name = format!("standby{}", self.failovers);
        let next = Cluster::builder().name(name).standby_of(&self.standby).start().unwrap();
        self.primary = std::mem::replace(&mut self.standby, next);
        await_synchronous_standby(&self.primary);
        self.reload();
    }

    /// Lets the pooler read settings with the present servers and another size of the pool.
    fn reload(&mut self) {
        self.reloads += 1;
        write_settings(&self.folder, [&self.primary, &self.standby], self.reloads);
        let reloads = self.pool.count("reloaded");
        self.pool.signal(Signal::HUP);
        wait_until("the pooler to reload", TIMEOUT, || self.pool.count("reloaded") > reloads);
    }

    fn take_over(&mut self) {
        let user = as_this_user();
        self.pool.replace(&self.folder, &["pool", &user, "-c", "howdah.toml", "--takeover"]);
    }
}

/// Makes commits wait for the standby, and waits until it has all that was committed before.
fn await_synchronous_standby(primary: &Cluster) {
    value(primary, "alter system set synchronous_standby_names = '*'");
    value(primary, "select pg_reload_conf()");
    let position = value(primary, "select pg_current_wal_flush_lsn()");
    let is_synchronous = format!(
        "select count(*) from pg_stat_replication \
         where sync_state = 'sync' and flush_lsn >= '{position}'"
    );
    wait_until("the standby", TIMEOUT, || value(primary, &is_synchronous) == "1");
}

fn write_settings(folder: &Path, servers: [&Cluster; 2], reloads: u32) {
    let servers =
        servers.map(|server| format!("{{ host = '127.0.0.1', port = {} }}", server.port()));
    let settings = format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\nadmin-users = ['postgres']\n\
         [pool.sizes]\npool = {size}\n\
         [pool.listen]\naddresses = ['127.0.0.1']\nport = 0\nunix-directories = []\n\
         takeover = '{folder}/takeover'\n\
         [pool.capture]\npath = 'captures'\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.app]\ndbname = 'postgres'\nservers = [{servers}]\n\
         cluster = {{ role = 'primary', check-interval = '200ms', failover-timeout = '120s' }}\n",
        size = 2 + reloads % 3,
        folder = folder.display(),
        servers = servers.join(", ")
    );
    fs::write(folder.join("howdah.toml"), settings).unwrap();
}

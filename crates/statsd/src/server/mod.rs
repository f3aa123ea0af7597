//! The running server: intake, flush, backends and management port, put together.
//!
//! ```text
//!  readers ──► shards ──► registry ◄── management port, health
//!                            │ flush thread, at its times
//!                            ▼
//!                        snapshot ──► one runner and thread for each backend
//! ```
//!
//! The registry has one lock. It is held by the flush thread while it calculates and by the
//! management port while it looks; no reader ever takes it.

mod clock;
mod core;
mod key_log;
mod notices;
mod runner;
mod taps;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

pub(crate) use self::core::{Core, Shown};
use self::{
    clock::FlushClock,
    key_log::KeyLog,
    notices::Notices,
    runner::{Queued, Runner},
};
use crate::{
    backends::{Backend, Needs, Repeater},
    flush::{FlushTime, Registry, Snapshot},
    intake::{Intake, MakeTap, OpenError, Outlet, advice::Advice},
    ledger::Account,
    management::{Management, health},
    proxy::{Proxy, ProxyError},
    settings::Settings,
};

/// A server that runs. Stop it by [`Server::stop`]; dropping it stops it without a last flush.
#[derive(Debug)]
pub struct Server {
    core: Arc<Core>,
    intake: Intake,
    flushing: Flushing,
    management: Option<Management>,
    health: Option<health::Health>,
}

/// What a server is made of.
#[derive(Default)]
pub struct Parts {
    /// Settings, checked.
    pub settings: Settings,
    /// The settings' lines as the management port's `config` shows them.
    pub config_lines: Vec<String>,
    /// Where snapshots go.
    pub backends: Vec<Box<dyn Backend>>,
    /// Who sees raw packets, besides the repeater and the proxy of the settings.
    pub taps: Vec<MakeTap>,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A place to receive at cannot be opened.
    #[error(transparent)]
    Intake(#[from] OpenError),
    /// The management port, or the health endpoint, cannot be listened at.
    #[error("cannot listen at {address} for {purpose}")]
    Listen {
        /// What for.
        purpose: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The proxy cannot begin.
    #[error("the proxy cannot begin")]
    Proxy(#[from] ProxyError),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// How a server ended.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// The loss ledger at the end.
    pub account: Account,
    /// Backends that did not take all they were given, with the reason.
    pub undelivered: Vec<(&'static str, String)>,
}

/// The flush thread and how to end it.
#[derive(Debug)]
struct Flushing {
    stop: mpsc::Sender<Duration>,
    ended: mpsc::Receiver<Vec<(&'static str, String)>>,
}

impl Server {
    /// Opens everything and begins to receive.
    ///
    /// # Errors
    ///
    /// Something cannot be opened; nothing is left open then.
    pub fn start(parts: Parts) -> Result<Self, StartError> {
        let Parts { settings, config_lines, backends, mut taps } = parts;
        let started = SystemTime::now();
        let needs = backends.iter().map(|backend| backend.needs());
        let needs = needs.fold(Needs::default(), Needs::or);
        let mut registry = Registry::new(&settings, needs, started);
        let dump = settings.dump_messages;
        let repeaters = &settings.backends.repeater;
        let repeater = match repeaters.is_empty() {
            true => None,
            false => Some(Repeater::start(repeaters).map_err(StartError::Thread)?),
        };
        let proxy = settings.proxy.as_ref().map(Proxy::start).transpose()?;
        taps.extend(repeater.as_ref().map(Repeater::taps));
        if let Some(proxy) = &proxy {
            taps.push(proxy.taps()?);
        }
        // A proxy hands on what it gets and keeps nothing.
        let aggregates = proxy.is_none();
        let intake = Intake::open(&settings.listen, || Outlet {
            shard: aggregates.then(|| registry.shard()),
            tap: taps::all(&taps, dump),
        })?;
        let runners: Result<Vec<Runner>, io::Error> =
            backends.into_iter().map(|backend| Runner::start(backend, started)).collect();
        let runners = runners.map_err(StartError::Thread)?;
        let statuses = runners.iter().map(|runner| (runner.name(), runner.status())).collect();
        let shown = Shown { config_lines, ledger: intake.ledger(), statuses, repeater, proxy };
        let core = Arc::new(Core::new(settings, registry, shown, started));
        let (management, health) = (core.settings().management, core.settings().health);
        let management =
            management.map(|address| Management::listen(address, &core)).transpose()?;
        let health = health.map(|address| health::Health::listen(address, &core)).transpose()?;
        let flushing = Flushing::start(&core, runners).map_err(StartError::Thread)?;
        Ok(Self { core, intake, flushing, management, health })
    }

    /// Where it receives, in the order of the settings; `None` for unix sockets.
    #[must_use]
    pub fn addresses(&self) -> &[Option<SocketAddr>] {
        self.intake.addresses()
    }

    /// Where the management port is.
    #[must_use]
    pub fn management(&self) -> Option<SocketAddr> {
        self.management.as_ref().map(Management::address)
    }

    /// Where the health endpoint is.
    #[must_use]
    pub fn health(&self) -> Option<SocketAddr> {
        self.health.as_ref().map(health::Health::address)
    }

    /// The loss ledger now.
    #[must_use]
    pub fn account(&self) -> Account {
        self.core.ledger().read()
    }

    /// Takes other settings as far as that is possible while running, and tells which of the changed
    /// ones need a new start.
    ///
    /// Live: everything about what is calculated, named and deleted, and the log of busy keys.
    pub fn reload(&self, settings: &Settings, config_lines: Vec<String>) -> Vec<&'static str> {
        self.core.reload(settings, config_lines)
    }

    /// Ends well: reads what the sockets hold, flushes, and waits for the backends, all within the
    /// configured patience.
    #[must_use]
    pub fn stop(self) -> Ended {
        let patience = self.core.settings().shutdown_patience;
        let deadline = Instant::now() + patience;
        // Half of the time at most for the sockets: what was received must get out.
        let account = self.intake.stop(patience / 2);
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(repeater) = self.core.take_repeater() {
            let _ = repeater.finish(left() / 2);
        }
        let undelivered = self.flushing.end(left());
        Ended { account, undelivered }
    }
}

impl Flushing {
    fn start(core: &Arc<Core>, runners: Vec<Runner>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        let core = Arc::clone(core);
        thread::Builder::new().name("statsd-flush".into()).spawn(move || {
            let patience = run(&core, &runners, &stopped);
            // Nobody listens when the server was dropped: then nothing is owed.
            if let Some(patience) = patience {
                let _ = done.send(last_flush(&core, runners, patience));
            }
        })?;
        Ok(Self { stop, ended })
    }

    fn end(self, patience: Duration) -> Vec<(&'static str, String)> {
        let _ = self.stop.send(patience);
        // A little more than the backends have, so that their own reports arrive.
        match self.ended.recv_timeout(patience + Duration::from_millis(500)) {
            Ok(undelivered) => undelivered,
            Err(_) => vec![("flush", "the last flush was not done in time".to_owned())],
        }
    }
}

/// Flushes at the due times until told to stop; gives the patience for the end, or `None` when the
/// server was dropped.
fn run(core: &Core, runners: &[Runner], stopped: &mpsc::Receiver<Duration>) -> Option<Duration> {
    let settings = core.settings();
    let mut clock = FlushClock::new(settings.dialect, settings.flush_interval, core.started());
    let mut key_log = KeyLog::new(Instant::now());
    let mut account = Account::default();
    let mut notices = Notices::default();
    loop {
        let now = SystemTime::now();
        let until_flush = clock.until_due(now);
        let until_keys = key_log.until_due(&core.settings().key_flush, Instant::now());
        let wait = until_keys.map_or(until_flush, |keys| keys.min(until_flush));
        match stopped.recv_timeout(wait) {
            Ok(patience) => return Some(patience),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = SystemTime::now();
        if let Some(lag) = clock.take_due(now) {
            let read = core.ledger().read();
            for advice in Advice::between(&account, &read) {
                tracing::warn!("{advice}");
            }
            account = read.clone();
            let snapshot = hand_out(core, runners, FlushTime { now, lag }, read);
            notices.flushed(&snapshot.own, settings.limits.set_members);
        }
        if key_log.take_due(&core.settings().key_flush, Instant::now()) {
            key_log::write(core);
        }
    }
}

fn hand_out(core: &Core, runners: &[Runner], time: FlushTime, account: Account) -> Arc<Snapshot> {
    let snapshot = core.flush(time, account);
    for runner in runners {
        match runner.flush(Arc::clone(&snapshot)) {
            Queued::Waits => {}
            Queued::Joined => tracing::info!(
                backend = runner.name(),
                timestamp = snapshot.timestamp,
                "is still busy with earlier intervals: this one is added to the one that waits"
            ),
            Queued::Dropped => tracing::warn!(
                backend = runner.name(),
                timestamp = snapshot.timestamp,
                metrics = snapshot.own.num_stats,
                "is still busy with earlier intervals: this one is dropped"
            ),
        }
    }
    snapshot
}

/// The interval that the stop has cut short, and what the backends still keep.
fn last_flush(
    core: &Core,
    runners: Vec<Runner>,
    patience: Duration,
) -> Vec<(&'static str, String)> {
    let deadline = Instant::now() + patience;
    let time = FlushTime { now: SystemTime::now(), lag: Duration::ZERO };
    let snapshot = core.flush(time, core.ledger().read());
    let finishing: Vec<_> =
        runners.into_iter().map(|runner| runner.finish(Arc::clone(&snapshot), deadline)).collect();
    finishing.into_iter().filter_map(|finishing| finishing.wait(deadline)).collect()
}

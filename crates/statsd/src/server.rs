//! The running server: receiver, flush, backends and management port.
//!
//! ```text
//!  readers ──► shards ──► registry ◄── management port, health
//!                            │ flush thread, on schedule
//!                            ▼
//!                        snapshot ──► one runner with a thread per backend
//! ```
//!
//! The registry has one lock, held by the flush thread while calculating and by the management port
//! while reading. Reader threads never take it.

mod backend_set;
mod clock;
mod core;
mod key_log;
mod notices;
mod observers;
mod runner;
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

pub(crate) use self::core::{CoreParts, ServerCore};
use howdah_connect::Environment;
use howdah_http::server::HttpServer;

use self::{
    backend_set::{BackendOpener, BackendSet, PreparedBackend},
    clock::FlushClock,
    key_log::KeyLog,
    notices::ThrottledNotices,
};
use crate::{
    backends::{BackendOpenError, MetricBackend, PacketRepeater, SnapshotRequirements, chain},
    flush::{self, FlushTime, KeyRegistry},
    ledger::LossAccount,
    management::{Management, health},
    proxy::{ProxyError, StatsdProxy},
    receiver::{
        ObserverFactory, PacketHandlers, PacketReceiver, ReceiverOpenError, advice::LossAdvice,
    },
    settings::{BackendSettings, StatsdSettings},
};

/// A running server. Stop it with [`StatsdServer::stop`]; dropping it stops it without a last
/// flush.
#[derive(Debug)]
pub struct StatsdServer {
    core: Arc<ServerCore>,
    receiver: PacketReceiver,
    backends: Arc<BackendSet>,
    flush_thread: FlushThread,
    management: Option<Management>,
    health: Option<HttpServer>,
}

/// The arguments of [`StatsdServer::start`].
#[derive(Default)]
pub struct ServerParts {
    /// The settings, validated.
    pub settings: StatsdSettings,
    /// The lines displayed by the management port's `config`.
    pub config_lines: Vec<String>,
    /// If set, the backends of the settings are opened with it, and a reload changes them.
    pub environment: Option<Environment>,
    /// Further destinations of the snapshots. Each backend gets a thread and a queue.
    pub backends: Vec<Box<dyn MetricBackend>>,
    /// Additional observers of raw packets, besides the configured repeater and proxy.
    pub observers: Vec<ObserverFactory>,
}

/// The reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerStartError {
    /// A socket of the receiver cannot be opened, or a reader thread cannot be started.
    #[error(transparent)]
    Receiver(#[from] ReceiverOpenError),
    /// The management port or the health endpoint cannot be opened.
    #[error("cannot listen on {address} for {purpose}")]
    Listen {
        /// The purpose of the listener.
        purpose: &'static str,
        /// The configured address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The proxy has no nodes, a node cannot be resolved, or its thread or a socket cannot be
    /// created.
    #[error("cannot start the proxy")]
    Proxy(#[from] ProxyError),
    /// A backend of the settings cannot be opened.
    #[error("cannot start a backend")]
    Backend(#[from] BackendOpenError),
    /// A thread of the repeater, of a backend or of the flush cannot be started.
    #[error("cannot start a thread of the server")]
    Thread(#[source] io::Error),
}

/// The result of stopping a server.
#[derive(Clone, Debug, Default)]
pub struct ShutdownReport {
    /// The final state of the loss ledger.
    pub account: LossAccount,
    /// Backends that did not deliver all values, each with the reason; only `flush` if the last
    /// flush did not finish.
    pub undelivered: Vec<(&'static str, String)>,
}

/// The flush thread with its channels.
#[derive(Debug)]
struct FlushThread {
    stop: mpsc::Sender<Duration>,
    ended: mpsc::Receiver<Vec<(&'static str, String)>>,
}

impl StatsdServer {
    /// Opens all sockets, starts all threads and begins to receive.
    ///
    /// # Errors
    ///
    /// A socket or a backend cannot be opened, a thread cannot be started, or the proxy has no
    /// nodes or one that cannot be resolved. Nothing remains open.
    pub fn start(parts: ServerParts) -> Result<Self, ServerStartError> {
        let ServerParts { settings, config_lines, environment, backends, observers } = parts;
        let mut factories = observers;
        let started = SystemTime::now();
        let dialect = settings.dialect;
        let opener = environment.map(|environment| BackendOpener { dialect, environment });
        let opened = opener.as_ref().map(|opener| opener.open_all(&settings));
        let mut prepared = opened.transpose()?.unwrap_or_default();
        prepared.extend(backends.into_iter().map(PreparedBackend::from_caller));
        let needs = prepared.iter().map(PreparedBackend::requirements);
        let needs = needs.fold(SnapshotRequirements::MINIMAL, SnapshotRequirements::or);
        let mut registry = KeyRegistry::new(&settings, needs, started);
        let dump = settings.dump_messages;
        let repeaters = &settings.backends.repeater;
        let repeater = if repeaters.is_empty() {
            None
        } else {
            Some(PacketRepeater::start(repeaters).map_err(ServerStartError::Thread)?)
        };
        let proxy = settings.proxy.as_ref().map(StatsdProxy::start).transpose()?;
        factories.extend(repeater.as_ref().map(PacketRepeater::observer_factory));
        if let Some(proxy) = &proxy {
            factories.push(proxy.observer_factory()?);
        }
        // A proxy forwards packets and does not aggregate.
        let aggregates = proxy.is_none();
        let receiver = PacketReceiver::open(&settings.listen, || PacketHandlers {
            shard: aggregates.then(|| registry.shard()),
            observer: observers::combine(&factories, dump),
        })?;
        let backends =
            BackendSet::start(opener, prepared, started).map_err(ServerStartError::Thread)?;
        let backends = Arc::new(backends);
        let statuses = backends.statuses();
        let parts =
            CoreParts { config_lines, ledger: receiver.ledger(), statuses, repeater, proxy };
        let core = Arc::new(ServerCore::new(settings, registry, parts, started));
        let (management, health) = (core.settings().management, core.settings().health);
        let management =
            management.map(|address| Management::listen(address, &core)).transpose()?;
        let health = health.map(|address| health::serve(address, &core)).transpose()?;
        let flushing = FlushThread::start(&core, &backends).map_err(ServerStartError::Thread)?;
        Ok(Self { core, receiver, backends, flush_thread: flushing, management, health })
    }

    /// Returns the addresses that the server receives on, in the order of the settings; `None` for
    /// unix sockets.
    pub fn addresses(&self) -> &[Option<SocketAddr>] {
        self.receiver.addresses()
    }

    /// Returns the address of the management port; `None` if it is off.
    pub fn management(&self) -> Option<SocketAddr> {
        self.management.as_ref().map(Management::address)
    }

    /// Returns the address of the health endpoint; `None` if it is off.
    pub fn health(&self) -> Option<SocketAddr> {
        self.health.as_ref().map(HttpServer::address)
    }

    /// Returns the current state of the loss ledger.
    pub fn account(&self) -> LossAccount {
        self.core.ledger().read()
    }

    /// Applies new settings as far as possible while running, and returns the changed settings that
    /// need a restart.
    ///
    /// The key log, the shutdown timeout, the health, the rules for received metrics, those for
    /// calculation, naming and deletion, the content of the listeners' certificate, key and token
    /// files and of the backends' mapping files, and with [`ServerParts::environment`] the backends
    /// can be reloaded. Backends of equal sections stay; those of other sections are started and,
    /// within the shutdown timeout, stopped. If one cannot be started, all stay, and the reason is
    /// logged.
    pub fn reload(
        &self,
        settings: &StatsdSettings,
        config_lines: Vec<String>,
    ) -> Vec<&'static str> {
        self.receiver.reload_access();
        let old = self.core.settings();
        let mut restart = self.core.reload(settings, config_lines);
        let repeater = old.backends.repeater.clone();
        let backends = BackendSettings { repeater, ..settings.backends.clone() };
        let is_same_ttl = old.aggregation.ttl == settings.aggregation.ttl;
        if old.backends != backends || !is_same_ttl && self.backends.is_reloadable() {
            if self.backends.is_reloadable() {
                self.reload_backends(&StatsdSettings { backends, ..settings.clone() });
            } else {
                restart.push("backends");
            }
        }
        self.backends.reload_files();
        restart
    }

    fn reload_backends(&self, settings: &StatsdSettings) {
        let core = &self.core;
        let timeout = core.settings().shutdown_timeout;
        let require =
            |needs| flush::add_requirements(&mut core.registry(), needs, SystemTime::now());
        match self.backends.reload(settings, timeout, require) {
            Ok((started, removed)) => {
                core.set_backends(&settings.backends, self.backends.statuses());
                tracing::info!(started, removed, "backends reloaded");
            }
            Err(error) => tracing::error!(error = chain(&error), "keeping the old backends"),
        }
    }

    /// Shuts down gracefully: drains the sockets, flushes, and waits for the backends, all within
    /// about the configured timeout.
    pub fn stop(self) -> ShutdownReport {
        let timeout = self.core.settings().shutdown_timeout;
        let deadline = Instant::now() + timeout;
        // At most half of the time for draining, because received values must also be sent.
        let account = self.receiver.stop(timeout / 2);
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(repeater) = self.core.take_repeater() {
            let _ = repeater.finish(left() / 2);
        }
        let undelivered = self.flush_thread.finish(left());
        ShutdownReport { account, undelivered }
    }
}

impl FlushThread {
    fn start(core: &Arc<ServerCore>, backends: &Arc<BackendSet>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        let (core, backends) = (Arc::clone(core), Arc::clone(backends));
        thread::Builder::new().name("statsd-flush".into()).spawn(move || {
            let timeout = run(&core, &backends, &stopped);
            // Without a timeout, the server was dropped instead of stopped: skip the last flush.
            if let Some(timeout) = timeout {
                let _ = done.send(last_flush(&core, &backends, timeout));
            }
        })?;
        Ok(Self { stop, ended })
    }

    fn finish(self, timeout: Duration) -> Vec<(&'static str, String)> {
        let _ = self.stop.send(timeout);
        // Slightly longer than the backends' timeout, so that their reports arrive.
        match self.ended.recv_timeout(timeout + Duration::from_millis(500)) {
            Ok(undelivered) => undelivered,
            Err(_) => vec![("flush", "the last flush did not finish".to_owned())],
        }
    }
}

/// Flushes on schedule until stopped. Returns the timeout for the shutdown, or `None` if the server
/// was dropped.
fn run(
    core: &ServerCore,
    backends: &BackendSet,
    stopped: &mpsc::Receiver<Duration>,
) -> Option<Duration> {
    let settings = core.settings();
    let mut clock = FlushClock::new(settings.dialect, settings.flush_interval, core.started());
    let mut key_log = KeyLog::new(Instant::now());
    let mut account = LossAccount::default();
    let repeats = !settings.backends.repeater.is_empty();
    let mut notices = ThrottledNotices::default();
    loop {
        let now = SystemTime::now();
        let until_flush = clock.time_until_flush(now);
        let until_keys = key_log.time_until_write(&core.settings().key_flush, Instant::now());
        let wait = until_keys.map_or(until_flush, |keys| keys.min(until_flush));
        match stopped.recv_timeout(wait) {
            Ok(timeout) => return Some(timeout),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = SystemTime::now();
        if let Some(lag) = clock.poll_flush(now) {
            let read = core.ledger().read();
            for advice in LossAdvice::between(&account, &read) {
                tracing::warn!("{advice}");
            }
            account = read.clone();
            let snapshot = core.flush(FlushTime { now, lag }, read);
            backends.flush(&snapshot);
            let has_receiver = repeats || backends.accept_messages();
            notices.flushed(&snapshot.self_metrics, &settings.limits, has_receiver);
        }
        if key_log.poll_write(&core.settings().key_flush, Instant::now()) {
            key_log::write(core);
        }
    }
}

/// Flushes the interval that the shutdown cut short, and all values that the backends have spooled,
/// within `timeout`. Returns the backends that did not deliver all values, each with the reason.
fn last_flush(
    core: &ServerCore,
    backends: &BackendSet,
    timeout: Duration,
) -> Vec<(&'static str, String)> {
    let deadline = Instant::now() + timeout;
    let time = FlushTime { now: SystemTime::now(), lag: Duration::ZERO };
    let snapshot = core.flush(time, core.ledger().read());
    backends.finish(&snapshot, deadline)
}

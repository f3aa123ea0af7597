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
mod forward;
mod key_log;
mod notices;
mod observers;
mod runner;
mod takeover;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
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
use parking_lot::Mutex;

pub use self::takeover::{Predecessor, TakeoverError};
use self::{
    backend_set::{BackendOpener, BackendSet, PreparedBackend},
    clock::FlushClock,
    key_log::KeyLog,
    notices::ThrottledNotices,
    takeover::{
        BackendId, HandoverSource, PendingSpools, SharedFile, SpoolReceiver, TakeoverListener,
    },
};
use crate::{
    backends::{
        BackendOpenError, BackendSpool, MetricBackend, PacketRepeater, SnapshotRequirements, chain,
    },
    flush::{self, FlushTime, KeyRegistry},
    forwarding::SequenceTable,
    ledger::LossAccount,
    management::{Management, PortListener, health},
    proxy::{ProxyError, StatsdProxy},
    receiver::{
        InheritedSocket, InheritedSockets, LineRelay, ObserverFactory, PacketHandlers,
        PacketReceiver, ReceiverOpenError, advice::LossAdvice,
    },
    settings::{BackendSettings, StatsdSettings},
};

/// A running server. Stop it with [`StatsdServer::stop`]; dropping it stops it without a last
/// flush.
#[derive(Debug)]
pub struct StatsdServer {
    core: Arc<ServerCore>,
    receiver: OwnedReceiver,
    addresses: Vec<Option<SocketAddr>>,
    backends: Arc<BackendSet>,
    flush_thread: FlushThread,
    management: Option<Management>,
    health: Option<HttpServer>,
    forwards: Vec<PortListener>,
    _takeover: Option<TakeoverListener>,
}

/// The receiver, until the server is stopped or another process has taken over.
type SharedReceiver = Arc<Mutex<Option<PacketReceiver>>>;

/// A guard that stops the receiver when the server is dropped.
#[derive(Debug)]
struct OwnedReceiver(SharedReceiver);

impl Drop for OwnedReceiver {
    fn drop(&mut self) {
        drop(self.0.lock().take());
    }
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
    /// Sockets opened by the service manager or by the predecessor.
    pub passed: InheritedSockets,
    /// The running server from which this one takes over.
    pub predecessor: Option<Predecessor>,
    /// Called once another process has taken over. The server must then be stopped.
    pub handed_over: Option<Box<dyn FnOnce() + Send>>,
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
    /// The running server cannot be taken over.
    #[error("cannot take over from the running server")]
    Takeover(#[from] TakeoverError),
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
    work: mpsc::Sender<FlushWork>,
    commands: mpsc::Sender<FlushCommand>,
    ended: mpsc::Receiver<Vec<(&'static str, String)>>,
}

/// A command to the flush thread.
#[derive(Debug)]
enum FlushCommand {
    /// Flush a last time and end within this time.
    Stop(Duration),
    /// Hand over to the process at the other end of the stream.
    HandOver { stream: UnixStream, file: SharedFile, reply: mpsc::Sender<io::Result<()>> },
    /// Deliver batches that the same backend of another process could not deliver.
    Adopt(BackendId, BackendSpool),
    /// The other process has delivered or handed over everything of this backend, or of all.
    Release(Option<BackendId>),
}

/// The state that the flush thread shares with others.
struct FlushShared {
    core: Arc<ServerCore>,
    receiver: SharedReceiver,
    backends: Arc<BackendSet>,
    /// The batches of the process from which this one took over.
    pending: Option<PendingSpools>,
}

/// Everything that the flush thread needs to begin.
struct FlushWork {
    shared: FlushShared,
    schedule: FlushSchedule,
    handed_over: Option<Box<dyn FnOnce() + Send>>,
}

/// The schedules of the flush thread.
#[derive(Debug)]
struct FlushSchedule {
    clock: FlushClock,
    key_log: KeyLog,
}

/// The listeners of the ports for people and load balancers, before they are served.
struct ServicePorts {
    management: Option<TcpListener>,
    health: Option<TcpListener>,
    /// Copies for a process that takes over.
    copies: Vec<InheritedSocket>,
}

impl ServicePorts {
    fn open(
        settings: &StatsdSettings,
        passed: &mut InheritedSockets,
    ) -> Result<Self, ServerStartError> {
        let mut copies = Vec::new();
        let mut open = |label: &'static str, purpose, address: Option<SocketAddr>| {
            let Some(address) = address else { return Ok::<_, ServerStartError>(None) };
            let failed = |source| ServerStartError::Listen { purpose, address, source };
            let listener = passed.listener(label, address).map_err(failed)?;
            copies.push(InheritedSocket {
                label: format!("{label} {address}"),
                descriptor: listener.try_clone().map_err(failed)?.into(),
                is_managed: false,
            });
            Ok(Some(listener))
        };
        let management = open("management", "the management port", settings.management)?;
        let health = open("health", "health checks", settings.health)?;
        Ok(Self { management, health, copies })
    }
}

impl StatsdServer {
    /// Opens all sockets, starts all threads and begins to receive. With a predecessor, continues
    /// its work.
    ///
    /// # Errors
    ///
    /// A socket or a backend cannot be opened, a thread cannot be started, the proxy has no nodes
    /// or one that cannot be resolved, or the predecessor cannot be taken over. Nothing remains
    /// open, and a predecessor goes on.
    pub fn start(parts: ServerParts) -> Result<Self, ServerStartError> {
        let ServerParts {
            settings,
            config_lines,
            environment,
            backends,
            observers: mut factories,
            mut passed,
            predecessor,
            handed_over,
        } = parts;
        let takes_over = predecessor.is_some();
        let started = SystemTime::now();
        let dialect = settings.dialect;
        let opener = environment.map(|environment| BackendOpener { dialect, environment });
        let opened =
            opener.as_ref().map(|opener| opener.open_all(&settings, &mut passed, takes_over));
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
        let mut receiver =
            PacketReceiver::prepare(&settings.listen, &mut passed, || PacketHandlers {
                shard: aggregates.then(|| registry.shard()),
                observer: observers::combine(&factories, dump),
            })?;
        let addresses = receiver.addresses().to_vec();
        let ports = ServicePorts::open(&settings, &mut passed)?;
        for label in passed.labels() {
            tracing::warn!(
                socket = label,
                "a passed socket is closed: the settings do not name it"
            );
        }
        let backends =
            BackendSet::start(opener, prepared, started).map_err(ServerStartError::Thread)?;
        // All threads that are necessary start before the commit of a takeover.
        let flushing = FlushThread::start().map_err(ServerStartError::Thread)?;
        let inheritance = match predecessor {
            Some(predecessor) => {
                let spools = SpoolReceiver::start(flushing.commands.clone());
                let spools = spools.map_err(ServerStartError::Thread)?;
                Some(predecessor.take_over(&mut registry, &receiver, &backends, spools)?)
            }
            None => None,
        };
        let mut schedule = FlushSchedule {
            clock: FlushClock::new(settings.dialect, settings.flush_interval, started),
            key_log: KeyLog::new(Instant::now()),
        };
        let (mut forwarded, mut health) = (SequenceTable::default(), None);
        if inheritance.is_some() {
            let timeout = settings.shutdown_timeout + takeover::ORDER_GRACE;
            backends.park_ordered(Instant::now() + timeout);
        }
        // From the commit of a takeover on, no process reads until this one does.
        let pending = inheritance.map(|inheritance| {
            receiver.release(inheritance.connections);
            forwarded = inheritance.sequences;
            health = inheritance.health;
            schedule.clock = schedule.clock.continued(inheritance.clock, SystemTime::now());
            schedule.key_log = KeyLog::continued(Instant::now(), inheritance.since_key_log);
            inheritance.pending
        });
        let backends = Arc::new(backends);
        let statuses = backends.statuses();
        let parts = CoreParts {
            config_lines,
            ledger: receiver.ledger(),
            statuses,
            repeater,
            proxy,
            forwarded,
        };
        let takeover = settings.takeover.clone();
        let core = Arc::new(ServerCore::new(settings, registry, parts, started));
        if let Some(health) = health {
            core.set_healthy(health);
        }
        let forwards = forward::serve_all(receiver.take_forwards(), &core);
        let forwards = forwards.map_err(ServerStartError::Thread).map(Some);
        let forwards = unless_taken_over(forwards, takes_over)?.unwrap_or_default();
        let ServicePorts { management, health, copies } = ports;
        let management = management.map(|listener| Management::listen(listener, &core));
        let management = unless_taken_over(management.transpose(), takes_over)?;
        let health = health.map(|listener| health::serve(listener, &core));
        let health = unless_taken_over(health.transpose(), takes_over)?;
        if !takes_over {
            receiver.release(Vec::new());
        }
        let receiver: SharedReceiver = Arc::new(Mutex::new(Some(receiver)));
        let shared = FlushShared {
            core: Arc::clone(&core),
            receiver: Arc::clone(&receiver),
            backends: Arc::clone(&backends),
            pending: pending.clone(),
        };
        flushing.begin(FlushWork { shared, schedule, handed_over });
        let takeover = takeover.and_then(|path| {
            let source = HandoverSource {
                receiver: Arc::clone(&receiver),
                backends: Arc::clone(&backends),
                ports: copies,
                flush: flushing.commands.clone(),
                pending,
            };
            let started = TakeoverListener::start(&path, source).inspect_err(|error| {
                let path = path.display();
                tracing::warn!(
                    %error, %path,
                    "cannot create the takeover socket: no other process can take over"
                );
            });
            started.ok()
        });
        Ok(Self {
            core,
            receiver: OwnedReceiver(receiver),
            addresses,
            backends,
            flush_thread: flushing,
            management,
            health,
            forwards,
            _takeover: takeover,
        })
    }

    /// Returns the addresses that the server receives on, in the order of the settings; `None` for
    /// unix sockets.
    pub fn addresses(&self) -> &[Option<SocketAddr>] {
        &self.addresses
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
    /// logged. After a takeover, nothing is reloaded.
    pub fn reload(
        &self,
        settings: &StatsdSettings,
        config_lines: Vec<String>,
    ) -> Vec<&'static str> {
        // Locked until the end, so that no takeover starts meanwhile.
        let receiver = self.receiver.0.lock();
        let Some(receiver) = receiver.as_ref() else { return Vec::new() };
        receiver.reload_access();
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

    /// Whether another process has taken over.
    pub fn was_handed_over(&self) -> bool {
        self.receiver.0.lock().is_none()
    }

    /// Shuts down gracefully: drains the sockets, flushes, and waits for the backends, all within
    /// about the configured timeout. After a takeover, only waits until the backends have delivered
    /// or handed over everything, which a flush in progress may delay.
    pub fn stop(self) -> ShutdownReport {
        let timeout = self.core.settings().shutdown_timeout;
        let deadline = Instant::now() + timeout;
        drop(self.forwards);
        // Waits for the end of a takeover in progress. After a successful one there is nothing to
        // drain.
        let receiver = self.receiver.0.lock().take();
        let is_handed_over = receiver.is_none();
        let account = match receiver {
            // At most half of the time for draining, because received values must also be sent.
            Some(receiver) => receiver.stop(timeout / 2),
            None => {
                // The other process has these ports, too.
                drop((self.management, self.health));
                self.core.ledger().read()
            }
        };
        let left = || deadline.saturating_duration_since(Instant::now());
        if let Some(repeater) = self.core.take_repeater() {
            let _ = repeater.finish(left() / 2);
        }
        let undelivered = if is_handed_over {
            self.flush_thread.finish_handover()
        } else {
            self.flush_thread.finish(left())
        };
        ShutdownReport { account, undelivered }
    }
}

/// Returns the result of starting a service. After the commit of a takeover, a failure is logged
/// instead: ending would lose the aggregates.
fn unless_taken_over<T>(
    started: Result<Option<T>, ServerStartError>,
    takes_over: bool,
) -> Result<Option<T>, ServerStartError> {
    match started {
        Err(error) if takes_over => {
            tracing::error!(%error, "a service is not available until a restart");
            Ok(None)
        }
        started => started,
    }
}

impl FlushThread {
    /// Starts the thread, which waits for [`begin`](Self::begin).
    fn start() -> io::Result<Self> {
        let (work, begun) = mpsc::channel();
        let (commands, received) = mpsc::channel();
        let (done, ended) = mpsc::channel();
        thread::Builder::new().name("statsd-flush".into()).spawn(move || {
            // Without work, the server could not start.
            if let Ok(work) = begun.recv()
                && let Some(undelivered) = flush_until_end(work, received)
            {
                let _ = done.send(undelivered);
            }
        })?;
        Ok(Self { work, commands, ended })
    }

    fn begin(&self, work: FlushWork) {
        // A thread that has ended has panicked, which was logged.
        let _ = self.work.send(work);
    }

    /// Waits for the end of a handover. The time that backends have is limited.
    fn finish_handover(self) -> Vec<(&'static str, String)> {
        let failed = |_| vec![("flush", "the flush thread ended".to_owned())];
        self.ended.recv().unwrap_or_else(failed)
    }

    fn finish(self, timeout: Duration) -> Vec<(&'static str, String)> {
        let _ = self.commands.send(FlushCommand::Stop(timeout));
        // Slightly longer than the backends' timeout, so that their reports arrive.
        match self.ended.recv_timeout(timeout + Duration::from_millis(500)) {
            Ok(undelivered) => undelivered,
            Err(_) => vec![("flush", "the last flush did not finish".to_owned())],
        }
    }
}

/// Does all work of the flush thread. Returns the backends that did not deliver all values, each
/// with the reason; `None` if the server was dropped.
fn flush_until_end(
    work: FlushWork,
    received: mpsc::Receiver<FlushCommand>,
) -> Option<Vec<(&'static str, String)>> {
    let FlushWork { shared, schedule, handed_over } = work;
    let end = run(&shared, schedule, &received);
    let FlushShared { core, backends, pending, .. } = &shared;
    match end {
        FlushEnd::Stopped(timeout) => {
            let deadline = Instant::now() + timeout;
            if let Some(pending) = pending {
                // The old process gets half of the time.
                pending.wait(deadline - timeout / 2);
            }
            for command in received.try_iter() {
                if let FlushCommand::Adopt(id, spool) = command {
                    adopt(backends, &id, spool);
                }
            }
            // Batches that arrive from now on are reported as lost.
            drop(received);
            Some(last_flush(core, backends, deadline))
        }
        // Skip the last flush.
        FlushEnd::Dropped => None,
        FlushEnd::HandedOver(stream, relay) => {
            if let Some(handed_over) = handed_over {
                handed_over();
            }
            let timeout = core.settings().shutdown_timeout;
            let deadline = Instant::now() + timeout;
            let undelivered = takeover::send_spools(&stream, backends, timeout);
            relay.finish(deadline);
            takeover::finish(&stream);
            Some(undelivered)
        }
    }
}

/// The reason why the flush thread ends.
#[derive(Debug)]
enum FlushEnd {
    /// The server is stopped, and has this time for the last flush.
    Stopped(Duration),
    /// The server was dropped.
    Dropped,
    /// The process at the other end of the stream has taken over.
    HandedOver(UnixStream, Box<LineRelay>),
}

/// Flushes on schedule until stopped or handed over.
fn run(
    FlushShared { core, receiver, backends, .. }: &FlushShared,
    schedule: FlushSchedule,
    commands: &mpsc::Receiver<FlushCommand>,
) -> FlushEnd {
    let settings = core.settings();
    let FlushSchedule { mut clock, mut key_log } = schedule;
    let mut account = LossAccount::default();
    let repeats = !settings.backends.repeater.is_empty();
    let mut notices = ThrottledNotices::default();
    loop {
        let now = SystemTime::now();
        let until_flush = clock.time_until_flush(now);
        let until_keys = key_log.time_until_write(&core.settings().key_flush, Instant::now());
        let wait = until_keys.map_or(until_flush, |keys| keys.min(until_flush));
        match commands.recv_timeout(wait) {
            Ok(FlushCommand::Stop(timeout)) => return FlushEnd::Stopped(timeout),
            Ok(FlushCommand::HandOver { stream, file, reply }) => {
                let schedules = (&clock, &key_log);
                let outcome = takeover::hand_over(&stream, core, receiver, backends, schedules);
                // The new process replaces the file. Dropping the server must not remove it.
                if let Some(mut file) = file.lock().take_if(|_| outcome.is_ok()) {
                    file.set_owned(false);
                }
                // The thread of the takeover socket waits for the reply.
                match outcome {
                    Ok(relay) => {
                        let _ = reply.send(Ok(()));
                        return FlushEnd::HandedOver(stream, Box::new(relay));
                    }
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Ok(FlushCommand::Adopt(id, spool)) => adopt(backends, &id, spool),
            Ok(FlushCommand::Release(id)) => backends.release(id.as_ref()),
            Err(RecvTimeoutError::Disconnected) => return FlushEnd::Dropped,
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

/// Passes batches of another process to the same backend of this one.
fn adopt(backends: &BackendSet, id: &BackendId, spool: BackendSpool) {
    let values = spool.batches.iter().map(|batch| batch.values).sum::<u64>();
    if !backends.adopt(id, spool) {
        tracing::error!(
            backend = id.name,
            values,
            "values dropped: the old process could not deliver them, and this one has no such \
             backend"
        );
    }
}

/// Flushes the interval that the shutdown cut short, and all values that the backends have spooled,
/// by `deadline`. Returns the backends that did not deliver all values, each with the reason.
fn last_flush(
    core: &ServerCore,
    backends: &BackendSet,
    deadline: Instant,
) -> Vec<(&'static str, String)> {
    core.close_forwarding();
    let time = FlushTime { now: SystemTime::now(), lag: Duration::ZERO };
    let snapshot = core.flush(time, core.ledger().read());
    backends.finish(&snapshot, deadline)
}

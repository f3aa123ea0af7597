//! [`ServerCore`]: the state shared by the server's threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::{
    backends::{BackendStatus, PacketRepeater},
    flush::{FlushSnapshot, FlushTime, ForwardedBatch, KeyRegistry},
    forwarding::{BatchId, SequenceTable},
    ledger::{LossAccount, LossLedger},
    proxy::StatsdProxy,
    self_metrics::BackendFigures,
    settings::{BackendSettings, StatsdSettings},
};

/// The state shared by the flush thread, the management port and the health endpoint.
pub(crate) struct ServerCore {
    settings: RwLock<Arc<StatsdSettings>>,
    config_lines: RwLock<Vec<String>>,
    registry: Mutex<KeyRegistry>,
    ledger: Arc<dyn LossLedger>,
    statuses: RwLock<Vec<(&'static str, BackendStatus)>>,
    repeater: Mutex<Option<PacketRepeater>>,
    proxy: Option<StatsdProxy>,
    /// The batches that were merged; `None` once no more are accepted. Locked after the registry.
    forwarded: Mutex<Option<SequenceTable>>,
    healthy: AtomicBool,
    started: SystemTime,
}

/// The parts of a [`ServerCore`] besides settings and registry.
pub(crate) struct CoreParts {
    /// The lines that the management command `config` displays.
    pub(crate) config_lines: Vec<String>,
    pub(crate) ledger: Arc<dyn LossLedger>,
    /// The status of each backend, in the order of [`super::ServerParts::backends`].
    pub(crate) statuses: Vec<(&'static str, BackendStatus)>,
    pub(crate) repeater: Option<PacketRepeater>,
    pub(crate) proxy: Option<StatsdProxy>,
    pub(crate) forwarded: SequenceTable,
}

impl ServerCore {
    pub(crate) fn new(
        settings: StatsdSettings,
        registry: KeyRegistry,
        parts: CoreParts,
        started: SystemTime,
    ) -> Self {
        let CoreParts { config_lines, ledger, statuses, repeater, proxy, forwarded } = parts;
        Self {
            healthy: AtomicBool::new(settings.healthy),
            settings: RwLock::new(Arc::new(settings)),
            config_lines: RwLock::new(config_lines),
            registry: Mutex::new(registry),
            ledger,
            statuses: RwLock::new(statuses),
            repeater: Mutex::new(repeater),
            proxy,
            forwarded: Mutex::new(Some(forwarded)),
            started,
        }
    }

    /// Returns the current settings.
    pub(crate) fn settings(&self) -> Arc<StatsdSettings> {
        self.settings.read().clone()
    }

    /// Returns the lines that the management command `config` displays.
    pub(crate) fn config_lines(&self) -> Vec<String> {
        self.config_lines.read().clone()
    }

    /// Locks the registry. The lock must not be held while writing to a socket.
    pub(crate) fn registry(&self) -> MutexGuard<'_, KeyRegistry> {
        self.registry.lock()
    }

    /// Locks the registry, and collects everything received so far into it.
    pub(crate) fn running_interval(&self) -> MutexGuard<'_, KeyRegistry> {
        let mut registry = self.registry();
        registry.collect(SystemTime::now());
        registry
    }

    /// Merges a forwarded batch into the running interval. Returns whether it is new; `None` if no
    /// more batches are accepted.
    pub(crate) fn merge_batch(
        &self,
        id: &BatchId,
        mut batch: ForwardedBatch,
        now: SystemTime,
    ) -> Option<bool> {
        // Checked under the registry's lock: the last flush or a takeover includes either all of a
        // batch and its sequence number, or nothing of it.
        let mut registry = self.registry();
        let mut forwarded = self.forwarded.lock();
        let forwarded = forwarded.as_mut()?;
        let is_new = forwarded.record(id, now);
        if is_new {
            let gauges = &mut forwarded.gauges;
            gauges.record(id, now);
            batch.retain_gauges(|key, is_set| gauges.applies(id, key, is_set, now));
            batch.add_to(&mut registry, now);
        }
        Some(is_new)
    }

    /// Returns the sequence numbers of merged batches. The caller has locked the registry.
    pub(crate) fn forwarded_sequences(&self) -> Vec<u8> {
        self.forwarded.lock().as_ref().map(SequenceTable::export).unwrap_or_default()
    }

    /// Accepts no more batches, because the last flush follows or another process has taken over.
    pub(crate) fn close_forwarding(&self) {
        *self.forwarded.lock() = None;
    }

    /// Finishes the interval and returns its snapshot, with the current status of the backends.
    pub(crate) fn flush(&self, time: FlushTime, account: LossAccount) -> Arc<FlushSnapshot> {
        let mut snapshot = self.registry().flush(time, account);
        snapshot.self_metrics.backends = self.backend_accounts();
        Arc::new(snapshot)
    }

    fn backend_accounts(&self) -> Vec<BackendFigures> {
        let mut accounts: Vec<BackendFigures> = Vec::new();
        for (kind, status) in self.statuses() {
            let before =
                accounts.iter().filter(|account| account.name.split('-').next() == Some(kind));
            let name = match before.count() {
                0 => kind.to_owned(),
                others => format!("{kind}-{}", others + 1),
            };
            accounts.push(BackendFigures { name, values: status.all() });
        }
        accounts
    }

    pub(crate) fn ledger(&self) -> &dyn LossLedger {
        &*self.ledger
    }

    /// Returns the status of each backend, followed by those of the repeater and the proxy, if
    /// configured.
    pub(crate) fn statuses(&self) -> Vec<(&'static str, BackendStatus)> {
        let repeater = self.repeater.lock();
        let repeater = repeater.as_ref().map(|repeater| ("repeater", repeater.status()));
        let proxy = self.proxy.as_ref().map(|proxy| ("proxy", proxy.status()));
        let backends = self.statuses.read().clone();
        backends.into_iter().chain(repeater).chain(proxy).collect()
    }

    /// Records new settings of the backends, except the repeater's, and the status of each backend.
    pub(crate) fn set_backends(
        &self,
        backends: &BackendSettings,
        statuses: Vec<(&'static str, BackendStatus)>,
    ) {
        let mut settings = self.settings.write();
        let repeater = settings.backends.repeater.clone();
        let backends = BackendSettings { repeater, ..backends.clone() };
        *settings = Arc::new(StatsdSettings { backends, ..StatsdSettings::clone(&settings) });
        *self.statuses.write() = statuses;
    }

    /// Takes the repeater out, to finish it.
    pub(crate) fn take_repeater(&self) -> Option<PacketRepeater> {
        self.repeater.lock().take()
    }

    /// Returns the proxy, if this server is one.
    pub(crate) fn proxy(&self) -> Option<&StatsdProxy> {
        self.proxy.as_ref()
    }

    pub(crate) fn started(&self) -> SystemTime {
        self.started
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    pub(crate) fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Implements [`super::StatsdServer::reload`], except for the backends.
    pub(crate) fn reload(
        &self,
        new: &StatsdSettings,
        config_lines: Vec<String>,
    ) -> Vec<&'static str> {
        let old = self.settings();
        let restart = [
            ("dialect", old.dialect != new.dialect),
            ("tags", old.tags != new.tags),
            ("types", old.types != new.types),
            ("dogstatsd", old.dogstatsd != new.dogstatsd),
            ("listen", old.listen != new.listen),
            ("management", old.management != new.management),
            ("health", old.health != new.health),
            ("takeover", old.takeover != new.takeover),
            ("flush-interval", old.flush_interval != new.flush_interval),
            ("limits", old.limits != new.limits),
            ("log", old.log != new.log),
            ("dump-messages", old.dump_messages != new.dump_messages),
            ("backends.repeater", old.backends.repeater != new.backends.repeater),
            ("proxy", old.proxy != new.proxy),
        ];
        let live = StatsdSettings {
            aggregation: new.aggregation.clone(),
            rules: new.rules.clone(),
            static_tags: new.static_tags.clone(),
            key_flush: new.key_flush.clone(),
            shutdown_timeout: new.shutdown_timeout,
            reload_on_change: new.reload_on_change,
            healthy: new.healthy,
            ..StatsdSettings::clone(&old)
        };
        // An unchanged setting does not undo the management command `health`.
        if old.healthy != new.healthy {
            self.set_healthy(new.healthy);
        }
        self.registry().reload(&live, SystemTime::now());
        *self.settings.write() = Arc::new(live);
        *self.config_lines.write() = config_lines;
        restart.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
    }
}

impl std::fmt::Debug for ServerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCore").field("started", &self.started).finish_non_exhaustive()
    }
}

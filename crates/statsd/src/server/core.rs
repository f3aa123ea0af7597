//! What the threads of a server share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use crate::{
    backends::{Repeater, Status},
    flush::{BackendAccount, FlushTime, Registry, Snapshot},
    ledger::{Account, Ledger},
    proxy::Proxy,
    settings::Settings,
};

/// Shared by the flush thread, the management port and the health endpoint.
pub(crate) struct Core {
    settings: RwLock<Arc<Settings>>,
    config_lines: RwLock<Vec<String>>,
    registry: Mutex<Registry>,
    ledger: Arc<dyn Ledger>,
    statuses: Vec<(&'static str, Status)>,
    repeater: Mutex<Option<Repeater>>,
    proxy: Option<Proxy>,
    healthy: AtomicBool,
    started: SystemTime,
}

/// What is only looked at.
pub(crate) struct Shown {
    /// What `config` shows.
    pub(crate) config_lines: Vec<String>,
    pub(crate) ledger: Arc<dyn Ledger>,
    /// The backends' accounts, in the order of the settings.
    pub(crate) statuses: Vec<(&'static str, Status)>,
    pub(crate) repeater: Option<Repeater>,
    pub(crate) proxy: Option<Proxy>,
}

impl Core {
    pub(crate) fn new(
        settings: Settings,
        registry: Registry,
        shown: Shown,
        started: SystemTime,
    ) -> Self {
        let Shown { config_lines, ledger, statuses, repeater, proxy } = shown;
        Self {
            healthy: AtomicBool::new(settings.healthy),
            settings: RwLock::new(Arc::new(settings)),
            config_lines: RwLock::new(config_lines),
            registry: Mutex::new(registry),
            ledger,
            statuses,
            repeater: Mutex::new(repeater),
            proxy,
            started,
        }
    }

    /// The settings of the moment.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What `config` shows.
    pub(crate) fn config_lines(&self) -> Vec<String> {
        self.config_lines.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The registry, locked. Not to be held while writing to anybody.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The registry with all that has arrived so far, locked.
    pub(crate) fn running_interval(&self) -> MutexGuard<'_, Registry> {
        let mut registry = self.registry();
        registry.collect(SystemTime::now());
        registry
    }

    /// Ends the interval.
    pub(crate) fn flush(&self, time: FlushTime, account: Account) -> Arc<Snapshot> {
        let mut snapshot = self.registry().flush(time, account);
        snapshot.own.backends = self.backend_accounts();
        Arc::new(snapshot)
    }

    fn backend_accounts(&self) -> Vec<BackendAccount> {
        let mut accounts: Vec<BackendAccount> = Vec::new();
        for (kind, status) in self.statuses() {
            let before =
                accounts.iter().filter(|account| account.name.split('-').next() == Some(kind));
            let name = match before.count() {
                0 => kind.to_owned(),
                others => format!("{kind}-{}", others + 1),
            };
            accounts.push(BackendAccount { name, values: status.all() });
        }
        accounts
    }

    pub(crate) fn ledger(&self) -> &dyn Ledger {
        &*self.ledger
    }

    /// The backends' accounts, in the order of the settings, and those who see packets after them.
    pub(crate) fn statuses(&self) -> Vec<(&'static str, Status)> {
        let repeater = self.repeater.lock().unwrap_or_else(PoisonError::into_inner);
        let repeater = repeater.as_ref().map(|repeater| ("repeater", repeater.status()));
        let proxy = self.proxy.as_ref().map(|proxy| ("proxy", proxy.status()));
        self.statuses.iter().cloned().chain(repeater).chain(proxy).collect()
    }

    /// The repeater, to be ended.
    pub(crate) fn take_repeater(&self) -> Option<Repeater> {
        self.repeater.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The proxy, if this server is one.
    pub(crate) fn proxy(&self) -> Option<&Proxy> {
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

    /// See [`super::Server::reload`].
    pub(crate) fn reload(&self, new: &Settings, config_lines: Vec<String>) -> Vec<&'static str> {
        let old = self.settings();
        let restart = [
            ("dialect", old.dialect != new.dialect),
            ("listen", old.listen != new.listen),
            ("management", old.management != new.management),
            ("health", old.health != new.health),
            ("flush-interval", old.flush_interval != new.flush_interval),
            ("limits", old.limits != new.limits),
            ("log", old.log != new.log),
            ("dump-messages", old.dump_messages != new.dump_messages),
            ("backends", old.backends != new.backends),
            ("proxy", old.proxy != new.proxy),
        ];
        let live = Settings {
            aggregation: new.aggregation.clone(),
            key_flush: new.key_flush.clone(),
            shutdown_patience: new.shutdown_patience,
            ..Settings::clone(&old)
        };
        self.registry().reload(&live.aggregation, SystemTime::now());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(live);
        *self.config_lines.write().unwrap_or_else(PoisonError::into_inner) = config_lines;
        restart.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| name).collect()
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("started", &self.started).finish_non_exhaustive()
    }
}

//! [`PoolerHandle`]: administration and monitoring of a running pooler.
//!
//! Workers receive commands as messages and handle them between events, outside the data path.

mod history;
mod ids;
mod snapshot;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_pool_config::Config;
use howdah_pool_core::{
    AdminState, CoreReport, MemberHealth, PeerId, PoolCounts, PoolId, WorkerId,
};

pub(super) use self::history::StatsHistory;
use self::ids::split as split_pointer;
use super::{
    directory::{self, PoolEntry},
    messages::{Mailbox, WorkerMessage},
    shared_state::SharedState,
};
use crate::{
    ConnectionNumber, PoolerSnapshot, SocketAddresses,
    console::{
        DatabaseSelector, ShutdownRequest,
        log_level::{self, LogControl},
    },
};

/// A handle for administering and monitoring a running pooler.
#[derive(Clone, Debug)]
pub struct PoolerHandle {
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) shared: Arc<SharedState>,
}

/// A worker's reply to [`WorkerMessage::Report`].
#[derive(Debug)]
pub(super) struct WorkerReport {
    pub(super) worker: WorkerId,
    pub(super) report: CoreReport,
    /// The addresses of clients and servers that have sockets.
    pub(super) addresses: HashMap<PeerId, SocketAddresses>,
}

/// Timeout for replies from the workers. A worker normally replies within one iteration of its
/// event loop.
pub(super) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between checks of a condition that a command waits for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The reason why an administration command was not executed, or did not complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AdminError {
    NoDatabase(NoSuchDatabase),
    /// The pooler is already suspended.
    Suspended,
    /// A database, or a user of one, is paused, so the pooler cannot be suspended.
    Paused,
    /// RESUME was issued before the command completed, or the pooler is stopping.
    Interrupted,
}

impl From<NoSuchDatabase> for AdminError {
    fn from(none: NoSuchDatabase) -> Self {
        Self::NoDatabase(none)
    }
}

/// The reason why a server could not be banned or unbanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BanError {
    /// No cluster has a server with this name.
    Unknown,
    /// The server is a primary, which cannot be banned.
    Primary,
    /// The server is not banned.
    NotBanned,
}

/// The result of a RESUME for one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserResume {
    Resumed,
    /// The user was not paused.
    NotPaused,
    /// All users of the database are paused, so this one stays paused.
    AllPaused,
}

/// The error for a database name that no entry in the settings matches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoSuchDatabase(pub(super) String);

impl PoolerHandle {
    /// Lets `SET log-level` and `SET verbose` change the log level of the process, and reloads open
    /// its log file again. Only the first call has an effect.
    pub fn allow_log_control(control: LogControl) {
        log_level::allow_log_control(control);
    }

    /// Whether a shutdown has started that waits for servers or clients, by
    /// [`Pooler::drain`](super::Pooler::drain),
    /// [`Pooler::wait_for_clients`](super::Pooler::wait_for_clients) or a console command. New
    /// clients are then refused.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.is_shutting_down()
    }

    /// Returns the current settings.
    pub fn config(&self) -> Arc<Config> {
        self.shared.directory.config()
    }

    fn reports(&self, with_peers: bool) -> Vec<WorkerReport> {
        let (to, reports) = mpsc::channel();
        for mailbox in self.mailboxes.iter() {
            mailbox.send(WorkerMessage::Report { with_peers, to: to.clone() });
        }
        drop(to);
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut found = Vec::new();
        // A worker that has ended drops its messages, including the sender for its reply.
        while found.len() < self.mailboxes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match reports.recv_timeout(left) {
                Ok(report) => found.push(report),
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
            }
        }
        found
    }

    /// Returns the number of clients in all workers; `None` if a worker did not reply.
    pub(super) fn client_count(&self) -> Option<usize> {
        let reports = self.reports(false);
        let pools = reports.iter().flat_map(|it| &it.report.pools);
        let count = |counts: &PoolCounts| (counts.clients_active + counts.clients_waiting) as usize;
        let running = self.mailboxes.iter().filter(|mailbox| !mailbox.is_closed()).count();
        let are_all = reports.len() >= running;
        are_all.then(|| pools.map(|pool| count(&pool.counts)).sum())
    }

    /// Notifies workers and LISTEN multiplexers that an administrator has changed a database's
    /// state.
    fn notify_admin_state(&self) {
        self.broadcast(|| WorkerMessage::AdminStateChanged);
        self.shared.multiplexers.wake_all();
    }

    pub(super) fn broadcast(&self, message: impl Fn() -> WorkerMessage) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(message()));
    }

    /// Waits until every running worker has confirmed over `done`, but not longer than
    /// [`REPLY_TIMEOUT`].
    pub(super) fn wait_for_all(&self, done: &mpsc::Receiver<()>) {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        for _ in 0..self.mailboxes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if done.recv_timeout(left).is_err() {
                return; // A worker that has ended drops its messages.
            }
        }
    }

    /// Returns the selected databases with their admin states.
    fn admin_states(
        &self,
        databases: &DatabaseSelector,
    ) -> Result<Vec<(String, Arc<AdminState>)>, NoSuchDatabase> {
        match databases {
            DatabaseSelector::All => Ok(self.shared.directory.admin_states()),
            DatabaseSelector::One(name) => match self.shared.directory.admin_state(name) {
                Some(state) => Ok(vec![(name.clone(), state)]),
                None => Err(NoSuchDatabase(name.clone())),
            },
        }
    }

    /// Pauses all databases like PAUSE, but does not wait until their servers are closed. If the
    /// pooler is suspended, does nothing and returns `false`.
    pub fn pause_all(&self) -> bool {
        let may = !self.shared.is_suspended();
        if may {
            self.shared
                .directory
                .admin_states()
                .iter()
                .for_each(|(_, state)| state.set_paused(true));
            self.notify_admin_state();
        }
        may
    }

    /// Ends all pauses and a suspension. Returns whether anything was paused or suspended.
    pub fn resume_all(&self) -> bool {
        self.resume(&DatabaseSelector::All) == Ok(true)
    }

    /// Pauses databases and waits until all their servers are closed, or until RESUME is issued.
    pub(super) fn pause(&self, databases: &DatabaseSelector) -> Result<(), AdminError> {
        let admin_states = self.admin_states(databases)?;
        if self.shared.is_suspended() {
            return Err(AdminError::Suspended);
        }
        admin_states.iter().for_each(|(_, state)| state.set_paused(true));
        self.notify_admin_state();
        let is_in = |name: &str| admin_states.iter().any(|(state, _)| state == name);
        self.wait_until(|view| {
            // Stop waiting if RESUME has been issued in the meantime.
            !admin_states.iter().all(|(_, state)| state.is_paused())
                || !view.servers.iter().any(|server| {
                    let pool = &view.pools[server.pool];
                    is_in(&pool.database) && !pool.is_mirror
                })
        });
        Ok(())
    }

    /// Pauses the clients of one user, and waits until all their servers are closed, or until
    /// RESUME is issued.
    pub(super) fn pause_user(&self, database: &str, user: &str) -> Result<(), AdminError> {
        let state = self.shared.directory.admin_state(database);
        let state = state.ok_or_else(|| NoSuchDatabase(database.to_owned()))?;
        if self.shared.is_suspended() {
            return Err(AdminError::Suspended);
        }
        state.set_paused_for_user(user, true);
        self.notify_admin_state();
        self.wait_until(|view| {
            !state.is_paused_for_user(user)
                || !view.servers.iter().any(|server| {
                    let pool = &view.pools[server.pool];
                    pool.database == database && pool.user == user && !pool.is_mirror
                })
        });
        Ok(())
    }

    /// Ends the pause of one user.
    pub(super) fn resume_user(
        &self,
        database: &str,
        user: &str,
    ) -> Result<UserResume, NoSuchDatabase> {
        let state = self.shared.directory.admin_state(database);
        let state = state.ok_or_else(|| NoSuchDatabase(database.to_owned()))?;
        let was_paused = state.is_paused_for_user(user);
        state.set_paused_for_user(user, false);
        self.notify_admin_state();
        Ok(match was_paused {
            false => UserResume::NotPaused,
            true if state.is_paused() => UserResume::AllPaused,
            true => UserResume::Resumed,
        })
    }

    /// Suspends all workers and waits until their output is sent, `timeouts.suspend` has passed, or
    /// RESUME is issued.
    pub(super) fn suspend(&self) -> Result<(), AdminError> {
        if self
            .shared
            .directory
            .admin_states()
            .iter()
            .any(|(_, state)| state.is_paused_for_any_user())
        {
            return Err(AdminError::Paused);
        }
        if self.shared.set_suspended(true) {
            return Err(AdminError::Suspended);
        }
        let until = self.config().timeouts.suspend.map(|limit| Instant::now() + limit);
        let (to, done) = mpsc::channel();
        self.broadcast(|| WorkerMessage::Suspend { until, done: to.clone() });
        drop(to);
        // No message is ever sent: each worker drops its sender when it is done or has ended.
        while !self.shared.is_stopped()
            && done.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout)
        {}
        if self.shared.is_suspended() { Ok(()) } else { Err(AdminError::Interrupted) }
    }

    /// Ends the pauses of databases; for all databases, also ends a suspension. Returns whether
    /// anything was paused or suspended.
    pub(super) fn resume(&self, databases: &DatabaseSelector) -> Result<bool, NoSuchDatabase> {
        let admin_states = self.admin_states(databases)?;
        let was_suspended = *databases == DatabaseSelector::All && self.shared.set_suspended(false);
        if *databases == DatabaseSelector::All {
            self.broadcast(|| WorkerMessage::Resume);
        }
        let was_paused =
            was_suspended || admin_states.iter().any(|(_, state)| state.is_paused_for_any_user());
        admin_states.iter().for_each(|(_, state)| state.set_paused(false));
        self.notify_admin_state();
        Ok(was_paused)
    }

    /// Enables or disables logins to a database.
    pub(super) fn set_enabled(&self, database: &str, enable: bool) -> Result<(), NoSuchDatabase> {
        let state = self.shared.directory.admin_state(database);
        state.ok_or_else(|| NoSuchDatabase(database.to_owned()))?.set_disabled(!enable);
        Ok(())
    }

    /// Pauses databases, disconnects their clients, and closes their servers.
    pub(super) fn kill(&self, databases: &DatabaseSelector) -> Result<(), NoSuchDatabase> {
        let admin_states = self.admin_states(databases)?;
        admin_states.iter().for_each(|(_, state)| state.set_paused(true));
        let entries = self.shared.directory.pools();
        let is_in = |entry: &&Arc<PoolEntry>| {
            admin_states.iter().any(|(name, _)| *name == entry.key.database)
        };
        let pools: Arc<[PoolId]> = entries.iter().filter(is_in).map(|entry| entry.id).collect();
        self.broadcast(|| WorkerMessage::KillPools(Arc::clone(&pools)));
        Ok(())
    }

    /// Closes a client or a console connection by its ID. Returns whether it existed; also `false`
    /// if its worker did not reply.
    pub(super) fn kill_client(&self, id: ConnectionNumber) -> bool {
        if self.shared.console.kill(id) {
            return true;
        }
        let Some(pointer) = self.shared.console.numbers.client(id) else { return false };
        let (worker, client) = split_pointer(pointer);
        let Some(mailbox) = self.mailboxes.get(usize::from(worker.0)) else { return false };
        let (to, done) = mpsc::channel();
        mailbox.send(WorkerMessage::KillClient { client, to });
        done.recv_timeout(REPLY_TIMEOUT).unwrap_or(false)
    }

    /// Marks the server connections of these databases as outdated, so that each is closed when it
    /// becomes idle.
    pub(super) fn reconnect(&self, databases: &DatabaseSelector) -> Result<(), NoSuchDatabase> {
        let admin_states = self.admin_states(databases)?;
        admin_states.iter().for_each(|(_, state)| state.start_epoch());
        self.notify_admin_state();
        Ok(())
    }

    /// Waits until all outdated server connections of these databases are closed.
    pub(super) fn wait_close(&self, databases: &DatabaseSelector) -> Result<(), NoSuchDatabase> {
        let admin_states = self.admin_states(databases)?;
        let is_in = |name: &str| admin_states.iter().any(|(state, _)| state == name);
        self.wait_until(|view| {
            let mut outdated = view.servers.iter().filter(|server| server.is_outdated);
            !outdated.any(|server| {
                let pool = &view.pools[server.pool];
                is_in(&pool.database) && !pool.is_mirror
            })
        });
        Ok(())
    }

    /// Bans a server in all clusters, for `lasts` or, if that is `None`, the configured time.
    /// Returns the banned servers.
    pub(super) fn ban(
        &self,
        server: &str,
        lasts: Option<Duration>,
    ) -> Result<Vec<String>, BanError> {
        let now = self.shared.now();
        let ban = |member: &MemberHealth| member.ban(now, lasts, "requested by an administrator");
        self.for_members_at(server, ban, BanError::Primary)
    }

    /// Ends the ban of a server. Returns the unbanned servers.
    pub(super) fn unban(&self, server: &str) -> Result<Vec<String>, BanError> {
        self.for_members_at(server, MemberHealth::unban, BanError::NotBanned)
    }

    /// Discards what is known about a database's unreachable servers, and determines the roles and
    /// the timeline from the reports of reachable servers. Returns the new roles; `None` if the
    /// database is not a cluster or has not been used yet.
    pub(super) fn reset_cluster(&self, database: &str) -> Option<Vec<String>> {
        let config = self.config();
        let name = directory::entry_name(&config, database);
        let mut roles = Vec::new();
        for monitor in self.shared.directory.monitors().iter().filter(|it| it.name == name) {
            tracing::warn!(
                database = monitor.name,
                "timelines and roles reset by an administrator"
            );
            monitor.reset(self.shared.now());
            let members = monitor.cluster.servers.iter().zip(&monitor.state.members);
            roles.extend(members.map(|(server, member)| {
                format!("{} is {}", server.endpoint, member.report().role)
            }));
        }
        self.broadcast(|| WorkerMessage::ClusterStateChanged);
        (!roles.is_empty()).then_some(roles)
    }

    fn for_members_at(
        &self,
        server: &str,
        act: impl Fn(&MemberHealth) -> bool,
        otherwise: BanError,
    ) -> Result<Vec<String>, BanError> {
        let (mut done, mut failed) = (Vec::new(), BanError::Unknown);
        for monitor in self.shared.directory.monitors() {
            for (place, member) in monitor.members_at(server) {
                if act(member) {
                    done.push(format!("{place} of {}", monitor.name));
                } else {
                    failed = otherwise;
                }
            }
        }
        self.broadcast(|| WorkerMessage::ClusterStateChanged);
        if done.is_empty() { Err(failed) } else { Ok(done) }
    }

    /// Starts a shutdown, and does not wait for its end.
    pub(super) fn shut_down(&self, how: ShutdownRequest) {
        if how != ShutdownRequest::Now {
            self.shared.start_shutdown();
        }
        match how {
            ShutdownRequest::Now => self.broadcast(|| WorkerMessage::Stop),
            ShutdownRequest::WaitForServers => self.broadcast(|| WorkerMessage::Drain),
            ShutdownRequest::WaitForClients => self.broadcast(|| WorkerMessage::WaitForClients),
        }
    }

    fn wait_until(&self, is_so: impl Fn(&PoolerSnapshot) -> bool) {
        while !self.shared.is_stopped() && !is_so(&self.snapshot(true)) {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

//! [`Control`]: what operators, and programs that watch, can ask of a running pooler and order it to do.
//! Workers are asked by letters and answer in their own time; the path of a query knows nothing of it.

mod history;
mod names;
mod view;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_wire::startup::CancelKey;

pub(super) use self::history::History;
use self::names::split;
use super::{
    directory::{self, PoolEntry},
    front::Front,
    mail::{Mailbox, WorkerMessage},
    takeover,
};
use crate::{
    Counts, Gate, Member, Peer, Place, PoolId, Report, View, WorkerId,
    config::Config,
    console::{Databases, Shutdown},
};

/// A handle to a running pooler.
#[derive(Clone, Debug)]
pub struct Control {
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) front: Arc<Front>,
}

/// What a worker tells about itself.
#[derive(Debug)]
pub(super) struct WorkerReport {
    pub(super) worker: WorkerId,
    pub(super) report: Report,
    /// Of clients and servers that have sockets.
    pub(super) places: HashMap<Peer, Place>,
}

/// Longest time to wait for the workers' answers: each answers within a turn of its loop.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks at whether something has come to pass.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// An order that does not go with those before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    NoDatabase(NoDatabase),
    /// Everything stands still already.
    Suspended,
    /// Databases are paused.
    Paused,
    /// It was taken back, or the pooler ends.
    Ended,
}

impl From<NoDatabase> for Unfit {
    fn from(none: NoDatabase) -> Self {
        Self::NoDatabase(none)
    }
}

/// A server was not banned, or a ban not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotBanned {
    /// No database of several servers has it.
    Unknown,
    /// It is the primary, which is never banned.
    Primary,
    /// It has no ban.
    NoBan,
}

/// What became of a pause for one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserPause {
    Ended,
    /// There was none.
    None,
    /// All users of the database are paused, so this one still is.
    OfAll,
}

/// There is no database of that name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoDatabase(pub(super) String);

impl Control {
    /// The settings that hold now.
    pub fn config(&self) -> Arc<Config> {
        self.front.directory.config()
    }

    fn reports(&self, with_peers: bool) -> Vec<WorkerReport> {
        let (to, reports) = mpsc::channel();
        for mailbox in self.mailboxes.iter() {
            mailbox.send(WorkerMessage::Report { with_peers, to: to.clone() });
        }
        drop(to);
        let deadline = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        // One that has ended, or ends, drops its letters, and so its end of the channel.
        while found.len() < self.mailboxes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            match reports.recv_timeout(left) {
                Ok(report) => found.push(report),
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break,
            }
        }
        found
    }

    /// How many clients all workers have; `None` if one of them does not say.
    pub(super) fn counts_clients(&self) -> Option<usize> {
        let reports = self.reports(false);
        let pools = reports.iter().flat_map(|it| &it.report.pools);
        let count = |counts: &Counts| (counts.clients_active + counts.clients_waiting) as usize;
        let running = self.mailboxes.iter().filter(|mailbox| !mailbox.is_closed()).count();
        let are_all = reports.len() >= running;
        are_all.then(|| pools.map(|pool| count(&pool.counts)).sum())
    }

    /// Has a CancelRequest followed whose key another process gave.
    pub(super) fn cancel_foreign(&self, key: &CancelKey) {
        self.tell(|| WorkerMessage::CancelForeign(key.clone()));
        takeover::pass_cancel_on(key, &self.front);
    }

    /// Has workers, and those who listen for clients, look at what was ordered.
    fn tell_of_gates(&self) {
        self.tell(|| WorkerMessage::GatesTurned);
        self.front.hubs.look();
    }

    pub(super) fn tell(&self, mail: impl Fn() -> WorkerMessage) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(mail()));
    }

    /// Returns when every worker that is there has said that it is done.
    pub(super) fn wait_for_all(&self, done: &mpsc::Receiver<()>) {
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..self.mailboxes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if done.recv_timeout(left).is_err() {
                return; // One that has ended drops its letters.
            }
        }
    }

    /// The gates that are meant, by the names of their databases.
    fn gates(&self, databases: &Databases) -> Result<Vec<(String, Arc<Gate>)>, NoDatabase> {
        match databases {
            Databases::All => Ok(self.front.directory.gates()),
            Databases::One(name) => match self.front.directory.gate(name) {
                Some(gate) => Ok(vec![(name.clone(), gate)]),
                None => Err(NoDatabase(name.clone())),
            },
        }
    }

    /// Lets nobody have a server of any database, as PAUSE does, and does not wait for it. Gives whether
    /// that was to be: not while everything is suspended.
    pub fn pause_all(&self) -> bool {
        let may = !self.front.is_suspended();
        if may {
            self.front.directory.gates().iter().for_each(|(_, gate)| gate.set_paused(true));
            self.tell_of_gates();
        }
        may
    }

    /// Ends all pauses, and a suspension. Gives whether there were any.
    pub fn resume_all(&self) -> bool {
        self.resume(&Databases::All) == Ok(true)
    }

    /// Lets nobody have a server of these databases, and waits until they have none.
    pub(super) fn pause(&self, databases: &Databases) -> Result<(), Unfit> {
        let gates = self.gates(databases)?;
        if self.front.is_suspended() {
            return Err(Unfit::Suspended);
        }
        gates.iter().for_each(|(_, gate)| gate.set_paused(true));
        self.tell_of_gates();
        let is_in = |name: &str| gates.iter().any(|(gate, _)| gate == name);
        self.wait_until(|view| {
            // Somebody may have changed their mind.
            !gates.iter().all(|(_, gate)| gate.is_paused())
                || !view.servers.iter().any(|server| {
                    let pool = &view.pools[server.pool];
                    is_in(&pool.database) && !pool.is_mirror
                })
        });
        Ok(())
    }

    /// The same for the clients of one user.
    pub(super) fn pause_user(&self, database: &str, user: &str) -> Result<(), Unfit> {
        let gate = self.front.directory.gate(database);
        let gate = gate.ok_or_else(|| NoDatabase(database.to_owned()))?;
        if self.front.is_suspended() {
            return Err(Unfit::Suspended);
        }
        gate.set_paused_for(user, true);
        self.tell_of_gates();
        self.wait_until(|view| {
            !gate.is_paused_for(user)
                || !view.servers.iter().any(|server| {
                    let pool = &view.pools[server.pool];
                    pool.database == database && pool.user == user && !pool.is_mirror
                })
        });
        Ok(())
    }

    /// Ends that.
    pub(super) fn resume_user(&self, database: &str, user: &str) -> Result<UserPause, NoDatabase> {
        let gate = self.front.directory.gate(database);
        let gate = gate.ok_or_else(|| NoDatabase(database.to_owned()))?;
        let was_paused = gate.is_paused_for(user);
        gate.set_paused_for(user, false);
        self.tell_of_gates();
        Ok(match was_paused {
            false => UserPause::None,
            true if gate.is_paused() => UserPause::OfAll,
            true => UserPause::Ended,
        })
    }

    /// Has workers stand still, and waits until all that was to be sent is sent, or its time is over.
    pub(super) fn suspend(&self) -> Result<(), Unfit> {
        if self.front.directory.gates().iter().any(|(_, gate)| gate.is_paused_for_any()) {
            return Err(Unfit::Paused);
        }
        if self.front.set_suspended(true) {
            return Err(Unfit::Suspended);
        }
        let until = self.config().timeouts.suspend.map(|limit| Instant::now() + limit);
        let (to, done) = mpsc::channel();
        self.tell(|| WorkerMessage::Suspend { until, done: to.clone() });
        drop(to);
        // Nobody says anything: each drops its end, and one that is over its letters.
        while !self.front.is_over()
            && done.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout)
        {}
        if self.front.is_suspended() { Ok(()) } else { Err(Unfit::Ended) }
    }

    /// Ends that, and pauses.
    pub(super) fn resume(&self, databases: &Databases) -> Result<bool, NoDatabase> {
        let gates = self.gates(databases)?;
        let was_suspended = *databases == Databases::All && self.front.set_suspended(false);
        if *databases == Databases::All {
            self.tell(|| WorkerMessage::GoOn);
        }
        let was_paused = was_suspended || gates.iter().any(|(_, gate)| gate.is_paused_for_any());
        gates.iter().for_each(|(_, gate)| gate.set_paused(false));
        self.tell_of_gates();
        Ok(was_paused)
    }

    /// Lets new clients of a database in, or not.
    pub(super) fn enable(&self, database: &str, enable: bool) -> Result<(), NoDatabase> {
        let gate = self.front.directory.gate(database);
        gate.ok_or_else(|| NoDatabase(database.to_owned()))?.set_disabled(!enable);
        Ok(())
    }

    /// Ends all clients and servers of these databases, and pauses them.
    pub(super) fn kill(&self, databases: &Databases) -> Result<(), NoDatabase> {
        let gates = self.gates(databases)?;
        gates.iter().for_each(|(_, gate)| gate.set_paused(true));
        let entries = self.front.directory.pools();
        let is_in =
            |entry: &&Arc<PoolEntry>| gates.iter().any(|(name, _)| *name == entry.key.database);
        let pools: Arc<[PoolId]> = entries.iter().filter(is_in).map(|entry| entry.id).collect();
        self.tell(|| WorkerMessage::Kill(Arc::clone(&pools)));
        Ok(())
    }

    /// Ends a client. Gives whether there was one of that name.
    pub(super) fn kill_client(&self, id: u64) -> bool {
        let (worker, client) = split(id);
        let Some(mailbox) = self.mailboxes.get(usize::from(worker.0)) else { return false };
        let (to, done) = mpsc::channel();
        mailbox.send(WorkerMessage::KillClient { client, to });
        done.recv_timeout(PATIENCE).unwrap_or(false)
    }

    /// Has every server of these databases replaced when it becomes free.
    pub(super) fn reconnect(&self, databases: &Databases) -> Result<(), NoDatabase> {
        let gates = self.gates(databases)?;
        gates.iter().for_each(|(_, gate)| gate.begin_epoch());
        self.tell_of_gates();
        Ok(())
    }

    /// Waits until no server of these databases is left that is to be replaced.
    pub(super) fn wait_close(&self, databases: &Databases) -> Result<(), NoDatabase> {
        let gates = self.gates(databases)?;
        let is_in = |name: &str| gates.iter().any(|(gate, _)| gate == name);
        self.wait_until(|view| {
            let mut outdated = view.servers.iter().filter(|server| server.is_outdated);
            !outdated.any(|server| {
                let pool = &view.pools[server.pool];
                is_in(&pool.database) && !pool.is_mirror
            })
        });
        Ok(())
    }

    /// Bans a server of several, by `host` or `host:port`, in all databases. Gives which they were.
    pub(super) fn ban(
        &self,
        server: &str,
        lasts: Option<Duration>,
    ) -> Result<Vec<String>, NotBanned> {
        let now = self.front.now();
        let ban = |member: &Member| member.ban(now, lasts, "an operator's order");
        self.with_members(server, ban, NotBanned::Primary)
    }

    /// Ends that.
    pub(super) fn unban(&self, server: &str) -> Result<Vec<String>, NotBanned> {
        self.with_members(server, Member::unban, NotBanned::NoBan)
    }

    /// Forgets what is known of the servers of a database but for what those say that answer. Gives what each is
    /// then; `None` if it has no such servers, or none was used yet.
    pub(super) fn reset_cluster(&self, database: &str) -> Option<Vec<String>> {
        let config = self.config();
        let name = directory::entry_name(&config, database);
        let mut roles = Vec::new();
        for watched in self.front.directory.watched().iter().filter(|it| it.name == name) {
            tracing::warn!(
                database = watched.name,
                "timelines and roles are forgotten by an operator's order"
            );
            watched.forget(self.front.now());
            let members = watched.cluster.servers.iter().zip(&watched.state.members);
            roles.extend(members.map(|(server, member)| {
                format!("{} is {}", server.endpoint, member.report().role)
            }));
        }
        self.tell(|| WorkerMessage::ClustersTurned);
        (!roles.is_empty()).then_some(roles)
    }

    fn with_members(
        &self,
        server: &str,
        act: impl Fn(&Member) -> bool,
        otherwise: NotBanned,
    ) -> Result<Vec<String>, NotBanned> {
        let (mut done, mut failed) = (Vec::new(), NotBanned::Unknown);
        for watched in self.front.directory.watched() {
            for (place, member) in watched.members_at(server) {
                if act(member) {
                    done.push(format!("{place} of {}", watched.name));
                } else {
                    failed = otherwise;
                }
            }
        }
        self.tell(|| WorkerMessage::ClustersTurned);
        if done.is_empty() { Err(failed) } else { Ok(done) }
    }

    /// Ends the pooler.
    pub(super) fn shut_down(&self, how: Shutdown) {
        if how != Shutdown::Now {
            self.front.begin_shutdown();
        }
        match how {
            Shutdown::Now => self.tell(|| WorkerMessage::Stop),
            Shutdown::WaitForServers => self.tell(|| WorkerMessage::Drain),
            Shutdown::WaitForClients => self.tell(|| WorkerMessage::Leave),
        }
    }

    fn wait_until(&self, is_so: impl Fn(&View) -> bool) {
        while !self.front.is_over() && !is_so(&self.view(true)) {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

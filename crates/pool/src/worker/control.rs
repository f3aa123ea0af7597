//! [`Control`]: what operators, and programs that watch, can ask of a running pooler and order it to do.
//! Workers are asked by letters and answer in their own time; the path of a query knows nothing of it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant, SystemTime},
};

use howdah_wire::startup::CancelKey;

use super::{
    directory::PoolEntry,
    front::Front,
    mail::{Mail, Mailbox},
    mirrors, takeover,
    watch::Watched,
};
use crate::{
    ClientId, ClientReport, ClientView, Counts, DatabaseView, Gate, Member, MemberView, Peer,
    Place, PoolId, PoolReport, PoolView, Report, ServerId, ServerReport, ServerView, Spans, Tally,
    View, WorkerId,
    config::Config,
    console::{Databases, Shutdown},
    tally::micros,
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

/// There is no database of that name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoDatabase(pub(super) String);

impl Control {
    /// The settings that hold now.
    pub fn config(&self) -> Arc<Config> {
        self.front.directory.config()
    }

    /// The pooler as it is now; with all its clients and servers if `with_peers`.
    pub fn view(&self, with_peers: bool) -> View {
        let reports = self.reports(with_peers);
        let at = SystemTime::now();
        let entries = self.front.directory.pools();
        let mut pools: Vec<_> = entries.iter().map(|entry| pool_view(entry)).collect();
        let at_number: HashMap<_, _> =
            entries.iter().enumerate().map(|(at, entry)| (entry.id, at)).collect();
        let history = self.front.history();
        for (pool, entry) in pools.iter_mut().zip(&entries) {
            pool.last_period = history.last(entry.id);
            let home = entry.spec.member.as_ref().map(|member| member.home);
            pool.is_mirror = entry.key.is_mirror();
            pool.home = home.and_then(|home| at_number.get(&home).copied());
        }
        drop(history);
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for WorkerReport { worker, report, places } in reports {
            let processes: HashMap<_, _> =
                report.servers.iter().map(|server| (server.id, server.process_id)).collect();
            for pool in &report.pools {
                if let Some(view) = at_number.get(&pool.pool).and_then(|at| pools.get_mut(*at)) {
                    view.tally += &pool.tally;
                    view.counts += &pool.counts;
                    view.mode = pool.mode;
                }
            }
            let place = |peer| places.get(&peer).cloned().unwrap_or_default();
            clients.extend(report.clients.iter().filter_map(|client| {
                let pool = *at_number.get(&client.pool)?;
                let process_id = client.server.and_then(|server| processes.get(&server).copied());
                let place = place(Peer::Client(client.id));
                Some(client_view(worker, client, pool, process_id.unwrap_or(0), place, at))
            }));
            servers.extend(report.servers.iter().filter_map(|server| {
                let pool = *at_number.get(&server.pool)?;
                let place = place(Peer::Server(server.id));
                Some(server_view(worker, server, pool, place, at))
            }));
        }
        add_members(&mut pools);
        clients.iter_mut().for_each(|it| it.is_replication = is_replication(&entries, it.pool));
        servers.iter_mut().for_each(|it| it.is_replication = is_replication(&entries, it.pool));
        let databases = self.front.directory.gates().into_iter().map(|(name, gate)| DatabaseView {
            name,
            is_paused: gate.is_paused(),
            is_disabled: gate.is_disabled(),
        });
        let logins = self.front.logins.first().map_or(0, |limit| limit.taken() as usize);
        let config = self.front.directory.config();
        let (databases, is_suspended) = (databases.collect(), self.front.is_suspended());
        let (past, now) = (self.front.directory.past(), self.front.now());
        let members = members(&self.front.directory.watched(), &entries, &pools);
        let mirrors = mirrors::views(&self.front.directory, &entries, &pools);
        View {
            config,
            at,
            pools,
            past,
            clients,
            servers,
            databases,
            is_suspended,
            members,
            mirrors,
            listeners: self.front.hubs.reports(),
            now,
            logins,
            capture: self.capture(),
        }
    }

    fn reports(&self, with_peers: bool) -> Vec<WorkerReport> {
        let (to, reports) = mpsc::channel();
        for mailbox in self.mailboxes.iter() {
            mailbox.send(Mail::Report { with_peers, to: to.clone() });
        }
        drop(to);
        let deadline = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        // One that has ended drops its letters, or leaves them: then the patience ends.
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
        let are_all = reports.len() == self.mailboxes.len();
        are_all.then(|| pools.map(|pool| count(&pool.counts)).sum())
    }

    /// Has a CancelRequest followed whose key another process gave.
    pub(super) fn cancel_foreign(&self, key: &CancelKey) {
        self.tell(|| Mail::CancelForeign(key.clone()));
        takeover::pass_cancel_on(key, &self.front);
    }

    /// Has workers, and those who listen for clients, look at what was ordered.
    fn tell_of_gates(&self) {
        self.tell(|| Mail::GatesTurned);
        self.front.hubs.look();
    }

    pub(super) fn tell(&self, mail: impl Fn() -> Mail) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.send(mail()));
    }

    /// Returns when every worker that is there has said that it is done.
    pub(super) fn wait_for_all(&self, done: &mpsc::Receiver<()>) {
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..self.mailboxes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if done.recv_timeout(left).is_err() {
                return; // One that has ended drops its letters, or leaves them.
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

    /// Has workers stand still, and waits until all that was to be sent is sent, or its time is over.
    pub(super) fn suspend(&self) -> Result<(), Unfit> {
        if self.front.directory.gates().iter().any(|(_, gate)| gate.is_paused()) {
            return Err(Unfit::Paused);
        }
        if self.front.set_suspended(true) {
            return Err(Unfit::Suspended);
        }
        let until = self.config().timeouts.suspend.map(|limit| Instant::now() + limit);
        let (to, done) = mpsc::channel();
        self.tell(|| Mail::Suspend { until, done: to.clone() });
        drop(to);
        // Nobody says anything: each drops its end, and one that is over leaves its letters.
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
            self.tell(|| Mail::GoOn);
        }
        let was_paused = was_suspended || gates.iter().any(|(_, gate)| gate.is_paused());
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
        self.tell(|| Mail::Kill(Arc::clone(&pools)));
        Ok(())
    }

    /// Ends a client. Gives whether there was one of that name.
    pub(super) fn kill_client(&self, id: u64) -> bool {
        let (worker, client) = split(id);
        let Some(mailbox) = self.mailboxes.get(usize::from(worker.0)) else { return false };
        let (to, done) = mpsc::channel();
        mailbox.send(Mail::KillClient { client, to });
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
        self.tell(|| Mail::ClustersTurned);
        if done.is_empty() { Err(failed) } else { Ok(done) }
    }

    /// Ends the pooler.
    pub(super) fn shut_down(&self, how: Shutdown) {
        match how {
            Shutdown::Now => self.tell(|| Mail::Stop),
            Shutdown::WaitForServers => self.tell(|| Mail::Drain),
            Shutdown::WaitForClients => self.tell(|| Mail::Leave),
        }
    }

    fn wait_until(&self, is_so: impl Fn(&View) -> bool) {
        while !self.front.is_over() && !is_so(&self.view(true)) {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Counts periods of statistics until the pooler ends.
    pub(super) fn keep_history(&self, over: &mpsc::Receiver<()>) {
        loop {
            let log = self.front.directory.config().log;
            if over.recv_timeout(log.stats_period) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let mut sums: HashMap<PoolId, Tally> = HashMap::new();
            let is_mirror = |pool: &PoolReport| {
                let entry = self.front.directory.by_id(pool.pool);
                entry.is_some_and(|entry| entry.key.is_mirror())
            };
            let pools = self.reports(false).into_iter().flat_map(|it| it.report.pools);
            for pool in pools.filter(|pool| !is_mirror(pool)) {
                *sums.entry(pool.pool).or_default() += &pool.tally;
            }
            let mut history = self.front.history();
            history.period_ends(sums, log.stats_period);
            if log.stats {
                history.tell();
            }
        }
    }
}

/// What was counted up to the ends of the last two periods.
#[derive(Debug, Default)]
pub(super) struct History {
    began: Option<Instant>,
    lasted: Duration,
    before: HashMap<PoolId, Tally>,
    last: HashMap<PoolId, Tally>,
}

impl History {
    fn period_ends(&mut self, sums: HashMap<PoolId, Tally>, period: Duration) {
        let now = Instant::now();
        self.lasted = self.began.map_or(period, |began| now - began);
        self.began = Some(now);
        self.before = std::mem::replace(&mut self.last, sums);
    }

    /// Forgets pools that are gone: their numbers will be others'.
    pub(super) fn forget(&mut self, pools: &[PoolId]) {
        for pool in pools {
            self.before.remove(pool);
            self.last.remove(pool);
        }
    }

    /// Tells the log what all pools together did in the last period.
    fn tell(&self) {
        let mut sum = Tally::default();
        for pool in self.last.keys() {
            if let Some((tally, _)) = self.last(*pool) {
                sum += &tally;
            }
        }
        let seconds = self.lasted.as_secs_f64().max(0.001);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole numbers are read"
        )]
        let per_s = |count: u64| (count as f64 / seconds).round() as u64;
        let mean_us = |spans: &Spans| match spans.counts.iter().sum::<u64>() {
            0 => 0,
            count => micros(spans.total()) / count,
        };
        tracing::info!(
            xacts_per_s = per_s(sum.transactions),
            queries_per_s = per_s(sum.queries),
            in_bytes_per_s = per_s(sum.client_bytes),
            out_bytes_per_s = per_s(sum.server_bytes),
            xact_us = mean_us(&sum.transaction_time),
            query_us = mean_us(&sum.query_time),
            wait_us = mean_us(&sum.wait_time),
            logins_per_s = per_s(sum.logins),
            "statistics"
        );
    }

    fn last(&self, pool: PoolId) -> Option<(Tally, Duration)> {
        let last = self.last.get(&pool)?;
        let nothing = Tally::default();
        Some((last.since(self.before.get(&pool).unwrap_or(&nothing)), self.lasted))
    }
}

fn pool_view(entry: &PoolEntry) -> PoolView {
    PoolView {
        database: entry.key.database.clone(),
        user: entry.key.user.clone(),
        mode: entry.spec.mode,
        is_retired: entry.is_retired,
        home: None,
        is_mirror: false,
        settings: entry.settings.clone(),
        tally: Tally::default(),
        counts: Counts::default(),
        last_period: None,
    }
}

/// Servers of clusters, with what all their pools have.
fn members(
    watched: &[Arc<Watched>],
    entries: &[Arc<PoolEntry>],
    pools: &[PoolView],
) -> Vec<MemberView> {
    let mut views = Vec::new();
    for watched in watched {
        for (server, member) in watched.cluster.servers.iter().zip(&watched.state.members) {
            let mut view = MemberView {
                database: watched.name.clone(),
                shard: watched.shown_shard(),
                endpoint: server.endpoint.clone(),
                weight: server.weight.get(),
                report: member.report(),
                counts: Counts::default(),
                transactions: 0,
                queries: 0,
                reads_kept: 0,
            };
            for (entry, pool) in entries.iter().zip(pools) {
                let place = entry.spec.member.as_ref();
                if place.is_some_and(|place| Arc::ptr_eq(&place.state, member)) {
                    view.counts += &pool.counts;
                    view.transactions += pool.tally.transactions;
                    view.queries += pool.tally.queries;
                    view.reads_kept += pool.tally.reads_kept;
                }
            }
            views.push(view);
        }
    }
    views
}

/// Adds what members counted to what their homes did, where the clients are.
fn add_members(pools: &mut [PoolView]) {
    for index in 0..pools.len() {
        let member = &pools[index];
        let Some(home) = member.home else { continue };
        let (tally, counts, last) =
            (member.tally.clone(), member.counts, member.last_period.clone());
        let Some(home) = pools.get_mut(home) else { continue };
        home.tally += &tally;
        home.counts += &counts;
        match (&mut home.last_period, last) {
            (Some((sum, _)), Some((tally, _))) => *sum += &tally,
            (none @ None, Some(last)) => *none = Some(last),
            (_, None) => {}
        }
    }
}

fn is_replication(entries: &[Arc<PoolEntry>], pool: usize) -> bool {
    entries.get(pool).is_some_and(|entry| entry.key.replication.is_some())
}

fn client_view(
    worker: WorkerId,
    client: &ClientReport,
    pool: usize,
    process_id: i32,
    place: Place,
    at: SystemTime,
) -> ClientView {
    ClientView {
        id: client_name(worker, client.id),
        pool,
        is_replication: false,
        phase: client.phase,
        connected: at - client.age,
        since: client.since,
        server: client.server.map(|server| server_name(worker, server)),
        process_id,
        statements: client.statements,
        application_name: String::from_utf8_lossy(&client.application_name).into_owned(),
        place,
    }
}

fn server_view(
    worker: WorkerId,
    server: &ServerReport,
    pool: usize,
    place: Place,
    at: SystemTime,
) -> ServerView {
    ServerView {
        id: server_name(worker, server.id),
        pool,
        is_replication: false,
        phase: server.phase,
        connected: at - server.age,
        since: server.since,
        client: server.client.map(|client| client_name(worker, client)),
        cancels: server.cancels,
        process_id: server.process_id,
        statements: server.statements,
        application_name: String::from_utf8_lossy(&server.application_name).into_owned(),
        is_outdated: server.is_outdated,
        place,
    }
}

/// A connection's name over all workers: worker, occupant of the slot, slot.
fn name(worker: WorkerId, generation: u32, slot: usize) -> u64 {
    let slot = slot as u64 & SLOT_MASK;
    u64::from(worker.0) << 56 | u64::from(generation & 0xff_ffff) << 32 | slot
}

const SLOT_MASK: u64 = 0xffff_ffff;

fn client_name(worker: WorkerId, id: ClientId) -> u64 {
    name(worker, id.generation(), id.index())
}

fn server_name(worker: WorkerId, id: ServerId) -> u64 {
    name(worker, id.generation(), id.index())
}

fn split(name: u64) -> (WorkerId, ClientId) {
    let [worker, rest @ ..] = name.to_be_bytes();
    let [a, b, c, slot @ ..] = rest;
    let generation = u32::from_be_bytes([0, a, b, c]);
    (WorkerId(worker), ClientId::new(u32::from_be_bytes(slot), generation))
}

#[test]
fn names_lead_back_to_their_clients() {
    let id = ClientId::new(7, 9);
    assert_eq!(split(client_name(WorkerId(3), id)), (WorkerId(3), id));
}

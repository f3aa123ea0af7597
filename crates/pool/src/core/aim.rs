//! Clients of clusters: which member's servers each uses, and where it goes when that fails.
//!
//! A client that waits is in the queue of exactly one pool: that of the member that was chosen for it,
//! or its home's, which has no servers, while no member would do. It moves when what is known of members
//! changes, or when another has a server to spare, and keeps the time since when it waits.

use std::time::Duration;

use super::{Core, InjectedFault};
use crate::{
    Io, ServerRole,
    client::{Client, ClientState},
    cluster::{Choice, Request, Seat},
    ids::{ClientId, PoolId, ServerId},
    login::ServerFailure,
    pool::Pool,
    refusal::Refusal,
    routing::role_of,
    server::ServerState,
    time::Time,
};

/// After so long a client that waits for one member is given to another that has a server to spare.
const MOVED_AFTER: Duration = Duration::from_millis(100);

/// What a client wants of a server.
pub(super) fn request(client: &Client) -> Request<'_> {
    let Client { role, shard, may_lead, .. } = *client;
    Request { role, shard, floors: client.floors.as_deref(), may_lead }
}

impl Core {
    /// Has other servers of its cluster serve a client from its next transaction on; one that waits or
    /// has a server is not disturbed. `false` if there is no such client, or if its database has no
    /// cluster.
    pub fn set_role(&mut self, id: ClientId, role: ServerRole) -> bool {
        let client = self.clients.get_mut(id).filter(|client| client.roams);
        let of_client = |client: &mut Client| {
            (client.role, client.own_role) = (role, Some(role.into()));
        };
        client.map(of_client).is_some()
    }

    /// What is known of members of clusters has changed: those who wait go where they would be served,
    /// and servers that nobody may use any more are closed, with their clients.
    pub fn clusters_turned(&mut self, now: Time, io: &mut dyn Io) {
        self.now = now;
        for home in self.homes() {
            // First: a server that is closed is not to be given to one of them before.
            self.redirect(home, io);
            self.ask_elsewhere(home, io);
            self.fence(home, io);
            for pool in self.family(home) {
                self.close_barred(pool, io);
            }
        }
        self.follow_spreads(io);
    }

    /// Sees whether a new client's home is a cluster.
    pub(super) fn house(&self, client: &mut Client, role: Option<ServerRole>) {
        let pool = self.pools.get(client.home.index()).and_then(Option::as_ref);
        if let Some(pool) = pool.filter(|pool| !pool.spec.clusters.is_empty()) {
            let routing = pool.spec.routing.as_ref();
            client.roams = true;
            client.role = role.or(routing.map(|routing| role_of(routing.role))).unwrap_or_default();
        }
    }

    /// Chooses the member whose servers a client uses next; its home if none would do. `None` if it
    /// has no choice.
    pub(super) fn aim(&mut self, id: ClientId) -> Option<PoolId> {
        let client = self.clients.get(id).filter(|client| client.roams)?;
        let chosen = match client.floors.is_none() {
            true => self.choose(client.home, client.role, client.shard),
            false => self.choose_with_writes(id),
        };
        self.clients.get_mut(id)?.pool = chosen;
        Some(chosen)
    }

    /// The same for a client that wrote, and is to read that.
    #[cold]
    pub(super) fn choose_with_writes(&mut self, id: ClientId) -> PoolId {
        let client = self.clients.get(id).expect("whoever chooses is there");
        let home = client.home;
        let pool = self.pools[home.index()].as_mut();
        let Some(mut balance) = pool.and_then(|pool| pool.balance.take()) else { return home };
        let load = |pool: PoolId| self.pools[pool.index()].as_ref().map_or(0, Pool::load);
        let choice = balance.choose(&request(client), load);
        self.pool(home).balance = Some(balance);
        match choice {
            Choice::Plain(pool) if self.has_pool(pool) => pool,
            Choice::Kept(pool) if self.has_pool(pool) => {
                self.pool(pool).tally.reads_kept += 1;
                pool
            }
            Choice::Awaited => {
                self.pool(home).tally.reads_awaited += 1;
                home
            }
            _ => home,
        }
    }

    /// A client's transaction at a member is over, and wrote or may have: its reads are to follow.
    #[cold]
    pub(super) fn follow_writes(&mut self, id: ClientId, pool: PoolId, io: &mut dyn Io) {
        let spec = self.pools[pool.index()].as_ref().map(|pool| &pool.spec);
        let Some(member) = spec.and_then(|spec| spec.member.as_ref()) else { return };
        let (floor, is_first) = member.state.tide.rise();
        if let Some(client) = self.clients.get_mut(id).filter(|client| client.minds_writes) {
            client.floors.get_or_insert_default().rise(member.shard, floor);
        }
        if is_first {
            io.wrote(pool);
        }
    }

    /// The pool of the member that a client of a role gets next, of a shard or of any; its home if none
    /// would do.
    #[inline]
    pub(super) fn choose(&mut self, home: PoolId, role: ServerRole, shard: Option<u32>) -> PoolId {
        let role = if self.makes(InjectedFault::WriteAstray) { ServerRole::Any } else { role };
        let shard = if self.makes(InjectedFault::OtherShard) { None } else { shard };
        let pool = self.pools[home.index()].as_mut();
        if let Some(balance) = pool.and_then(|pool| pool.balance.as_mut())
            && let Some(pool) = balance.choose_plainly(role, shard)
            && self.has_pool(pool)
        {
            return pool;
        }
        self.choose_by_load(home, role, shard).unwrap_or(home)
    }

    /// The same where it has to be known how much members have to do, or none would do.
    fn choose_by_load(
        &mut self,
        home: PoolId,
        role: ServerRole,
        shard: Option<u32>,
    ) -> Option<PoolId> {
        let mut balance = self.pools[home.index()].as_mut()?.balance.take()?;
        let load = |pool: PoolId| self.pools[pool.index()].as_ref().map_or(0, Pool::load);
        let request = Request { role, shard, floors: None, may_lead: false };
        let chosen = balance.choose(&request, load);
        self.pool(home).balance = Some(balance);
        match chosen {
            Choice::Plain(pool) if self.has_pool(pool) => Some(pool),
            _ => None,
        }
    }

    /// A server has ended by itself, or says what it should not.
    pub(super) fn doubt(&mut self, id: ServerId, io: &mut dyn Io) {
        let Some(server) = self.servers.get(id) else { return };
        let pool = server.pool;
        if server.state == ServerState::Opening {
            return;
        }
        let spec = &self.pools[pool.index()].as_ref().expect("it has servers").spec;
        if let Some(member) = &spec.member {
            member.state.doubt();
            io.doubted(pool);
        }
    }

    /// A member could not be reached, or takes nobody: who waits for it goes to another.
    pub(super) fn member_failed(&mut self, pool: PoolId, why: &ServerFailure, io: &mut dyn Io) {
        let spec = &self.pools[pool.index()].as_ref().expect("it has servers").spec;
        let Some(member) = &spec.member else { return };
        let home = member.home;
        member.state.failed(self.now, &why.message);
        io.doubted(pool);
        self.redirect(home, io);
    }

    /// Lets time pass for clusters: changes that nobody told of are followed.
    pub(super) fn sweep_clusters(&mut self, io: &mut dyn Io) {
        for home in self.homes() {
            let Some(mut balance) = self.pool(home).balance.take() else { continue };
            let pools = &self.pools;
            balance.tick(self.now, |pool| pools[pool.index()].as_ref().map(|pool| &pool.tally));
            let has_changed = balance.refresh();
            self.pool(home).balance = Some(balance);
            self.redirect(home, io);
            if has_changed {
                self.ask_elsewhere(home, io);
                self.fence(home, io);
            }
        }
    }

    fn homes(&self) -> Vec<PoolId> {
        let pools = (0..).map(PoolId).zip(&self.pools);
        let is_home =
            |pool: &Option<Pool>| pool.as_ref().is_some_and(|pool| pool.balance.is_some());
        pools.filter(|(_, pool)| is_home(pool)).map(|(id, _)| id).collect()
    }

    /// Home and members.
    pub(super) fn family(&self, home: PoolId) -> Vec<PoolId> {
        let seats = self.seats(home).into_iter();
        [home].into_iter().chain(seats.map(|(_, pool)| pool)).collect()
    }

    fn seats(&self, home: PoolId) -> Vec<(Seat, PoolId)> {
        let pool = self.pools[home.index()].as_ref();
        let balance = pool.and_then(|pool| pool.balance.as_ref());
        balance.iter().flat_map(|balance| balance.seats()).collect()
    }

    /// Before a member's servers are given to those who wait for them: it may be none that would do any
    /// more, a primary that was started anew while we logged in, say.
    #[inline]
    pub(super) fn follow_changes(&mut self, pool: PoolId, io: &mut dyn Io) {
        let Some(known) = &self.pools[pool.index()] else { return };
        let Some(home) = known.spec.member.as_ref().map(|member| member.home) else { return };
        let home_pool = self.pools[home.index()].as_ref();
        let balance = home_pool.and_then(|home| home.balance.as_ref());
        if balance.is_some_and(|balance| balance.is_outdated()) {
            self.redirect(home, io);
        }
    }

    /// Sends those who wait where they will not be served to where they will.
    fn redirect(&mut self, home: PoolId, io: &mut dyn Io) {
        let mut gained = Vec::new();
        let members = self.seats(home).into_iter().map(|(seat, pool)| (Some(seat), pool));
        for (seat, pool) in [(None, home)].into_iter().chain(members) {
            let Some(known) = &mut self.pools[pool.index()] else { continue };
            if known.waiting.is_empty() && known.unwelcomed.is_empty() {
                continue;
            }
            for id in std::mem::take(&mut known.waiting) {
                let waits = |client: &Client| {
                    client.state == ClientState::Waiting
                        && client.pool == pool
                        && client.home == home
                };
                if !self.clients.get(id).is_some_and(waits) {
                    continue;
                }
                if self.stays(home, seat, id) {
                    self.pool(pool).waiting.push_back(id);
                } else {
                    let target = self.aim(id).unwrap_or(home);
                    self.pool(target).waiting.push_back(id);
                    gained.push(target);
                }
            }
            for id in std::mem::take(&mut self.pool(pool).unwelcomed) {
                let waits = |client: &Client| client.state == ClientState::Welcome;
                if !self.clients.get(id).is_some_and(waits) {
                    continue;
                }
                let is_kept = self.stays(home, seat, id);
                let target = if is_kept { pool } else { self.aim(id).unwrap_or(home) };
                self.pool(target).unwelcomed.push(id);
                gained.extend((!is_kept).then_some(target));
            }
        }
        gained.sort_unstable();
        gained.dedup();
        for target in gained {
            self.serve(target, io);
            self.open_for_waiting(target, io);
        }
    }

    /// Whether a client that waits at a member, or at its home, waits on there.
    fn stays(&mut self, home: PoolId, seat: Option<Seat>, id: ClientId) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        let waited = self.now.since(client.since);
        let Some(seat) = seat else { return false };
        let pool = self.pools[home.index()].as_mut();
        let Some(mut balance) = pool.and_then(|pool| pool.balance.take()) else { return true };
        let request = request(client);
        let suits = balance.suits(seat, &request);
        let has_better = waited >= MOVED_AFTER && {
            let others: Vec<_> = balance.seats().filter(|(other, _)| *other != seat).collect();
            others.into_iter().any(|(other, pool)| {
                let pool = self.pools[pool.index()].as_ref();
                balance.suits(other, &request)
                    && pool.is_some_and(|it| !it.idle.is_empty() && it.waiting.is_empty())
            })
        };
        self.pool(home).balance = Some(balance);
        suits && !has_better
    }

    /// Closes servers of primaries that were replaced, with their clients: what they would write is
    /// lost. The same of members that answer no checks: what was under way there may have been done or not, as
    /// with any connection that is lost, so a client is told so and nothing is sent again.
    fn fence(&mut self, home: PoolId, io: &mut dyn Io) {
        let unfenced = self.makes(InjectedFault::Unfenced);
        let waits_on = self.makes(InjectedFault::WaitsOn);
        for pool in self.family(home) {
            let Some(known) = &self.pools[pool.index()] else { continue };
            let Some(member) = known.spec.member.as_ref().filter(|_| known.servers > 0) else {
                continue;
            };
            let refusal = match () {
                () if unfenced => continue,
                () if member.state.is_fenced() => Refusal::Fenced,
                () if waits_on => continue,
                () if member.state.is_dead() => Refusal::GivenUp,
                () => continue,
            };
            for index in 0..self.servers.slots() {
                let Some((id, server)) = self.servers.at(index) else { continue };
                if server.pool != pool || server.state == ServerState::Opening {
                    continue;
                }
                self.break_up(id, &refusal, io);
            }
        }
    }
}

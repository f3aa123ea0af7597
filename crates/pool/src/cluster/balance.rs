//! [`Balance`]: a worker's choice of a member.
//!
//! # Cost
//!
//! A choice in turn is one load, to see that nothing has changed, and some shifts: which members would do
//! is kept as a bit for each, by role. Nothing is shared with other workers but what is known of members:
//! each worker spreads its own clients, and knows the load and the speed of members by its own servers.
//! How fast one is, is read off what a pool counts anyway, ten times a second.
//!
//! # Latency
//!
//! Of two members that are picked at random the one is taken for which
//!
//! ```text
//! latency² × (load + usual load of all)
//! ```
//!
//! is less. What a member has to do at this moment says how long the next will take only as far as answers take
//! longer for it, and that much the latency says already. With the load alone in the place of the sum, a member that
//! is three times as slow would still be given a request whenever it has none and others have three: too many for
//! the 99th percentile. The sum leaves the load to tell members apart that are alike, and the square has a member that
//! is twice as slow be asked one by one only, when its latency, which shrinks while nobody asks it, has come down to
//! that of others. By a higher power members would swing that are slow because they have much to do.

use std::{sync::Arc, time::Duration};

use super::{
    Cluster, Question, ServerRole, Strategy,
    member::{ANY, PRIMARY, REPLICA},
};
use crate::{
    ids::{PoolId, WorkerId},
    tally::Tally,
    time::Time,
};

/// A worker's choice among the members of a cluster.
#[derive(Debug)]
pub(crate) struct Balance {
    pub(crate) cluster: Arc<Cluster>,
    /// Of what is known of members, when the bits were copied; 0 for never.
    version: u32,
    /// Members that would do for any, for writes, for reads at a standby.
    any: u64,
    primary: u64,
    replica: u64,
    /// Those that have been back for less than a slow start.
    warming: u64,
    /// The member whose turn was last.
    turn: u32,
    random: u64,
    speeds: Box<[Speed]>,
    now: Time,
}

/// What a client wants of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) role: ServerRole,
    /// By which question a standby has to have replayed all; 0 for none.
    pub(crate) floor: Question,
    /// Whether the primary does as well where no standby has.
    pub(crate) may_lead: bool,
}

impl From<ServerRole> for Wanted {
    /// Of a client that wrote nothing.
    fn from(role: ServerRole) -> Self {
        Self { role, floor: Question::default(), may_lead: false }
    }
}

/// How fast a member is, and how much of its weight it has had.
#[derive(Clone, Debug, Default)]
struct Speed {
    /// A moving average of how long it works on a request, in nanoseconds; 0 while nothing is known.
    nanos: u64,
    queries: u64,
    total: Duration,
    /// What it has in hand in turns by weight.
    credit: i64,
    /// How long clients have had its servers, and waited for them.
    held: Duration,
    /// A moving average of how many did at once, in parts of [`LOAD_PARTS`].
    usual: u64,
}

/// Parts of one request under way.
const LOAD_PARTS: u64 = 256;

/// A latency that is long enough, so that what is made of it fits: an hour.
const NANOS_MAX: u64 = 3_600_000_000_000;

impl Balance {
    pub(crate) fn new(cluster: Arc<Cluster>, worker: WorkerId) -> Self {
        let members = cluster.members.len();
        let seed = u64::from(worker.0) + 1;
        Self {
            version: 0,
            any: 0,
            primary: 0,
            replica: 0,
            warming: 0,
            // Workers do not begin with the same.
            turn: u32::from(worker.0) % u32::try_from(members.max(1)).unwrap_or(1),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            speeds: vec![Speed::default(); members].into(),
            now: Time::default(),
            cluster,
        }
    }

    /// Copies what is known of members, if that has changed. Gives whether it has.
    #[inline]
    pub(crate) fn refresh(&mut self) -> bool {
        let version = self.cluster.state.version();
        let has_changed = version != self.version;
        if has_changed {
            self.copy(version);
        }
        has_changed
    }

    /// Whether something has changed that was not copied.
    pub(crate) fn is_outdated(&self) -> bool {
        self.cluster.state.version() != self.version
    }

    #[cold]
    fn copy(&mut self, version: u32) {
        self.version = version;
        (self.any, self.primary, self.replica, self.warming) = (0, 0, 0, 0);
        for (index, member) in self.cluster.members.iter().enumerate() {
            let (fit, bit) = (member.state.fit(), 1 << index);
            self.any |= if fit & ANY != 0 { bit } else { 0 };
            self.primary |= if fit & PRIMARY != 0 { bit } else { 0 };
            self.replica |= if fit & REPLICA != 0 { bit } else { 0 };
            let until = member.state.warm_from().map(|from| from + self.cluster.slow_start);
            self.warming |= if until.is_some_and(|until| self.now < until) { bit } else { 0 };
        }
    }

    /// Lets time pass: slow starts end, and it is seen how fast members are by what their pools counted.
    pub(crate) fn tick<'a>(&mut self, now: Time, tally: impl Fn(usize) -> Option<&'a Tally>) {
        let elapsed = now.since(self.now);
        self.now = now;
        if self.warming != 0 {
            self.version = 0;
        }
        for (index, speed) in self.speeds.iter_mut().enumerate() {
            if let Some(tally) = tally(index) {
                speed.learn(tally.queries, tally.query_time.total());
                speed.learn_load(tally.transaction_time.total() + tally.wait_time.total(), elapsed);
            }
        }
    }

    #[inline]
    fn members_for(&self, role: ServerRole) -> u64 {
        match role {
            ServerRole::Any => self.any,
            ServerRole::Primary => self.primary,
            ServerRole::Replica => self.replica,
            ServerRole::PreferReplica if self.replica != 0 => self.replica,
            ServerRole::PreferReplica => self.any,
        }
    }

    /// The same of who wrote: members that have that.
    fn members_with(&self, wanted: Wanted) -> u64 {
        let members = self.members_for(wanted.role);
        if wanted.floor == Question::default() || wanted.role == ServerRole::Primary {
            return members;
        }
        let has_it = |at: &usize| self.cluster.members[*at].state.replayed() >= wanted.floor;
        let standbys = members & !self.primary;
        let standbys = bits(standbys).filter(has_it).fold(0, |all, at| all | 1 << at);
        match wanted.role {
            ServerRole::Any => standbys | members & self.primary,
            ServerRole::PreferReplica if standbys == 0 => self.primary,
            ServerRole::Replica if standbys == 0 && wanted.may_lead => self.primary,
            _ => standbys,
        }
    }

    /// Whether there are standbys that would do, and none has what the client wrote.
    pub(crate) fn standbys_lack(&self, wanted: Wanted) -> bool {
        let standbys = |members: u64| members & !self.primary;
        wanted.role != ServerRole::Primary
            && standbys(self.members_for(wanted.role)) != 0
            && standbys(self.members_with(wanted)) == 0
    }

    /// Whether a member is the one to write to.
    pub(crate) fn is_primary(&self, member: usize) -> bool {
        self.primary & 1 << member != 0
    }

    /// Whether a member with another pool than this would do, by what was copied last.
    pub(crate) fn has_other(&self, pool: PoolId, wanted: Wanted) -> bool {
        bits(self.members_with(wanted)).any(|at| self.cluster.members[at].pool != pool)
    }

    /// Whether a member would do.
    pub(crate) fn suits(&mut self, member: usize, wanted: Wanted) -> bool {
        self.refresh();
        self.members_with(wanted) & 1 << member != 0
    }

    /// The pool of the member that the next client of a role gets, where nothing but whose turn it is has
    /// to be known for that.
    #[inline]
    pub(crate) fn choose_plainly(&mut self, role: ServerRole) -> Option<PoolId> {
        self.refresh();
        let members = self.members_for(role);
        let is_only = members & members.wrapping_sub(1) == 0;
        let is_plain = self.cluster.strategy == Strategy::RoundRobin && members & self.warming == 0;
        if members == 0 || !is_only && !is_plain {
            return None;
        }
        let at = if is_only { members.trailing_zeros() as usize } else { self.next(members) };
        self.cluster.members.get(at).map(|member| member.pool)
    }

    /// The member that the next client of a role gets; `None` if none would do. `load` tells how much a
    /// member has to do here.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        wanted: impl Into<Wanted>,
        load: impl Fn(usize) -> u64,
    ) -> Option<usize> {
        self.refresh();
        let wanted = wanted.into();
        let mut members = self.members_with(wanted);
        if members == 0 && self.members_for(wanted.role) == 0 {
            self.last_resort(wanted.role);
            members = self.members_with(wanted);
        }
        if members & self.warming != 0 {
            members = self.with_warming(members);
        }
        if members & members.wrapping_sub(1) == 0 {
            return (members != 0).then_some(members.trailing_zeros() as usize);
        }
        Some(self.pick(members, load))
    }

    /// When all replicas are banned, none is.
    #[cold]
    fn last_resort(&mut self, role: ServerRole) {
        if role != ServerRole::Primary {
            self.cluster.state.unban_all();
            self.refresh();
        }
    }

    /// Leaves members out that are back for a short while, the more rarely the longer it is.
    #[cold]
    fn with_warming(&mut self, mut members: u64) -> u64 {
        let slow_start =
            u64::try_from(self.cluster.slow_start.as_nanos()).unwrap_or(u64::MAX).max(1);
        for index in bits(members & self.warming) {
            let state = &self.cluster.members[index].state;
            let age = state.warm_from().map_or(Duration::MAX, |from| self.now.since(from));
            let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
            let is_turn = self.below(slow_start) < age;
            if !is_turn && members & !(1 << index) != 0 {
                members &= !(1 << index);
            }
        }
        members
    }

    fn pick(&mut self, members: u64, load: impl Fn(usize) -> u64) -> usize {
        match self.cluster.strategy {
            Strategy::RoundRobin => self.next(members),
            Strategy::Random => self.any_of(members),
            Strategy::Weighted => self.by_weight(members),
            Strategy::LeastOutstanding => {
                let least = bits(members).map(&load).min().unwrap_or_default();
                let least = bits(members).filter(|at| load(*at) == least);
                let members = least.fold(0, |all, at| all | 1 << at);
                self.next(members)
            }
            Strategy::Latency => {
                let first = self.any_of(members);
                let second = self.any_of(members & !(1 << first));
                let usual: u64 = bits(members).map(|at| self.speeds[at].usual).sum();
                let usual = (usual / u64::from(members.count_ones())).max(LOAD_PARTS);
                let cost = |at: usize| {
                    let nanos = u128::from(self.speeds[at].nanos.clamp(1, NANOS_MAX));
                    let load = load(at).min(u64::from(u32::MAX)) * LOAD_PARTS;
                    nanos * nanos * u128::from(load + usual)
                };
                if cost(second) < cost(first) { second } else { first }
            }
        }
    }

    /// The next behind the one whose turn was last.
    #[inline]
    fn next(&mut self, members: u64) -> usize {
        let behind = members & u64::MAX.checked_shl(self.turn + 1).unwrap_or(0);
        let found = if behind != 0 { behind } else { members };
        self.turn = found.trailing_zeros();
        self.turn as usize
    }

    fn any_of(&mut self, members: u64) -> usize {
        let skip = self.below(u64::from(members.count_ones()).max(1));
        let skip = usize::try_from(skip).unwrap_or(0);
        bits(members).nth(skip).unwrap_or(0)
    }

    /// Each is given its weight, the richest is taken and pays for all: turns of equal distance.
    fn by_weight(&mut self, members: u64) -> usize {
        let (mut sum, mut best) = (0, None);
        for index in bits(members) {
            let weight = i64::from(self.cluster.members[index].weight);
            sum += weight;
            let credit = self.speeds[index].credit + weight;
            self.speeds[index].credit = credit;
            if best.is_none_or(|(most, _)| credit > most) {
                best = Some((credit, index));
            }
        }
        let index = best.map_or(0, |(_, index)| index);
        self.speeds[index].credit -= sum;
        index
    }

    /// A number below another: xorshift, the same at each run.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound.max(1)
    }
}

impl Speed {
    /// Takes for how long clients have had servers, all together, some time after the last look.
    fn learn_load(&mut self, held: Duration, elapsed: Duration) {
        let more = held.saturating_sub(self.held).as_nanos();
        self.held = held;
        if elapsed.is_zero() {
            return;
        }
        // How long servers were had in a second is how many were had at once: Little's law.
        let load = more * u128::from(LOAD_PARTS) / elapsed.as_nanos();
        let load = u64::try_from(load).unwrap_or(u64::MAX).min(LOAD_PARTS << 32);
        self.usual = self.usual / 4 * 3 + load / 4;
    }

    fn learn(&mut self, queries: u64, total: Duration) {
        let (more, time) = (queries - self.queries.min(queries), total.saturating_sub(self.total));
        (self.queries, self.total) = (queries, total);
        if more == 0 {
            // Who was slow is tried again in the end.
            self.nanos -= self.nanos / 128;
            return;
        }
        let mean = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / more;
        self.nanos = if self.nanos == 0 { mean } else { self.nanos / 4 * 3 + mean / 4 };
    }
}

fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (set != 0).then_some(set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(index)
    })
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use super::{super::ClusterState, *};
    use crate::{
        cluster::{ClusterMember, Standing},
        config::ConfiguredRole,
        ids::PoolId,
    };

    /// A primary and two replicas with weights 1, 2 and 3.
    fn of(strategy: Strategy) -> Balance {
        let roles = [ConfiguredRole::Primary, ConfiguredRole::Replica, ConfiguredRole::Replica];
        let state = ClusterState::new(roles, Duration::from_secs(60));
        let members = (0..3)
            .map(|at| ClusterMember {
                pool: PoolId(at + 1),
                state: Arc::clone(&state.members[at as usize]),
                weight: at + 1,
            })
            .collect();
        let cluster = Cluster {
            members,
            strategy,
            failover_timeout: None,
            slow_start: Duration::from_secs(10),
            state,
        };
        Balance::new(Arc::new(cluster), WorkerId(0))
    }

    fn shares(balance: &mut Balance, role: ServerRole, load: fn(usize) -> u64) -> [u32; 3] {
        let mut shares = [0; 3];
        for _ in 0..6000 {
            shares[balance.choose(role, load).unwrap()] += 1;
        }
        shares
    }

    #[test]
    fn turns_are_even_and_weights_are_kept() {
        let none = |_| 0;
        let mut turns = of(Strategy::RoundRobin);
        assert_eq!(shares(&mut turns, ServerRole::Any, none), [2000; 3]);
        assert_eq!(shares(&mut turns, ServerRole::Replica, none), [0, 3000, 3000]);
        assert_eq!(shares(&mut turns, ServerRole::PreferReplica, none), [0, 3000, 3000]);
        assert_eq!(shares(&mut turns, ServerRole::Primary, none), [6000, 0, 0]);
        let mut weights = of(Strategy::Weighted);
        assert_eq!(shares(&mut weights, ServerRole::Any, none), [1000, 2000, 3000]);
        let random = shares(&mut of(Strategy::Random), ServerRole::Any, none);
        assert!(random.iter().all(|share| (1900..2100).contains(share)), "{random:?}");
        let loads = |at| [5, 0, 1][at];
        let least = shares(&mut of(Strategy::LeastOutstanding), ServerRole::Any, loads);
        assert_eq!(least, [0, 6000, 0]);
    }

    #[test]
    fn a_slow_member_is_left_to_who_has_no_other() {
        let mut balance = of(Strategy::Latency);
        let tallies: Vec<_> = [1, 1, 50]
            .map(|millis| {
                let mut tally = Tally { queries: 100, ..Tally::default() };
                tally.query_time.total_ns = 100_000_000 * millis;
                tally
            })
            .into();
        balance.tick(Time(1), |at| tallies.get(at));
        let [first, second, slow] = shares(&mut balance, ServerRole::Any, |_| 3);
        assert_eq!(slow, 0);
        assert!(first.abs_diff(second) < 300, "{first} {second}");
        // Nobody asks it, and after some minutes it is asked again.
        for tick in 0..3000 {
            balance.tick(Time(tick), |at| tallies.get(at));
        }
        assert!(shares(&mut balance, ServerRole::Any, |_| 0)[2] > 0);
    }

    #[test]
    fn a_slow_member_does_not_touch_the_99th_percentile() {
        for clients in [12, 40, 200] {
            let healthy = run(Strategy::Latency, clients, |_, _, _| 20);
            assert!(healthy.shares.iter().all(|share| (300..367).contains(share)), "{healthy:?}");
            for factor in [2, 3, 4, 11] {
                let work = move |member, _, _| if member == 2 { 20 * factor } else { 20 };
                let slow = run(Strategy::Latency, clients, work);
                assert!(slow.p99 * 10 <= healthy.p99 * 12, "{clients} × {factor}: {slow:?}");
                assert!(slow.shares[2] < 10, "{clients} × {factor}: {slow:?}");
                let turns = run(Strategy::RoundRobin, clients, work);
                assert!(turns.p99 * 10 > healthy.p99 * 15, "there would be nothing to show");
            }
        }
    }

    #[test]
    fn members_that_are_slow_by_their_load_do_not_swing() {
        // Each works on four requests at a time; the last may be slow besides.
        let busy = |slow: u64| {
            move |member: usize, load: u64, _: u64| {
                let alone = if member == 2 { slow } else { 5 };
                alone * load.max(4) / 4
            }
        };
        for clients in [40, 200] {
            let found = |strategy, slow| run(strategy, clients, busy(slow)).p99;
            let alike = [Strategy::Latency, Strategy::LeastOutstanding].map(|it| found(it, 5));
            assert!(alike[0] * 10 <= alike[1] * 12, "{clients}: {alike:?}");
            let one_slow = [Strategy::Latency, Strategy::LeastOutstanding].map(|it| found(it, 20));
            assert!(one_slow[0] < one_slow[1], "{clients}: {one_slow:?}");
        }
    }

    #[test]
    fn a_member_that_was_slow_takes_its_part_again() {
        let work = |member: usize, _: u64, second: u64| match (member, second) {
            (2, ..20) => 200,
            _ => 20,
        };
        let found = run(Strategy::Latency, 40, work);
        assert!(found.shares[2] > 250, "{found:?}");
    }

    #[derive(Debug)]
    struct Found {
        /// Of latencies, in microseconds.
        p99: u64,
        /// Of a thousand requests, by member.
        shares: [u64; 3],
    }

    /// The last 50 of 150 seconds of clients that ask again as soon as they are answered. `work` gives the
    /// milliseconds that an answer takes, more or less a fifth, by member, what it has to do, and the second.
    fn run(strategy: Strategy, clients: u64, work: impl Fn(usize, u64, u64) -> u64) -> Found {
        const MS: u64 = 1_000_000;
        let mut balance = of(strategy);
        let mut tallies: [Tally; 3] = Default::default();
        let (mut loads, mut counts, mut latencies) = ([0; 3], [0_u64; 3], Vec::new());
        // When, who, and whom it has asked when.
        let mut events: BinaryHeap<_> =
            (0..clients).map(|client| Reverse((client * MS / 7, client, None))).collect();
        let (mut dice, mut tick) = (1_u64, 0);
        while let Some(Reverse((now, client, asked))) = events.pop() {
            let second = now / 1000 / MS;
            if second >= 150 {
                break;
            }
            while tick <= now {
                tick += 100 * MS;
                balance.tick(Time(tick), |at| tallies.get(at));
            }
            if let Some((member, since)) = asked {
                let (tally, took): (&mut Tally, u64) = (&mut tallies[member], now - since);
                loads[member] -= 1;
                tally.queries += 1;
                tally.query_time.total_ns += took;
                tally.transaction_time.total_ns += took;
                if second >= 100 {
                    latencies.push(took / 1000);
                    counts[member] += 1;
                }
            }
            let member = balance.choose(ServerRole::Any, |at| loads[at]).unwrap();
            loads[member] += 1;
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let took = work(member, loads[member], second) * MS / 1000 * (800 + (dice >> 33) % 400);
            events.push(Reverse((now + took, client, Some((member, now)))));
        }
        latencies.sort_unstable();
        let all: u64 = counts.iter().sum();
        let p99 = latencies[latencies.len() * 99 / 100];
        Found { p99, shares: counts.map(|count| 1000 * count / all) }
    }

    #[test]
    fn the_banned_are_passed_over_until_all_are() {
        let mut balance = of(Strategy::RoundRobin);
        let states: Vec<_> =
            balance.cluster.members.iter().map(|member| Arc::clone(&member.state)).collect();
        states[1].failed(Time(1), "refused");
        assert_eq!(shares(&mut balance, ServerRole::Replica, |_| 0), [0, 0, 6000]);
        states[2].failed(Time(1), "refused");
        assert_eq!(shares(&mut balance, ServerRole::PreferReplica, |_| 0), [6000, 0, 0]);
        assert!(states[1].report().ban.is_some(), "somebody would do");
        assert_eq!(shares(&mut balance, ServerRole::Replica, |_| 0), [0, 3000, 3000]);
        assert!(states[1].report().ban.is_none());
    }

    #[test]
    fn who_is_back_gets_its_part_little_by_little() {
        let mut balance = of(Strategy::RoundRobin);
        let state = Arc::clone(&balance.cluster.members[2].state);
        let seconds = |seconds| Time::default() + Duration::from_secs(seconds);
        state.failed(seconds(1), "refused");
        let found = crate::MemberState::default();
        assert!(state.check_succeeded(state.doubts(), Standing::Replica, found, seconds(61)));
        let mut after = |elapsed: u64| {
            balance.tick(seconds(61 + elapsed), |_| None);
            shares(&mut balance, ServerRole::Replica, |_| 0)[2]
        };
        let (one, five, ten) = (after(1), after(5), after(10));
        assert!((100..800).contains(&one) && one < five && five < ten, "{one} {five} {ten}");
        assert_eq!(ten, 3000);
        // Where there are two, and one is left out, the other is all there is.
        for strategy in [Strategy::Latency, Strategy::LeastOutstanding, Strategy::Weighted] {
            let mut other = of(strategy);
            other.cluster.members[2].state.failed(seconds(1), "refused");
            let found = crate::MemberState::default();
            let back = &other.cluster.members[2].state;
            assert!(back.check_succeeded(back.doubts(), Standing::Replica, found, seconds(61)));
            other.tick(seconds(62), |_| None);
            let [first, second, third] = shares(&mut other, ServerRole::Replica, |_| 0);
            assert!(first == 0 && third < second, "{strategy:?} {first} {second} {third}");
        }
        assert_eq!(state.standing(), Standing::Replica);
    }
}

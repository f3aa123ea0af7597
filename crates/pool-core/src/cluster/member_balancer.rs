//! [`MemberBalancer`]: a worker's choice of a cluster member.
//!
//! # Cost
//!
//! A round-robin choice costs one atomic load, which shows that no member state has changed, and a
//! few shifts, since suitable members are stored as one bit set per role. Workers share nothing
//! except the members' states: each worker distributes its own clients, and measures the load and
//! speed of members on its own connections. Speeds are derived ten times a second from counters
//! that a pool maintains anyway.
//!
//! # Latency
//!
//! Two members are picked at random. The balancer chooses the one with the smaller value of:
//!
//! ```text
//! latency² × (load + mean usual load)
//! ```
//!
//! The current load of a member matters only because it slows replies, and the measured latency
//! already includes that effect. With the load alone in place of the sum, a slow member would still
//! get a request whenever it is idle and the other one is not: often enough to raise the 99th
//! percentile. With the sum, the load decides only between members of similar latency. The square
//! ensures that a member twice as slow gets only occasional requests: the latency of an unused
//! member decays, and it gets a request once that has fallen to the latency of the others. With a
//! higher power, the load of members that are slow because they are busy would oscillate.

use std::{sync::Arc, time::Duration};

use super::{
    BalancingStrategy, CheckSeq, ClusterSpec, TargetRole,
    member::{ANY, PRIMARY, REPLICA},
};
use crate::{
    state::{
        ids::{PoolId, WorkerId},
        pool_stats::PoolStats,
    },
    time::Time,
};

/// A worker's load balancer, which chooses among the members of a cluster.
#[derive(Debug)]
pub(crate) struct MemberBalancer {
    pub(crate) cluster: Arc<ClusterSpec>,
    /// Version of the member states when the bit sets were copied; 0 if they must be copied again.
    version: u32,
    /// Bit set of members suitable for requests that accept any role.
    any: u64,
    /// Bit set of members that accept writes.
    primary: u64,
    /// Bit set of members that serve reads as standbys.
    replica: u64,
    /// Bit set of members that returned less than `slow_start` ago.
    slow_starting: u64,
    /// Index of the member that [`Self::next_in_turn`] chose last; the initial value depends on the
    /// worker.
    last_index: u32,
    random: u64,
    speeds: Box<[MemberSpeed]>,
    now: Time,
}

/// The conditions that a server must meet for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemberRequirement {
    pub(crate) role: TargetRole,
    /// The check whose primary WAL position a standby must have replayed; 0 if none.
    pub(crate) min_replayed: CheckSeq,
    /// Whether the primary is suitable for role `replica` while no standby has replayed the writes.
    pub(crate) can_use_primary: bool,
}

impl From<TargetRole> for MemberRequirement {
    /// Returns the requirement of a client whose writes, if any, need not be replayed.
    fn from(role: TargetRole) -> Self {
        Self { role, min_replayed: CheckSeq::default(), can_use_primary: false }
    }
}

/// The measured speed and load of a member, and its credit for weighted turns.
#[derive(Clone, Debug, Default)]
struct MemberSpeed {
    /// Moving average of the time per request, in nanoseconds; 0 while unknown.
    latency_ns: u64,
    queries: u64,
    query_time: Duration,
    /// Credit for [`BalancingStrategy::Weighted`]: grows by the weight, falls when the member is
    /// chosen.
    credit: i64,
    /// Total time for which clients have held or waited for connections to the member.
    busy_time: Duration,
    /// Moving average of the number of clients that hold or wait for connections at the same time,
    /// in units of 1/[`LOAD_PARTS`].
    usual_load: u64,
}

/// Fixed-point scale of loads: one request in progress counts as this many units.
const LOAD_PARTS: u64 = 256;

/// Maximum latency in nanoseconds, an hour. Longer latencies are clamped, to avoid overflow.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

impl MemberBalancer {
    pub(crate) fn new(cluster: Arc<ClusterSpec>, worker: WorkerId) -> Self {
        let members = cluster.members.len();
        let seed = u64::from(worker.0) + 1;
        Self {
            version: 0,
            any: 0,
            primary: 0,
            replica: 0,
            slow_starting: 0,
            // Workers start with different members, so that they do not all send their first
            // requests to the same one.
            last_index: u32::from(worker.0) % u32::try_from(members.max(1)).unwrap_or(1),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            speeds: vec![MemberSpeed::default(); members].into(),
            now: Time::default(),
            cluster,
        }
    }

    /// Copies the states of members if the copy may be outdated. Returns whether they were copied.
    #[inline]
    pub(crate) fn refresh(&mut self) -> bool {
        let version = self.cluster.state.version();
        let has_changed = version != self.version;
        if has_changed {
            self.copy(version);
        }
        has_changed
    }

    #[cold]
    fn copy(&mut self, version: u32) {
        self.version = version;
        (self.any, self.primary, self.replica, self.slow_starting) = (0, 0, 0, 0);
        for (index, member) in self.cluster.members.iter().enumerate() {
            let (eligibility, bit) = (member.state.eligibility(), 1 << index);
            self.any |= if eligibility & ANY != 0 { bit } else { 0 };
            self.primary |= if eligibility & PRIMARY != 0 { bit } else { 0 };
            self.replica |= if eligibility & REPLICA != 0 { bit } else { 0 };
            let until = member.state.slow_start_from().map(|from| from + self.cluster.slow_start);
            self.slow_starting |= if until.is_some_and(|until| self.now < until) { bit } else { 0 };
        }
    }

    /// Advances the time, which ends slow starts, and updates the speed of members from their
    /// pools' counters.
    pub(crate) fn tick<'a>(&mut self, now: Time, stats: impl Fn(usize) -> Option<&'a PoolStats>) {
        let elapsed = now.since(self.now);
        self.now = now;
        if self.slow_starting != 0 {
            self.version = 0;
        }
        for (index, speed) in self.speeds.iter_mut().enumerate() {
            if let Some(stats) = stats(index) {
                speed.update_latency(stats.queries, stats.query_time.total());
                speed
                    .update_load(stats.transaction_time.total() + stats.wait_time.total(), elapsed);
            }
        }
    }

    #[inline]
    fn members_for(&self, role: TargetRole) -> u64 {
        match role {
            TargetRole::Any => self.any,
            TargetRole::Primary => self.primary,
            TargetRole::Replica => self.replica,
            TargetRole::PreferReplica if self.replica != 0 => self.replica,
            TargetRole::PreferReplica => self.any,
        }
    }

    /// Returns the suitable members that have replayed the client's writes, where required. If no
    /// standby has, returns only the primary, where the requirement allows it.
    fn members_with(&self, requirement: MemberRequirement) -> u64 {
        let members = self.members_for(requirement.role);
        if requirement.min_replayed == CheckSeq::default()
            || requirement.role == TargetRole::Primary
        {
            return members;
        }
        let has_it =
            |at: &usize| self.cluster.members[*at].state.replayed() >= requirement.min_replayed;
        let standbys = members & !self.primary;
        let standbys = bits(standbys).filter(has_it).fold(0, |all, at| all | 1 << at);
        match requirement.role {
            TargetRole::Any => standbys | members & self.primary,
            TargetRole::PreferReplica if standbys == 0 => self.primary,
            TargetRole::Replica if standbys == 0 && requirement.can_use_primary => self.primary,
            _ => standbys,
        }
    }

    /// Whether there are suitable standbys, but none has replayed the client's writes.
    pub(crate) fn standbys_are_behind(&self, requirement: MemberRequirement) -> bool {
        let standbys = |members: u64| members & !self.primary;
        requirement.role != TargetRole::Primary
            && standbys(self.members_for(requirement.role)) != 0
            && standbys(self.members_with(requirement)) == 0
    }

    /// Whether a member accepts writes.
    pub(crate) fn is_primary(&self, member: usize) -> bool {
        self.primary & 1 << member != 0
    }

    /// Whether a suitable member has a pool other than `pool`, as of the last copy.
    pub(crate) fn has_other(&self, pool: PoolId, requirement: MemberRequirement) -> bool {
        bits(self.members_with(requirement)).any(|at| self.cluster.members[at].pool != pool)
    }

    /// Whether a member meets the requirement now.
    pub(crate) fn satisfies(&mut self, member: usize, requirement: MemberRequirement) -> bool {
        self.refresh();
        self.members_with(requirement) & 1 << member != 0
    }

    /// Returns the pool for the next client of a role, if a single member is suitable or all
    /// suitable members simply take turns; otherwise `None`, and [`Self::choose`] is needed.
    #[inline]
    pub(crate) fn choose_fast(&mut self, role: TargetRole) -> Option<PoolId> {
        self.refresh();
        let members = self.members_for(role);
        let is_only = members & members.wrapping_sub(1) == 0;
        let is_simple = self.cluster.strategy == BalancingStrategy::RoundRobin
            && members & self.slow_starting == 0;
        if members == 0 || !is_only && !is_simple {
            return None;
        }
        let at =
            if is_only { members.trailing_zeros() as usize } else { self.next_in_turn(members) };
        self.cluster.members.get(at).map(|member| member.pool)
    }

    /// Chooses the member for the next client; `None` if none is suitable. If none is suitable for
    /// a role other than `primary`, all bans are lifted before the choice. `load` returns the
    /// current load of a member in this worker.
    #[inline]
    pub(crate) fn choose(
        &mut self,
        requirement: impl Into<MemberRequirement>,
        load: impl Fn(usize) -> u64,
    ) -> Option<usize> {
        self.refresh();
        let requirement = requirement.into();
        let mut members = self.members_with(requirement);
        if members == 0 && self.members_for(requirement.role) == 0 {
            self.unban_all(requirement.role);
            members = self.members_with(requirement);
        }
        if members & self.slow_starting != 0 {
            members = self.without_slow_starting(members);
        }
        if members & members.wrapping_sub(1) == 0 {
            return (members != 0).then_some(members.trailing_zeros() as usize);
        }
        Some(self.pick(members, load))
    }

    /// Lifts all bans because no member is suitable for `role`. Does nothing for role `primary`,
    /// since bans do not affect the primary's suitability.
    #[cold]
    fn unban_all(&mut self, role: TargetRole) {
        if role != TargetRole::Primary {
            self.cluster.state.unban_all();
            self.refresh();
        }
    }

    /// Excludes members that returned recently, at random and less often as time passes.
    #[cold]
    fn without_slow_starting(&mut self, mut members: u64) -> u64 {
        let slow_start =
            u64::try_from(self.cluster.slow_start.as_nanos()).unwrap_or(u64::MAX).max(1);
        for index in bits(members & self.slow_starting) {
            let state = &self.cluster.members[index].state;
            let age = state.slow_start_from().map_or(Duration::MAX, |from| self.now.since(from));
            let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
            let is_turn = self.random_below(slow_start) < age;
            if !is_turn && members & !(1 << index) != 0 {
                members &= !(1 << index);
            }
        }
        members
    }

    fn pick(&mut self, members: u64, load: impl Fn(usize) -> u64) -> usize {
        match self.cluster.strategy {
            BalancingStrategy::RoundRobin => self.next_in_turn(members),
            BalancingStrategy::Random => self.random_member(members),
            BalancingStrategy::Weighted => self.by_weight(members),
            BalancingStrategy::LeastOutstanding => {
                let least = bits(members).map(&load).min().unwrap_or_default();
                let least = bits(members).filter(|at| load(*at) == least);
                let members = least.fold(0, |all, at| all | 1 << at);
                self.next_in_turn(members)
            }
            BalancingStrategy::Latency => {
                let first = self.random_member(members);
                let second = self.random_member(members & !(1 << first));
                let usual: u64 = bits(members).map(|at| self.speeds[at].usual_load).sum();
                let usual = (usual / u64::from(members.count_ones())).max(LOAD_PARTS);
                let cost = |at: usize| {
                    let nanos = u128::from(self.speeds[at].latency_ns.clamp(1, LATENCY_NS_MAX));
                    let load = load(at).min(u64::from(u32::MAX)) * LOAD_PARTS;
                    nanos * nanos * u128::from(load + usual)
                };
                if cost(second) < cost(first) { second } else { first }
            }
        }
    }

    /// Returns the first of `members` after the member chosen last, wrapping around.
    #[inline]
    fn next_in_turn(&mut self, members: u64) -> usize {
        let later = members & u64::MAX.checked_shl(self.last_index + 1).unwrap_or(0);
        let result = if later != 0 { later } else { members };
        self.last_index = result.trailing_zeros();
        self.last_index as usize
    }

    fn random_member(&mut self, members: u64) -> usize {
        let skip = self.random_below(u64::from(members.count_ones()).max(1));
        let skip = usize::try_from(skip).unwrap_or(0);
        bits(members).nth(skip).unwrap_or(0)
    }

    /// Chooses by weight: each member's credit grows by its weight, and the member with the most
    /// credit is chosen and pays the sum of all weights. This spaces turns evenly.
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

    /// Returns a number below `bound` from a xorshift generator with a fixed seed.
    fn random_below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound.max(1)
    }
}

impl MemberSpeed {
    /// Updates the usual load from the total time for which clients have held or waited for
    /// connections.
    fn update_load(&mut self, busy_time: Duration, elapsed: Duration) {
        let more = busy_time.saturating_sub(self.busy_time).as_nanos();
        self.busy_time = busy_time;
        if elapsed.is_zero() {
            return;
        }
        // Little's law: the time that clients spent per unit of time is their average number.
        let load = more * u128::from(LOAD_PARTS) / elapsed.as_nanos();
        let load = u64::try_from(load).unwrap_or(u64::MAX).min(LOAD_PARTS << 32);
        self.usual_load = self.usual_load / 4 * 3 + load / 4;
    }

    fn update_latency(&mut self, queries: u64, total: Duration) {
        let (more, time) =
            (queries - self.queries.min(queries), total.saturating_sub(self.query_time));
        (self.queries, self.query_time) = (queries, total);
        if more == 0 {
            // The latency of an unused member decays, so that a slow member is eventually tried
            // again.
            self.latency_ns -= self.latency_ns / 128;
            return;
        }
        let mean = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / more;
        self.latency_ns =
            if self.latency_ns == 0 { mean } else { self.latency_ns / 4 * 3 + mean / 4 };
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
        cluster::{AssignedRole, ClusterMember, ServerStatus},
        state::ids::PoolId,
    };

    /// Returns a balancer for a primary and two replicas with weights 1, 2 and 3.
    fn balancer_with(strategy: BalancingStrategy) -> MemberBalancer {
        let roles = [AssignedRole::Primary, AssignedRole::Replica, AssignedRole::Replica];
        let state = ClusterState::new(roles, Duration::from_secs(60));
        let members = (0..3)
            .map(|at| ClusterMember {
                pool: PoolId(at + 1),
                state: Arc::clone(&state.members[at as usize]),
                weight: at + 1,
            })
            .collect();
        let cluster = ClusterSpec {
            members,
            strategy,
            failover_timeout: None,
            slow_start: Duration::from_secs(10),
            state,
        };
        MemberBalancer::new(Arc::new(cluster), WorkerId(0))
    }

    fn shares(balancer: &mut MemberBalancer, role: TargetRole, load: fn(usize) -> u64) -> [u32; 3] {
        let mut shares = [0; 3];
        for _ in 0..6000 {
            shares[balancer.choose(role, load).unwrap()] += 1;
        }
        shares
    }

    #[test]
    fn turns_are_even_and_weights_are_honored() {
        let none = |_| 0;
        let mut turns = balancer_with(BalancingStrategy::RoundRobin);
        assert_eq!(shares(&mut turns, TargetRole::Any, none), [2000; 3]);
        assert_eq!(shares(&mut turns, TargetRole::Replica, none), [0, 3000, 3000]);
        assert_eq!(shares(&mut turns, TargetRole::PreferReplica, none), [0, 3000, 3000]);
        assert_eq!(shares(&mut turns, TargetRole::Primary, none), [6000, 0, 0]);
        let mut weights = balancer_with(BalancingStrategy::Weighted);
        assert_eq!(shares(&mut weights, TargetRole::Any, none), [1000, 2000, 3000]);
        let random = shares(&mut balancer_with(BalancingStrategy::Random), TargetRole::Any, none);
        assert!(random.iter().all(|share| (1900..2100).contains(share)), "{random:?}");
        let loads = |at| [5, 0, 1][at];
        let least =
            shares(&mut balancer_with(BalancingStrategy::LeastOutstanding), TargetRole::Any, loads);
        assert_eq!(least, [0, 6000, 0]);
    }

    #[test]
    fn slow_member_is_avoided_and_retried_later() {
        let mut balancer = balancer_with(BalancingStrategy::Latency);
        let all_stats: Vec<_> = [1, 1, 50]
            .map(|millis| {
                let mut stats = PoolStats { queries: 100, ..PoolStats::default() };
                stats.query_time.total_ns = 100_000_000 * millis;
                stats
            })
            .into();
        balancer.tick(Time(1), |at| all_stats.get(at));
        let [first, second, slow] = shares(&mut balancer, TargetRole::Any, |_| 3);
        assert_eq!(slow, 0);
        assert!(first.abs_diff(second) < 300, "{first} {second}");
        // The slow member is not used, so it is tried again after some minutes.
        for tick in 0..3000 {
            balancer.tick(Time(tick), |at| all_stats.get(at));
        }
        assert!(shares(&mut balancer, TargetRole::Any, |_| 0)[2] > 0);
    }

    #[test]
    fn slow_member_does_not_affect_p99() {
        for clients in [12, 40, 200] {
            let healthy = run(BalancingStrategy::Latency, clients, |_, _, _| 20);
            assert!(healthy.shares.iter().all(|share| (300..367).contains(share)), "{healthy:?}");
            for factor in [2, 3, 4, 11] {
                let work = move |member, _, _| if member == 2 { 20 * factor } else { 20 };
                let slow = run(BalancingStrategy::Latency, clients, work);
                assert!(slow.p99 * 10 <= healthy.p99 * 12, "{clients} × {factor}: {slow:?}");
                assert!(slow.shares[2] < 10, "{clients} × {factor}: {slow:?}");
                let turns = run(BalancingStrategy::RoundRobin, clients, work);
                assert!(turns.p99 * 10 > healthy.p99 * 15, "round robin is affected");
            }
        }
    }

    #[test]
    fn members_slowed_by_load_do_not_oscillate() {
        // Each member processes four requests at a time; the last member may be slower.
        let busy = |slow: u64| {
            move |member: usize, load: u64, _: u64| {
                let alone = if member == 2 { slow } else { 5 };
                alone * load.max(4) / 4
            }
        };
        for clients in [40, 200] {
            let result = |strategy, slow| run(strategy, clients, busy(slow)).p99;
            let alike = [BalancingStrategy::Latency, BalancingStrategy::LeastOutstanding]
                .map(|it| result(it, 5));
            assert!(alike[0] * 10 <= alike[1] * 12, "{clients}: {alike:?}");
            let one_slow = [BalancingStrategy::Latency, BalancingStrategy::LeastOutstanding]
                .map(|it| result(it, 20));
            assert!(one_slow[0] < one_slow[1], "{clients}: {one_slow:?}");
        }
    }

    #[test]
    fn recovered_member_regains_its_share() {
        let work = |member: usize, _: u64, second: u64| match (member, second) {
            (2, ..20) => 200,
            _ => 20,
        };
        let result = run(BalancingStrategy::Latency, 40, work);
        assert!(result.shares[2] > 250, "{result:?}");
    }

    #[derive(Debug)]
    struct SimulatedLoad {
        /// 99th percentile of the latencies, in microseconds.
        p99: u64,
        /// Share of each member, per thousand requests.
        shares: [u64; 3],
    }

    /// Simulates 150 seconds of clients that send the next request as soon as they receive a reply,
    /// and measures the last 50. `work(member, load, second)` returns the milliseconds that a reply
    /// takes, plus or minus a fifth.
    fn run(
        strategy: BalancingStrategy,
        clients: u64,
        work: impl Fn(usize, u64, u64) -> u64,
    ) -> SimulatedLoad {
        const MS: u64 = 1_000_000;
        let mut balancer = balancer_with(strategy);
        let mut all_stats: [PoolStats; 3] = Default::default();
        let (mut loads, mut counts, mut latencies) = ([0; 3], [0_u64; 3], Vec::new());
        // Events: the time, the client, and the member and start time of the client's request.
        let mut events: BinaryHeap<_> =
            (0..clients).map(|client| Reverse((client * MS / 7, client, None))).collect();
        let (mut dice, mut tick) = (1_u64, 0);
        while let Some(Reverse((now, client, sent))) = events.pop() {
            let second = now / 1000 / MS;
            if second >= 150 {
                break;
            }
            while tick <= now {
                tick += 100 * MS;
                balancer.tick(Time(tick), |at| all_stats.get(at));
            }
            if let Some((member, since)) = sent {
                let (stats, took): (&mut PoolStats, u64) = (&mut all_stats[member], now - since);
                loads[member] -= 1;
                stats.queries += 1;
                stats.query_time.total_ns += took;
                stats.transaction_time.total_ns += took;
                if second >= 100 {
                    latencies.push(took / 1000);
                    counts[member] += 1;
                }
            }
            let member = balancer.choose(TargetRole::Any, |at| loads[at]).unwrap();
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
        SimulatedLoad { p99, shares: counts.map(|count| 1000 * count / all) }
    }

    #[test]
    fn banned_members_are_skipped_until_all_are_banned() {
        let mut balancer = balancer_with(BalancingStrategy::RoundRobin);
        let states: Vec<_> =
            balancer.cluster.members.iter().map(|member| Arc::clone(&member.state)).collect();
        states[1].connect_failed(Time(1), "refused");
        assert_eq!(shares(&mut balancer, TargetRole::Replica, |_| 0), [0, 0, 6000]);
        states[2].connect_failed(Time(1), "refused");
        assert_eq!(shares(&mut balancer, TargetRole::PreferReplica, |_| 0), [6000, 0, 0]);
        assert!(states[1].report().ban.is_some(), "another server is suitable");
        assert_eq!(shares(&mut balancer, TargetRole::Replica, |_| 0), [0, 3000, 3000]);
        assert!(states[1].report().ban.is_none());
    }

    #[test]
    fn returned_member_regains_share_gradually() {
        let mut balancer = balancer_with(BalancingStrategy::RoundRobin);
        let state = Arc::clone(&balancer.cluster.members[2].state);
        let seconds = |seconds| Time::default() + Duration::from_secs(seconds);
        state.connect_failed(seconds(1), "refused");
        let result = crate::CheckFindings::default();
        assert!(state.check_succeeded(
            state.suspicions(),
            ServerStatus::Replica,
            result,
            seconds(61)
        ));
        let mut after = |elapsed: u64| {
            balancer.tick(seconds(61 + elapsed), |_| None);
            shares(&mut balancer, TargetRole::Replica, |_| 0)[2]
        };
        let (one, five, ten) = (after(1), after(5), after(10));
        assert!((100..800).contains(&one) && one < five && five < ten, "{one} {five} {ten}");
        assert_eq!(ten, 3000);
        // If one of two members is excluded, only the other remains.
        for strategy in [
            BalancingStrategy::Latency,
            BalancingStrategy::LeastOutstanding,
            BalancingStrategy::Weighted,
        ] {
            let mut other = balancer_with(strategy);
            other.cluster.members[2].state.connect_failed(seconds(1), "refused");
            let result = crate::CheckFindings::default();
            let back = &other.cluster.members[2].state;
            assert!(back.check_succeeded(
                back.suspicions(),
                ServerStatus::Replica,
                result,
                seconds(61)
            ));
            other.tick(seconds(62), |_| None);
            let [first, second, third] = shares(&mut other, TargetRole::Replica, |_| 0);
            assert!(first == 0 && third < second, "{strategy:?} {first} {second} {third}");
        }
        assert_eq!(state.status(), ServerStatus::Replica);
    }
}

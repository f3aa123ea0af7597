//! [`Balances`]: a worker's choice of a member where a database may have several shards, each a cluster.

use std::sync::Arc;

use super::{
    CausalToken, Cluster, ServerRole,
    balance::{Balance, Wanted},
};
use crate::{
    ids::{PoolId, WorkerId},
    tally::Tally,
    time::Time,
};

/// A worker's choice among the members of all shards of a database.
#[derive(Debug)]
pub(crate) struct Balances {
    shards: Box<[Balance]>,
    /// The shard that who may go to any was sent to last.
    turn: usize,
    worker: WorkerId,
}

/// A member, by its shard and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Seat {
    pub(crate) shard: usize,
    pub(crate) member: usize,
}

/// What a client wants of the servers of several shards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) role: ServerRole,
    /// Of which shard they have to be; `None` for any.
    pub(crate) shard: Option<u32>,
    /// What it wrote, if it minds.
    pub(crate) floors: Option<&'a CausalToken>,
    /// Whether the primary does as well where no standby has that.
    pub(crate) may_lead: bool,
}

impl Request<'_> {
    fn of_shard(&self, shard: usize) -> Wanted {
        let floor = self.floors.map(|floors| floors.of(shard)).unwrap_or_default();
        Wanted { role: self.role, floor, may_lead: self.may_lead }
    }
}

/// The pool of the member that was chosen for a client that wrote, if one would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// It is one of those that it would get if it had written nothing.
    Plain(PoolId),
    /// It is the primary, because no standby has what it wrote.
    Kept(PoolId),
    /// No standby has what it wrote, and no other will do.
    Awaited,
    /// None.
    Nobody,
}

impl Balances {
    /// Over the clusters of a database; none if it has none.
    pub(crate) fn new(clusters: &[Arc<Cluster>], worker: WorkerId) -> Option<Box<Self>> {
        let balance = |cluster: &Arc<Cluster>| Balance::new(Arc::clone(cluster), worker);
        let shards: Box<[Balance]> = clusters.iter().map(balance).collect();
        (!shards.is_empty()).then(|| Box::new(Self { shards, turn: 0, worker }))
    }

    /// Follows other settings.
    pub(crate) fn follow(&mut self, clusters: &[Arc<Cluster>]) {
        if let Some(balances) = Self::new(clusters, self.worker) {
            *self = *balances;
        }
    }

    /// Copies what is known of members, where that has changed. Gives whether it has.
    pub(crate) fn refresh(&mut self) -> bool {
        self.shards.iter_mut().fold(false, |has_changed, shard| shard.refresh() | has_changed)
    }

    /// Whether something has changed that was not copied.
    pub(crate) fn is_outdated(&self) -> bool {
        self.shards.iter().any(Balance::is_outdated)
    }

    /// Lets time pass.
    pub(crate) fn tick<'a>(&mut self, now: Time, tally: impl Fn(PoolId) -> Option<&'a Tally>) {
        for shard in &mut self.shards {
            let cluster = Arc::clone(&shard.cluster);
            shard.tick(now, |at| tally(cluster.members[at].pool));
        }
    }

    /// Every member, with its pool.
    pub(crate) fn seats(&self) -> impl Iterator<Item = (Seat, PoolId)> {
        self.shards.iter().enumerate().flat_map(|(shard, balance)| {
            let members = balance.cluster.members.iter().enumerate();
            members.map(move |(member, of)| (Seat { shard, member }, of.pool))
        })
    }

    /// Whether a member would do.
    pub(crate) fn suits(&mut self, seat: Seat, request: &Request<'_>) -> bool {
        let is_there = request.shard.is_none_or(|wanted| usize::try_from(wanted) == Ok(seat.shard));
        let balance = self.shards.get_mut(seat.shard).filter(|_| is_there);
        balance.is_some_and(|balance| balance.suits(seat.member, request.of_shard(seat.shard)))
    }

    /// Whether a member with another pool than this would do.
    pub(crate) fn has_other(&self, pool: PoolId, request: &Request<'_>) -> bool {
        let shards = self.shards.iter().enumerate();
        let mut shards = shards.filter(|(shard, _)| {
            request.shard.is_none_or(|wanted| usize::try_from(wanted) == Ok(*shard))
        });
        shards.any(|(shard, balance)| balance.has_other(pool, request.of_shard(shard)))
    }

    /// The pool of the member that the next client of a role gets, where nothing but whose turn it is has
    /// to be known for that.
    #[inline]
    pub(crate) fn choose_plainly(
        &mut self,
        role: ServerRole,
        shard: Option<u32>,
    ) -> Option<PoolId> {
        let at = match shard {
            Some(shard) => usize::try_from(shard).ok()?,
            None if self.shards.len() == 1 => 0,
            None => self.next(),
        };
        self.shards.get_mut(at)?.choose_plainly(role)
    }

    /// The pool of the member that the next client of a role gets; `None` if none would do. `load` tells how
    /// much the servers of a pool have to do here.
    pub(crate) fn choose(&mut self, request: &Request<'_>, load: impl Fn(PoolId) -> u64) -> Choice {
        let count = self.shards.len();
        let (first, tries) = match request.shard.map(usize::try_from) {
            Some(Ok(shard)) => (shard, 1),
            Some(Err(_)) => return Choice::Nobody,
            None => (self.next(), count),
        };
        // Any shard will do: the next that has a member that would.
        let mut none = Choice::Nobody;
        for more in 0..tries {
            let at = if tries == 1 { first } else { (first + more) % count };
            let Some(balance) = self.shards.get_mut(at) else { continue };
            let (cluster, wanted) = (Arc::clone(&balance.cluster), request.of_shard(at));
            let chosen = balance.choose(wanted, |member| load(cluster.members[member].pool));
            let is_behind = request.floors.is_some() && balance.standbys_lack(wanted);
            match chosen {
                Some(member) => {
                    let pool = cluster.members[member].pool;
                    let is_kept = is_behind && balance.is_primary(member);
                    return if is_kept { Choice::Kept(pool) } else { Choice::Plain(pool) };
                }
                None if is_behind => {
                    cluster.state.tide.await_more();
                    none = Choice::Awaited;
                }
                None => {}
            }
        }
        none
    }

    /// The shard whose turn it is.
    fn next(&mut self) -> usize {
        self.turn = (self.turn + 1) % self.shards.len();
        self.turn
    }
}

//! Requests of several shards begin as limits over these allow, see [`Turn`].

use std::sync::Arc;

use howdah_wire::backend::{Severity, encode};

use super::{Core, Unsettled};
use crate::{
    Io, Limit,
    ids::{ClientId, PoolId},
    limits::{TryAcquireError, Turn},
    refusal::Refusal,
};

impl Core {
    /// A client's request begins on the first of its shards, or waits for its turn, or is refused because
    /// that will never come.
    pub(super) fn take_turn(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get(id) else { return };
        let Some(spread) = &client.spread else { return };
        let home = client.home;
        let needed = self.shared_limits(home, &spread.what.shards);
        let turn = match self.first_without_turn(home) {
            Some(first) if first != id => Err(TryAcquireError::NotNow),
            _ => Turn::try_take(needed),
        };
        let client = self.clients.get_mut(id);
        let Some(spread) = client.and_then(|client| client.spread.as_mut()) else { return };
        match turn {
            Err(TryAcquireError::NotNow) => {
                if !self.without_turn.contains(&(home, id)) {
                    self.without_turn.push_back((home, id));
                }
                return;
            }
            Ok(turn) => {
                spread.turn = Some(turn);
                self.unsettled.push(Unsettled::Client(id));
            }
            Err(TryAcquireError::Never { needed, max }) => {
                let (mut error, mut out) = (Vec::new(), Vec::new());
                let text = format!(
                    "this needs server connections of {needed} shards at a time, and a limit that they share \
                     allows {max}"
                );
                let fields =
                    encode::essentials(Severity::Error, TOO_MANY_CONNECTIONS, text.as_bytes());
                encode::error_response(&mut error, fields).expect("it holds no zero byte");
                spread.merger.refuse(&error, &mut out);
                io.told(id, &text);
                self.tell(id, &out, io);
            }
        }
        self.without_turn.retain(|waits| waits.1 != id);
        self.wake_turn(home);
    }

    /// Somebody is through: who waits for its turn tries again, and has the next try if that succeeds.
    pub(super) fn wake_turn(&mut self, home: PoolId) {
        let first = self.first_without_turn(home);
        self.unsettled.extend(first.map(Unsettled::Client));
    }

    /// Who has waited longest for its turn, in a database.
    fn first_without_turn(&mut self, home: PoolId) -> Option<ClientId> {
        let clients = &self.clients;
        let waits = |id: ClientId| {
            let spread = clients.get(id).and_then(|client| client.spread.as_ref());
            spread.is_some_and(|spread| spread.turn.is_none() && !spread.winds_up)
        };
        if self.without_turn.is_empty() {
            return None;
        }
        self.without_turn.retain(|(_, id)| waits(*id));
        self.without_turn.iter().find(|waits| waits.0 == home).map(|(_, id)| *id)
    }

    /// Others may have got through in other workers or databases; and some may have waited for too long.
    pub(in crate::core) fn sweep_turns(&mut self, io: &mut dyn Io) {
        for (home, id) in Vec::from_iter(self.without_turn.iter().copied()) {
            let Some(client) = self.clients.get(id) else { continue };
            let Some(pool) = &self.pools[home.index()] else { continue };
            let waited = self.now.since(client.since);
            let limit = pool.spec.timeouts.query_wait.filter(|_| !pool.spec.gate.is_paused());
            if limit.is_some_and(|limit| waited >= limit) {
                self.refuse(id, &Refusal::QueryWait, io);
            } else {
                self.wake_turn(home);
            }
        }
    }

    /// Limits that servers of several of a database's shards fall under, and of how many.
    fn shared_limits(&self, home: PoolId, shards: &[u32]) -> Vec<(Arc<Limit>, u32)> {
        let mut needed: Vec<(Arc<Limit>, u32)> = Vec::new();
        for shard in shards {
            let mut its: Vec<&Arc<Limit>> = Vec::new();
            for pool in self.family(home) {
                let Some(spec) = self.pools[pool.index()].as_ref().map(|pool| &pool.spec) else {
                    continue;
                };
                if spec.member.as_ref().is_some_and(|member| member.shard == *shard) {
                    its.extend(spec.server_limits.iter());
                }
            }
            its.sort_unstable_by_key(|limit| Arc::as_ptr(limit));
            its.dedup_by_key(|limit| Arc::as_ptr(limit));
            for limit in its {
                match needed.iter_mut().find(|(known, _)| Arc::ptr_eq(known, limit)) {
                    Some((_, count)) => *count += 1,
                    None => needed.push((Arc::clone(limit), 1)),
                }
            }
        }
        needed.retain(|(_, count)| *count > 1);
        needed
    }
}

/// SQLSTATE of a request that would need more servers than there may be.
const TOO_MANY_CONNECTIONS: &[u8] = b"53300";

//! Asking a server that was idle for long whether it still lives, before a client gets it.

use howdah_wire::frontend;

use super::Core;
use crate::{
    Io,
    dirt::SetKind,
    ids::{PoolId, ServerId},
    owed::{ReplyTarget, Request},
    server::ServerState,
};

impl Core {
    /// The server that the next client of a pool gets, if it need not be asked first.
    #[inline]
    pub(super) fn next_idle(&self, pool_id: PoolId) -> Option<ServerId> {
        let pool = self.pools[pool_id.index()].as_ref()?;
        if pool.spec.gate.is_paused() || self.is_suspended {
            return None;
        }
        let id = if pool.spec.round_robin { pool.idle.front() } else { pool.idle.back() };
        let id = *id?;
        let is_late = pool.spec.check.as_ref().is_some_and(|check| {
            let server = self.servers.get(id);
            let is_due = |since| self.now.since(since) >= check.idle;
            server.is_none_or(|server| !server.is_proven && is_due(server.since))
        });
        (!is_late).then_some(id)
    }

    /// Asks idle servers, as many as clients wait; who answers is given to them.
    pub(super) fn check_idle(&mut self, pool_id: PoolId, io: &mut dyn Io) {
        while !self.is_suspended {
            let pool = self.pool(pool_id);
            let Some(check) = &pool.spec.check else { return };
            if pool.waiting.len() <= pool.checking as usize || pool.spec.gate.is_paused() {
                return;
            }
            let query = check.query.clone();
            let Some(id) = pool.take_idle() else { return };
            pool.checking += 1;
            let now = self.now;
            let server = self.servers.get_mut(id).expect("idle servers exist");
            server.state = ServerState::Cleaning;
            server.since = now;
            server.is_checked = true;
            server.owed.push_for(ReplyTarget::Cleaning, Request::Query(SetKind::Lasting));
            self.to_server.make(|buf| {
                frontend::encode::query(buf, &query).expect("settings hold no zero byte");
            });
            self.flush_server(id, &[], io);
        }
    }
}

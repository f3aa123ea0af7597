//! Checks that a server that has been idle for a long time is still alive before a client gets it
//! (PgBouncer's `server_check_query`).

use howdah_wire::frontend;

use super::Core;
use crate::{
    CoreIo,
    messages::outstanding::{ReplyTarget, RequestKind},
    session::state::SetKind,
    state::{
        ids::{PoolId, ServerId},
        server::ServerState,
    },
};

impl Core {
    /// Returns the idle server for the next client of a pool. Returns `None` if there is none, if
    /// that server must be checked first, if the database is paused, or if the worker is suspended.
    #[inline]
    pub(super) fn next_idle_server(&self, pool_id: PoolId) -> Option<ServerId> {
        let pool = self.pools[pool_id.index()].as_ref()?;
        if pool.spec.admin_state.is_paused() || self.is_suspended {
            return None;
        }
        let id = if pool.spec.is_round_robin { pool.idle.front() } else { pool.idle.back() };
        let id = *id?;
        let is_late = pool.spec.check.as_ref().is_some_and(|check| {
            let server = self.servers.get(id);
            let is_due = |since| self.now.since(since) >= check.idle;
            server.is_none_or(|server| !server.has_passed_check && is_due(server.state_since))
        });
        (!is_late).then_some(id)
    }

    /// Sends the pool's check query, if it has one, to as many idle servers as there are waiting
    /// clients. Servers that pass the check are assigned to clients.
    pub(super) fn check_idle_servers(&mut self, pool_id: PoolId, io: &mut dyn CoreIo) {
        while !self.is_suspended {
            let pool = self.pool(pool_id);
            let Some(check) = &pool.spec.check else { return };
            if pool.waiting.len() <= pool.checking as usize || pool.spec.admin_state.is_paused() {
                return;
            }
            let query = check.query.clone();
            let Some(id) = pool.take_idle() else { return };
            pool.checking += 1;
            let now = self.now;
            let server = self.servers.get_mut(id).expect("idle servers exist");
            server.state = ServerState::Cleaning;
            server.state_since = now;
            server.is_in_check = true;
            server
                .outstanding
                .push_for(ReplyTarget::Cleaning, RequestKind::Query(SetKind::NeedsReset));
            self.to_server.push_with(|buf| {
                frontend::encode::query(buf, &query).expect("settings have no zero byte");
            });
            self.flush_server(id, &[], io);
        }
    }
}

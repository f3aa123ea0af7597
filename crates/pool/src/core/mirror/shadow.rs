//! Shadows: clients of the core's own, each of which plays a transaction on a mirror.

use std::sync::Arc;

use howdah_wire::{Frame, Frontend};

use super::{super::Core, commands::behind_zero, is_at_rest};
use crate::{
    Io,
    client::{Client, ClientState, Part, Syncing},
    core::{InjectedFault, Unsettled},
    deallocate,
    ids::{ClientId, PoolId},
    login::{CancelSecret, ClientLogin},
    mirror::{DropReason, MirrorClient, MirrorResult, Running, StreamId, Unit},
    prepared::ClientStatements,
    refusal::Refusal,
    statements::{Statements, sql_of},
};

impl Core {
    /// A shadow was told something.
    pub(in crate::core) fn shadow_hears(&mut self, stream: StreamId) {
        self.to_client.clear();
        self.unsettled.push(Unsettled::Stream(stream));
    }

    /// A shadow is about to be closed.
    pub(in crate::core) fn shadow_refused(&mut self, id: StreamId, refusal: &Refusal) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.target.mirror.failed(refusal);
        if let Some(running) = &mut stream.running {
            running.why = Some(DropReason::because(refusal));
        }
    }

    /// Goes on with what is run on a mirror for a client, as far as that can be.
    pub(in crate::core) fn follow_stream(&mut self, id: StreamId, io: &mut dyn Io) {
        loop {
            let Some(stream) = self.streams.get_mut(id) else { return };
            let Some(running) = &stream.running else {
                if stream.is_over() {
                    self.streams.remove(id);
                    return;
                }
                if !self.begin_shadow(id, io) {
                    if self.makes(InjectedFault::MirrorHoldsUp)
                        && let Some(client) = self.client_of(id)
                    {
                        self.replay_held(client, io);
                    }
                    return;
                }
                continue;
            };
            let shadow = running.shadow;
            match self.clients.get(shadow) {
                None => {
                    self.shadow_lost(id);
                    if self.makes(InjectedFault::MirrorFails)
                        && let Some(client) = self.client_of(id)
                        && self.clients.get(client).is_some_and(is_at_rest)
                    {
                        self.refuse(client, &Refusal::ServerLost, io);
                    }
                }
                Some(client) if is_at_rest(client) => self.shadow_done(id, shadow),
                Some(client) if self.is_left_over(client) => {
                    self.shadow_done(id, shadow);
                    // A transaction that is open there is rolled back, and a COPY ended.
                    self.client_left(shadow, io);
                }
                Some(_) => return,
            }
        }
    }

    /// Whether a shadow has said everything and was answered, and something is open all the same: what
    /// ended here has not ended there.
    fn is_left_over(&self, client: &Client) -> bool {
        let Some(server) = client.server().and_then(|server| self.servers.get(server)) else {
            return false;
        };
        client.inlet.held.is_empty()
            && client.inlet.at_boundary()
            && client.syncing == Syncing::No
            && !server.inlet.is_inside_forwarded()
            && !server.is_settled()
            && (server.owed.is_empty() || server.copying_in)
    }

    /// Has a shadow play what waits for longest. Gives whether there is one now.
    fn begin_shadow(&mut self, id: StreamId, io: &mut dyn Io) -> bool {
        let Some(stream) = self.streams.get_mut(id) else { return false };
        let pool = stream.target.pool;
        if !self.pools.get(pool.index()).is_some_and(Option::is_some) {
            stream.drop_waiting(DropReason::Unreachable);
        }
        let Some(unit) = stream.waiting.pop_front() else { return stream.is_over() };
        let statements = match &unit.statements {
            Some(statements) => ClientStatements::clone(statements),
            None => std::mem::take(&mut stream.statements),
        };
        let mut shadow = shadow_client(pool, &unit, id);
        shadow.statements = statements;
        (shadow.came, shadow.since) = (self.now, self.now);
        let bytes = Arc::clone(&unit.bytes);
        let shadow = self.clients.insert(shadow);
        self.shadows += 1;
        stream.running = Some(Running { unit, shadow, why: None });
        self.upstream(shadow, &bytes, io);
        true
    }

    /// What a shadow played is over.
    fn shadow_done(&mut self, id: StreamId, shadow: ClientId) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let Some(Running { unit, .. }) = stream.running.take() else { return };
        stream.give_room(unit.room);
        let mut error = None;
        if let Some(client) = self.clients.get_mut(shadow) {
            if let Part::Shadow(shadow) = &mut client.part {
                error = shadow.error.take();
            }
            let compared = stream.target.mirror.ran(unit.error, error.as_deref());
            // What it has prepared there may be more or less than here.
            stream.is_out_of_step |= compared != MirrorResult::Same;
            if is_at_rest(client) {
                self.remove_client(shadow);
            }
        }
        self.look_at_what_is_left(id, false);
    }

    /// A shadow is gone in the middle of what it played.
    fn shadow_lost(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        let Some(Running { unit, why, .. }) = stream.running.take() else { return };
        stream.give_room(unit.room);
        stream.target.mirror.drops(why.unwrap_or(DropReason::Lost), unit.bytes.len());
        register(&mut stream.statements, &unit.bytes, &self.statements);
        stream.is_out_of_step = true;
        self.look_at_what_is_left(id, true);
    }

    /// What a client has left behind has its time, and ends with the first failure.
    fn look_at_what_is_left(&mut self, id: StreamId, has_failed: bool) {
        let now = self.now;
        if let Some(stream) = self.streams.get_mut(id)
            && let Some(left) = stream.left
            && (has_failed || now.since(left) >= stream.target.timeout)
        {
            stream.drop_waiting(DropReason::Left);
        }
    }
}

/// A client that plays a transaction.
fn shadow_client(pool: PoolId, unit: &Unit, stream: StreamId) -> Client {
    // It is given no key, and speaks no protocol with anybody.
    let login = ClientLogin {
        user: None,
        pool,
        version: howdah_wire::startup::ProtocolVersion::V3_0,
        secret: CancelSecret([0; 32]),
        settings: Vec::new(),
        role: None,
    };
    let mut shadow = Client::new(&login, Arc::clone(&unit.wishes));
    shadow.startup = Arc::clone(&unit.startup);
    shadow.state = ClientState::Idle;
    shadow.part = Part::Shadow(MirrorClient { stream, error: None });
    shadow
}

/// Notes what a transaction prepares and ends that was not run to its end.
fn register(known: &mut ClientStatements, bytes: &[u8], statements: &Statements) {
    let mut rest = bytes;
    while let Ok(Some((Frame { tag, body }, behind))) = Frame::split(rest, u32::MAX) {
        rest = behind;
        match Frontend::from_tag(tag) {
            Some(Frontend::Parse) => {
                let (name, text) = (sql_of(body), behind_zero(body));
                if name.is_empty() {
                    known.set_unnamed(text, false, None);
                } else {
                    known.named.insert(name.into(), statements.intern(text, None));
                }
            }
            Some(Frontend::Close) => {
                if let Some(name) = body.strip_prefix(b"S") {
                    known.named.remove(sql_of(name));
                }
            }
            Some(Frontend::Query) => {
                let sql = sql_of(body);
                known.drop_unnamed();
                match deallocate::name(sql) {
                    Some(name) => drop(known.named.remove(&name[..])),
                    None if deallocate::begins(sql) => known.named.clear(),
                    None => {}
                }
            }
            _ => {}
        }
    }
}

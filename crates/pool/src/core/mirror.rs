//! What is run on mirrors: clients are drawn, what they send is kept until it is known how it ended, and
//! [shadows](shadow) play it. See [`crate::mirror`].
//!
//! Nothing here is on the way of a client's bytes but a copy of them: a shadow begins, is heard and ends when
//! the call that brought its occasion is over ([`Core::follow_spreads`]), and a client never waits for one.

mod commands;
mod shadow;

use std::sync::Arc;

use howdah_wire::Frontend;

use super::{
    Core, Unsettled,
    reply::{Listener, Reply},
    tap::is_between_transactions,
};
use crate::{
    client::{Client, ClientState, Part},
    ids::ClientId,
    mirror::{
        DropReason, MirrorError, MirrorTarget, Mirrored, Open, Stream, StreamId, Take, Unit,
        sqlstate_in,
    },
    prepared::ClientStatements,
};

/// What a transaction takes of the room beside its bytes: about what is kept of it.
const UNIT_BYTES: usize = 256;

/// The same of a prepared statement, whose text is shared.
const STATEMENT_BYTES: usize = 64;

/// Whether clients of the one are drawn and treated as those of the other.
pub(super) fn same_mirrors(before: &[MirrorTarget], now: &[MirrorTarget]) -> bool {
    before.len() == now.len()
        && before.iter().zip(now).all(|(before, now)| {
            before.draws_as(now)
                && before.client_bytes == now.client_bytes
                && before.buffer_bytes == now.buffer_bytes
                && before.timeout == now.timeout
        })
}

impl Core {
    /// Decides whether a new client is mirrored, and where.
    pub(super) fn draw(&mut self, client: &mut Client) {
        let Some(Some(pool)) = self.pools.get(client.home.index()) else { return };
        if pool.spec.mirrors.is_empty() {
            return;
        }
        let targets = Arc::clone(&pool.spec.mirrors);
        let drawn = targets.iter().filter(|target| target.mirror.draws(target.share));
        let streams =
            drawn.map(|target| self.streams.insert(Stream::new(target.clone()))).collect();
        self.mirrors(client, Mirrored { streams, open: None });
    }

    /// Says which mirrors a client has from now on.
    fn mirrors(&mut self, client: &mut Client, mirrored: Mirrored) {
        self.mirrored -= usize::from(matches!(client.part, Part::Mirrored(_)));
        client.part = if mirrored.streams.is_empty() {
            Part::Whole
        } else {
            self.mirrored += 1;
            Part::Mirrored(Box::new(mirrored))
        };
        self.overhears = self.tape.is_some() || self.mirrored > 0;
    }

    /// Has clients follow other mirrors. Who was drawn for one that is there as before stays drawn.
    pub(super) fn draw_again(&mut self) {
        for (home, before) in std::mem::take(&mut self.mirrors_before) {
            let Some(Some(pool)) = self.pools.get(home.index()) else { continue };
            let now = Arc::clone(&pool.spec.mirrors);
            for index in 0..self.clients.slots() {
                let is_its = |client: &Client| client.home == home && client.is_somebody();
                if let Some((id, _)) = self.clients.at(index).filter(|(_, it)| is_its(it)) {
                    self.draw_client_again(id, &before, &now);
                }
            }
        }
    }

    fn draw_client_again(&mut self, id: ClientId, before: &[MirrorTarget], now: &[MirrorTarget]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (mut had, open) = match &mut client.part {
            Part::Mirrored(mirrored) => {
                (std::mem::take(&mut mirrored.streams), mirrored.open.take())
            }
            _ => (Vec::new(), None),
        };
        let mut streams = Vec::new();
        for target in now {
            let own = |id: &StreamId| {
                let stream = self.streams.get(*id);
                stream.is_some_and(|stream| Arc::ptr_eq(&stream.target.mirror, &target.mirror))
            };
            let own = had.iter().position(own).map(|at| had.remove(at));
            let stays = before.iter().any(|before| before.draws_as(target));
            let is_drawn = if stays { own.is_some() } else { target.mirror.draws(target.share) };
            match own {
                Some(own) if is_drawn => {
                    if let Some(stream) = self.streams.get_mut(own) {
                        stream.target = target.clone();
                    }
                    streams.push(own);
                }
                Some(own) => had.push(own),
                None if is_drawn => streams.push(self.streams.insert(Stream::new(target.clone()))),
                None => {}
            }
        }
        for gone in had {
            self.leave_stream(gone, DropReason::Left);
        }
        // Only what is its client's part changes: nothing else looks at that meanwhile.
        if let Some(client) = self.clients.get_mut(id) {
            let part = std::mem::replace(&mut client.part, Part::Whole);
            self.mirrored -= usize::from(matches!(part, Part::Mirrored(_)));
            let open = open.filter(|_| !streams.is_empty());
            if !streams.is_empty() {
                self.mirrored += 1;
                client.part = Part::Mirrored(Box::new(Mirrored { streams, open }));
            }
        }
        self.overhears = self.tape.is_some() || self.mirrored > 0;
    }

    /// The client whose transactions a stream has, while it is there: for mistakes that are planted.
    #[cold]
    pub(super) fn client_of(&self, stream: StreamId) -> Option<ClientId> {
        let is_its = |client: &Client| match &client.part {
            Part::Mirrored(mirrored) => mirrored.streams.contains(&stream),
            _ => false,
        };
        let all = (0..self.clients.slots()).filter_map(|index| self.clients.at(index));
        all.into_iter().find(|(_, client)| is_its(client)).map(|(id, _)| id)
    }

    /// Whether something that a client sent is still to be run on a mirror: for mistakes that are planted.
    #[cold]
    pub(super) fn is_ahead_of_mirrors(&self, id: ClientId) -> bool {
        let Some(Part::Mirrored(mirrored)) = self.clients.get(id).map(|client| &client.part) else {
            return false;
        };
        let streams = mirrored.streams.iter().filter_map(|stream| self.streams.get(*stream));
        let is_behind = |stream: &Stream| stream.running.is_some() || !stream.waiting.is_empty();
        streams.into_iter().any(is_behind)
    }

    /// A client is gone, or a shadow: what was kept of it goes where it belongs.
    pub(super) fn end_mirroring(&mut self, client: &mut Client) {
        match &mut client.part {
            Part::Whole | Part::Leg(_) => {}
            Part::Mirrored(mirrored) => {
                let seen = mirrored.open.take().map(|open| open.seen);
                for id in std::mem::take(&mut mirrored.streams) {
                    if let (Some(seen), Some(stream)) = (seen, self.streams.get_mut(id)) {
                        stream.take_no_more(DropReason::Left);
                        stream.end_take(seen);
                    }
                    self.leave_stream(id, DropReason::Left);
                }
                client.part = Part::Whole;
                self.mirrored -= 1;
                self.overhears = self.tape.is_some() || self.mirrored > 0;
            }
            Part::Shadow(shadow) => {
                self.shadows -= 1;
                self.unsettled.push(Unsettled::Stream(shadow.stream));
                if let Some(stream) = self.streams.get_mut(shadow.stream) {
                    stream.statements = std::mem::take(&mut client.statements);
                }
            }
        }
    }

    /// Nothing more comes for a mirror from this client.
    fn leave_stream(&mut self, id: StreamId, why: DropReason) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        if stream.left.is_none() {
            stream.take_no_more(why);
            stream.left = Some(self.now);
            stream.target.mirror.leaves();
        }
        self.unsettled.push(Unsettled::Stream(id));
    }

    /// A client sent these bytes: mirrors are to have them, too.
    pub(super) fn keep_for_mirrors(&mut self, id: ClientId, bytes: &[u8]) {
        let Self { clients, servers, streams, .. } = self;
        let Some(client) = clients.get_mut(id) else { return };
        if !matches!(client.part, Part::Mirrored(_)) {
            return;
        }
        let begins = has_not_begun(client) && is_between_transactions(client, servers);
        let Client { part, statements, wishes, .. } = client;
        let Part::Mirrored(mirrored) = part else { return };
        let streams_of = |streams: &mut crate::slab::Slab<StreamId, Stream>,
                          of: &mut dyn FnMut(&mut Stream)| {
            for id in &mirrored.streams {
                if let Some(stream) = streams.get_mut(*id) {
                    of(stream);
                }
            }
        };
        if mirrored.open.is_none() {
            // It became mirrored in the middle of something, or says goodbye.
            if !begins || bytes.first() == Some(&Frontend::Terminate.tag().0) {
                return;
            }
            let mut is_out_of_step = false;
            streams_of(streams, &mut |stream| is_out_of_step |= stream.is_out_of_step);
            let snapshot = is_out_of_step.then(|| Arc::new(statements.clone()));
            let room = snapshot.as_ref().map_or(0, |it| room_of(it));
            streams_of(streams, &mut |stream| {
                stream.take = Take::Yes;
                stream.take_more(UNIT_BYTES);
                stream.take_statements(room);
            });
            mirrored.open = Some(Open {
                bytes: Vec::new(),
                seen: 0,
                wishes: Arc::clone(wishes),
                statements: snapshot,
                error: None,
                is_cancelled: false,
            });
        }
        let mut is_taken = false;
        streams_of(streams, &mut |stream| {
            stream.take_more(bytes.len());
            is_taken |= stream.take == Take::Yes;
        });
        let Some(open) = &mut mirrored.open else { return };
        open.seen += bytes.len();
        match is_taken {
            true => open.bytes.extend_from_slice(bytes),
            false => open.bytes = Vec::new(),
        }
    }

    /// A client is greeted. What it sent before that is held.
    pub(super) fn keep_held(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if matches!(client.part, Part::Mirrored(_)) && !client.inlet.held.is_empty() {
            let held = std::mem::take(&mut client.inlet.held);
            self.keep_for_mirrors(id, &held);
            if let Some(client) = self.clients.get_mut(id) {
                client.inlet.held = held;
            }
        }
    }

    /// Somebody cancels a client's statement: it is not to run elsewhere.
    pub(super) fn cancels_unit(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(id)
            && let Part::Mirrored(mirrored) = &mut client.part
            && let Some(open) = &mut mirrored.open
        {
            open.is_cancelled = true;
        }
    }

    /// A mirrored client has got further: if it is between two transactions, what it sent since it was last
    /// waits for mirrors.
    pub(super) fn end_unit(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if !is_at_rest(client) {
            return;
        }
        let Client { part, statements, startup, routing, .. } = client;
        let Part::Mirrored(mirrored) = part else { return };
        let Some(open) = mirrored.open.take() else { return };
        let Open { mut bytes, seen, wishes, statements: snapshot, error, is_cancelled } = open;
        if routing.is_some() {
            bytes = commands::without(bytes, statements);
        }
        let bytes = Arc::new(bytes);
        for id in &mirrored.streams {
            let Some(stream) = self.streams.get_mut(*id) else { continue };
            if is_cancelled {
                stream.take_no_more(DropReason::Cancelled);
            }
            let Some(room) = stream.end_take(seen) else { continue };
            if bytes.is_empty() {
                stream.give_room(room);
                continue;
            }
            // It may have got out of step after the transaction began: then the next one tells.
            let snapshot = snapshot.clone().filter(|_| stream.is_out_of_step);
            stream.is_out_of_step &= snapshot.is_none();
            let (wishes, startup) = (Arc::clone(&wishes), Arc::clone(startup));
            let bytes = Arc::clone(&bytes);
            stream.waiting.push_back(Unit {
                bytes,
                room,
                wishes,
                startup,
                statements: snapshot,
                error,
            });
            self.unsettled.push(Unsettled::Stream(*id));
        }
    }
}

impl Listener<'_> {
    /// An error has come, and this is what becomes of it: whoever compares is to know of those that a
    /// client is told.
    pub(super) fn note_error(&mut self, body: &[u8], reply: &Reply) {
        let Some(client) = self.client.as_deref_mut() else { return };
        if !matches!(reply, Reply::Forward | Reply::Replace(_)) {
            return;
        }
        match &mut client.part {
            Part::Mirrored(mirrored) => {
                if let Some(open) = &mut mirrored.open {
                    open.error.get_or_insert_with(|| sqlstate_in(body));
                }
            }
            Part::Shadow(shadow) => {
                shadow.error.get_or_insert_with(|| Box::new(MirrorError::new(body)));
            }
            Part::Whole | Part::Leg(_) => {}
        }
    }
}

/// Whether a client is between two transactions, and everything it has sent is dealt with.
fn is_at_rest(client: &Client) -> bool {
    client.state == ClientState::Idle && !client.asks() && has_not_begun(client)
}

/// Whether the pooler has not told it that a transaction has begun of which no server knows.
fn has_not_begun(client: &Client) -> bool {
    client.routing.as_ref().is_none_or(|routing| routing.begun.is_none())
}

/// How much room it takes to tell what a client has prepared.
fn room_of(statements: &ClientStatements) -> usize {
    let names = statements.named.keys();
    statements.unnamed.len() + names.map(|name| name.len() + STATEMENT_BYTES).sum::<usize>()
}

//! Requests that are done on several shards: legs begin, are heard, and end. See [`crate::spread`].
//!
//! What a leg's answers lead to is done when the call that brought them is over ([`Core::follow_spreads`]):
//! in the middle of one, other servers' bytes may be half gathered.

mod copy;
mod turn;

use howdah_route::Merger;

use super::{Core, Unsettled, cancel::write_cancelled};
use crate::{
    Io,
    client::{Client, ClientState, Part},
    ids::{ClientId, Peer},
    inlet::Fate,
    login::{CancelSecret, ClientLogin},
    spread::{CopyPhase, Copying, FanOutRequest, Leg, Spread},
};

impl Core {
    /// A client's request is done on several shards from now on.
    pub(super) fn spread(&mut self, id: ClientId, what: FanOutRequest, io: &mut dyn Io) {
        let body_bytes_max = self.body_bytes_max;
        let now = self.now;
        let Some(client) = self.clients.get_mut(id) else { return };
        let mut merger = Merger::new(what.shards.len(), what.text_by_byte, body_bytes_max);
        what.asked.iter().cloned().for_each(|asked| merger.asked(asked));
        let copying = what.copy.as_ref().and_then(|rows| Copying::new(rows, what.shards.len()));
        let spread =
            Spread { what, merger, legs: Vec::new(), copying, winds_up: false, turn: None };
        client.spread = Some(Box::new(spread));
        client.state = ClientState::Spread;
        client.since = now;
        self.unsettled.push(Unsettled::Client(id));
        self.update_pause(Peer::Client(id), io);
    }

    /// Goes on with everything that is done on several shards, as far as that can be.
    #[inline]
    pub(super) fn follow_spreads(&mut self, io: &mut dyn Io) {
        if !self.unsettled.is_empty() {
            self.settle(io);
        }
    }

    #[cold]
    fn settle(&mut self, io: &mut dyn Io) {
        while let Some(unsettled) = self.unsettled.pop() {
            match unsettled {
                Unsettled::Client(id) => {
                    self.follow_spread(id, io);
                    self.end_unit(id);
                }
                Unsettled::Stream(id) => self.follow_stream(id, io),
            }
        }
    }

    fn follow_spread(&mut self, id: ClientId, io: &mut dyn Io) {
        self.collect_legs(id, io);
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(spread) = &mut client.spread else { return };
        if spread.merger.has_failed() && !spread.winds_up {
            spread.winds_up = true;
            return self.wind_up(id, io);
        }
        if spread.turn.is_none() && !spread.winds_up {
            return self.take_turn(id, io);
        }
        let has_begun_all = spread.legs.len() == spread.what.shards.len();
        if !has_begun_all {
            let last = spread.legs.last().copied().flatten();
            let waits = last.and_then(|leg| self.clients.get(leg));
            if waits.is_none_or(|leg| leg.server().is_some()) {
                self.begin_leg(id, io);
            }
            return;
        }
        if self.copy_follows(id, io) {
            return;
        }
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(spread) = &client.spread else { return };
        if spread.merger.is_done() && spread.legs.iter().all(Option::is_none) {
            if let Some(copying) = &spread.copying {
                // What is still to come of rows that nobody wants.
                client.inlet.body_left = copying.data_left;
                client.inlet.fate = Fate::Drop;
            }
            client.spread = None;
            client.state = ClientState::Idle;
            client.since = self.now;
            let home = client.home;
            self.wake_turn(home);
            self.update_pause(Peer::Client(id), io);
            self.replay_held(id, io);
        }
    }

    /// The next leg begins.
    fn begin_leg(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(parent) = self.clients.get_mut(id) else { return };
        let Some(spread) = &mut parent.spread else { return };
        let place = spread.legs.len();
        let secret = CancelSecret([0; 32]);
        let (pool, version) = (parent.home, parent.version);
        let login =
            ClientLogin { pool, user: None, version, secret, settings: Vec::new(), role: None };
        let mut leg = Client::new(&login, parent.wishes.clone());
        leg.startup = parent.startup.clone();
        leg.statements = parent.statements.clone();
        leg.state = ClientState::Idle;
        leg.roams = true;
        (leg.role, leg.may_lead) = (spread.what.role, spread.what.may_lead);
        leg.minds_writes = parent.minds_writes;
        leg.floors.clone_from(&parent.floors);
        leg.shard = Some(spread.what.shards[place]);
        leg.part = Part::Leg(Leg { parent: id, place });
        leg.came = self.now;
        leg.since = self.now;
        leg.backlogged = parent.backlogged;
        let request = spread.what.request.clone();
        let leg = self.clients.insert(leg);
        let spread = self.clients.get_mut(id).and_then(|parent| parent.spread.as_mut());
        spread.expect("it has one").legs.push(Some(leg));
        self.upstream(leg, &request, io);
        self.unsettled.push(Unsettled::Client(id));
    }

    /// What a leg is told goes to its client, together with what the others are.
    pub(super) fn leg_hears(&mut self, leg: Leg, input: &[u8], io: &mut dyn Io) {
        let mut bytes = Vec::new();
        self.to_client.copy(input, usize::MAX, &mut bytes);
        self.to_client.clear();
        let Some(parent) = self.clients.get_mut(leg.parent).filter(|_| !bytes.is_empty()) else {
            return;
        };
        let Some(spread) = &mut parent.spread else { return };
        let mut out = Vec::new();
        spread.merger.push(leg.place, &bytes, &mut out);
        self.tell(leg.parent, &out, io);
    }

    /// Tells a client what came of its legs.
    fn tell(&mut self, id: ClientId, out: &[u8], io: &mut dyn Io) {
        self.unsettled.push(Unsettled::Client(id));
        if !out.is_empty() {
            self.to_client.make(|buf| buf.extend_from_slice(out));
            self.flush_client(id, &[], io);
        }
        self.pause_legs(id, io);
    }

    /// Has servers be read from, or not, as their client has taken what there was, and as they are ahead of
    /// each other.
    pub(super) fn pause_legs(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(parent) = self.clients.get_mut(id) else { return };
        let Some(mut spread) = parent.spread.take() else { return };
        let is_backlogged = parent.backlogged;
        for (place, leg) in spread.legs.iter().enumerate() {
            let Some(leg) = leg.and_then(|leg| self.clients.get_mut(leg)) else { continue };
            leg.backlogged = is_backlogged || spread.merger.is_full(place);
            if let Some(server) = leg.server() {
                self.update_pause(Peer::Server(server), io);
            }
        }
        if let Some(parent) = self.clients.get_mut(id) {
            parent.spread = Some(spread);
        }
    }

    /// Whether a server that a client's rows go to has not taken all that was sent to it.
    pub(super) fn legs_are_behind(&self, spread: &Spread) -> bool {
        let servers = spread
            .legs
            .iter()
            .flatten()
            .filter_map(|leg| self.clients.get(*leg).and_then(Client::server));
        servers.filter_map(|id| self.servers.get(id)).any(|server| server.backlogged)
    }

    /// Takes out legs that have ended, well or not.
    fn collect_legs(&mut self, id: ClientId, io: &mut dyn Io) {
        let count =
            self.clients.get(id).and_then(|client| Some(client.spread.as_ref()?.legs.len()));
        for place in 0..count.unwrap_or_default() {
            let spread = self.clients.get(id).and_then(|client| client.spread.as_ref());
            let Some(leg) = spread.and_then(|spread| spread.legs[place]) else { continue };
            match self.clients.get(leg) {
                Some(client) if client.state == ClientState::Idle => {
                    let leg = self.remove_client(leg);
                    let (statements, floors) = leg.map(|leg| (leg.statements, leg.floors)).unzip();
                    let Some(parent) = self.clients.get_mut(id) else { return };
                    let Some(spread) = &mut parent.spread else { return };
                    spread.legs[place] = None;
                    if let Some(floors) = floors.flatten() {
                        parent.floors.get_or_insert_default().rise_to(&floors);
                    }
                    // What it has prepared, it has prepared everywhere.
                    if let Some(statements) = statements.filter(|_| place == 0) {
                        parent.statements = statements;
                    }
                }
                Some(_) => {}
                None => {
                    let Some(parent) = self.clients.get_mut(id) else { return };
                    let Some(spread) = &mut parent.spread else { return };
                    spread.legs[place] = None;
                    let mut out = Vec::new();
                    spread.merger.lost(place, &mut out);
                    self.tell(id, &out, io);
                }
            }
        }
    }

    /// The client was told of an error: what has not begun does not begin, what runs is cancelled.
    fn wind_up(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(spread) = self.clients.get_mut(id).and_then(|it| it.spread.as_mut()) else {
            return;
        };
        let mut out = Vec::new();
        for place in spread.legs.len()..spread.what.shards.len() {
            spread.legs.push(None);
            spread.merger.lost(place, &mut out);
        }
        let is_copy = spread.copying.is_some();
        let legs: Vec<_> = spread.legs.iter().flatten().copied().collect();
        self.tell(id, &out, io);
        for leg in legs {
            match self.clients.get(leg).map(|client| client.state) {
                Some(ClientState::Waiting) => self.client_left(leg, io),
                Some(ClientState::Linked(_)) if !is_copy => self.cancel_of(leg, io),
                _ => {}
            }
        }
        self.unsettled.push(Unsettled::Client(id));
    }

    /// Somebody wants a client's request cancelled that is done on several shards.
    pub(super) fn cancel_legs(&mut self, id: ClientId, io: &mut dyn Io) {
        let client = self.clients.get_mut(id);
        let Some(spread) = client.and_then(|client| client.spread.as_mut()) else { return };
        if spread.turn.is_none() {
            let (mut error, mut out) = (Vec::new(), Vec::new());
            write_cancelled(&mut error);
            spread.merger.refuse(&error, &mut out);
            return self.tell(id, &out, io);
        }
        let legs: Vec<_> = spread.legs.iter().flatten().copied().collect();
        for leg in legs {
            self.cancel_of(leg, io);
        }
        self.unsettled.push(Unsettled::Client(id));
    }

    /// A client is gone, and its legs with it.
    pub(super) fn end_legs(&mut self, client: &Client, io: &mut dyn Io) {
        for leg in client.spread.iter().flat_map(|spread| spread.legs.iter().flatten()) {
            self.client_left(*leg, io);
        }
        self.unsettled.extend(client.leg().map(|leg| Unsettled::Client(leg.parent)));
        if client.spread.is_some() {
            self.wake_turn(client.home);
        }
    }

    /// The client that somebody knows of: of a leg, the one that it works for.
    pub(super) fn whose(&self, id: ClientId) -> ClientId {
        self.clients.get(id).and_then(Client::leg).map_or(id, |leg| leg.parent)
    }

    /// Whether what a client asked of several shards is known to come to nothing.
    pub(super) fn has_failed(&self, id: ClientId) -> bool {
        let spread = self.clients.get(id).and_then(|client| client.spread.as_ref());
        spread.is_some_and(|spread| spread.merger.has_failed())
    }

    /// How far the COPY of a client is.
    fn copy_phase(&self, id: ClientId) -> Option<CopyPhase> {
        let spread = self.clients.get(id)?.spread.as_ref()?;
        spread.copying.as_ref().map(|copying| copying.phase)
    }
}

//! Calls of cores, and what they order.

use super::{AT_LOGIN, End, Event, MS, Worker, World, mirror::Fate, network::Link, wire::Order};
use crate::{Core, Io, Peer, Time, WorkerId, sim::backend::Backend};

impl World {
    /// Calls a core, then does what it ordered.
    pub(super) fn call<T>(
        &mut self,
        worker: usize,
        call: impl FnOnce(&mut Core, Time, &mut dyn Io) -> T,
    ) -> T {
        let now = Time(self.now);
        let Worker { core, wire, .. } = &mut self.workers[worker];
        let result = call(core, now, wire);
        for order in std::mem::take(&mut self.workers[worker].wire.orders) {
            self.obey(worker, order);
        }
        result
    }

    pub(super) fn obey(&mut self, worker: usize, order: Order) {
        let end = |world: &Self, peer| world.workers[worker].ends.get(&peer).copied();
        match order {
            Order::Send(peer, bytes) => {
                if let Some(end) = end(self, peer) {
                    self.down(end, bytes);
                }
            }
            Order::Drain(peer) => {
                let at = self.now + 1 + self.random.below(20 * MS);
                self.at(at, Event::Drained(worker, peer));
            }
            Order::Resume(peer) => {
                if let Some(end) = end(self, peer) {
                    let unread = std::mem::take(&mut self.link(end).inbox);
                    for bytes in unread {
                        self.at(self.now, Event::ToCore(end, bytes));
                    }
                }
            }
            Order::Close(peer) => {
                self.trace(&format_args!("{worker} closes {peer:?}"), b".");
                self.workers[worker].wire.slow.remove(&peer);
                self.workers[worker].wire.paused.remove(&peer);
                let Some(end) = self.workers[worker].ends.remove(&peer) else { return };
                let down = self.link(end).down.max(self.now);
                self.link(end).at = None;
                match end {
                    End::Client(client) => self.at(down + 1, Event::ClientCut(client)),
                    End::Backend(backend) => self.backends[backend].1.closed = true,
                }
            }
            Order::Open(server, pool) => {
                self.trace(&format_args!("{worker} opens {server:?} of {pool:?}"), b".");
                self.trace_hosts();
                let backend = self.backends.len();
                let link = Link { pool, ..Link::default() };
                let mut opened = Backend::new(&AT_LOGIN);
                opened.shard = self.shards.as_ref().and_then(|shards| shards.of(pool));
                self.backends.push((opened, link));
                self.attach(End::Backend(backend), worker, Peer::Server(server));
                let fate = self.fate(pool);
                let fails = fate == Some(Fate::Fails);
                let (refuses, kills) = if fails { (50, 60) } else { (10, 20) };
                let succeeds = !((self.faults || fails) && self.random.percent(refuses));
                let at = self.now + self.random.below(20 * MS);
                // Of those that hang, every second takes nobody.
                if fate != Some(Fate::Hangs) || self.random.percent(50) {
                    self.at(at, Event::LoggedIn(backend, succeeds));
                }
                if self.outdates {
                    let at = self.now + self.random.below(100 * MS);
                    self.at(at, Event::Outdate(backend));
                }
                if (self.faults || fails) && self.random.percent(kills) {
                    let at = self.now + self.random.below(300 * MS);
                    self.at(at, Event::Kill(backend));
                }
            }
            Order::Cancel(server) => {
                self.trace(&format_args!("{worker} cancels {server:?}"), b".");
                let Some(End::Backend(backend)) = end(self, Peer::Server(server)) else { return };
                // Nobody, where the pooler has given up what it plays on a mirror, or what a server does not
                // answer.
                let is_mirror = self.is_mirror(self.backends[backend].1.pool);
                let client = self.acting.filter(|_| !is_mirror);
                let server = (worker, server);
                let at = self.now + 1 + self.random.below(40 * MS);
                self.at(at, Event::CancelArrives { backend, client, server });
            }
            Order::Listen(client) => {
                let at = self.now + self.random.below(20 * MS);
                self.at(at, Event::Listened(worker, client));
            }
            Order::Want(pool) => {
                for other in (0..self.workers.len()).filter(|other| *other != worker) {
                    let by = WorkerId(u8::try_from(worker).unwrap());
                    self.soon(Event::Wanted(other, pool, by));
                }
            }
            Order::HandOver(server, to, transfer) => {
                let peer = Peer::Server(server);
                let Some(End::Backend(backend)) = self.workers[worker].ends.remove(&peer) else {
                    return;
                };
                self.workers[worker].wire.slow.remove(&peer);
                self.backends[backend].1.at = None;
                self.soon(Event::Adopt(usize::from(to.0), backend, transfer));
            }
        }
    }
}

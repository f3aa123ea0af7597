//! [`Startups`]: the connections of all workers that have not logged in, and the choice of one to
//! close when the limit is reached.
//!
//! An attacker that opens sockets and sends nothing, or only an occasional byte, must not lock
//! others out. At the limit, each new connection replaces one that keeps the pooler waiting.
//! Addresses are searched from the one with the most connections down. At each address, the
//! candidate is the oldest connection without a startup packet (including one in its TLS
//! handshake), or else the oldest one that has not answered an authentication request, if the
//! address has at least two more connections than the new one's. If none qualifies, the new
//! connection is refused.
//!
//! Unix sockets are counted separately, so that the console stays reachable during a flood of TCP
//! connections.
//!
//! # Cost
//!
//! One short lock at the start and the end of a login, and at each change of its stage.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use howdah_pool_core::WorkerId;
use parking_lot::{Mutex, MutexGuard};

/// Maximum number of addresses searched for a connection to close; those with the most connections
/// come first.
const ADDRESSES_MAX: usize = 64;

/// The connections of all workers that have not logged in.
#[derive(Debug, Default)]
pub(super) struct Startups {
    tcp: Mutex<StartupGroup>,
    unix: Mutex<StartupGroup>,
}

/// The progress of a connection that has not logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartupStage {
    /// The startup packet has not arrived.
    Silent,
    /// The client has not answered an authentication request.
    AwaitingResponse,
    /// The client waits for the pooler.
    Busy,
}

/// Identifies a connection by its worker and socket slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartupRef {
    pub(super) worker: WorkerId,
    pub(super) slot: usize,
    pub(super) generation: u32,
}

/// The entry of a connection in [`Startups`], removed when this is dropped.
#[derive(Debug)]
pub(super) struct StartupGuard {
    startups: Arc<Startups>,
    is_unix: bool,
    id: u64,
    stage: StartupStage,
}

#[derive(Debug, Default)]
struct StartupGroup {
    last_id: u64,
    /// The connections by ID. IDs count up in order of arrival.
    entries: HashMap<u64, StartupEntry>,
    networks: HashMap<ClientNetwork, NetworkEntries>,
    /// Each network with its number of connections.
    by_count: BTreeSet<(usize, ClientNetwork)>,
}

#[derive(Debug)]
struct StartupEntry {
    network: ClientNetwork,
    stage: StartupStage,
    socket: StartupRef,
}

#[derive(Debug, Default)]
struct NetworkEntries {
    count: usize,
    silent: BTreeSet<u64>,
    awaiting_response: BTreeSet<u64>,
}

/// The origin of connections: an IPv4 address, or an IPv6 /64 network, which one host may own
/// entirely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct ClientNetwork(u128);

impl ClientNetwork {
    fn from_address(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Self::default(),
            Some(IpAddr::V4(address)) => Self(address.to_ipv6_mapped().to_bits()),
            Some(IpAddr::V6(address)) => Self(address.to_bits() >> 64 << 64),
        }
    }
}

/// The error if the limit is reached and no connection can be closed to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartupsFull;

impl Startups {
    /// Adds a connection; at most `max` are kept. Returns its entry, and the connection to close in
    /// its place, if any.
    ///
    /// # Errors
    ///
    /// [`StartupsFull`]: no connection can be closed to make room.
    pub(super) fn admit(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        is_unix: bool,
        max: usize,
        socket: StartupRef,
    ) -> Result<(StartupGuard, Option<StartupRef>), StartupsFull> {
        let mut group = self.group(is_unix);
        let network = ClientNetwork::from_address(address);
        let victim = if group.entries.len() < max {
            None
        } else {
            let victim = group.victim(network).ok_or(StartupsFull)?;
            Some(group.remove(victim).ok_or(StartupsFull)?)
        };
        let id = group.insert(network, socket);
        drop(group);
        let startup =
            StartupGuard { startups: Arc::clone(self), is_unix, id, stage: StartupStage::Silent };
        Ok((startup, victim))
    }

    /// Returns the number of connections that have not logged in.
    pub(super) fn count(&self) -> usize {
        self.group(false).entries.len() + self.group(true).entries.len()
    }

    fn group(&self, is_unix: bool) -> MutexGuard<'_, StartupGroup> {
        let group = if is_unix { &self.unix } else { &self.tcp };
        group.lock()
    }
}

impl StartupGuard {
    /// Changes the stage of the connection.
    pub(super) fn set_stage(&mut self, stage: StartupStage) {
        if self.stage != stage {
            self.stage = stage;
            self.startups.group(self.is_unix).set_stage(self.id, stage);
        }
    }
}

impl Drop for StartupGuard {
    fn drop(&mut self) {
        self.startups.group(self.is_unix).remove(self.id);
    }
}

impl StartupGroup {
    fn insert(&mut self, network: ClientNetwork, socket: StartupRef) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.entries.insert(id, StartupEntry { network, stage: StartupStage::Silent, socket });
        let entries = self.networks.entry(network).or_default();
        entries.silent.insert(id);
        entries.count += 1;
        self.by_count.remove(&(entries.count - 1, network));
        self.by_count.insert((entries.count, network));
        id
    }

    fn remove(&mut self, id: u64) -> Option<StartupRef> {
        let StartupEntry { network, socket, .. } = self.entries.remove(&id)?;
        if let Some(entries) = self.networks.get_mut(&network) {
            entries.silent.remove(&id);
            entries.awaiting_response.remove(&id);
            self.by_count.remove(&(entries.count, network));
            entries.count -= 1;
            if entries.count > 0 {
                self.by_count.insert((entries.count, network));
            } else {
                self.networks.remove(&network);
            }
        }
        Some(socket)
    }

    fn set_stage(&mut self, id: u64, stage: StartupStage) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.stage = stage;
        let Some(entries) = self.networks.get_mut(&entry.network) else { return };
        entries.silent.remove(&id);
        entries.awaiting_response.remove(&id);
        match stage {
            StartupStage::Silent => drop(entries.silent.insert(id)),
            StartupStage::AwaitingResponse => drop(entries.awaiting_response.insert(id)),
            StartupStage::Busy => {}
        }
    }

    /// Returns the connection to close for a new one from `newcomer`.
    fn victim(&self, newcomer: ClientNetwork) -> Option<u64> {
        let newcomers = self.networks.get(&newcomer).map_or(0, |entries| entries.count);
        self.by_count.iter().rev().take(ADDRESSES_MAX).find_map(|(count, network)| {
            let entries = self.networks.get(network)?;
            let awaiting = entries.awaiting_response.first().filter(|_| *count > newcomers + 1);
            entries.silent.first().or(awaiting).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct StartupsFixture {
        startups: Arc<Startups>,
        next_slot: usize,
    }

    impl StartupsFixture {
        fn new() -> Self {
            Self { startups: Arc::default(), next_slot: 0 }
        }

        /// Admits one of at most three; returns its entry and the slot of the closed one.
        fn admit(&mut self, host: u8) -> Result<(StartupGuard, Option<usize>), StartupsFull> {
            self.next_slot += 1;
            let socket = StartupRef { worker: WorkerId(0), slot: self.next_slot, generation: 0 };
            let address = Some(IpAddr::from([10, 0, 0, host]));
            let (startup, victim) = self.startups.admit(address, false, 3, socket)?;
            Ok((startup, victim.map(|victim| victim.slot)))
        }
    }

    #[test]
    fn oldest_silent_connection_of_the_busiest_address_makes_room() {
        let mut bench = StartupsFixture::new();
        let (one, _) = bench.admit(1).unwrap();
        let (_two, _) = bench.admit(2).unwrap();
        let (_three, victim) = bench.admit(2).unwrap();
        assert_eq!(victim, None);
        let (_four, victim) = bench.admit(3).unwrap();
        assert_eq!(victim, Some(2), "the older one of the address with two");
        assert_eq!(bench.startups.count(), 3);
        drop(one);
        assert_eq!(bench.startups.count(), 2);
    }

    #[test]
    fn unanswered_logins_make_room_only_for_other_addresses() {
        let mut bench = StartupsFixture::new();
        let mut three: Vec<_> = (0..3).map(|_| bench.admit(1).unwrap().0).collect();
        three.iter_mut().for_each(|it| it.set_stage(StartupStage::AwaitingResponse));
        assert_eq!(bench.admit(1).unwrap_err(), StartupsFull, "they are from the same address");
        three[0].set_stage(StartupStage::Busy);
        let (_other, victim) = bench.admit(2).unwrap();
        assert_eq!(victim, Some(2), "the oldest that keeps the pooler waiting");
        three[2].set_stage(StartupStage::Silent);
        assert_eq!(bench.admit(1).unwrap().1, Some(3));
    }

    #[test]
    fn unix_sockets_are_counted_separately() {
        let mut bench = StartupsFixture::new();
        let _full: Vec<_> = (0..3).map(|_| bench.admit(1).unwrap().0).collect();
        let socket = StartupRef { worker: WorkerId(0), slot: 9, generation: 0 };
        let (_startup, victim) = bench.startups.admit(None, true, 3, socket).unwrap();
        assert_eq!(victim, None);
    }

    #[test]
    fn hosts_of_one_ipv6_network_count_as_one() {
        let network = |text: &str| ClientNetwork::from_address(Some(text.parse().unwrap()));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }
}

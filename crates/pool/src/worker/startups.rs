//! [`Startups`]: connections that have not logged in, of all workers, and which of them has to make room when
//! there are too many.
//!
//! Somebody who opens sockets and stays silent, or sends a byte now and then, must not keep others out. When
//! as many are on their way in as there may be, one that makes the pooler wait is closed for each newcomer:
//! of the address that has most of them, the oldest whose startup packet has not come, TLS handshakes
//! included; else the oldest that does not answer what it was asked, if its address has more of them than the
//! newcomer's. If there is none, the newcomer is refused.
//!
//! Unix sockets are counted by themselves, so that an operator gets to the console whatever comes by TCP.
//!
//! # Cost
//!
//! A lock for a moment at the beginning and the end of a login, and where it changes its stage.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::WorkerId;

/// Addresses that are looked at for one that can make room; those with most connections come first.
const ADDRESSES_MAX: usize = 64;

/// Connections that have not logged in.
#[derive(Debug, Default)]
pub(super) struct Startups {
    tcp: Mutex<Group>,
    unix: Mutex<Group>,
}

/// What a connection that has not logged in is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its startup packet has not come.
    Silent,
    /// It was asked for a password, or for a proof.
    Asked,
    /// It waits for us.
    Busy,
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartupPlace {
    pub(super) worker: WorkerId,
    pub(super) seat: usize,
    pub(super) generation: u32,
}

/// A connection's entry, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Startup {
    startups: Arc<Startups>,
    is_unix: bool,
    id: u64,
    stage: Stage,
}

#[derive(Debug, Default)]
struct Group {
    last_id: u64,
    /// By number: the oldest first.
    entries: HashMap<u64, Entry>,
    sources: HashMap<Source, SourceEntries>,
    /// How many each source has, and which it is.
    by_count: BTreeSet<(usize, Source)>,
}

#[derive(Debug)]
struct Entry {
    source: Source,
    stage: Stage,
    place: StartupPlace,
}

#[derive(Debug, Default)]
struct SourceEntries {
    count: usize,
    silent: BTreeSet<u64>,
    asked: BTreeSet<u64>,
}

/// Where connections come from: an address, or the network of 64 bits that an IPv6 host may have as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Source(u128);

impl Source {
    fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Self::default(),
            Some(IpAddr::V4(address)) => Self(address.to_ipv6_mapped().to_bits()),
            Some(IpAddr::V6(address)) => Self(address.to_bits() >> 64 << 64),
        }
    }
}

/// As many are on their way in as there may be, and none of them can make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Startups {
    /// Takes a connection in, of at most `max`. Gives its entry and which one has to make room for it.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub(super) fn admit(
        self: &Arc<Self>,
        address: Option<IpAddr>,
        is_unix: bool,
        max: usize,
        place: StartupPlace,
    ) -> Result<(Startup, Option<StartupPlace>), Full> {
        let mut group = self.group(is_unix);
        let source = Source::of(address);
        let victim = if group.entries.len() < max {
            None
        } else {
            let victim = group.victim(source).ok_or(Full)?;
            Some(group.remove(victim).ok_or(Full)?)
        };
        let id = group.insert(source, place);
        drop(group);
        let startup = Startup { startups: Arc::clone(self), is_unix, id, stage: Stage::Silent };
        Ok((startup, victim))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.group(false).entries.len() + self.group(true).entries.len()
    }

    fn group(&self, is_unix: bool) -> MutexGuard<'_, Group> {
        let group = if is_unix { &self.unix } else { &self.tcp };
        group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Startup {
    /// The connection is at another stage now.
    pub(super) fn set_stage(&mut self, stage: Stage) {
        if self.stage != stage {
            self.stage = stage;
            self.startups.group(self.is_unix).set_stage(self.id, stage);
        }
    }
}

impl Drop for Startup {
    fn drop(&mut self) {
        self.startups.group(self.is_unix).remove(self.id);
    }
}

impl Group {
    fn insert(&mut self, source: Source, place: StartupPlace) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.entries.insert(id, Entry { source, stage: Stage::Silent, place });
        let own = self.sources.entry(source).or_default();
        own.silent.insert(id);
        own.count += 1;
        self.by_count.remove(&(own.count - 1, source));
        self.by_count.insert((own.count, source));
        id
    }

    fn remove(&mut self, id: u64) -> Option<StartupPlace> {
        let Entry { source, place, .. } = self.entries.remove(&id)?;
        if let Some(own) = self.sources.get_mut(&source) {
            own.silent.remove(&id);
            own.asked.remove(&id);
            self.by_count.remove(&(own.count, source));
            own.count -= 1;
            if own.count > 0 {
                self.by_count.insert((own.count, source));
            } else {
                self.sources.remove(&source);
            }
        }
        Some(place)
    }

    fn set_stage(&mut self, id: u64, stage: Stage) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.stage = stage;
        let Some(own) = self.sources.get_mut(&entry.source) else { return };
        own.silent.remove(&id);
        own.asked.remove(&id);
        match stage {
            Stage::Silent => drop(own.silent.insert(id)),
            Stage::Asked => drop(own.asked.insert(id)),
            Stage::Busy => {}
        }
    }

    /// The one that has to make room for another from `newcomer`.
    fn victim(&self, newcomer: Source) -> Option<u64> {
        let newcomers = self.sources.get(&newcomer).map_or(0, |own| own.count);
        self.by_count.iter().rev().take(ADDRESSES_MAX).find_map(|(count, source)| {
            let own = self.sources.get(source)?;
            let asked = own.asked.first().filter(|_| *count > newcomers + 1);
            own.silent.first().or(asked).copied()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bench {
        startups: Arc<Startups>,
        next_seat: usize,
    }

    impl Bench {
        fn new() -> Self {
            Self { startups: Arc::default(), next_seat: 0 }
        }

        /// Admits one of at most three; gives its entry and the seat of the one that made room.
        fn admit(&mut self, host: u8) -> Result<(Startup, Option<usize>), Full> {
            self.next_seat += 1;
            let place = StartupPlace { worker: WorkerId(0), seat: self.next_seat, generation: 0 };
            let address = Some(IpAddr::from([10, 0, 0, host]));
            let (startup, victim) = self.startups.admit(address, false, 3, place)?;
            Ok((startup, victim.map(|victim| victim.seat)))
        }
    }

    #[test]
    fn oldest_silent_connection_of_the_busiest_address_makes_room() {
        let mut bench = Bench::new();
        let (one, _) = bench.admit(1).unwrap();
        let (_two, _) = bench.admit(2).unwrap();
        let (_three, victim) = bench.admit(2).unwrap();
        assert_eq!(victim, None);
        let (_four, victim) = bench.admit(3).unwrap();
        assert_eq!(victim, Some(2), "the older one of the address that has two");
        assert_eq!(bench.startups.count(), 3);
        drop(one);
        assert_eq!(bench.startups.count(), 2);
    }

    #[test]
    fn connections_that_owe_an_answer_make_room_for_other_addresses_only() {
        let mut bench = Bench::new();
        let mut three: Vec<_> = (0..3).map(|_| bench.admit(1).unwrap().0).collect();
        three.iter_mut().for_each(|it| it.set_stage(Stage::Asked));
        assert_eq!(bench.admit(1).unwrap_err(), Full, "they are clients like this one");
        three[0].set_stage(Stage::Busy);
        let (_other, victim) = bench.admit(2).unwrap();
        assert_eq!(victim, Some(2), "the oldest that does not wait for us");
        three[2].set_stage(Stage::Silent);
        assert_eq!(bench.admit(1).unwrap().1, Some(3));
    }

    #[test]
    fn unix_sockets_have_places_of_their_own() {
        let mut bench = Bench::new();
        let _full: Vec<_> = (0..3).map(|_| bench.admit(1).unwrap().0).collect();
        let place = StartupPlace { worker: WorkerId(0), seat: 9, generation: 0 };
        let (_startup, victim) = bench.startups.admit(None, true, 3, place).unwrap();
        assert_eq!(victim, None);
    }

    #[test]
    fn hosts_of_one_ipv6_network_are_one_source() {
        let source = |text: &str| Source::of(Some(text.parse().unwrap()));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}

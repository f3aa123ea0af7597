//! [`ConnectionLimit`] and [`Permits`]: connection limits that apply to all workers together.
//!
//! The permits in use of a limit are counted by one atomic number. Before a connection is opened,
//! it acquires one permit of each limit that applies, or none at all; it releases them when it is
//! closed. So the count never exceeds the limit, whatever the workers do concurrently, unless the
//! limit is lowered or [`Permits::acquire`] ignores it; the count then falls as connections close.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// A maximum number of connections, with the number in use.
#[derive(Debug)]
pub struct ConnectionLimit {
    max: AtomicU32,
    in_use: AtomicU32,
    /// Sum of the permits that clients may hold while they wait for more; see [`AcquireGuard`].
    reserved_waits: AtomicU32,
}

impl ConnectionLimit {
    /// Creates a limit of `max` connections.
    pub fn new(max: u32) -> Arc<Self> {
        let [max, in_use, reserved_waits] = [max, 0, 0].map(AtomicU32::new);
        Arc::new(Self { max, in_use, reserved_waits })
    }

    /// Returns the maximum number of connections.
    pub fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }

    /// Whether more permits are in use than allowed, because the limit was lowered, or
    /// [`Permits::acquire`] ignored it.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.in_use() > self.max()
    }

    /// Changes the maximum. Connections beyond a lower one are not closed here.
    pub fn set_max(&self, max: u32) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Returns the number of permits in use, which may change at any time.
    pub fn in_use(&self) -> u32 {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Acquires a permit if one is available; returns whether it did. Relaxed ordering is
    /// sufficient, because the number protects no other data.
    fn try_acquire(&self) -> bool {
        self.in_use
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |in_use| {
                (in_use < self.max()).then_some(in_use + 1)
            })
            .is_ok()
    }

    fn release(&self) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
    }

    /// Releases a permit if more are in use than allowed; returns whether it did.
    fn release_surplus(&self) -> bool {
        self.in_use
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |in_use| {
                (in_use > self.max()).then(|| in_use - 1)
            })
            .is_ok()
    }
}

/// One permit of each of several limits. The permits are released when the value is dropped.
#[derive(Debug)]
pub struct Permits {
    limits: Arc<[Arc<ConnectionLimit>]>,
    /// Index of the limit whose permit [`Permits::release_surplus`] has already released.
    released: Option<usize>,
}

impl Permits {
    /// Returns an empty set of permits, for a connection without limits.
    pub fn none() -> Self {
        Self::for_limits(&Arc::default())
    }

    /// Acquires one permit of each limit, even beyond the maximum: for a connection that already
    /// exists, or one that must not be refused.
    pub fn acquire(limits: &Arc<[Arc<ConnectionLimit>]>) -> Self {
        for limit in limits.iter() {
            limit.in_use.fetch_add(1, Ordering::Relaxed);
        }
        Self::for_limits(limits)
    }

    fn for_limits(limits: &Arc<[Arc<ConnectionLimit>]>) -> Self {
        Self { limits: Arc::clone(limits), released: None }
    }

    /// Acquires one permit of each limit, or none at all. If two workers race for the last permits,
    /// each may hold a permit that the other needs: then both release theirs, get nothing and retry
    /// later.
    pub fn try_acquire(limits: &Arc<[Arc<ConnectionLimit>]>) -> Option<Self> {
        let acquired = limits.iter().take_while(|limit| limit.try_acquire()).count();
        if acquired == limits.len() {
            return Some(Self::for_limits(limits));
        }
        limits[..acquired].iter().for_each(|limit| limit.release());
        None
    }

    /// Releases the permit of the first limit that is exceeded. Returns whether it did, now or in
    /// an earlier call: the holder must then close its connection. The permit is released at once,
    /// so that concurrent callers close only as many connections as exceed the limit.
    pub(crate) fn release_surplus(&mut self) -> bool {
        if self.released.is_none() {
            self.released = self.limits.iter().position(|limit| limit.release_surplus());
        }
        self.released.is_some()
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let held =
            self.limits.iter().enumerate().filter(|(place, _)| Some(*place) != self.released);
        held.for_each(|(_, limit)| limit.release());
    }
}

/// Permission to acquire several permits of the same limits one after another, holding some while
/// waiting for more.
///
/// If all permits of a limit were held by clients that wait for another one, none could ever
/// proceed. A client that needs `n` permits holds at most `n - 1` while it waits. As long as the
/// sum of `n - 1` over all guards is less than the limit, at least one client can get all its
/// permits. So guards are granted only while that sum, over all workers, stays below the limit.
#[derive(Debug, Default)]
pub(crate) struct AcquireGuard(Vec<(Arc<ConnectionLimit>, u32)>);

/// The reason why no guard was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TryAcquireError {
    /// Other requests have reserved too many permits; try again later.
    Busy,
    /// The request needs more permits at once than the limit allows.
    Impossible {
        /// Number of permits needed at once.
        needed: u32,
        /// The limit's maximum.
        max: u32,
    },
}

impl AcquireGuard {
    /// Acquires a guard for the given number of permits of each limit.
    pub(crate) fn try_acquire(
        needed: Vec<(Arc<ConnectionLimit>, u32)>,
    ) -> Result<Self, TryAcquireError> {
        let impossible = needed.iter().find(|(limit, needed)| limit.max() < *needed);
        if let Some((limit, needed)) = impossible {
            return Err(TryAcquireError::Impossible { needed: *needed, max: limit.max() });
        }
        let mut guard = Self::default();
        for (limit, needed) in needed {
            let waits = needed.saturating_sub(1);
            let in_use =
                limit.reserved_waits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
                    all.checked_add(waits).filter(|all| *all < limit.max())
                });
            if in_use.is_err() {
                // Dropping `guard` releases what was reserved so far.
                return Err(TryAcquireError::Busy);
            }
            guard.0.push((limit, waits));
        }
        Ok(guard)
    }
}

impl Drop for AcquireGuard {
    fn drop(&mut self) {
        for (limit, waits) in &self.0 {
            limit.reserved_waits.fetch_sub(*waits, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_prevent_deadlock_of_waiting_holders() {
        let (few, many) = (ConnectionLimit::new(5), ConnectionLimit::new(100));
        let of = |count| vec![(Arc::clone(&many), count), (Arc::clone(&few), count)];
        let guards =
            [AcquireGuard::try_acquire(of(3)).unwrap(), AcquireGuard::try_acquire(of(3)).unwrap()];
        assert_eq!(AcquireGuard::try_acquire(of(2)).unwrap_err(), TryAcquireError::Busy);
        assert_eq!(
            AcquireGuard::try_acquire(of(6)).unwrap_err(),
            TryAcquireError::Impossible { needed: 6, max: 5 }
        );
        assert!(
            AcquireGuard::try_acquire(of(1)).is_ok(),
            "a single permit is never held while waiting"
        );
        drop(guards);
        assert_eq!(
            (
                few.reserved_waits.load(Ordering::Relaxed),
                many.reserved_waits.load(Ordering::Relaxed)
            ),
            (0, 0)
        );
        assert!(AcquireGuard::try_acquire(of(5)).is_ok());
    }

    #[test]
    fn permits_are_acquired_all_or_none() {
        let (pool, host) = (ConnectionLimit::new(3), ConnectionLimit::new(1));
        let both: Arc<[_]> = [Arc::clone(&pool), Arc::clone(&host)].into();
        let permits = Permits::try_acquire(&both).unwrap();
        assert!(Permits::try_acquire(&both).is_none());
        assert_eq!((pool.in_use(), host.in_use()), (1, 1), "a failed attempt releases everything");
        drop(permits);
        assert_eq!((pool.in_use(), host.in_use()), (0, 0));
    }

    #[test]
    fn surplus_is_released_exactly_once() {
        let (pool, host) = (ConnectionLimit::new(20), ConnectionLimit::new(20));
        let both: Arc<[_]> = [Arc::clone(&pool), Arc::clone(&host)].into();
        let mut held: Vec<_> = (0..20).map(|_| Permits::try_acquire(&both).unwrap()).collect();
        pool.set_max(7);
        host.set_max(5);
        let end = |mut part: Vec<Permits>| {
            part.retain_mut(|permits| !permits.release_surplus());
            part
        };
        let other = held.split_off(10);
        let left = std::thread::scope(|scope| {
            let threads = [held, other].map(|part| scope.spawn(move || end(part)));
            threads.map(|thread| thread.join().unwrap())
        });
        // A permit of one limit may be released before the other limit is lowered.
        let left: Vec<_> = left.into_iter().flatten().collect();
        assert_eq!((pool.in_use(), host.in_use()), (left.len() as u32, left.len() as u32));
        assert!((4..=5).contains(&left.len()), "{} are left", left.len());
        drop(left);
        assert_eq!((pool.in_use(), host.in_use()), (0, 0));
    }

    #[test]
    fn concurrent_acquires_never_exceed_limit() {
        let limit = ConnectionLimit::new(5);
        let limits: Arc<[_]> = [Arc::clone(&limit)].into();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let held: Vec<_> = (0..3).map(|_| Permits::try_acquire(&limits)).collect();
                        assert!(limit.in_use() <= 5);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(limit.in_use(), 0);
    }
}

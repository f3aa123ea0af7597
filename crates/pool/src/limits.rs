//! [`Limit`] and [`Permits`]: exact counts over all workers.
//!
//! A limit is one atomic number. A connection takes one permit of each limit it falls under, or none
//! at all, before it is opened, and gives them back when it is gone. So the count is never above its
//! limit, whatever workers do at the same time; a limit that was lowered is approached as
//! connections end.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// How many of something there may be, and how many there are.
#[derive(Debug)]
pub struct Limit {
    max: AtomicU32,
    taken: AtomicU32,
    /// See [`Turn`].
    waited_for: AtomicU32,
}

impl Limit {
    /// At most `max`.
    pub fn new(max: u32) -> Arc<Self> {
        let [max, taken, waited_for] = [max, 0, 0].map(AtomicU32::new);
        Arc::new(Self { max, taken, waited_for })
    }

    /// How many there may be.
    pub fn max(&self) -> u32 {
        self.max.load(Ordering::Relaxed)
    }

    /// Whether there are more than there may be, because fewer may be than before.
    pub(crate) fn is_over(&self) -> bool {
        self.taken() > self.max()
    }

    /// Changes how many there may be; those there are stay.
    pub fn set_max(&self, max: u32) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// How many there are. Others may change it at any time.
    pub fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes one, if there is one. Relaxed ordering is enough: the number guards nothing but itself.
    fn try_take(&self) -> bool {
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken < self.max()).then_some(taken + 1)
            })
            .is_ok()
    }

    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// Gives one back if there are more than there may be.
    fn give_back_surplus(&self) -> bool {
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (taken > self.max()).then(|| taken - 1)
            })
            .is_ok()
    }
}

/// One permit of each of some limits; given back when dropped.
#[derive(Debug)]
pub struct Permits {
    of: Arc<[Arc<Limit>]>,
    /// Which of them has been given back already.
    without: Option<usize>,
}

impl Permits {
    /// Of no limit at all.
    pub fn none() -> Self {
        Self::of(&Arc::default())
    }

    /// Takes one of each, however many there may be: for one that is there already.
    pub fn take(limits: &Arc<[Arc<Limit>]>) -> Self {
        for limit in limits.iter() {
            limit.taken.fetch_add(1, Ordering::Relaxed);
        }
        Self::of(limits)
    }

    fn of(limits: &Arc<[Arc<Limit>]>) -> Self {
        Self { of: Arc::clone(limits), without: None }
    }

    /// Takes one of each, or nothing. Between workers that race for the last one, each may see the
    /// other's permit that is about to be given back: then both get nothing, and both ask again at
    /// their next occasion.
    pub fn try_take(limits: &Arc<[Arc<Limit>]>) -> Option<Self> {
        let got = limits.iter().take_while(|limit| limit.try_take()).count();
        if got == limits.len() {
            return Some(Self::of(limits));
        }
        limits[..got].iter().for_each(|limit| limit.give_back());
        None
    }

    /// Whether a limit has been lowered below what is taken, so that whoever holds these is to end. The
    /// permit that is too many is given back by the question: of all who ask at the same time just so many
    /// have to end as there are too many.
    pub(crate) fn give_up_surplus(&mut self) -> bool {
        if self.without.is_none() {
            self.without = self.of.iter().position(|limit| limit.give_back_surplus());
        }
        self.without.is_some()
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let held = self.of.iter().enumerate().filter(|(place, _)| Some(*place) != self.without);
        held.for_each(|(_, limit)| limit.give_back());
    }
}

/// Leave to take several permits of the same limits one after another, holding what one has.
///
/// If every one of a limit's permits were held by somebody who waits for another one of it, nobody would ever
/// go on. Whoever needs `n` holds at most `n - 1` while it waits; as long as these numbers, added up over
/// all who have leave, are less than the limit, somebody has all that it needs. So leave is given for so
/// many at a time, over all workers.
#[derive(Debug, Default)]
pub(crate) struct Turn(Vec<(Arc<Limit>, u32)>);

/// Why there is no leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TryAcquireError {
    /// Others have it.
    NotNow,
    /// More are needed at a time than there may be.
    Never {
        /// So many are needed.
        needed: u32,
        /// So many there may be.
        max: u32,
    },
}

impl Turn {
    /// Leave to take so many of each, or none at all.
    pub(crate) fn try_take(needed: Vec<(Arc<Limit>, u32)>) -> Result<Self, TryAcquireError> {
        let scarce = needed.iter().find(|(limit, needed)| limit.max() < *needed);
        if let Some((limit, needed)) = scarce {
            return Err(TryAcquireError::Never { needed: *needed, max: limit.max() });
        }
        let mut turn = Self::default();
        for (limit, needed) in needed {
            let waits = needed.saturating_sub(1);
            let taken =
                limit.waited_for.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |all| {
                    all.checked_add(waits).filter(|all| *all < limit.max())
                });
            if taken.is_err() {
                return Err(TryAcquireError::NotNow); // What it has up to here is given back.
            }
            turn.0.push((limit, waits));
        }
        Ok(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        for (limit, waits) in &self.0 {
            limit.waited_for.fetch_sub(*waits, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_do_all_wait_for_each_other() {
        let (few, many) = (Limit::new(5), Limit::new(100));
        let of = |count| vec![(Arc::clone(&many), count), (Arc::clone(&few), count)];
        let turns = [Turn::try_take(of(3)).unwrap(), Turn::try_take(of(3)).unwrap()];
        assert_eq!(Turn::try_take(of(2)).unwrap_err(), TryAcquireError::NotNow);
        assert_eq!(
            Turn::try_take(of(6)).unwrap_err(),
            TryAcquireError::Never { needed: 6, max: 5 }
        );
        assert!(
            Turn::try_take(of(1)).is_ok(),
            "who needs one waits for nothing that it would hold"
        );
        drop(turns);
        assert_eq!(
            (few.waited_for.load(Ordering::Relaxed), many.waited_for.load(Ordering::Relaxed)),
            (0, 0)
        );
        assert!(Turn::try_take(of(5)).is_ok());
    }

    #[test]
    fn all_or_nothing() {
        let (pool, host) = (Limit::new(3), Limit::new(1));
        let both: Arc<[_]> = [Arc::clone(&pool), Arc::clone(&host)].into();
        let permits = Permits::try_take(&both).unwrap();
        assert!(Permits::try_take(&both).is_none());
        assert_eq!((pool.taken(), host.taken()), (1, 1), "nothing of the failed try stays");
        drop(permits);
        assert_eq!((pool.taken(), host.taken()), (0, 0));
    }

    #[test]
    fn no_more_end_than_are_too_many() {
        let (pool, host) = (Limit::new(20), Limit::new(20));
        let both: Arc<[_]> = [Arc::clone(&pool), Arc::clone(&host)].into();
        let mut held: Vec<_> = (0..20).map(|_| Permits::try_take(&both).unwrap()).collect();
        pool.set_max(7);
        host.set_max(5);
        let end = |mut part: Vec<Permits>| {
            part.retain_mut(|permits| !permits.give_up_surplus());
            part
        };
        let other = held.split_off(10);
        let left = std::thread::scope(|scope| {
            let threads = [held, other].map(|part| scope.spawn(move || end(part)));
            threads.map(|thread| thread.join().unwrap())
        });
        // Who ends for the one limit may have been asked before the other had fewer.
        let left: Vec<_> = left.into_iter().flatten().collect();
        assert_eq!((pool.taken(), host.taken()), (left.len() as u32, left.len() as u32));
        assert!((4..=5).contains(&left.len()), "{} are left", left.len());
        drop(left);
        assert_eq!((pool.taken(), host.taken()), (0, 0));
    }

    #[test]
    fn threads_never_exceed_it() {
        let limit = Limit::new(5);
        let limits: Arc<[_]> = [Arc::clone(&limit)].into();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let held: Vec<_> = (0..3).map(|_| Permits::try_take(&limits)).collect();
                        assert!(limit.taken() <= 5);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(limit.taken(), 0);
    }
}

//! Giving up pools that nobody uses: a thread that looks now and then, and letters to workers. It looks at
//! mirrors, too.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use super::{
    control::{Control, PATIENCE},
    mail::WorkerMessage,
    mirrors,
};
use crate::{PoolId, Tally};

/// Between two looks, at most: one that is retired by new settings does not wait for more.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// The same at least.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(10);

/// Between two looks at whether the pooler is still there.
const POLL: Duration = Duration::from_millis(100);

impl Control {
    /// Gives up pools that nobody uses, and tells of mirrors, until the pooler ends.
    pub(super) fn keep_up(&self, over: &Receiver<()>) {
        let mut mirrors = mirrors::Watch::default();
        while over.recv_timeout(self.look_every()) == Err(RecvTimeoutError::Timeout) {
            mirrors.look(&self.front.directory, Instant::now());
            // Not while settings change: pools of a cluster know one another by their numbers, and what
            // workers still have of before may name one that is left by what holds from now on.
            let _alone = self.front.origin.lock().unwrap_or_else(PoisonError::into_inner);
            let pools = self.front.directory.leave(Instant::now());
            if !pools.is_empty() {
                self.give_up(&pools);
            }
        }
    }

    /// Several looks in the shortest time that a pool may be unused.
    fn look_every(&self) -> Duration {
        let times = self.config().timeouts;
        let shortest = [times.pool_idle, times.autodb_idle].into_iter().flatten().min();
        let shortest = shortest.unwrap_or(LOOK_EVERY_MAX);
        (shortest / 4).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX)
    }

    /// Has workers forget pools that nobody is led to any more. One that some worker does not answer for
    /// is asked for again the next time.
    fn give_up(&self, pools: &[PoolId]) {
        let (to, answers) = mpsc::channel();
        let all: Arc<[PoolId]> = pools.into();
        self.tell(|| WorkerMessage::Forget { pools: Arc::clone(&all), to: to.clone() });
        drop(to);
        let deadline = Instant::now() + PATIENCE;
        let mut forgotten: HashMap<PoolId, (usize, Tally)> = HashMap::new();
        let mut missing = self.mailboxes.len();
        while missing > 0 && !self.front.is_over() && Instant::now() < deadline {
            match answers.recv_timeout(POLL) {
                Ok(answer) => {
                    missing -= 1;
                    for (pool, tally) in answer {
                        let (workers, sum) = forgotten.entry(pool).or_default();
                        *workers += 1;
                        *sum += &tally;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let everywhere = |(pool, (workers, tally)): (PoolId, (usize, Tally))| {
            (workers == self.mailboxes.len()).then_some((pool, tally))
        };
        let forgotten: Vec<_> = forgotten.into_iter().filter_map(everywhere).collect();
        tracing::debug!(pools = forgotten.len(), "given up: nobody has used them");
        let ids: Vec<_> = forgotten.iter().map(|(id, _)| *id).collect();
        self.front.history().forget(&ids);
        self.front.directory.vacate(forgotten, Instant::now());
    }
}

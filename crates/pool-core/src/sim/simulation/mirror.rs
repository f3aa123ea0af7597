//! A mirror of the first pool: its servers fail, sleep and are slow like all others, and have
//! separate limits. Every client has its reference model as usual, so the client's replies must be
//! the same whatever the mirror does. The mirror's servers check whose statements they run.

use std::{sync::Arc, time::Duration};

use super::Simulation;
use crate::{
    ConnectionLimit, Mirror, MirrorReport, MirrorTarget, PoolId, PoolSpec, PoolingMode,
    sim::random::SimRandom,
};

/// The behavior of a mirror in one simulation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MirrorBehavior {
    /// The mirror's servers behave like others.
    Normal,
    /// The mirror's servers fail, whether others do or not.
    Fails,
    /// The mirror never replies, and does not time out before the simulation ends: a client that
    /// waited for it would wait forever.
    Hangs,
}

/// The mirror of a simulation's first pool.
pub(super) struct SimMirror {
    pub(super) pool: PoolId,
    pub(super) behavior: MirrorBehavior,
    mirror: Arc<Mirror>,
    buffer_bytes: usize,
}

impl SimMirror {
    /// In some simulations, gives the first pool a mirror and appends the mirror's pool to `specs`.
    /// Random numbers are separate, so the rest of the simulation is the same as without a mirror.
    pub(super) fn new(seed: u64, specs: &mut Vec<PoolSpec>) -> Option<Self> {
        let mut random = SimRandom::new(seed ^ 0x3177 << 40);
        let first = specs.first_mut()?;
        if first.mode == PoolingMode::Session || !random.percent(40) {
            return None;
        }
        let (mirror, buffer_bytes) = (Arc::<Mirror>::default(), *random.pick(&[2000, 1 << 20]));
        let mut spec = PoolSpec { listen_bytes: None, ..first.clone() };
        spec.server_limits =
            [ConnectionLimit::new(1 + u32::try_from(random.below(2)).unwrap())].into();
        (spec.clusters, spec.member, spec.routing) = (Arc::default(), None, None);
        (spec.admin_state, spec.welcome) = (Arc::default(), Arc::default());
        let mut timeout = Duration::from_millis(*random.pick(&[20, 200, 2000]));
        let sample_rate = *random.pick(&[0.5, 1.0]);
        let client_bytes = *random.pick(&[1024, 8192]);
        let behavior = *random.pick(&[
            MirrorBehavior::Normal,
            MirrorBehavior::Normal,
            MirrorBehavior::Fails,
            MirrorBehavior::Hangs,
        ]);
        if behavior == MirrorBehavior::Hangs {
            timeout = Duration::from_secs(3600);
        }
        let times = &mut spec.timeouts;
        (times.query_wait, times.query) = (Some(timeout), Some(timeout));
        (times.transaction, times.client_idle) = (Some(timeout), Some(timeout));
        let pool = PoolId(u32::try_from(specs.len()).unwrap());
        let target = MirrorTarget {
            pool,
            mirror: Arc::clone(&mirror),
            sample_rate,
            client_bytes,
            buffer_bytes,
            timeout,
        };
        specs[0].mirrors = [target].into();
        specs.push(spec);
        Some(Self { pool, behavior, mirror, buffer_bytes })
    }
}

impl Simulation {
    /// Whether a pool is the mirror's pool.
    pub(super) fn is_mirror(&self, pool: PoolId) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| mirror.pool == pool)
    }

    /// Returns the mirror's behavior; `None` if the pool is not the mirror's.
    pub(super) fn mirror_behavior(&self, pool: PoolId) -> Option<MirrorBehavior> {
        self.mirror.as_ref().filter(|mirror| mirror.pool == pool).map(|mirror| mirror.behavior)
    }

    /// Checks that the mirror's buffer is within its limit, and returns the mirror's counters.
    pub(super) fn check_mirror(&self) -> Result<Option<MirrorReport>, String> {
        let Some(SimMirror { mirror, buffer_bytes, .. }) = &self.mirror else { return Ok(None) };
        let report = mirror.report();
        if report.buffered_bytes > *buffer_bytes as u64 {
            return Err(format!("the buffer of the mirror exceeds its limit: {report:?}"));
        }
        Ok(Some(report))
    }
}

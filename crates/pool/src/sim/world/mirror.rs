//! A mirror of what clients of the first pool send: its servers fail, sleep and are slow as all are, and have
//! limits of their own. Every client has its twin as in any world, so whatever a mirror does, clients are
//! told what they would be told without it; and its servers look after whose statements they run.

use std::{sync::Arc, time::Duration};

use super::World;
use crate::{
    Limit, Mirror, MirrorReport, MirrorTarget, Mode, PoolId, PoolSpec, sim::random::Random,
};

/// What becomes of a mirror.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// What becomes of any server.
    Common,
    /// Its servers fail, whether others do or not.
    Fails,
    /// It says nothing, and nobody minds that before the world ends: who waits for it does so for ever.
    Hangs,
}

/// A mirror.
pub(super) struct MirrorWorld {
    pub(super) pool: PoolId,
    pub(super) fate: Fate,
    mirror: Arc<Mirror>,
    buffer_bytes: usize,
}

impl MirrorWorld {
    /// Gives the first of the pools a mirror, whose pool comes last, in some worlds: drawn by a number of
    /// its own, so that the others are as they would be without.
    pub(super) fn new(seed: u64, specs: &mut Vec<PoolSpec>) -> Option<Self> {
        let mut random = Random::new(seed ^ 0x3177 << 40);
        let first = specs.first_mut()?;
        if first.mode == Mode::Session || !random.percent(40) {
            return None;
        }
        let (mirror, buffer_bytes) = (Arc::<Mirror>::default(), *random.pick(&[2000, 1 << 20]));
        let mut spec = PoolSpec { listen_bytes: None, ..first.clone() };
        spec.server_limits = [Limit::new(1 + u32::try_from(random.below(2)).unwrap())].into();
        (spec.clusters, spec.member, spec.routing) = (Arc::default(), None, None);
        (spec.gate, spec.greeting) = (Arc::default(), Arc::default());
        let mut timeout = Duration::from_millis(*random.pick(&[20, 200, 2000]));
        let share = *random.pick(&[0.5, 1.0]);
        let client_bytes = *random.pick(&[1024, 8192]);
        let fate = *random.pick(&[Fate::Common, Fate::Common, Fate::Fails, Fate::Hangs]);
        if fate == Fate::Hangs {
            timeout = Duration::from_secs(3600);
        }
        let times = &mut spec.timeouts;
        (times.query_wait, times.query) = (Some(timeout), Some(timeout));
        (times.transaction, times.client_idle) = (Some(timeout), Some(timeout));
        let pool = PoolId(u32::try_from(specs.len()).unwrap());
        let target = MirrorTarget {
            pool,
            mirror: Arc::clone(&mirror),
            share,
            client_bytes,
            buffer_bytes,
            timeout,
        };
        specs[0].mirrors = [target].into();
        specs.push(spec);
        Some(Self { pool, fate, mirror, buffer_bytes })
    }
}

impl World {
    /// Whether a pool is of a mirror.
    pub(super) fn is_mirror(&self, pool: PoolId) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| mirror.pool == pool)
    }

    /// What becomes of a mirror, if a pool is of one.
    pub(super) fn fate(&self, pool: PoolId) -> Option<Fate> {
        self.mirror.as_ref().filter(|mirror| mirror.pool == pool).map(|mirror| mirror.fate)
    }

    /// What is kept for a mirror has its bound. Gives what was counted.
    pub(super) fn check_mirror(&self) -> Result<Option<MirrorReport>, String> {
        let Some(MirrorWorld { mirror, buffer_bytes, .. }) = &self.mirror else { return Ok(None) };
        let report = mirror.report();
        if report.buffered_bytes > *buffer_bytes as u64 {
            return Err(format!("more waits for the mirror than may: {report:?}"));
        }
        Ok(Some(report))
    }
}

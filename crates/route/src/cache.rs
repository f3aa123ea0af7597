//! [`PlanCache`]: the plans of recent texts.
//!
//! The first lookup is by the exact text: for an application that sends the same text with bound
//! values, it costs one hash and one comparison. The second lookup is by the [`ParameterizedText`],
//! so that texts that differ only in constants share a plan. Entries are found by hash and then
//! compared by text, so two texts are never confused.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use howdah_sql::ParameterizedText;
use xxhash_rust::xxh3::xxh3_64;

#[cfg(feature = "grammar")]
use crate::analysis::plan;
use crate::{plan::RoutePlan, settings::RouteSettings};

/// Returns the plan of a text in a build without PostgreSQL's grammar, which cannot analyze
/// statements.
#[cfg(not(feature = "grammar"))]
fn plan(_: &[u8], _: &ParameterizedText, _: &RouteSettings) -> RoutePlan {
    RoutePlan::unreadable(crate::refusal::NoShardKey::NoGrammar)
}

/// Plans by text, in two generations. When the young generation is full, it becomes the old one,
/// and the previous old one is dropped.
#[derive(Debug)]
pub(crate) struct PlanCache {
    young: PlanGeneration,
    old: PlanGeneration,
    bytes_max: usize,
    parameterized: ParameterizedText,
}

/// A text and its plan.
type CachedPlan = (Box<[u8]>, Arc<RoutePlan>);

#[derive(Debug, Default)]
struct PlanGeneration {
    /// Plans by the hash of their text. If two texts have the same hash, the later one replaces the
    /// earlier.
    plans: HashMap<u64, CachedPlan, BuildHasherDefault<IdentityHasher>>,
    bytes: usize,
}

/// Approximate bytes of an entry in addition to its text: a plan, pointers, unused table capacity.
const ENTRY_BYTES: usize = 512;

impl PlanCache {
    /// Creates a cache of up to about `bytes` bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self {
            young: PlanGeneration::default(),
            old: PlanGeneration::default(),
            bytes_max: bytes,
            parameterized: ParameterizedText::default(),
        }
    }

    /// Returns the plan of a text. If the plan refers to constants, [`Self::parameterized`] has
    /// their positions in this text afterwards.
    pub(crate) fn plan(&mut self, sql: &[u8], settings: &RouteSettings) -> Arc<RoutePlan> {
        let hash = xxh3_64(sql);
        if let Some(plan) = self.find(hash, sql) {
            // A plan cached by exact text refers to no extracted constants.
            self.parameterized.read(b"");
            return plan;
        }
        self.parameterized.read(sql);
        let has_constants = !self.parameterized.constants().is_empty();
        let parameterized_hash = xxh3_64(self.parameterized.bytes());
        if has_constants && self.parameterized.is_complete() {
            // A parameterized text contains bytes that a plain text has only inside quotes, so both
            // kinds can share one table.
            let parameterized = std::mem::take(&mut self.parameterized);
            let found = self.find(parameterized_hash, parameterized.bytes());
            self.parameterized = parameterized;
            if let Some(plan) = found {
                return plan;
            }
        }
        let plan = Arc::new(plan(sql, &self.parameterized, settings));
        if !plan.is_exact && has_constants {
            let parameterized = std::mem::take(&mut self.parameterized);
            self.remember(parameterized_hash, parameterized.bytes(), &plan);
            self.parameterized = parameterized;
        } else if !has_constants {
            self.remember(hash, sql, &plan);
        }
        plan
    }

    /// Returns the parameterized text that the last call of [`Self::plan`] has read; empty if the
    /// plan was found by the exact text.
    pub(crate) fn parameterized(&self) -> &ParameterizedText {
        &self.parameterized
    }

    fn find(&mut self, hash: u64, text: &[u8]) -> Option<Arc<RoutePlan>> {
        if let Some(plan) = self.young.find(hash, text) {
            return Some(Arc::clone(plan));
        }
        let plan = Arc::clone(self.old.find(hash, text)?);
        self.remember(hash, text, &plan);
        Some(plan)
    }

    fn remember(&mut self, hash: u64, text: &[u8], plan: &Arc<RoutePlan>) {
        if text.len() > self.bytes_max / 16 {
            return;
        }
        if self.young.bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, text, plan);
    }
}

impl PlanGeneration {
    fn find(&self, hash: u64, text: &[u8]) -> Option<&Arc<RoutePlan>> {
        self.plans.get(&hash).filter(|(known, _)| **known == *text).map(|(_, plan)| plan)
    }

    fn insert(&mut self, hash: u64, text: &[u8], plan: &Arc<RoutePlan>) {
        // Counting the text several times covers plans with long lists of keys, whose texts are
        // long as well.
        self.bytes += ENTRY_BYTES + text.len() * 8;
        if let Some((text, _)) = self.plans.insert(hash, (text.into(), Arc::clone(plan))) {
            self.bytes -= ENTRY_BYTES + text.len() * 8;
        }
    }
}

/// A hasher that returns its `u64` key, which is a hash already.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[test]
fn cache_memory_is_bounded_and_plans_are_stable() {
    let settings = RouteSettings::default();
    let mut cache = PlanCache::with_capacity(100_000);
    for id in 0..1000 {
        let sql = format!("select c{} from t where a = {id}", id % 300);
        let plan = cache.plan(sql.as_bytes(), &settings);
        assert_eq!(plan.primary, None);
        assert_eq!(cache.parameterized().constants().len(), 1);
        assert!(cache.young.bytes + cache.old.bytes < 110_000);
    }
    for sql in [&b"delete from t where a = 1"[..], b"delete from t"] {
        for _ in 0..2 {
            assert!(cache.plan(sql, &settings).primary.is_some());
        }
    }
}

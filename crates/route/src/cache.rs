//! Plans that are remembered.
//!
//! First by the text as it is: an application that binds its values sends the same text again and again, and
//! pays one hash and one comparison. Then by the [`ParameterizedText`]: texts that differ in constants share a plan.
//! Hashes are compared first and texts then, so that no two texts are ever taken for one.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use howdah_sql::ParameterizedText;
use xxhash_rust::xxh3::xxh3_64;

#[cfg(feature = "grammar")]
use crate::analysis::plan;
use crate::{plan::Plan, settings::Settings};

/// The plan of a text in a build without PostgreSQL's grammar, which reads none.
#[cfg(not(feature = "grammar"))]
fn plan(_: &[u8], _: &ParameterizedText, _: &Settings) -> Plan {
    Plan::unreadable(crate::refusal::NoShardKey::NoGrammar)
}

/// Plans by text, in two generations: when the young one is full, the old one is forgotten.
#[derive(Debug)]
pub(crate) struct Cache {
    young: Generation,
    old: Generation,
    bytes_max: usize,
    skeleton: ParameterizedText,
}

/// A text and its plan.
type Remembered = (Box<[u8]>, Arc<Plan>);

#[derive(Debug, Default)]
struct Generation {
    /// Of two texts of one hash, the later is remembered.
    plans: HashMap<u64, Remembered, BuildHasherDefault<Identity>>,
    bytes: usize,
}

/// What an entry costs beside its text: a plan, pointers, the table's spare room, roughly.
const ENTRY_BYTES: usize = 512;

impl Cache {
    /// Remembers up to about `bytes`.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self {
            young: Generation::default(),
            old: Generation::default(),
            bytes_max: bytes,
            skeleton: ParameterizedText::default(),
        }
    }

    /// The plan of a text. [`Self::skeleton`] is that of the text if the plan speaks of constants.
    pub(crate) fn plan(&mut self, sql: &[u8], settings: &Settings) -> Arc<Plan> {
        let hash = xxh3_64(sql);
        if let Some(plan) = self.find(hash, sql) {
            // What is remembered by text has no constants that were taken out.
            self.skeleton.read(b"");
            return plan;
        }
        self.skeleton.read(sql);
        let has_constants = !self.skeleton.constants().is_empty();
        let hash_of_skeleton = xxh3_64(self.skeleton.bytes());
        if has_constants && self.skeleton.is_whole() {
            // Outside quotes a skeleton has bytes that no text has, so they share one room.
            let skeleton = std::mem::take(&mut self.skeleton);
            let found = self.find(hash_of_skeleton, skeleton.bytes());
            self.skeleton = skeleton;
            if let Some(plan) = found {
                return plan;
            }
        }
        let plan = Arc::new(plan(sql, &self.skeleton, settings));
        if !plan.is_exact && has_constants {
            let skeleton = std::mem::take(&mut self.skeleton);
            self.remember(hash_of_skeleton, skeleton.bytes(), &plan);
            self.skeleton = skeleton;
        } else if !has_constants {
            self.remember(hash, sql, &plan);
        }
        plan
    }

    /// Of the text last asked for.
    pub(crate) fn skeleton(&self) -> &ParameterizedText {
        &self.skeleton
    }

    fn find(&mut self, hash: u64, text: &[u8]) -> Option<Arc<Plan>> {
        if let Some(plan) = self.young.find(hash, text) {
            return Some(Arc::clone(plan));
        }
        let plan = Arc::clone(self.old.find(hash, text)?);
        self.remember(hash, text, &plan);
        Some(plan)
    }

    fn remember(&mut self, hash: u64, text: &[u8], plan: &Arc<Plan>) {
        if text.len() > self.bytes_max / 16 {
            return;
        }
        if self.young.bytes > self.bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash, text, plan);
    }
}

impl Generation {
    fn find(&self, hash: u64, text: &[u8]) -> Option<&Arc<Plan>> {
        self.plans.get(&hash).filter(|(known, _)| **known == *text).map(|(_, plan)| plan)
    }

    fn insert(&mut self, hash: u64, text: &[u8], plan: &Arc<Plan>) {
        // Plans of long lists of keys weigh more, as their texts do.
        self.bytes += ENTRY_BYTES + text.len() * 8;
        if let Some((text, _)) = self.plans.insert(hash, (text.into(), Arc::clone(plan))) {
            self.bytes -= ENTRY_BYTES + text.len() * 8;
        }
    }
}

/// Keys are hashes already.
#[derive(Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
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
fn memory_stays_bounded_and_plans_stay_the_same() {
    let settings = Settings::default();
    let mut cache = Cache::with_capacity(100_000);
    for id in 0..1000 {
        let sql = format!("select c{} from t where a = {id}", id % 300);
        let plan = cache.plan(sql.as_bytes(), &settings);
        assert_eq!(plan.primary, None);
        assert_eq!(cache.skeleton().constants().len(), 1);
        assert!(cache.young.bytes + cache.old.bytes < 110_000);
    }
    for sql in [&b"delete from t where a = 1"[..], b"delete from t"] {
        for _ in 0..2 {
            assert!(cache.plan(sql, &settings).primary.is_some());
        }
    }
}

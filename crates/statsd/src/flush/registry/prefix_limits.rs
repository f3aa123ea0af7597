//! [`PrefixLimits`]: limits on the number of keys whose names have the same prefix.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
    time::SystemTime,
};

use super::KeyRegistry;
use crate::{
    MetricName,
    flush::names::KeyPair,
    settings::{ExcessAction, StatsdLimits},
};

/// Maximum number of names stored per prefix.
const EXAMPLES_MAX: usize = 5;
/// Maximum number of prefixes per flush that the log mentions.
const NOTICES_MAX: usize = 20;

/// The limits of prefixes, with the number of keys of each.
#[derive(Debug, Default)]
pub(super) struct PrefixLimits {
    /// The prefixes in the settings, longest first.
    configured: Vec<(Arc<str>, PrefixUsage)>,
    /// The limit of each first part of other names; 0 if there is none.
    keys_per_part: usize,
    parts: HashMap<Arc<str>, PrefixUsage>,
    /// Number of live metrics if none was removed since the last recount; `None` if that is not
    /// known.
    expected_keys: Option<usize>,
    /// Prefixes that reached their limit since the last flush, with the limit.
    reached: Vec<(Arc<str>, usize)>,
}

/// The keys of a prefix.
#[derive(Debug)]
struct PrefixUsage {
    limit: usize,
    excess: ExcessAction,
    keys: usize,
    /// Cells of keys beyond the limit.
    cut_keys: usize,
    cut_samples: u64,
    /// The time of the first key beyond the limit.
    since: Option<SystemTime>,
    examples: VecDeque<String>,
}

/// A prefix that reached its limit.
#[derive(Clone, Debug)]
pub(crate) struct PrefixTally {
    pub(crate) prefix: Arc<str>,
    pub(crate) limit: usize,
    /// Number of keys that count towards the limit.
    pub(crate) keys: usize,
    /// Keys beyond the limit, per metric type and reader.
    pub(crate) cut_keys: usize,
    /// Samples of keys beyond the limit since [`since`](Self::since).
    pub(crate) cut_samples: u64,
    /// The time of the first key beyond the limit.
    pub(crate) since: SystemTime,
    /// The most recent keys beyond the limit, oldest first, as they were sent.
    pub(crate) examples: VecDeque<String>,
}

impl PrefixUsage {
    fn new(limit: usize, excess: ExcessAction) -> Self {
        Self {
            limit,
            excess,
            keys: 0,
            cut_keys: 0,
            cut_samples: 0,
            since: None,
            examples: VecDeque::new(),
        }
    }
}

impl PrefixLimits {
    pub(super) fn new(limits: &StatsdLimits) -> Self {
        let usage = limits
            .prefix
            .iter()
            .map(|limit| (Arc::from(&*limit.prefix), PrefixUsage::new(limit.keys, limit.excess)));
        let mut configured: Vec<(Arc<str>, _)> = usage.collect();
        configured.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Self {
            configured,
            keys_per_part: limits.keys_per_prefix,
            expected_keys: Some(0),
            ..Self::default()
        }
    }

    pub(super) fn are_active(&self) -> bool {
        self.keys_per_part > 0 || !self.configured.is_empty()
    }

    /// Counts a key that is new to the registry. Returns it, or the overflow key, or `None` if its
    /// samples are to be discarded; and the prefix, if the key is beyond its limit.
    pub(super) fn admit(
        &mut self,
        keys: KeyPair,
        example: impl FnOnce() -> String,
        now: SystemTime,
    ) -> (Option<KeyPair>, Option<Arc<str>>) {
        let Some((prefix, usage)) = self.usage(keys.key.base()) else {
            self.expected_keys = self.expected_keys.map(|keys| keys + 1);
            return (Some(keys), None);
        };
        if usage.keys < usage.limit {
            usage.keys += 1;
            self.expected_keys = self.expected_keys.map(|keys| keys + 1);
            return (Some(keys), None);
        }
        usage.cut_keys += 1;
        if usage.examples.len() == EXAMPLES_MAX {
            usage.examples.pop_front();
        }
        usage.examples.push_back(example());
        let keys = match usage.excess {
            ExcessAction::Drop => None,
            ExcessAction::Overflow => {
                let key = format!("{}.overflow", prefix.trim_end_matches('.'));
                let key = MetricName::new(&key);
                Some(KeyPair { sent: key.clone(), key })
            }
        };
        let reached = usage.since.is_none().then(|| (Arc::clone(&prefix), usage.limit));
        usage.since.get_or_insert(now);
        if self.reached.len() < NOTICES_MAX {
            self.reached.extend(reached);
        }
        (keys, Some(prefix))
    }

    /// Counts samples of a key beyond the limit.
    pub(super) fn count(&mut self, prefix: &str, samples: u32) {
        if let Some(usage) = self.find(prefix) {
            usage.cut_samples += u64::from(samples);
        }
    }

    /// Subtracts a key beyond the limit, because its shard was reset.
    pub(super) fn release(&mut self, prefix: &str) {
        if let Some(usage) = self.find(prefix) {
            usage.cut_keys = usage.cut_keys.saturating_sub(1);
        }
    }

    /// Prepares for new cells of all keys: only those in `known` count towards the limits.
    pub(super) fn restart<'n>(&mut self, known: impl Iterator<Item = &'n MetricName>) {
        let parts = self.parts.values_mut();
        let all = parts.chain(self.configured.iter_mut().map(|(_, usage)| usage));
        all.for_each(|usage| (usage.keys, usage.cut_keys) = (0, 0));
        self.count_keys(known);
        self.expected_keys = None;
    }

    fn count_keys<'n>(&mut self, names: impl Iterator<Item = &'n MetricName>) {
        for name in names {
            if let Some((_, usage)) = self.usage(name.base()) {
                usage.keys += 1;
            }
        }
    }

    /// Returns the prefixes that reached their limit since the last call, with the limit.
    pub(super) fn take_reached(&mut self) -> Vec<(Arc<str>, usize)> {
        mem::take(&mut self.reached)
    }

    /// Returns the prefixes that reached their limit, those with the most samples beyond it first.
    pub(super) fn tallies(&self) -> Vec<PrefixTally> {
        let configured = self.configured.iter().map(|(prefix, usage)| (prefix, usage));
        let all = configured.chain(&self.parts);
        let mut tallies: Vec<_> = all
            .filter_map(|(prefix, usage)| {
                Some(PrefixTally {
                    prefix: Arc::clone(prefix),
                    limit: usage.limit,
                    keys: usage.keys,
                    cut_keys: usage.cut_keys,
                    cut_samples: usage.cut_samples,
                    since: usage.since?,
                    examples: usage.examples.clone(),
                })
            })
            .collect();
        tallies.sort_by(|a, b| {
            b.cut_samples.cmp(&a.cut_samples).then_with(|| a.prefix.cmp(&b.prefix))
        });
        tallies
    }

    /// Continues the counts of a prefix in another process, if it has a limit.
    pub(super) fn restore(
        &mut self,
        prefix: &str,
        since: SystemTime,
        samples: u64,
        examples: VecDeque<String>,
    ) {
        let is_configured = self.configured.iter().any(|(known, _)| **known == *prefix);
        if !is_configured && self.usage(prefix).is_none_or(|(known, _)| *known != *prefix) {
            return;
        }
        if let Some(usage) = self.find(prefix) {
            (usage.since, usage.cut_samples, usage.examples) = (Some(since), samples, examples);
        }
    }

    /// Returns what [`take_reached`](Self::take_reached) will return.
    pub(super) fn reached(&self) -> &[(Arc<str>, usize)] {
        &self.reached
    }

    /// Continues with the [`reached`](Self::reached) prefixes of another process.
    pub(super) fn restore_reached(&mut self, mut reached: Vec<(Arc<str>, usize)>) {
        reached.truncate(NOTICES_MAX);
        self.reached = reached;
    }

    /// Returns the samples beyond the limit of each prefix that has any.
    pub(super) fn cut_samples(&self) -> Vec<(Arc<str>, u64)> {
        self.tallies().into_iter().map(|tally| (tally.prefix, tally.cut_samples)).collect()
    }

    /// Sets the samples beyond the limits.
    pub(super) fn set_cut_samples(&mut self, samples: Vec<(Arc<str>, u64)>) {
        for (prefix, samples) in samples {
            if let Some(usage) = self.find(&prefix) {
                usage.cut_samples = samples;
            }
        }
    }

    /// Returns the usage of the longest configured prefix of a name, or of its first part.
    fn usage(&mut self, name: &str) -> Option<(Arc<str>, &mut PrefixUsage)> {
        let configured = self.configured.iter().position(|(prefix, _)| name.starts_with(&**prefix));
        if let Some(at) = configured {
            let (prefix, usage) = &mut self.configured[at];
            return Some((Arc::clone(prefix), usage));
        }
        if self.keys_per_part == 0 {
            return None;
        }
        let part = name.split('.').next().unwrap_or_default();
        let prefix = match self.parts.get_key_value(part) {
            Some((prefix, _)) => Arc::clone(prefix),
            None => Arc::from(part),
        };
        let new = || PrefixUsage::new(self.keys_per_part, ExcessAction::Overflow);
        let usage = self.parts.entry(Arc::clone(&prefix)).or_insert_with(new);
        Some((prefix, usage))
    }

    fn find(&mut self, prefix: &str) -> Option<&mut PrefixUsage> {
        let configured = self.configured.iter_mut().find(|(known, _)| **known == *prefix);
        configured.map(|(_, usage)| usage).or_else(|| self.parts.get_mut(prefix))
    }

    /// Whether a prefix has room again for keys that were beyond its limit.
    fn has_room(&self) -> bool {
        let configured = self.configured.iter().map(|(_, usage)| usage);
        let mut all = configured.chain(self.parts.values());
        // A margin, so that keys that come and go do not cause it with each flush.
        all.any(|usage| usage.cut_keys > 0 && usage.keys + usage.keys / 4 < usage.limit)
    }
}

/// Counts the keys of each prefix again after a flush, if metrics were removed. Returns whether
/// keys that were beyond a limit may be admitted now.
pub(super) fn recount(registry: &mut KeyRegistry) -> bool {
    let live = registry.keys();
    let KeyRegistry { key_rules, counters, timers, gauges, sets, .. } = registry;
    let limits = &mut key_rules.prefixes;
    if !limits.are_active() || limits.expected_keys == Some(live) {
        return false;
    }
    limits.configured.iter_mut().for_each(|(_, usage)| usage.keys = 0);
    limits.parts.values_mut().for_each(|usage| usage.keys = 0);
    let counters = counters.iter().map(|entry| &entry.name);
    let timers = timers.iter().map(|entry| &entry.name);
    let gauges = gauges.iter().map(|entry| &entry.name);
    let sets = sets.iter().map(|entry| &entry.name);
    limits.count_keys(counters.chain(timers).chain(gauges).chain(sets));
    // The first parts of a flood of names must not stay.
    limits.parts.retain(|_, usage| usage.keys > 0 || usage.cut_keys > 0);
    limits.expected_keys = Some(live);
    limits.has_room()
}

//! [`KeyRules`]: applies the rules to keys that are new to a shard, and counts what they do.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    mem,
    sync::Arc,
    time::SystemTime,
};

use howdah_codec::ByteWriter as _;

use super::prefix_limits::{PrefixLimits, PrefixTally};
use crate::{
    MetricName,
    aggregate::{MetricType, NewName},
    binary::{BinaryReader, BinaryWriter as _, HandoverFormatError},
    flush::names::{KeyConversion, KeyPair},
    rules::{MetricRules, RuleResult},
    settings::{RuleAction, StatsdSettings},
};

/// Maximum number of names stored per rule.
const EXAMPLES_MAX: usize = 5;
/// Maximum number of characters of a stored name.
const EXAMPLE_CHARS_MAX: usize = 200;

/// Maximum number of prefixes in self metrics.
const PREFIXES_MAX: usize = 100;
/// Maximum number of distinct outcomes that are counted exactly.
const TRACES_MAX: usize = 1 << 16;

/// The rules of a registry, with counts.
#[derive(Debug)]
pub(crate) struct KeyRules {
    rules: MetricRules,
    pub(super) prefixes: PrefixLimits,
    tallies: Vec<RuleTally>,
    /// The distinct outcomes; the first one is that of a key that no rule matched.
    traces: Vec<KeyTrace>,
    by_outcome: HashMap<TraceOutcome, u32>,
}

/// The effects of a rule since [`since`](Self::since).
#[derive(Clone, Debug)]
pub(crate) struct RuleTally {
    pub(crate) id: Arc<str>,
    pub(crate) action: Option<RuleAction>,
    /// The time at which the rule became effective.
    pub(crate) since: SystemTime,
    /// Samples of keys that the rule dropped.
    pub(crate) dropped: u64,
    /// Samples of keys that the rule changed or allowed.
    pub(crate) changed: u64,
    /// Keys that the rule currently drops, changes or allows, per metric type and reader.
    pub(crate) keys: u64,
    /// The most recent of these keys, oldest first, as they were sent.
    pub(crate) examples: VecDeque<String>,
}

/// The number of a [`KeyTrace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceNumber(u32);

/// The keys with the same outcome of rules.
#[derive(Debug)]
struct KeyTrace {
    outcome: TraceOutcome,
    keys: u64,
    samples: u64,
}

/// The effect of rules on a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct TraceOutcome {
    /// Numbers of the rules that matched.
    rules: Box<[u16]>,
    dropped: bool,
    /// Whether the key was dropped or became another one.
    altered: bool,
    /// The prefix beyond whose limit the key is.
    prefix: Option<Arc<str>>,
}

impl KeyRules {
    pub(crate) fn new(settings: &StatsdSettings, now: SystemTime) -> Self {
        let (rules, _) = MetricRules::compile(&settings.rules, &settings.static_tags);
        let tally = |(id, action): (&Arc<str>, Option<RuleAction>)| RuleTally {
            id: Arc::clone(id),
            action,
            since: now,
            dropped: 0,
            changed: 0,
            keys: 0,
            examples: VecDeque::new(),
        };
        Self {
            tallies: rules.iter().map(tally).collect(),
            rules,
            prefixes: PrefixLimits::new(&settings.limits),
            traces: vec![KeyTrace { outcome: TraceOutcome::default(), keys: 0, samples: 0 }],
            by_outcome: HashMap::from([(TraceOutcome::default(), 0)]),
        }
    }

    /// Whether there are rules, static tags or limits of prefixes.
    pub(super) fn are_active(&self) -> bool {
        !self.rules.is_empty() || self.prefixes.are_active()
    }

    /// Returns the keys of a name after all rules and limits, `None` if its samples are to be
    /// discarded, and the number of the outcome. `is_known` says whether the registry has a key.
    pub(super) fn keys(
        &mut self,
        name: &NewName<'_>,
        conversion: KeyConversion,
        is_known: impl FnOnce(&MetricName) -> bool,
        now: SystemTime,
    ) -> (Option<KeyPair>, TraceNumber) {
        let (keys, mut outcome) = self.apply_rules(name, conversion);
        let keys = match keys {
            Some(keys) if self.is_limited(name) && !is_known(&keys.key) => {
                let (keys, prefix) = self.prefixes.admit(keys, || example(name), now);
                outcome.altered |= prefix.is_some();
                outcome.prefix = prefix;
                keys
            }
            keys => keys,
        };
        (keys, self.trace(outcome, name))
    }

    /// Returns the keys of a name after all rules, `None` if one drops it. Counts nothing, and
    /// ignores limits.
    pub(super) fn target(&self, name: &NewName<'_>, conversion: KeyConversion) -> Option<KeyPair> {
        self.apply_rules(name, conversion).0
    }

    /// Whether the rules neither change nor drop a metric of this name.
    pub(super) fn are_unrelated_to(&self, name: &MetricName, kind: MetricType) -> bool {
        let result = self.rules.apply(name, kind);
        result.key.is_some() && !result.changed
    }

    /// Returns the keys of a name of which values with a timestamp were received, and counts these;
    /// `None` if a rule drops them. The limits of prefixes do not apply.
    pub(super) fn timed_keys(
        &mut self,
        name: &NewName<'_>,
        conversion: KeyConversion,
        samples: u32,
    ) -> Option<KeyPair> {
        let (keys, outcome) = self.apply_rules(name, conversion);
        if self.are_active() {
            let trace = self.trace(outcome, name);
            self.count(trace, samples);
            // Such a key has no cell.
            self.release(trace);
        }
        keys
    }

    /// Returns the keys of a metric that another server forwards, after all rules and, with
    /// `is_limited`, limits, and counts its samples; `None` if they are to be discarded.
    pub(super) fn forwarded_keys(
        &mut self,
        (kind, keys): (MetricType, KeyPair),
        conversion: KeyConversion,
        samples: u32,
        is_limited: impl FnOnce(&MetricName) -> bool,
        now: SystemTime,
    ) -> Option<KeyPair> {
        if !self.are_active() {
            return Some(keys);
        }
        let sent = keys.sent.clone();
        let name = NewName { kind, name: sent.key().as_bytes(), tags: b"", overflow: false };
        let RuleResult { key, changed, matched } = self.rules.apply(&sent, kind);
        let keys = key.map(|key| if changed { conversion.changed_keys(key) } else { keys });
        let mut outcome = TraceOutcome {
            dropped: keys.is_none(),
            altered: changed,
            rules: matched.into(),
            prefix: None,
        };
        let keys = match keys {
            Some(keys) if self.prefixes.are_active() && is_limited(&keys.key) => {
                let (keys, prefix) = self.prefixes.admit(keys, || example(&name), now);
                outcome.prefix = prefix;
                keys
            }
            keys => keys,
        };
        let trace = self.trace(outcome, &name);
        self.count(trace, samples);
        // It has no cell in a shard.
        self.release(trace);
        keys
    }

    /// Appends the counts, for another process, with the definition of each rule:
    ///
    /// ```text
    /// rules := list of (id: text, definition: text, since ms, dropped, changed, examples),
    ///          list of (prefix: text, since ms, samples beyond its limit, examples),
    ///          list of (prefix: text, limit) that the log must mention
    /// ```
    pub(super) fn write_to(&self, out: &mut Vec<u8>, definitions: &BTreeMap<String, String>) {
        let write_examples = |out: &mut Vec<u8>, examples: &VecDeque<String>| {
            out.write_count(examples.len());
            examples.iter().for_each(|example| out.write_text(example));
        };
        let tallies = self.tallies();
        out.write_count(tallies.len());
        for tally in tallies {
            out.write_text(&tally.id);
            out.write_text(definitions.get(&*tally.id).map_or("", String::as_str));
            out.write_time(tally.since);
            out.write_total(tally.dropped);
            out.write_total(tally.changed);
            write_examples(out, &tally.examples);
        }
        let prefixes = self.prefixes.tallies();
        out.write_count(prefixes.len());
        for tally in prefixes {
            out.write_text(&tally.prefix);
            out.write_time(tally.since);
            out.write_total(tally.cut_samples);
            write_examples(out, &tally.examples);
        }
        let reached = self.prefixes.reached();
        out.write_count(reached.len());
        for (prefix, limit) in reached {
            out.write_text(prefix);
            out.write_count(*limit);
        }
    }

    /// Continues the counts of another process: those of rules with the same id and definition, and
    /// those of prefixes.
    pub(super) fn restore(
        &mut self,
        from: &mut BinaryReader<'_>,
        definitions: &BTreeMap<String, String>,
    ) -> Result<(), HandoverFormatError> {
        let examples = |from: &mut BinaryReader<'_>| {
            let list = from.list(|from| Ok(from.text()?.to_owned()))?;
            Ok::<_, HandoverFormatError>(list.into_iter().take(EXAMPLES_MAX).collect())
        };
        for _ in 0..from.count()? {
            let (id, definition) = (from.text()?, from.text()?);
            let (since, dropped, changed) = (from.time()?, from.total()?, from.total()?);
            let examples = examples(from)?;
            if definitions.get(id).is_some_and(|same| same == definition)
                && let Some(tally) = self.tallies.iter_mut().find(|tally| *tally.id == *id)
            {
                *tally = RuleTally { since, dropped, changed, examples, ..tally.clone() };
            }
        }
        for _ in 0..from.count()? {
            let (prefix, since, samples) = (from.text()?, from.time()?, from.total()?);
            self.prefixes.restore(prefix, since, samples, examples(from)?);
        }
        let reached = from.list(|from| Ok((Arc::from(from.text()?), from.number()?)))?;
        self.prefixes.restore_reached(reached);
        Ok(())
    }

    /// Returns the counts of samples, to undo some with [`undo_counts`](Self::undo_counts).
    pub(super) fn counts(&self) -> (Vec<u64>, Vec<(Arc<str>, u64)>) {
        let traces = self.traces.iter().map(|trace| trace.samples).collect();
        (traces, self.prefixes.cut_samples())
    }

    /// Undoes everything that was counted since `before`.
    pub(super) fn undo_counts(&mut self, before: (Vec<u64>, Vec<(Arc<str>, u64)>)) {
        let (traces, prefixes) = before;
        for (trace, samples) in self.traces.iter_mut().zip(traces) {
            trace.samples = samples;
        }
        self.prefixes.set_cut_samples(prefixes);
    }

    /// Whether limits of prefixes apply to a name.
    fn is_limited(&self, name: &NewName<'_>) -> bool {
        self.prefixes.are_active() && !name.overflow
    }

    fn apply_rules(
        &self,
        name: &NewName<'_>,
        conversion: KeyConversion,
    ) -> (Option<KeyPair>, TraceOutcome) {
        if name.overflow {
            let key = conversion.canonical(name.name, name.tags, false);
            return (Some(KeyPair { sent: key.clone(), key }), TraceOutcome::default());
        }
        if self.rules.is_empty() {
            return (Some(conversion.keys(name.name, name.tags)), TraceOutcome::default());
        }
        let sent = conversion.as_sent(name.name, name.tags);
        let RuleResult { key, changed, matched } = self.rules.apply(&sent, name.kind);
        let keys = key.map(|key| {
            if changed {
                conversion.changed_keys(key)
            } else {
                conversion.keys(name.name, name.tags)
            }
        });
        let outcome = TraceOutcome {
            dropped: keys.is_none(),
            altered: changed,
            rules: matched.into(),
            prefix: None,
        };
        (keys, outcome)
    }

    /// Returns the keys of a name after all rules, `None` if one drops it, and the ids of the rules
    /// that matched. Counts nothing, and ignores limits.
    pub(crate) fn preview(
        &self,
        name: &NewName<'_>,
        conversion: KeyConversion,
    ) -> (Option<KeyPair>, Vec<Arc<str>>) {
        let (keys, outcome) = self.apply_rules(name, conversion);
        let ids = outcome.rules.iter().map(|rule| &self.tallies[usize::from(*rule)].id);
        (keys, ids.cloned().collect())
    }

    /// Counts the samples of a cell; returns whether rules dropped or changed its key.
    pub(super) fn count(&mut self, trace: TraceNumber, samples: u32) -> bool {
        let trace = &mut self.traces[trace.0 as usize];
        trace.samples += u64::from(samples);
        if let Some(prefix) = &trace.outcome.prefix {
            self.prefixes.count(prefix, samples);
        }
        trace.outcome.altered
    }

    /// Whether rules dropped or changed the key of a cell.
    pub(super) fn is_altered(&self, trace: TraceNumber) -> bool {
        self.traces[trace.0 as usize].outcome.altered
    }

    /// Subtracts the key of a cell, because its shard was reset.
    pub(super) fn release(&mut self, trace: TraceNumber) {
        let trace = &mut self.traces[trace.0 as usize];
        trace.keys = trace.keys.saturating_sub(1);
        if let Some(prefix) = &trace.outcome.prefix {
            self.prefixes.release(prefix);
        }
    }

    /// Returns what each rule did, in the order of the rules.
    pub(crate) fn tallies(&self) -> Vec<RuleTally> {
        let mut tallies = self.tallies.clone();
        for trace in &self.traces {
            for (at, number) in trace.outcome.rules.iter().enumerate() {
                let is_last = at + 1 == trace.outcome.rules.len();
                let tally = &mut tallies[usize::from(*number)];
                tally.keys += trace.keys;
                // Only the last of the rules that matched can have dropped the key.
                if trace.outcome.dropped && is_last {
                    tally.dropped += trace.samples;
                } else {
                    tally.changed += trace.samples;
                }
            }
        }
        tallies
    }

    /// Returns the number of samples that each rule with the action `drop` discarded.
    pub(super) fn dropped(&self) -> Vec<(Arc<str>, u64)> {
        let tallies = self.tallies().into_iter();
        let drops = tallies.filter(|tally| tally.action == Some(RuleAction::Drop));
        drops.map(|tally| (tally.id, tally.dropped)).collect()
    }

    /// Returns the prefixes that reached their limit, those with the most samples beyond it first.
    pub(crate) fn prefix_tallies(&self) -> Vec<PrefixTally> {
        self.prefixes.tallies()
    }

    /// Returns the prefixes with the most samples beyond their limit, each with that number.
    pub(super) fn prefix_overflows(&self) -> Vec<(Arc<str>, u64)> {
        let tallies = self.prefixes.tallies().into_iter().take(PREFIXES_MAX);
        tallies.map(|tally| (tally.prefix, tally.cut_samples)).collect()
    }

    /// Continues the counts of the rules that are unchanged since `before`, and of prefixes.
    pub(super) fn inherit(&mut self, before: &mut Self, is_unchanged: impl Fn(&str) -> bool) {
        self.prefixes = mem::take(&mut before.prefixes);
        let old = before.tallies();
        for tally in &mut self.tallies {
            let same = old.iter().find(|old| old.id == tally.id && is_unchanged(&tally.id));
            if let Some(same) = same {
                *tally = RuleTally { keys: 0, ..same.clone() };
            }
        }
    }

    /// Returns the number of an outcome, which the key gets.
    fn trace(&mut self, mut outcome: TraceOutcome, name: &NewName<'_>) -> TraceNumber {
        if self.traces.len() >= TRACES_MAX && !self.by_outcome.contains_key(&outcome) {
            // Senders may cause any combination of rules; then only the last rule is counted.
            outcome.rules = outcome.rules.last().copied().into_iter().collect();
        }
        for rule in &outcome.rules {
            let examples = &mut self.tallies[usize::from(*rule)].examples;
            if examples.len() == EXAMPLES_MAX {
                examples.pop_front();
            }
            examples.push_back(example(name));
        }
        let next = self.traces.len() as u32;
        let number = *self.by_outcome.entry(outcome).or_insert_with_key(|outcome| {
            self.traces.push(KeyTrace { outcome: outcome.clone(), keys: 0, samples: 0 });
            next
        });
        self.traces[number as usize].keys += 1;
        TraceNumber(number)
    }
}

/// Returns a name with its tags as they were sent, shortened, with control characters escaped.
fn example(name: &NewName<'_>) -> String {
    let mut text = String::from_utf8_lossy(name.name).into_owned();
    if !name.tags.is_empty() {
        text.push_str("|#");
        text.push_str(&String::from_utf8_lossy(name.tags));
    }
    let escaped = text.chars().take(EXAMPLE_CHARS_MAX).flat_map(char::escape_debug);
    escaped.collect()
}

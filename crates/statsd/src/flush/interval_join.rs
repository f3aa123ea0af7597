//! Joins two intervals into one, for a backend that was too busy for the first.
//!
//! Counters, timer samples and set members are added; the later gauge value wins; totals are those
//! of the later interval. The joined interval is as long as both together, so rates remain per
//! second. The limits of a single interval apply: excess samples become a sketch; with
//! excess members, a set becomes an estimate, or the members are omitted.

use std::{cmp::Ordering, sync::Arc};

use super::{
    Calculation, CounterMetric, FlushSnapshot, GaugeMetric, JoinLosses, MetricVariants, SetMetric,
    TimerMetric, TimerSamples, messages, statistics::PrefixSums, timed,
};
use crate::{
    MetricName,
    aggregate::{Sketched, WeightTotals},
    hyperloglog::HyperLogLog,
    settings::SetOverflow,
    sketch::Sketch,
};

impl FlushSnapshot {
    /// Joins this interval with the following one.
    pub(crate) fn joined(&self, later: &Self) -> Self {
        let interval = self.interval + later.interval;
        let mut joiner = IntervalJoiner {
            calculation: &later.calculation,
            seconds: interval.as_secs_f64(),
            exact_left: later.calculation.exact_samples_total,
            scratch: PrefixSums::default(),
        };
        let (old, new) = (&self.variants, &later.variants);
        let (counters, variant_counters) =
            joiner.lists((&self.counters, &old.counters), (&later.counters, &new.counters));
        let (timers, variant_timers) =
            joiner.lists((&self.timers, &old.timers), (&later.timers, &new.timers));
        let (gauges, variant_gauges) =
            joiner.lists((&self.gauges, &old.gauges), (&later.gauges, &new.gauges));
        let (sets, variant_sets) = joiner.lists((&self.sets, &old.sets), (&later.sets, &new.sets));
        let (timed, values) = timed::join(&self.timed, &later.timed, later.calculation.timed);
        let bytes_max = later.calculation.message_bytes;
        let (messages, lost) = messages::join(&self.messages, &later.messages, bytes_max);
        let before = [self.dropped_by_joins, later.dropped_by_joins];
        Self {
            timestamp: later.timestamp,
            time: later.time,
            interval,
            counters,
            timers,
            gauges,
            sets,
            variants: MetricVariants {
                counters: variant_counters,
                timers: variant_timers,
                gauges: variant_gauges,
                sets: variant_sets,
            },
            timed,
            messages,
            dropped_by_joins: JoinLosses {
                values: values + before.iter().map(|losses| losses.values).sum::<u64>(),
                messages: lost + before.iter().map(|losses| losses.messages).sum::<u64>(),
            },
            self_metrics: later.self_metrics.clone(),
            percentiles: Arc::clone(&later.percentiles),
            mergeable: Arc::default(),
            calculation: Arc::clone(&later.calculation),
        }
    }
}

struct IntervalJoiner<'c> {
    calculation: &'c Calculation,
    /// Length of both intervals together, in seconds.
    seconds: f64,
    /// The number of further samples that may be stored exactly.
    exact_left: usize,
    scratch: PrefixSums,
}

/// A metric of one of the four types.
trait JoinableMetric: Clone {
    fn name(&self) -> &MetricName;
    fn merged(&mut self) -> &mut bool;
    /// Inserts the values of `earlier`, the same metric in the earlier interval, before its own
    /// values.
    fn prepend(&mut self, earlier: &Self, joiner: &mut IntervalJoiner<'_>);
    /// Recalculates rates for the joined interval.
    fn stretch(&mut self, _: &IntervalJoiner<'_>) {}
}

impl IntervalJoiner<'_> {
    /// Joins two pairs of lists: all metrics, and the variants of merged ones.
    fn lists<M: JoinableMetric>(
        &mut self,
        earlier: (&[M], &[M]),
        later: (&[M], &[M]),
    ) -> (Vec<M>, Vec<M>) {
        // A metric merged on one side only becomes a variant of the joined metric.
        let mut one_sided = [Vec::new(), Vec::new()];
        let metrics = self.list(earlier.0, later.0, &mut |one, two| {
            for (side, metric) in [one, two].into_iter().enumerate() {
                one_sided[side].push(metric.clone());
            }
        });
        let [one, two] = one_sided.map(|side| {
            side.into_iter().filter_map(|mut metric| (!*metric.merged()).then_some(metric))
        });
        let all = |list: &[M], variants: Vec<M>| -> Vec<M> {
            let mut all = list.to_vec();
            all.extend(variants);
            all.sort_by(|a, b| a.name().cmp(b.name()));
            all
        };
        let (one, two) = (all(earlier.1, one.collect()), all(later.1, two.collect()));
        (metrics, self.list(&one, &two, &mut |_, _| {}))
    }

    /// Joins two sorted lists. Calls `differs` for pairs of which only one is merged.
    fn list<M: JoinableMetric>(
        &mut self,
        earlier: &[M],
        later: &[M],
        differs: &mut dyn FnMut(&M, &M),
    ) -> Vec<M> {
        let mut joined = Vec::with_capacity(earlier.len().max(later.len()));
        let (mut earlier, mut later) = (earlier.iter().peekable(), later.iter().peekable());
        loop {
            let order = match (earlier.peek(), later.peek()) {
                (None, None) => return joined,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some(two)) => one.name().cmp(two.name()),
            };
            let one = if order.is_le() { earlier.next().cloned() } else { None };
            let two = if order.is_ge() { later.next().cloned() } else { None };
            joined.push(match (one, two) {
                (Some(mut one), Some(mut two)) => {
                    if *one.merged() != *two.merged() {
                        differs(&one, &two);
                    }
                    *two.merged() |= *one.merged();
                    two.prepend(&one, self);
                    two
                }
                (Some(mut only), None) | (None, Some(mut only)) => {
                    only.stretch(self);
                    only
                }
                (None, None) => return joined,
            });
        }
    }
}

impl JoinableMetric for CounterMetric {
    fn name(&self) -> &MetricName {
        &self.name
    }

    fn merged(&mut self) -> &mut bool {
        &mut self.merged
    }

    fn prepend(&mut self, earlier: &Self, _: &mut IntervalJoiner<'_>) {
        self.value += earlier.value;
        self.idle &= earlier.idle;
    }
}

impl JoinableMetric for GaugeMetric {
    fn name(&self) -> &MetricName {
        &self.name
    }

    fn merged(&mut self) -> &mut bool {
        &mut self.merged
    }

    fn prepend(&mut self, earlier: &Self, _: &mut IntervalJoiner<'_>) {
        self.idle &= earlier.idle;
    }
}

impl JoinableMetric for SetMetric {
    fn name(&self) -> &MetricName {
        &self.name
    }

    fn merged(&mut self) -> &mut bool {
        &mut self.merged
    }

    fn prepend(&mut self, earlier: &Self, joiner: &mut IntervalJoiner<'_>) {
        if earlier.count == 0 {
            return;
        }
        let Calculation { set_members, set_overflow, .. } = joiner.calculation;
        let mut members = [&earlier.members[..], &self.members[..]].concat();
        members.sort_unstable();
        members.dedup();
        let too_many = *set_overflow == SetOverflow::Estimate && members.len() > *set_members;
        if too_many || earlier.estimate.is_some() || self.estimate.is_some() {
            let mut estimate = HyperLogLog::default();
            let estimates = earlier.estimate.iter().chain(&self.estimate);
            estimates.for_each(|other| estimate.merge(other));
            members.iter().for_each(|member| estimate.add(member.as_bytes()));
            self.count = estimate.count().round() as u64;
            self.members = Arc::default();
            self.estimate = Some(Arc::new(estimate));
            return;
        }
        members.truncate((*set_members).max(self.members.len()));
        self.count = members.len() as u64;
        self.members = members.into();
    }
}

impl JoinableMetric for TimerMetric {
    fn name(&self) -> &MetricName {
        &self.name
    }

    fn merged(&mut self) -> &mut bool {
        &mut self.merged
    }

    fn prepend(&mut self, earlier: &Self, joiner: &mut IntervalJoiner<'_>) {
        let weights = |timer: &Self| {
            let all = timer.summary.as_ref()?;
            Some(WeightTotals { count: all.count, excess: all.weighted_sum - all.sum })
        };
        let weights = weights(earlier).unwrap_or_default().and(weights(self).unwrap_or_default());
        let key = self.name.key();
        let rules = &joiner.calculation.rules;
        let exact = match (&earlier.samples, &self.samples) {
            (TimerSamples::Exact(one), TimerSamples::Exact(two))
                if one.len() + two.len()
                    <= joiner.calculation.exact_samples.min(joiner.exact_left) =>
            {
                Some([&one[..], &two[..]].concat())
            }
            _ => None,
        };
        match exact {
            Some(mut samples) => {
                joiner.exact_left -= samples.len();
                let scratch = &mut joiner.scratch;
                (self.fields, self.summary) =
                    rules.exact(key, &mut samples, weights, joiner.seconds, scratch);
                self.samples = TimerSamples::Exact(samples.into());
            }
            None => {
                let mut sketched = Sketched::default();
                earlier.add_to(&mut sketched);
                self.add_to(&mut sketched);
                (self.fields, self.summary) =
                    rules.sketched(key, &sketched, self.unit, weights, joiner.seconds);
                self.samples = TimerSamples::Sketched(Arc::new(sketched.sketch));
            }
        }
    }

    fn stretch(&mut self, joiner: &IntervalJoiner<'_>) {
        for (name, value) in &mut self.fields {
            if &**name == "count_ps" {
                *value = self.summary.as_ref().map_or(0.0, |all| all.count) / joiner.seconds;
            }
        }
    }
}

impl TimerMetric {
    fn add_to(&self, all: &mut Sketched) {
        match (&self.samples, &self.summary) {
            (TimerSamples::Exact(values), _) => {
                values.iter().for_each(|value| all.add(*value, self.unit));
            }
            (TimerSamples::Sketched(_), None) => {}
            (TimerSamples::Sketched(sketch), Some(summary)) => all.merge(&Sketched {
                sketch: Sketch::clone(sketch),
                samples: summary.samples,
                sum: summary.sum,
                sum_squares: summary.sum_squares,
                range: Some((summary.lower, summary.upper)),
            }),
        }
    }
}

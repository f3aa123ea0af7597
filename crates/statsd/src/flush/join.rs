//! Two intervals as one, for a backend that was too busy for the first of them.
//!
//! Counters, samples of timers and members of sets add up; of gauges the later value counts; totals are
//! those of the later interval already. The result is as long as both together, so that rates are still
//! per second, and is bounded as one interval is: too many samples become a sketch, too many members are
//! left out.

use std::{cmp::Ordering, sync::Arc};

use super::{
    Calculation, Counter, Gauge, Samples, Set, Snapshot, Timer, Variants, statistics::PrefixSums,
};
use crate::{Name, aggregate::Sketched, sketch::Sketch};

impl Snapshot {
    /// This interval and the one that follows it.
    pub(crate) fn joined(&self, later: &Self) -> Self {
        let interval = self.interval + later.interval;
        let mut joiner = Joiner {
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
        Self {
            timestamp: later.timestamp,
            time: later.time,
            interval,
            counters,
            timers,
            gauges,
            sets,
            variants: Variants {
                counters: variant_counters,
                timers: variant_timers,
                gauges: variant_gauges,
                sets: variant_sets,
            },
            own: later.own.clone(),
            percentiles: Arc::clone(&later.percentiles),
            calculation: Arc::clone(&later.calculation),
        }
    }
}

struct Joiner<'c> {
    calculation: &'c Calculation,
    /// Of both intervals.
    seconds: f64,
    /// Samples that may still be kept one by one.
    exact_left: usize,
    scratch: PrefixSums,
}

/// A metric of one of the four kinds.
trait Metric: Clone {
    fn name(&self) -> &Name;
    fn merged(&mut self) -> &mut bool;
    /// Puts what `earlier` holds, of the same key, before what this one does.
    fn prepend(&mut self, earlier: &Self, joiner: &mut Joiner<'_>);
    /// Makes the rates those of the joined interval.
    fn stretch(&mut self, _: &Joiner<'_>) {}
}

impl Joiner<'_> {
    /// Joins two pairs of lists: of all metrics, and of the variants of merged ones.
    fn lists<M: Metric>(&mut self, earlier: (&[M], &[M]), later: (&[M], &[M])) -> (Vec<M>, Vec<M>) {
        // A metric that is merged on one side only is one of the variants of the joined one.
        let mut found = [Vec::new(), Vec::new()];
        let metrics = self.list(earlier.0, later.0, &mut |one, two| {
            for (side, metric) in [one, two].into_iter().enumerate() {
                found[side].push(metric.clone());
            }
        });
        let [one, two] = found.map(|side| {
            side.into_iter().filter_map(|mut metric| (!*metric.merged()).then_some(metric))
        });
        let all = |list: &[M], found: Vec<M>| -> Vec<M> {
            let mut all = list.to_vec();
            all.extend(found);
            all.sort_by(|a, b| a.name().cmp(b.name()));
            all
        };
        let (one, two) = (all(earlier.1, one.collect()), all(later.1, two.collect()));
        (metrics, self.list(&one, &two, &mut |_, _| {}))
    }

    /// Joins two sorted lists. `differs` is called where only one of two is merged.
    fn list<M: Metric>(
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

impl Metric for Counter {
    fn name(&self) -> &Name {
        &self.name
    }

    fn merged(&mut self) -> &mut bool {
        &mut self.merged
    }

    fn prepend(&mut self, earlier: &Self, joiner: &mut Joiner<'_>) {
        self.value += earlier.value;
        self.stretch(joiner);
    }

    fn stretch(&mut self, joiner: &Joiner<'_>) {
        self.rate = self.value / joiner.seconds;
    }
}

impl Metric for Gauge {
    fn name(&self) -> &Name {
        &self.name
    }

    fn merged(&mut self) -> &mut bool {
        &mut self.merged
    }

    fn prepend(&mut self, _: &Self, _: &mut Joiner<'_>) {}
}

impl Metric for Set {
    fn name(&self) -> &Name {
        &self.name
    }

    fn merged(&mut self) -> &mut bool {
        &mut self.merged
    }

    fn prepend(&mut self, earlier: &Self, joiner: &mut Joiner<'_>) {
        if earlier.members.is_empty() {
            return;
        }
        let mut members = [&earlier.members[..], &self.members[..]].concat();
        members.sort_unstable();
        members.dedup();
        members.truncate(joiner.calculation.set_members.max(self.members.len()));
        self.count = members.len() as u64;
        self.members = members.into();
    }
}

impl Metric for Timer {
    fn name(&self) -> &Name {
        &self.name
    }

    fn merged(&mut self) -> &mut bool {
        &mut self.merged
    }

    fn prepend(&mut self, earlier: &Self, joiner: &mut Joiner<'_>) {
        let count =
            [earlier, self].map(|timer| timer.summary.as_ref().map_or(0.0, |all| all.count));
        let count = count[0] + count[1];
        let key = self.name.key();
        let rules = &joiner.calculation.rules;
        let exact = match (&earlier.samples, &self.samples) {
            (Samples::Exact(one), Samples::Exact(two))
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
                    rules.exact(key, &mut samples, count, joiner.seconds, scratch);
                self.samples = Samples::Exact(samples.into());
            }
            None => {
                let mut sketched = Sketched::default();
                earlier.add_to(&mut sketched);
                self.add_to(&mut sketched);
                (self.fields, self.summary) =
                    rules.sketched(key, &sketched, self.unit, count, joiner.seconds);
                self.samples = Samples::Sketched(Arc::new(sketched.sketch));
            }
        }
    }

    fn stretch(&mut self, joiner: &Joiner<'_>) {
        for (name, value) in &mut self.fields {
            if &**name == "count_ps" {
                *value = self.summary.as_ref().map_or(0.0, |all| all.count) / joiner.seconds;
            }
        }
    }
}

impl Timer {
    fn add_to(&self, all: &mut Sketched) {
        match (&self.samples, &self.summary) {
            (Samples::Exact(values), _) => {
                values.iter().for_each(|value| all.add(*value, self.unit));
            }
            (Samples::Sketched(_), None) => {}
            (Samples::Sketched(sketch), Some(summary)) => all.merge(&Sketched {
                sketch: Sketch::clone(sketch),
                samples: summary.samples,
                sum: summary.sum,
                sum_squares: summary.sum_squares,
                range: Some((summary.lower, summary.upper)),
            }),
        }
    }
}

//! [`TimerObservations`]: what a scrape shows of a timer, accumulated flush by flush.

use std::{collections::VecDeque, sync::Arc, time::SystemTime};

use super::mapping::ObserverOptions;
use crate::{
    flush::{TimerMetric, TimerSamples},
    settings::ObserverType,
    sketch::Sketch,
};

/// Parts into which the quantile age is divided: one part expires at a time.
const AGE_PARTS: u32 = 5;

/// The accumulated observations of a timer.
#[derive(Debug)]
pub(super) struct TimerObservations {
    pub(super) observing: Arc<ObserverOptions>,
    pub(super) count: f64,
    pub(super) sum: f64,
    /// Observations per bucket, not cumulative; the last bucket has no bound.
    pub(super) buckets: Box<[f64]>,
    /// All observations of a histogram, for its native buckets.
    pub(super) native: Sketch,
    /// Recent observations of a summary, for quantiles, with the start time of each part.
    recent: VecDeque<(SystemTime, Sketch)>,
}

impl TimerObservations {
    /// Creates observations without samples.
    pub(super) fn new(observing: &Arc<ObserverOptions>) -> Self {
        let buckets = match observing.observer {
            ObserverType::Histogram => observing.buckets.len() + 1,
            ObserverType::Summary => 0,
        };
        Self {
            observing: Arc::clone(observing),
            count: 0.0,
            sum: 0.0,
            buckets: vec![0.0; buckets].into(),
            native: Sketch::default(),
            recent: VecDeque::new(),
        }
    }

    /// Adds the samples of an interval. Sample rates are not stored individually: count and sum are
    /// exact, and weighting every sample equally keeps the total count of the buckets right.
    pub(super) fn add(&mut self, timer: &TimerMetric, scale: f64, now: SystemTime) {
        let per_base = timer.unit.per_base();
        let Some(summary) = &timer.summary else { return };
        let weight = summary.count / summary.samples.max(1) as f64;
        self.count += summary.count;
        self.sum += summary.weighted_sum / per_base * scale;
        match self.observing.observer {
            ObserverType::Histogram => {
                let bounds = Arc::clone(&self.observing);
                for_each_value(timer, scale, weight, |value, weight| {
                    let at = bounds.buckets.partition_point(|bound| *bound < value);
                    if let Some(bucket) = self.buckets.get_mut(at) {
                        *bucket += weight;
                    }
                    self.native.add(value, weight);
                });
            }
            ObserverType::Summary => {
                let recent = self.current_part(now);
                for_each_value(timer, scale, weight, |value, weight| recent.add(value, weight));
            }
        }
    }

    /// Returns the current part of the recent observations; removes expired parts.
    fn current_part(&mut self, now: SystemTime) -> &mut Sketch {
        let age = self.observing.quantile_age;
        let old =
            |since: &SystemTime, limit| now.duration_since(*since).unwrap_or_default() >= limit;
        while self.recent.front().is_some_and(|(since, _)| old(since, age)) {
            self.recent.pop_front();
        }
        if self.recent.back().is_none_or(|(since, _)| old(since, age / AGE_PARTS)) {
            self.recent.push_back((now, Sketch::default()));
        }
        let last = self.recent.len() - 1;
        &mut self.recent[last].1
    }

    /// Returns each configured quantile with its value, which is NaN without recent observations.
    pub(super) fn quantiles(&self) -> Vec<(f64, f64)> {
        let mut all = Sketch::default();
        self.recent.iter().for_each(|(_, part)| all.merge(part));
        let value = |quantile| all.quantile(quantile).unwrap_or(f64::NAN);
        self.observing.quantiles.iter().map(|quantile| (*quantile, value(*quantile))).collect()
    }
}

/// Calls `take` with each scaled value in base units and its weight.
fn for_each_value(timer: &TimerMetric, scale: f64, weight: f64, mut take: impl FnMut(f64, f64)) {
    match &timer.samples {
        TimerSamples::Exact(values) => {
            values.iter().for_each(|value| take(timer.unit.to_base(*value) * scale, weight));
        }
        TimerSamples::Sketched(sketch) => {
            let finest = Sketch::SCALE.cast_signed();
            let middle = |index: i32| ((f64::from(index) + 0.5) / f64::from(1 << finest)).exp2();
            for (index, count) in sketch.negative(finest) {
                take(-middle(index) * scale, count * weight);
            }
            if sketch.zeros() > 0.0 {
                take(0.0, sketch.zeros() * weight);
            }
            for (index, count) in sketch.positive(finest) {
                take(middle(index) * scale, count * weight);
            }
        }
    }
}

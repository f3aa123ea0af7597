//! [`TimerObservations`]: what a scrape shows of a timer, accumulated flush by flush.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_codec::ByteWriter as _;

use super::mapping::ObserverOptions;
use crate::{
    binary::{BinaryReader, BinaryWriter as _, HandoverFormatError},
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

/// Observations that another process has accumulated.
#[derive(Debug)]
pub(super) struct ExportedObservations {
    count: f64,
    sum: f64,
    bounds: Vec<f64>,
    buckets: Vec<f64>,
    native: Sketch,
    recent: Vec<(SystemTime, Sketch)>,
}

impl TimerObservations {
    /// Appends the binary form, for another process:
    ///
    /// ```text
    /// observations := f64 count, f64 sum, list of f64 bounds, list of f64 buckets,
    ///                 native sketch, list of (start ms, sketch) recent observations
    /// ```
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        out.write_f64(self.count);
        out.write_f64(self.sum);
        for values in [&self.observing.buckets[..], &self.buckets] {
            out.write_count(values.len());
            values.iter().for_each(|value| out.write_f64(*value));
        }
        self.native.write_to(out);
        out.write_count(self.recent.len());
        for (since, sketch) in &self.recent {
            let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
            out.write_varint(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
            sketch.write_to(out);
        }
    }

    /// Adds the observations of another process, of which this one continues the timer. With other
    /// bounds than before, count, sum and buckets start again together, because they must agree.
    pub(super) fn restore(&mut self, exported: ExportedObservations) {
        let is_same = self.buckets.is_empty() && exported.buckets.is_empty()
            || self.observing.buckets[..] == exported.bounds[..]
                && self.buckets.len() == exported.buckets.len();
        if !is_same {
            return;
        }
        self.count += exported.count;
        self.sum += exported.sum;
        for (bucket, count) in self.buckets.iter_mut().zip(exported.buckets) {
            *bucket += count;
        }
        self.native.merge(&exported.native);
        self.recent.extend(exported.recent);
        self.recent.make_contiguous().sort_by_key(|(since, _)| *since);
    }
}

impl ExportedObservations {
    /// Reads what [`TimerObservations::write_to`] has written.
    pub(super) fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let time = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        Ok(Self {
            count: from.f64()?,
            sum: from.f64()?,
            bounds: from.list(BinaryReader::f64)?,
            buckets: from.list(BinaryReader::f64)?,
            native: Sketch::read_from(from)?,
            recent: from.list(|from| Ok((time(from.total()?), Sketch::read_from(from)?)))?,
        })
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

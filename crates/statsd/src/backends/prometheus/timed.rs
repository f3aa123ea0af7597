//! Values that were sent with a timestamp, which an endpoint for scrapes cannot express: they count
//! as if they had been sent without one.

use hashbrown::HashMap;

use crate::{
    MetricName,
    flush::{CounterMetric, FlushSnapshot, GaugeMetric, MetricVariants, TimedMetric, TimedType},
};

/// The latest timestamps of gauges, so that an older value does not replace a newer one.
#[derive(Debug)]
pub(super) struct TimedGauges {
    latest: HashMap<MetricName, i64>,
    /// Maximum number of gauges; the values of further ones always count.
    max: usize,
}

impl TimedGauges {
    pub(super) fn new(max: usize) -> Self {
        Self { latest: HashMap::new(), max }
    }

    /// Returns a snapshot with the values that have timestamps as ordinary ones: all counters, and
    /// the gauges with a later timestamp than before.
    pub(super) fn current(&mut self, snapshot: &FlushSnapshot) -> FlushSnapshot {
        let mut current = FlushSnapshot {
            counters: Vec::new(),
            timers: Vec::new(),
            gauges: Vec::new(),
            sets: Vec::new(),
            variants: MetricVariants::default(),
            timed: Vec::new(),
            messages: [].into(),
            mergeable: [].into(),
            percentiles: snapshot.percentiles.clone(),
            calculation: snapshot.calculation.clone(),
            self_metrics: snapshot.self_metrics.clone(),
            ..*snapshot
        };
        // Sorted by time, so the latest of several values of a gauge comes last.
        for TimedMetric { kind, sent, time, value, .. } in &snapshot.timed {
            let (name, value) = (sent.clone(), *value);
            match kind {
                TimedType::Counter => current.counters.push(CounterMetric {
                    name,
                    merged: false,
                    value,
                    total: value,
                    since: (u32::try_from(snapshot.timestamp).unwrap_or_default(), 0),
                    idle: false,
                }),
                TimedType::Gauge if self.is_latest(sent, *time) => {
                    let idle = false;
                    current.gauges.push(GaugeMetric { name, merged: false, value, idle });
                }
                TimedType::Gauge => {}
            }
        }
        current
    }

    /// Returns all gauges with their latest timestamps.
    pub(super) fn latest(&self) -> impl ExactSizeIterator<Item = (&MetricName, i64)> {
        self.latest.iter().map(|(name, time)| (name, *time))
    }

    /// Continues with the latest timestamp of a gauge in another process.
    pub(super) fn restore(&mut self, name: &MetricName, time: i64) {
        self.is_latest(name, time);
    }

    /// Whether no value of the gauge had a later timestamp.
    fn is_latest(&mut self, name: &MetricName, time: i64) -> bool {
        match self.latest.get_mut(name) {
            Some(latest) if *latest > time => false,
            Some(latest) => {
                *latest = time;
                true
            }
            None => {
                if self.latest.len() < self.max {
                    self.latest.insert(name.clone(), time);
                }
                true
            }
        }
    }
}

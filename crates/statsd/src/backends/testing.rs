//! The snapshot used in the tests of several backends.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;

use crate::{
    MetricName,
    flush::{
        Calculation, CounterMetric, FlushSnapshot, GaugeMetric, JoinLosses, MessageContent,
        MetricVariants, ReceivedMessage, SetMetric, TimedMetric, TimedType, TimerMetric,
        TimerSamples, TimerSummary,
    },
    grammar::{AlertType, CheckStatus, EventPriority, TimingUnit},
    self_metrics::SelfMetrics,
    settings::StatsdSettings,
    sketch::Sketch,
};

/// 2026-03-01 10:00:00 UTC.
pub(crate) const TIMESTAMP: i64 = 1_772_359_200;

/// Returns a snapshot with three counters, a timer with samples, an idle timer, a gauge and a set.
pub(crate) fn snapshot() -> Arc<FlushSnapshot> {
    Arc::new(snapshot_at(TIMESTAMP))
}

/// Returns the same snapshot at another time.
pub(crate) fn snapshot_at(timestamp: i64) -> FlushSnapshot {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(timestamp.unsigned_abs());
    let since = time - Duration::from_secs(10);
    let counter = |name: &str, value: f64| CounterMetric {
        name: MetricName::new(name),
        merged: false,
        value,
        total: value,
        since: (u32::try_from(timestamp).unwrap() - 10, 0),
        idle: false,
    };
    FlushSnapshot {
        timestamp,
        time,
        interval: Duration::from_secs(10),
        counters: vec![
            counter("api.hits", 30.0),
            counter("api.hits;code=500", 2.0),
            counter("statsd.packets_received", 12.0),
        ],
        timers: vec![latency(since), idle(since)],
        gauges: vec![GaugeMetric {
            name: MetricName::new("pool.size"),
            merged: false,
            value: -2.5,
            idle: false,
        }],
        sets: vec![SetMetric {
            name: MetricName::new("users"),
            merged: false,
            count: 2,
            members: ["anna", "bob"].map(Box::from).into(),
            estimate: None,
        }],
        self_metrics: SelfMetrics {
            prefix: "statsd".into(),
            processing_ms: 4.0,
            num_stats: 7,
            ..SelfMetrics::default()
        },
        variants: MetricVariants::default(),
        timed: Vec::new(),
        messages: Arc::default(),
        dropped_by_joins: JoinLosses::default(),
        percentiles: [90.0].into(),
        mergeable: Arc::default(),
        calculation: Calculation::new(&StatsdSettings::default(), true),
    }
}

/// Returns the snapshot with an event and a service check.
pub(crate) fn snapshot_with_messages() -> FlushSnapshot {
    let time = |offset| SystemTime::UNIX_EPOCH + Duration::from_millis(offset);
    let event = ReceivedMessage {
        received: time(1_772_359_195_250),
        time: TIMESTAMP - 60,
        host: "web1".into(),
        tags: [("env", "prod"), ("canary", "")]
            .map(|(key, value)| (key.into(), value.into()))
            .into(),
        content: MessageContent::Event {
            title: "Deploy \"7\"".into(),
            text: "two\nlines\0".into(),
            aggregation_key: "deploys".into(),
            priority: EventPriority::Low,
            source_type: Box::default(),
            alert_type: AlertType::Success,
        },
    };
    let check = ReceivedMessage {
        received: time(1_772_359_197_000),
        time: TIMESTAMP - 3,
        host: Box::default(),
        tags: Box::default(),
        content: MessageContent::Check {
            name: "db.up".into(),
            status: CheckStatus::Critical,
            message: "no reply".into(),
        },
    };
    FlushSnapshot { messages: [event, check].into(), ..snapshot_at(TIMESTAMP) }
}

/// Returns the snapshot with a counter and a gauge that were sent with a timestamp, an hour and a
/// minute before the flush.
pub(crate) fn snapshot_with_timed() -> FlushSnapshot {
    let timed = |kind, name: &str, sent: &str, age, value| TimedMetric {
        kind,
        name: MetricName::new(name),
        sent: MetricName::new(sent),
        time: TIMESTAMP - age,
        value,
    };
    FlushSnapshot {
        timed: vec![
            timed(TimedType::Counter, "jobs;q=a-b", "jobs;q=a/b", 3600, 20.0),
            timed(TimedType::Counter, "jobs;q=a-b", "jobs;q=a:b", 3600, 5.0),
            timed(TimedType::Gauge, "load", "load", 60, 1.5),
        ],
        ..snapshot_at(TIMESTAMP)
    }
}

fn latency(since: SystemTime) -> TimerMetric {
    let fields = [
        ("count_90", 3.0),
        ("mean_90", 20.0),
        ("upper_90", 30.0),
        ("sum_90", 60.0),
        ("sum_squares_90", 1400.0),
        ("std", 8.164_965_809_277_26),
        ("upper", 30.0),
        ("lower", 10.0),
        ("count", 3.0),
        ("count_ps", 0.3),
        ("sum", 60.0),
        ("sum_squares", 1400.0),
        ("mean", 20.0),
        ("median", 20.0),
        ("histogram.bin_10", 1.0),
        ("histogram.bin_inf", 2.0),
    ];
    let mut cumulative = Sketch::default();
    [0.010, 0.020, 0.030].into_iter().for_each(|value| cumulative.add(value, 1.0));
    TimerMetric {
        name: MetricName::new("api.latency"),
        merged: false,
        unit: TimingUnit::Milliseconds,
        fields: fields.map(|(name, value)| (name.into(), value)).into(),
        summary: Some(TimerSummary {
            samples: 3,
            count: 3.0,
            lower: 10.0,
            upper: 30.0,
            sum: 60.0,
            weighted_sum: 60.0,
            sum_squares: 1400.0,
            mean: 20.0,
            median: 20.0,
            std: 8.164_965_809_277_26,
            quantiles: vec![(90.0, 30.0)],
        }),
        samples: TimerSamples::Exact([10.0, 20.0, 30.0].into()),
        cumulative: Some(Arc::new(cumulative)),
        count_total: 3.0,
        sum_total: 60.0,
        since,
    }
}

fn idle(since: SystemTime) -> TimerMetric {
    TimerMetric {
        name: MetricName::new("idle"),
        merged: false,
        unit: TimingUnit::Milliseconds,
        fields: [("count_ps", 0.0), ("count", 0.0)]
            .map(|(name, value)| (name.into(), value))
            .into(),
        summary: None,
        samples: TimerSamples::Exact([].into()),
        cumulative: None,
        count_total: 0.0,
        sum_total: 0.0,
        since,
    }
}

/// A writer whose output can be inspected.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedWriter(Arc<Mutex<Vec<u8>>>);

impl SharedWriter {
    /// Returns the written text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

impl io::Write for SharedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

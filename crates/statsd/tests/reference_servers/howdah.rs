//! Runs this server without sockets: one shard, the registry and a simulated clock.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, SystemTime},
};

use howdah_statsd::{
    backends::SnapshotRequirements,
    flush::{FlushSnapshot, FlushTime, KeyRegistry},
    ledger::LossAccount,
    settings::StatsdSettings,
};

use crate::{Flushes, InputStep};

/// Runs the steps.
pub(crate) fn run(config: &str, steps: &[InputStep]) -> Flushes {
    let settings = StatsdSettings::read(config, Path::new("h.toml"), "host").unwrap().settings;
    let mut now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let mut registry = KeyRegistry::new(&settings, SnapshotRequirements::default(), now);
    let shard = registry.shard();
    let mut flushes = Vec::new();
    for step in steps {
        match step {
            InputStep::Packet(packet) => shard.lock().apply_packet(packet),
            InputStep::Flush => {
                now += settings.flush_interval;
                let time = FlushTime { now, lag: Duration::ZERO };
                flushes.push(flattened(&registry.flush(time, LossAccount::default())));
            }
        }
    }
    flushes
}

fn flattened(snapshot: &FlushSnapshot) -> BTreeMap<String, f64> {
    let mut flat = BTreeMap::new();
    for counter in &snapshot.counters {
        flat.insert(format!("counters/{}", counter.name), counter.value);
        flat.insert(format!("counter_rates/{}", counter.name), snapshot.rate(counter));
    }
    for timer in &snapshot.timers {
        for (field, value) in &timer.fields {
            let field = field.replacen("histogram.", "histogram/", 1);
            flat.insert(format!("timer_data/{}/{field}", timer.name), *value);
        }
    }
    for gauge in &snapshot.gauges {
        flat.insert(format!("gauges/{}", gauge.name), gauge.value);
    }
    for set in &snapshot.sets {
        flat.insert(format!("sets/{}", set.name), set.count as f64);
    }
    flat.retain(|key, _| !key.ends_with(".timestamp_lag"));
    flat
}

//! Renders a registry's values as packets for a statsd server.
//!
//! A statsd server sums counters, so only their increase since the last call is sent; gauges are
//! sent as they are. A histogram becomes two counters: `…_count`, and `…_sum` in seconds. Labels
//! become DogStatsD tags.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Write as _},
};

use crate::registry::{MetricHandle, Registry};

/// Maximum length of a packet in bytes, so that it fits into an Ethernet frame without
/// fragmentation.
pub const PACKET_BYTES_MAX: usize = 1432;

/// Encodes a registry as statsd packets, and remembers the counters of the last call.
///
/// ```
/// use howdah_stats::{Description, Registry, statsd::StatsdEncoder};
///
/// const SENT: Description = Description::counter("t_sent_total", "Sent.");
/// let registry = Registry::new();
/// let mut encoder = StatsdEncoder::default();
/// registry.counter(&SENT).add(3);
/// assert_eq!(encoder.encode(&registry), ["t_sent_total:3|c"]);
/// registry.counter(&SENT).add(2);
/// assert_eq!(encoder.encode(&registry), ["t_sent_total:2|c"]);
/// ```
#[derive(Debug, Default)]
pub struct StatsdEncoder {
    /// Values of counters, and counts and sums of histograms, at the last call; by name and tags.
    sent: BTreeMap<String, f64>,
}

impl StatsdEncoder {
    /// Encodes all finite gauges, and all counters (including those of histograms) that increased
    /// since the last call, in packets of at most [`PACKET_BYTES_MAX`] bytes. A longer line is a
    /// packet of its own.
    pub fn encode(&mut self, registry: &Registry) -> Vec<String> {
        let mut packets = vec![String::new()];
        for line in self.lines(registry) {
            let full = packets.last().is_some_and(|packet| {
                !packet.is_empty() && packet.len() + 1 + line.len() > PACKET_BYTES_MAX
            });
            if full {
                packets.push(String::new());
            }
            if let Some(packet) = packets.last_mut() {
                let newline = if packet.is_empty() { "" } else { "\n" };
                // Writing into a String cannot fail.
                let _ = write!(packet, "{newline}{line}");
            }
        }
        packets.retain(|packet| !packet.is_empty());
        packets
    }

    fn lines(&mut self, registry: &Registry) -> Vec<String> {
        let mut lines = Vec::new();
        // Rebuilt on each call, so that removed series are dropped here too.
        let before = std::mem::take(&mut self.sent);
        registry.for_each_family(|family| {
            let name = family.description().name();
            for (labels, handle) in family.series() {
                let tags = Tags(labels);
                match handle {
                    MetricHandle::Counter(counter) => {
                        let value = counter.value() as f64;
                        lines.extend(self.increase(&before, name, "", &tags, value));
                    }
                    MetricHandle::Gauge(gauge) => lines.extend(set(name, gauge.value(), &tags)),
                    MetricHandle::Histogram(histogram) => {
                        let (count, sum) = (histogram.count() as f64, histogram.sum_us() as f64);
                        lines.extend(self.increase(&before, name, "_count", &tags, count));
                        lines.extend(self.increase(&before, name, "_sum", &tags, sum / 1e6));
                    }
                }
            }
        });
        lines
    }

    fn increase(
        &mut self,
        before: &BTreeMap<String, f64>,
        name: &str,
        suffix: &str,
        tags: &impl Display,
        now: f64,
    ) -> Option<String> {
        let key = format!("{name}{suffix}{tags}");
        let increase = now - before.get(&key).copied().unwrap_or_default();
        self.sent.insert(key, now);
        (increase > 0.0).then(|| format!("{name}{suffix}:{increase}|c{tags}"))
    }
}

/// Returns the lines that set a gauge; none if `value` is not finite. A signed number changes the
/// gauge relatively, so a negative value takes two steps: first zero, then the difference.
fn set(name: &str, value: f64, tags: &impl Display) -> Vec<String> {
    match value {
        _ if !value.is_finite() => Vec::new(),
        _ if value < 0.0 => {
            vec![format!("{name}:0|g{tags}"), format!("{name}:{value}|g{tags}")]
        }
        _ => vec![format!("{name}:{value}|g{tags}")],
    }
}

/// Renders labels as `|#label:value,label:value`, or nothing.
struct Tags<L>(L);

impl<'l, L: Iterator<Item = (&'l str, &'l str)> + Clone> Display for Tags<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "|#";
        for (name, value) in self.0.clone() {
            // These characters would end a tag, a field or a line.
            let value = value.replace([',', '|', '\n', '\r'], "_");
            write!(f, "{separator}{name}:{value}")?;
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Description;

    const ERRORS: Description = Description::counter("t_errors_total", "E.").labels(&["state"]);
    const LAG: Description = Description::gauge("t_lag", "L.");
    const TOOK: Description = Description::histogram("t_took_seconds", "T.");

    #[test]
    fn unchanged_counters_are_not_sent() {
        let (registry, mut encoder) = (Registry::new(), StatsdEncoder::default());
        registry.counter_with(&ERRORS, &[("state", "42|P01")]).add(1);
        registry.gauge(&LAG).set(-2.5);
        registry.histogram(&TOOK).observe_us(1_500_000);
        let all = "t_errors_total:1|c|#state:42_P01\nt_lag:0|g\nt_lag:-2.5|g\n\
                   t_took_seconds_count:1|c\nt_took_seconds_sum:1.5|c";
        assert_eq!(encoder.encode(&registry), [all]);
        registry.gauge(&LAG).set(3.0);
        assert_eq!(encoder.encode(&registry), ["t_lag:3|g"]);
    }

    #[test]
    fn packets_are_bounded() {
        let (registry, mut encoder) = (Registry::new(), StatsdEncoder::default());
        for state in 0..200 {
            registry.counter_with(&ERRORS, &[("state", &state.to_string())]).add(1);
        }
        let packets = encoder.encode(&registry);
        assert!(packets.len() > 1 && packets.iter().all(|packet| packet.len() <= 1432));
        assert_eq!(packets.iter().map(|packet| packet.lines().count()).sum::<usize>(), 200);
    }
}

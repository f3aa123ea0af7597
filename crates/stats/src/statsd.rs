//! The registry's numbers as lines for a statsd server.
//!
//! Such a server adds up: so counters are sent as what came since the last time, gauges as they are.
//! Of a histogram its count and its sum, in seconds, are sent as counters `…_count` and `…_sum`.
//! Labels are tags in DogStatsD's way.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use crate::registry::{Family, Handle, Registry};

/// What a packet may hold so that no network on the way takes it apart.
pub const PACKET_BYTES_MAX: usize = 1432;

/// Makes packets of a registry, and remembers what was sent.
///
/// ```
/// use howdah_stats::{Description, Registry, statsd::Packets};
///
/// const SENT: Description = Description::counter("t_sent_total", "Sent.");
/// let registry = Registry::new();
/// let mut packets = Packets::default();
/// registry.counter(&SENT).add(3);
/// assert_eq!(packets.of(&registry), ["t_sent_total:3|c"]);
/// registry.counter(&SENT).add(2);
/// assert_eq!(packets.of(&registry), ["t_sent_total:2|c"]);
/// ```
#[derive(Debug, Default)]
pub struct Packets {
    /// Sums at the last time, by name and tags.
    sent: BTreeMap<String, f64>,
}

impl Packets {
    /// All that changed since the last call, and every gauge, as few packets as may be.
    #[must_use]
    pub fn of(&mut self, registry: &Registry) -> Vec<String> {
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
        // What is in the registry no more is not kept here.
        let before = std::mem::take(&mut self.sent);
        let families = registry.families();
        for family in families.values() {
            let name = family.description.name();
            for (values, handle) in &family.series {
                let tags = Tags { family, values };
                match handle {
                    Handle::Counter(counter) => {
                        lines.extend(self.increase(
                            &before,
                            name,
                            "",
                            &tags,
                            counter.value() as f64,
                        ));
                    }
                    Handle::Gauge(gauge) => lines.extend(set(name, gauge.value(), &tags)),
                    Handle::Histogram(histogram) => {
                        let (count, sum) = (histogram.count() as f64, histogram.sum_us() as f64);
                        lines.extend(self.increase(&before, name, "_count", &tags, count));
                        lines.extend(self.increase(&before, name, "_sum", &tags, sum / 1e6));
                    }
                }
            }
        }
        lines
    }

    fn increase(
        &mut self,
        before: &BTreeMap<String, f64>,
        name: &str,
        suffix: &str,
        tags: &Tags<'_>,
        now: f64,
    ) -> Option<String> {
        let key = format!("{name}{suffix}{tags}");
        let increase = now - before.get(&key).copied().unwrap_or_default();
        self.sent.insert(key, now);
        (increase > 0.0).then(|| format!("{name}{suffix}:{increase}|c{tags}"))
    }
}

/// A signed number changes a gauge there; so one below zero is set by way of zero.
fn set(name: &str, value: f64, tags: &Tags<'_>) -> Vec<String> {
    match value {
        _ if !value.is_finite() => Vec::new(),
        _ if value < 0.0 => {
            vec![format!("{name}:0|g{tags}"), format!("{name}:{value}|g{tags}")]
        }
        _ => vec![format!("{name}:{value}|g{tags}")],
    }
}

/// `|#label:value,label:value`, or nothing.
struct Tags<'f> {
    family: &'f Family,
    values: &'f [Box<str>],
}

impl fmt::Display for Tags<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "|#";
        for (name, value) in self.family.description.label_names().iter().zip(self.values) {
            // What would end a tag, a field or a line.
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
    fn every_kind_is_sent_and_counters_only_when_they_grew() {
        let (registry, mut packets) = (Registry::new(), Packets::default());
        registry.counter_with(&ERRORS, &[("state", "42|P01")]).add(1);
        registry.gauge(&LAG).set(-2.5);
        registry.histogram(&TOOK).observe_us(1_500_000);
        let all = "t_errors_total:1|c|#state:42_P01\nt_lag:0|g\nt_lag:-2.5|g\n\
                   t_took_seconds_count:1|c\nt_took_seconds_sum:1.5|c";
        assert_eq!(packets.of(&registry), [all]);
        registry.gauge(&LAG).set(3.0);
        assert_eq!(packets.of(&registry), ["t_lag:3|g"]);
    }

    #[test]
    fn packets_are_bounded() {
        let (registry, mut packets) = (Registry::new(), Packets::default());
        for state in 0..200 {
            registry.counter_with(&ERRORS, &[("state", &state.to_string())]).add(1);
        }
        let packets = packets.of(&registry);
        assert!(packets.len() > 1 && packets.iter().all(|packet| packet.len() <= 1432));
        assert_eq!(packets.iter().map(|packet| packet.lines().count()).sum::<usize>(), 200);
    }
}

//! Batches of forwarding statsd servers.

use howdah_statsd::{BatchError, batches_of_packet, merge_alone, settings::StatsdSettings};

use super::Shape;

/// Numbers at the limits, and elements of cells.
pub const FRAGMENTS: &[&[u8]] = &[
    b"\x01\0\0\0\0\0\0\0\0\0\0\0",
    b"\x04name\0",
    b"\xff\xff\xff\xff\xff\xff\xef\x7f",
    b"\x80\x80\x80\x80\x80\x80\x80\x10",
    b"\x80\x80\x80\x80\x10",
    b"\x01\x05\x02\x0e\x07\0\x01",
    b"\0\0\0\0\0\0\0\0",
];

/// The batches of some packets.
pub fn seeds() -> Vec<Vec<u8>> {
    let packets: [&[u8]; 4] = [
        b"a:1|c\na/b:2|c|@0.1\nt:1:2.5|ms\nh:7|h|@0.5\ng:5|g\ng:+1|g\nd:-2|g\nu:ann|s\nu:bob|s",
        b"x:1|c|T15\ny:2|g|T16\n_e{2,1}:up|x|d:5\n_sc|db|1|d:6",
        b"t:1:2:3:4:5:6|ms\nu:1|s\nu:2|s\nu:3|s\nu:4|s\nu:5|s",
        b"a;tag=x:1|c\na:1|c|#tag:x",
    ];
    let settings = settings();
    packets.iter().flat_map(|packet| batches_of_packet(packet, &settings)).collect()
}

/// Checks that a batch is refused, or has finite results that another process continues with, and
/// no more metrics than the limits allow.
#[expect(clippy::panic, reason = "a target's finding is a panic")]
pub fn run(input: &[u8]) -> Shape {
    let settings = settings();
    let snapshot = match merge_alone(input, &settings) {
        Ok(snapshot) => snapshot,
        Err(BatchError::Unreadable(why)) => return Shape::of(why),
        Err(error @ BatchError::NotHandedOver(_)) => panic!("{error}"),
    };
    let counters = snapshot.counters.iter().map(|counter| counter.value);
    let fields = snapshot.timers.iter().filter_map(|timer| timer.summary.as_ref());
    let numbers = counters.chain(fields.map(|summary| summary.sum));
    let numbers = numbers.chain(snapshot.gauges.iter().map(|gauge| gauge.value));
    numbers.for_each(|number| assert!(number.is_finite(), "{snapshot:?}"));
    let names = snapshot.counters.iter().chain(&snapshot.variants.counters);
    let names = names.map(|counter| counter.name.key()).filter(|key| !key.starts_with("statsd."));
    names.for_each(|key| assert!(key.len() <= settings.limits.key_bytes, "{key}"));
    let counts = [
        snapshot.counters.len(),
        snapshot.variants.counters.len(),
        snapshot.timers.len(),
        snapshot.gauges.len(),
        snapshot.sets.len(),
        snapshot.timed.len(),
    ];
    // The server's own counters, and the overflow key.
    counts.iter().for_each(|count| assert!(*count <= settings.limits.keys + 5, "{counts:?}"));
    Shape::each(counts.iter().enumerate()).and(snapshot.messages.len())
}

/// Small limits, which short inputs reach.
fn settings() -> StatsdSettings {
    let mut settings = StatsdSettings::default();
    settings.limits.keys = 6;
    settings.limits.key_bytes = 12;
    settings.limits.exact_samples = 4;
    settings.limits.set_members = 3;
    settings.limits.member_bytes = 4;
    settings
}

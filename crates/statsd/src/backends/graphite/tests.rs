//! The Graphite backend against stub listeners.

use std::{
    io::Read as _,
    net::{TcpListener, TcpStream},
    thread,
};

use super::*;
use crate::backends::testing::{snapshot, snapshot_at};

fn settings(port: u16) -> settings::GraphiteSettings {
    settings::GraphiteSettings {
        host: "127.0.0.1".to_owned(),
        port,
        pickle_port: port,
        ..Default::default()
    }
}

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Accepts one connection and reads it to its end.
fn one_connection(listener: TcpListener) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut text = String::new();
        peer.read_to_string(&mut text).unwrap();
        text
    })
}

/// Returns all lines except the two with measured times.
fn lines(text: &str) -> Vec<&str> {
    assert!(text.ends_with('\n'));
    text.lines()
        .filter(|line| !line.contains("calculationtime") && !line.contains("last_flush"))
        .collect()
}

#[test]
fn flush_sends_etsy_lines_on_one_connection() {
    let (listener, port) = listen();
    let reader = one_connection(listener);
    let mut graphite = GraphiteBackend::new(settings(port), StatsdDialect::Etsy);
    let status = graphite.status();
    graphite.flush(&snapshot()).unwrap();
    let text = reader.join().unwrap();
    assert_eq!(status.get("flush_length"), Some(text.len() as f64));
    let now = text.lines().last().unwrap().rsplit(' ').next().unwrap();
    assert_eq!(
        lines(&text),
        [
            "stats.api.hits 3 1772359200",
            "stats_counts.api.hits 30 1772359200",
            "stats.api.hits;code=500 0.2 1772359200",
            "stats_counts.api.hits;code=500 2 1772359200",
            "stats.statsd.packets_received 1.2 1772359200",
            "stats_counts.statsd.packets_received 12 1772359200",
            "stats.timers.api.latency.count_90 3 1772359200",
            "stats.timers.api.latency.mean_90 20 1772359200",
            "stats.timers.api.latency.upper_90 30 1772359200",
            "stats.timers.api.latency.sum_90 60 1772359200",
            "stats.timers.api.latency.sum_squares_90 1400 1772359200",
            "stats.timers.api.latency.std 8.16496580927726 1772359200",
            "stats.timers.api.latency.upper 30 1772359200",
            "stats.timers.api.latency.lower 10 1772359200",
            "stats.timers.api.latency.count 3 1772359200",
            "stats.timers.api.latency.count_ps 0.3 1772359200",
            "stats.timers.api.latency.sum 60 1772359200",
            "stats.timers.api.latency.sum_squares 1400 1772359200",
            "stats.timers.api.latency.mean 20 1772359200",
            "stats.timers.api.latency.median 20 1772359200",
            "stats.timers.api.latency.histogram.bin_10 1 1772359200",
            "stats.timers.api.latency.histogram.bin_inf 2 1772359200",
            "stats.timers.idle.count_ps 0 1772359200",
            "stats.timers.idle.count 0 1772359200",
            "stats.gauges.pool.size -2.5 1772359200",
            "stats.sets.users.count 2 1772359200",
            "statsd.numStats 7 1772359200",
            "stats.statsd.processing_time 4 1772359200",
            &format!("stats.statsd.graphiteStats.last_exception 0 {now}"),
            &format!("stats.statsd.graphiteStats.flush_time 0 {now}"),
            &format!("stats.statsd.graphiteStats.flush_length 0 {now}"),
        ]
    );
}

#[test]
fn new_namespace_adds_prefixes_and_suffix() {
    let (listener, port) = listen();
    let reader = one_connection(listener);
    let settings = settings::GraphiteSettings {
        legacy_namespace: false,
        global_prefix: "prod".to_owned(),
        prefix_timer: String::new(),
        global_suffix: "web1".to_owned(),
        flush_counts: false,
        ..settings(port)
    };
    GraphiteBackend::new(settings, StatsdDialect::Etsy).flush(&snapshot()).unwrap();
    let text = reader.join().unwrap();
    let lines = lines(&text);
    for line in [
        "prod.counters.api.hits.rate.web1 3 1772359200",
        "prod.counters.api.hits.rate.web1;code=500 0.2 1772359200",
        "prod.api.latency.upper_90.web1 30 1772359200",
        "prod.gauges.pool.size.web1 -2.5 1772359200",
        "prod.sets.users.count.web1 2 1772359200",
        "prod.statsd.numStats.web1 7 1772359200",
        "prod.statsd.processing_time.web1 4 1772359200",
    ] {
        assert!(lines.contains(&line), "{line} in {text}");
    }
    assert!(!text.contains(".count.web1 30"), "{text}");
}

#[test]
fn outage_spools_values_in_order_up_to_limit() {
    let (listener, port) = listen();
    drop(listener);
    let settings = settings::GraphiteSettings { spool_bytes: 3 << 10, ..settings(port) };
    let mut graphite = GraphiteBackend::new(settings, StatsdDialect::Etsy);
    let status = graphite.status();
    // About 1.4 kB each: two fit into the spool.
    let mut results = Vec::new();
    for flush in 0..4 {
        results.push(graphite.flush(&Arc::new(snapshot_at(1000 + 10 * flush))).is_ok());
    }
    assert_eq!(results, [true, true, false, false]);
    assert!(status.get("spool_bytes").unwrap() <= 3072.0);
    let lost = status.get("lost_values").unwrap();
    assert!(lost > 0.0 && lost % 2.0 == 0.0, "two complete batches: {lost}");
    assert!(status.get("last_exception").unwrap() > 0.0);

    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let reader = one_connection(listener);
    graphite.finish(Duration::from_secs(10)).unwrap();
    let text = reader.join().unwrap();
    let hits = text.lines().filter(|line| line.starts_with("stats.api.hits "));
    assert_eq!(hits.collect::<Vec<_>>(), ["stats.api.hits 3 1020", "stats.api.hits 3 1030"]);
    assert_eq!(status.get("spool_bytes"), Some(0.0));
    assert_eq!(status.get("lost_values"), Some(lost));
}

#[test]
fn persistent_connection_is_reused_and_reopened() {
    let (listener, port) = listen();
    let settings = settings::GraphiteSettings { persistent: true, ..settings(port) };
    let mut graphite = GraphiteBackend::new(settings, StatsdDialect::Etsy);
    let (received, texts) = std::sync::mpsc::channel::<String>();
    let (hang_up, wait) = std::sync::mpsc::channel::<()>();
    let reader = thread::spawn(move || {
        // The first connection is closed after two flushes; the second flush is resent on the next
        // one.
        let read_flush = |peer: &mut TcpStream| {
            let mut text = Vec::new();
            let mut buffer = [0; 4096];
            while !String::from_utf8_lossy(&text).contains("flush_length") || !text.ends_with(b"\n")
            {
                let bytes = peer.read(&mut buffer).unwrap();
                assert!(bytes > 0);
                text.extend_from_slice(&buffer[..bytes]);
            }
            received.send(String::from_utf8(text).unwrap()).unwrap();
        };
        let (mut peer, _) = listener.accept().unwrap();
        read_flush(&mut peer);
        read_flush(&mut peer);
        wait.recv().unwrap();
        drop(peer);
        // The next connection is accepted only once the client has seen this one close.
        wait.recv().unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        read_flush(&mut peer);
        let mut rest = String::new();
        peer.read_to_string(&mut rest).unwrap();
        received.send(rest).unwrap();
    });
    for time in [1000, 1010] {
        graphite.flush(&Arc::new(snapshot_at(time))).unwrap();
        assert!(texts.recv().unwrap().contains(&format!("stats.api.hits 3 {time}\n")));
    }
    hang_up.send(()).unwrap();
    let connection = graphite.link.connection.as_mut().unwrap();
    howdah_lab::wait_until("the connection to close", Duration::from_secs(60), || {
        connection.is_closed()
    });
    hang_up.send(()).unwrap();
    graphite.flush(&Arc::new(snapshot_at(1020))).unwrap();
    graphite.finish(Duration::from_secs(10)).unwrap();
    let resent = texts.recv().unwrap() + &texts.recv().unwrap();
    assert!(resent.contains("stats.api.hits 3 1010\n"), "{resent}");
    assert!(resent.contains("stats.api.hits 3 1020\n"), "{resent}");
    reader.join().unwrap();
}

#[test]
fn large_flush_arrives_complete_on_one_connection() {
    for protocol in [GraphiteProtocol::Text, GraphiteProtocol::Pickle] {
        let (listener, port) = listen();
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let settings =
            settings::GraphiteSettings { protocol, spool_bytes: 64 << 10, ..settings(port) };
        let mut graphite = GraphiteBackend::new(settings, StatsdDialect::Etsy);
        let status = graphite.status();
        graphite.flush(&many_gauges(100_000)).unwrap();
        let bytes = reader.join().unwrap();
        assert!(bytes.len() > 4 << 20, "several batches: {}", bytes.len());
        assert_eq!(status.get("flush_length"), Some(bytes.len() as f64));
        assert_eq!(status.get("lost_values"), Some(0.0));
        let gauges = memchr::memmem::find_iter(&bytes, b"stats.gauges.many.").count();
        assert_eq!(gauges, 100_000);
    }
}

#[test]
fn unsent_large_flush_counts_evicted_values() {
    let (listener, port) = listen();
    drop(listener);
    let settings = settings::GraphiteSettings { spool_bytes: 3 << 20, ..settings(port) };
    let mut graphite = GraphiteBackend::new(settings, StatsdDialect::Etsy);
    let status = graphite.status();
    graphite.flush(&many_gauges(100_000)).unwrap_err();
    let lost = status.get("lost_values").unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let reader = one_connection(listener);
    graphite.finish(Duration::from_secs(10)).unwrap();
    let delivered = reader.join().unwrap().lines().count() as f64;
    // All gauges, the other values of the snapshot, and seven values about the server.
    assert_eq!(lost + delivered, 100_000.0 + 25.0 + 7.0);
    assert!(lost > 0.0 && delivered > 0.0, "{lost} {delivered}");
}

fn many_gauges(count: u32) -> Arc<FlushSnapshot> {
    let mut snapshot = FlushSnapshot::clone(&snapshot());
    let gauge = |n: u32| crate::flush::GaugeMetric {
        name: crate::MetricName::new(&format!("many.{n}.with.a.name.of.usual.length")),
        merged: false,
        idle: false,
        value: f64::from(n),
    };
    snapshot.gauges = (0..count).map(gauge).collect();
    Arc::new(snapshot)
}

#[test]
fn without_a_host_nothing_is_sent() {
    let mut graphite =
        GraphiteBackend::new(settings::GraphiteSettings::default(), StatsdDialect::Etsy);
    graphite.flush(&snapshot()).unwrap();
    assert!(graphite.outbox.is_empty());
}

#[test]
fn receiver_that_never_hangs_up_gets_every_flush() {
    let (listener, port) = listen();
    let (accepted, connections) = std::sync::mpsc::channel();
    thread::spawn(move || {
        // Each connection is read to its end but stays open until the test is over.
        while let Ok((mut peer, _)) = listener.accept() {
            let mut text = String::new();
            peer.read_to_string(&mut text).unwrap();
            if accepted.send((peer, text)).is_err() {
                return;
            }
        }
    });
    let mut graphite = GraphiteBackend::new(settings(port), StatsdDialect::Etsy);
    let mut open = Vec::new();
    for time in 0..5 {
        let interval = Duration::from_millis(40);
        graphite.flush(&Arc::new(FlushSnapshot { interval, ..snapshot_at(1000 + time) })).unwrap();
        let (peer, text) = connections.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(text.contains(&format!("stats.api.hits 750 {}\n", 1000 + time)), "{text}");
        assert!(!text.contains(&format!("stats.api.hits 750 {}\n", 999 + time)), "sent again");
        open.push(peer);
    }
    assert_eq!(graphite.status().get("lost_values"), Some(0.0));
}

#[test]
fn hang_up_timeout_is_at_most_quarter_interval() {
    assert_eq!(hang_up_timeout(Duration::from_millis(500)), Duration::from_millis(125));
    assert_eq!(hang_up_timeout(Duration::from_secs(60)), HANG_UP_TIMEOUT);
}

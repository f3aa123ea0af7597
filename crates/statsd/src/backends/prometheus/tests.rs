//! Scrapes after several flushes.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use super::*;
use crate::{
    MetricName,
    backends::testing::{TIMESTAMP, snapshot, snapshot_at, snapshot_with_timed},
    flush::{CounterMetric, GaugeMetric, TimerSamples},
    self_metrics::ExtraMetrics,
    settings::{ObserverType, PrometheusNames},
    sketch::Sketch,
};

fn settings() -> settings::PrometheusSettings {
    settings::PrometheusSettings { listen: ([127, 0, 0, 1], 0).into(), ..Default::default() }
}

fn get(prometheus: &PrometheusBackend, path: &str, accept: &str) -> (String, Vec<u8>) {
    get_with(prometheus, path, &format!("Accept: {accept}\r\n"))
}

/// Returns the head and the body of the reply to a request with these headers.
fn get_with(prometheus: &PrometheusBackend, path: &str, headers: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(prometheus.address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n").unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let end = reply.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let body = reply.split_off(end + 4);
    let head = String::from_utf8(reply).unwrap();
    let is_chunked = head.contains("transfer-encoding: chunked");
    (head, if is_chunked { unchunked(&body) } else { body })
}

/// Joins the chunks of a body.
fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut joined = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").unwrap();
        let bytes = std::str::from_utf8(&body[..end]).unwrap();
        let bytes = usize::from_str_radix(bytes, 16).unwrap();
        if bytes == 0 {
            return joined;
        }
        let chunk = &body[end + 2..];
        joined.extend_from_slice(&chunk[..bytes]);
        body = &chunk[bytes + 2..];
    }
}

fn scrape(prometheus: &PrometheusBackend) -> String {
    let (head, body) = get(prometheus, "/metrics", "text/plain");
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4"),
        "{head}"
    );
    String::from_utf8(body).unwrap()
}

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
    }
}

#[test]
fn counters_and_sums_accumulate_across_flushes() {
    let mut prometheus = PrometheusBackend::new(&settings()).unwrap();
    for flush in 0..2 {
        prometheus.flush(&Arc::new(snapshot_at(TIMESTAMP + 10 * flush))).unwrap();
    }
    let text = scrape(&prometheus);
    assert_lines(
        &text,
        &[
            "# TYPE api_hits_total counter",
            "api_hits_total 60",
            "api_hits_total{code=\"500\"} 4",
            "statsd_packets_received_total 24",
            "# TYPE api_latency_seconds summary",
            "api_latency_seconds_sum 0.12",
            "api_latency_seconds_count 6",
            "pool_size -2.5",
            "# TYPE users gauge",
            "users 2",
            "idle_seconds_count 0",
            "statsd_backlog_drops_total 0",
            "statsd_flush_processing_seconds 0.004",
        ],
    );
    let median =
        text.lines().find(|line| line.starts_with("api_latency_seconds{quantile=\"0.5\"}"));
    let median: f64 = median.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert!((median / 0.020 - 1.0).abs() < Sketch::RELATIVE_ERROR, "{median}");
    assert_eq!(get(&prometheus, "/", "").0.lines().next(), Some("HTTP/1.1 404 Not Found"));
}

#[test]
fn exporter_names_have_no_suffixes() {
    let names = PrometheusNames::Exporter;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping.yml");
    std::fs::write(&path, "mappings: [{ match: pool.*, name: pools, labels: { what: $1 } }]")
        .unwrap();
    for mapping in [None, Some(path)] {
        let is_mapped = mapping.is_some();
        let settings = settings::PrometheusSettings { names, mapping, ..settings() };
        let mut prometheus = PrometheusBackend::new(&settings).unwrap();
        prometheus.flush(&snapshot()).unwrap();
        assert_lines(
            &scrape(&prometheus),
            &[
                "# TYPE api_hits counter",
                "api_hits 30",
                "api_hits{code=\"500\"} 2",
                "# TYPE api_latency summary",
                "api_latency_sum 0.06",
                "api_latency_count 3",
                if is_mapped { "pools{what=\"size\"} -2.5" } else { "pool_size -2.5" },
                "statsd_packets_received 12",
                "statsd_backlog_drops_total 0",
            ],
        );
    }
}

#[test]
fn values_with_timestamps_count_at_once() {
    let mut prometheus = PrometheusBackend::new(&settings()).unwrap();
    let mut snapshot = snapshot_with_timed();
    prometheus.flush(&Arc::new(snapshot.clone())).unwrap();
    // A gauge that is older than the last one has no effect.
    snapshot.timed[2].time -= 1;
    snapshot.timed[2].value = 9.0;
    prometheus.flush(&Arc::new(snapshot)).unwrap();
    let text = scrape(&prometheus);
    let lines = [
        "jobs_total{q=\"a/b\"} 40",
        "jobs_total{q=\"a:b\"} 10",
        "load 1.5",
        "api_hits_total 60",
        "pool_size -2.5",
    ];
    assert_lines(&text, &lines);
}

/// A gauge that was only repeated does not replace a later value with a timestamp.
#[test]
fn repeated_gauge_replaces_no_value_with_timestamp() {
    let mut prometheus = PrometheusBackend::new(&settings()).unwrap();
    let mut snapshot = snapshot_with_timed();
    let name = snapshot.timed[2].name.clone();
    let gauge = GaugeMetric { name, value: 5.0, ..snapshot.gauges[0].clone() };
    snapshot.gauges.push(GaugeMetric { idle: false, ..gauge.clone() });
    prometheus.flush(&Arc::new(snapshot.clone())).unwrap();
    snapshot.gauges.pop();
    snapshot.gauges.push(GaugeMetric { idle: true, ..gauge });
    snapshot.timed[2].time += 10;
    snapshot.timed[2].value = 7.0;
    prometheus.flush(&Arc::new(snapshot)).unwrap();
    assert_lines(&scrape(&prometheus), &["load 7"]);
}

#[test]
fn self_metrics_have_the_configured_prefix() {
    let mut prometheus = PrometheusBackend::new(&settings()).unwrap();
    assert_lines(&scrape(&prometheus), &["statsd_events_total 0", "statsd_prometheus_series 0"]);
    let mut snapshot = FlushSnapshot::clone(&snapshot());
    snapshot.counters[2].name = MetricName::new("own.stats.packets_received");
    snapshot.self_metrics.prefix = "own.stats".into();
    snapshot.self_metrics.extra =
        Some(ExtraMetrics { flush_lag: Duration::from_millis(1), ..ExtraMetrics::default() });
    prometheus.flush(&Arc::new(snapshot.clone())).unwrap();
    let text = scrape(&prometheus);
    assert_lines(
        &text,
        &[
            "# HELP own_stats_packets_received_total Packets received.",
            "own_stats_packets_received_total 12",
            "# TYPE own_stats_events_total counter",
            "own_stats_flush_lag_seconds 0.001",
        ],
    );
    assert!(!text.contains("statsd_"), "{text}");
    snapshot.self_metrics.extra = None;
    prometheus.flush(&Arc::new(snapshot)).unwrap();
    assert!(!scrape(&prometheus).contains("flush_lag"));
}

#[test]
fn histogram_has_classic_buckets_in_text_and_native_in_protobuf() {
    let settings = settings::PrometheusSettings {
        timers: ObserverType::Histogram,
        buckets: vec![0.01, 0.02, 1.0],
        ..settings()
    };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    prometheus.flush(&snapshot()).unwrap();
    assert_lines(
        &scrape(&prometheus),
        &[
            "# TYPE api_latency_seconds histogram",
            "api_latency_seconds_bucket{le=\"0.01\"} 1",
            "api_latency_seconds_bucket{le=\"0.02\"} 2",
            "api_latency_seconds_bucket{le=\"1\"} 3",
            "api_latency_seconds_bucket{le=\"+Inf\"} 3",
            "api_latency_seconds_sum 0.06",
            "api_latency_seconds_count 3",
        ],
    );
    let accept = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                  encoding=delimited,text/plain;q=0.5";
    let (head, body) = get(&prometheus, "/metrics", accept);
    assert!(head.contains("content-type: application/vnd.google.protobuf;"), "{head}");
    let name = b"\x0a\x13api_latency_seconds";
    assert!(body.windows(name.len()).any(|found| found == name));
    // Schema 3, because bounds grow by at most 1.1, then the tag of the zero threshold.
    assert!(body.windows(3).any(|found| found == [0x28, 0x06, 0x31]));
}

#[test]
fn conflicting_name_gets_type_suffix() {
    let mut prometheus = PrometheusBackend::new(&settings()).unwrap();
    let mut snapshot = FlushSnapshot::clone(&snapshot());
    let gauge = |name: &str, value| GaugeMetric {
        name: MetricName::new(name),
        merged: false,
        value,
        idle: false,
    };
    snapshot.gauges = vec![
        gauge("api.hits_total", 1.0),
        gauge("api.latency_seconds_sum", 2.0),
        gauge("9.lives", 3.0),
        gauge("a.b", 4.0),
        gauge("a_b", 5.0),
        gauge("odd;le=1;__x=2;a-b=\"\\;a_b=again", 6.0),
    ];
    prometheus.flush(&Arc::new(snapshot)).unwrap();
    assert_lines(
        &scrape(&prometheus),
        &[
            "api_hits_total 30",
            "api_hits_total_gauge 1",
            "api_latency_seconds_sum_gauge 2",
            "_9_lives 3",
            "a_b 5",
            "odd{a_b=\"\\\"\\\\\",tag___x=\"2\",tag_le=\"1\"} 6",
            "statsd_prometheus_renamed_keys_total 2",
        ],
    );
}

#[test]
fn bucket_bounds_in_milliseconds_are_exact() {
    let buckets = vec![0.009, 0.018, 0.07];
    let settings =
        settings::PrometheusSettings { timers: ObserverType::Histogram, buckets, ..settings() };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let mut snapshot = FlushSnapshot::clone(&snapshot());
    snapshot.timers.truncate(1);
    snapshot.timers[0].samples = TimerSamples::Exact([9.0, 18.0, 70.0].into());
    prometheus.flush(&Arc::new(snapshot)).unwrap();
    assert_lines(
        &scrape(&prometheus),
        &[
            "api_latency_seconds_bucket{le=\"0.009\"} 1",
            "api_latency_seconds_bucket{le=\"0.018\"} 2",
            "api_latency_seconds_bucket{le=\"0.07\"} 3",
        ],
    );
}

#[test]
fn tag_values_become_labels_unchanged() {
    let mut prometheus = PrometheusBackend::new(&settings()).unwrap();
    let mut snapshot = FlushSnapshot::clone(&snapshot());
    let counter =
        |name: &str| CounterMetric { name: MetricName::new(name), ..snapshot.counters[0].clone() };
    snapshot.counters = vec![
        counter("req;lang=\u{65e5}\u{672c}"),
        counter("req;path=/api/v1/users"),
        counter("req;p=50%;q=a\"b"),
        counter("req;canary"),
        counter("req"),
    ];
    prometheus.flush(&Arc::new(snapshot)).unwrap();
    assert_lines(
        &scrape(&prometheus),
        &[
            "req_total 30",
            "req_total{canary=\"true\"} 30",
            "req_total{lang=\"\u{65e5}\u{672c}\"} 30",
            "req_total{p=\"50%\",q=\"a\\\"b\"} 30",
            "req_total{path=\"/api/v1/users\"} 30",
        ],
    );
}

#[test]
fn families_and_series_are_sorted_after_eviction() {
    let settings = settings::PrometheusSettings { ttl: Duration::from_secs(15), ..settings() };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let only = |time: i64, names: &[&str]| {
        let snapshot = snapshot_at(time);
        let counter = snapshot.counters[0].clone();
        let counter =
            |name: &&str| CounterMetric { name: MetricName::new(name), ..counter.clone() };
        let counters = names.iter().map(counter).collect();
        let (timers, gauges, sets) = (Vec::new(), Vec::new(), Vec::new());
        Arc::new(FlushSnapshot { counters, timers, gauges, sets, ..snapshot })
    };
    prometheus.flush(&only(1000, &["c", "b;x=2", "b;x=1", "a", "gone", "b;x=9"])).unwrap();
    prometheus.flush(&only(1010, &["c", "b;x=2", "b;x=1", "a"])).unwrap();
    prometheus.flush(&only(1020, &["c", "b;x=2", "b;x=1", "a", "b;x=0"])).unwrap();
    let text = scrape(&prometheus);
    let ours = text.lines().filter(|line| !line.starts_with(['#', 's']));
    assert_eq!(
        ours.collect::<Vec<_>>(),
        [
            "a_total 90",
            "b_total{x=\"0\"} 30",
            "b_total{x=\"1\"} 90",
            "b_total{x=\"2\"} 90",
            "c_total 90",
        ]
    );
}

#[test]
fn mapping_file_renames_and_drops() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping.yml");
    std::fs::write(
        &path,
        "mappings:
- { match: api.*, name: 'http_${1}', labels: { code: '200', job: api }, match_metric_type: counter }
- { match: pool.size, name: pool_bytes, scale: 1024, help: 'A pool.' }
- { match: users, name: x, action: drop }
",
    )
    .unwrap();
    let mut prometheus = PrometheusBackend::new(&settings::PrometheusSettings {
        mapping: Some(path.clone()),
        ..settings()
    })
    .unwrap();
    prometheus.flush(&snapshot()).unwrap();
    let text = scrape(&prometheus);
    assert_lines(
        &text,
        &[
            // A rule's labels override tags, so the two keys share one series.
            "http_hits{code=\"200\",job=\"api\"} 32",
            "# HELP pool_bytes A pool.",
            "pool_bytes -2560",
            "api_latency_seconds_count 3",
        ],
    );
    assert!(!text.contains("users"), "{text}");

    for invalid in ["name: 'no labels here!'", "name: a, labels: { 'a-b': x }"] {
        std::fs::write(&path, format!("mappings:\n- {{ match: a, {invalid} }}\n")).unwrap();
        let settings = settings::PrometheusSettings { mapping: Some(path.clone()), ..settings() };
        let error = PrometheusBackend::new(&settings).unwrap_err().to_string();
        assert!(
            error.contains("mapping.yml:2: ") && error.contains("is not a valid Prometheus name"),
            "{error}"
        );
    }

    std::fs::write(&path, "mappings:\n- match: a\n").unwrap();
    let error =
        PrometheusBackend::new(&settings::PrometheusSettings { mapping: Some(path), ..settings() })
            .unwrap_err();
    assert!(
        error.to_string().ends_with("mapping.yml:2: the mapping lacks the required key \"name\""),
        "{error}"
    );
}

#[test]
fn reloaded_mapping_starts_new_series_for_changed_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping.yml");
    let write = |rules: &str| std::fs::write(&path, format!("mappings:\n{rules}")).unwrap();
    write("- { match: api.hits, name: hits }\n- { match: users, name: x, action: drop }\n");
    let settings = settings::PrometheusSettings { mapping: Some(path.clone()), ..settings() };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let reload = prometheus.reload_hook().unwrap();
    prometheus.flush(&snapshot()).unwrap();
    assert_lines(&scrape(&prometheus), &["hits 30", "hits{code=\"500\"} 2", "pool_size -2.5"]);

    write("- { match: api.hits, name: http_hits }\n- { match: pool.size, name: pool, scale: 2 }\n");
    reload().unwrap();
    let text = scrape(&prometheus);
    assert!(!text.contains("hits"), "{text}");
    assert_lines(&text, &["api_latency_seconds_count 3"]);
    prometheus.flush(&Arc::new(snapshot_at(TIMESTAMP + 10))).unwrap();
    let text = scrape(&prometheus);
    assert_lines(
        &text,
        &[
            "http_hits 30",
            "http_hits{code=\"500\"} 2",
            "pool -5",
            "users 2",
            // Unchanged series continue.
            "api_latency_seconds_count 6",
        ],
    );
    assert!(!text.contains("\nhits") && !text.contains("pool_size"), "{text}");

    write("- { match: api.hits }\n");
    let error = reload().unwrap_err().to_string();
    assert!(
        error.ends_with("mapping.yml:2: the mapping lacks the required key \"name\""),
        "{error}"
    );
    prometheus.flush(&Arc::new(snapshot_at(TIMESTAMP + 20))).unwrap();
    assert_lines(&scrape(&prometheus), &["http_hits 60", "api_latency_seconds_count 9"]);

    // Other options start a new series, too.
    write("- { match: api.latency, name: api_latency_seconds, observer_type: histogram }\n");
    reload().unwrap();
    prometheus.flush(&Arc::new(snapshot_at(TIMESTAMP + 30))).unwrap();
    let lines = ["# TYPE api_latency_seconds histogram", "api_latency_seconds_count 3"];
    assert_lines(&scrape(&prometheus), &lines);
}

#[test]
fn series_are_limited_and_idle_ones_evicted() {
    let settings =
        settings::PrometheusSettings { series_max: 3, ttl: Duration::from_secs(15), ..settings() };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let only = |time: i64, names: &[&str]| {
        let mut snapshot = snapshot_at(time);
        let (timers, gauges, sets) = (Vec::new(), Vec::new(), Vec::new());
        let counter = snapshot.counters[0].clone();
        let named = |name: &&str| CounterMetric { name: MetricName::new(name), ..counter.clone() };
        snapshot.counters = names.iter().map(named).collect();
        Arc::new(FlushSnapshot { timers, gauges, sets, ..snapshot })
    };
    prometheus.flush(&only(1000, &["a", "b", "c", "d"])).unwrap();
    assert_eq!(prometheus.status().get("series"), Some(3.0));
    assert_eq!(prometheus.status().get("dropped_values"), Some(1.0));
    prometheus.flush(&only(1010, &["a"])).unwrap();
    prometheus.flush(&only(1020, &["a", "d"])).unwrap();
    let text = scrape(&prometheus);
    assert_lines(&text, &["a_total 90"]);
    assert!(!text.contains("b_total"), "{text}");
}

#[test]
fn sketched_timers_are_exposed() {
    let settings = settings::PrometheusSettings {
        timers: ObserverType::Histogram,
        buckets: vec![0.015, 0.025],
        ..settings()
    };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let mut snapshot = FlushSnapshot::clone(&snapshot());
    let sketch = snapshot.timers[0].cumulative.clone().unwrap();
    snapshot.timers[0].samples = TimerSamples::Sketched(sketch);
    prometheus.flush(&Arc::new(snapshot)).unwrap();
    assert_lines(
        &scrape(&prometheus),
        &[
            "api_latency_seconds_bucket{le=\"0.015\"} 1",
            "api_latency_seconds_bucket{le=\"0.025\"} 2",
            "api_latency_seconds_sum 0.06",
            "api_latency_seconds_count 3",
        ],
    );
}

#[test]
fn invalid_settings_are_errors() {
    for (invalid, message) in [
        (
            settings::PrometheusSettings { buckets: vec![2.0, 1.0], ..settings() },
            "buckets: must be finite numbers",
        ),
        (
            settings::PrometheusSettings { quantiles: vec![99.0], ..settings() },
            "quantiles: must be numbers from 0 to 1",
        ),
        (
            settings::PrometheusSettings { native_bucket_factor: 1.0, ..settings() },
            "native-bucket-factor: must be a number above 1",
        ),
    ] {
        let error = PrometheusBackend::new(&invalid).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

/// A snapshot with only these counters.
fn counters_only(time: i64, names: impl Iterator<Item = String>) -> Arc<FlushSnapshot> {
    let snapshot = snapshot_at(time);
    let counter = snapshot.counters[0].clone();
    let named = |name: String| CounterMetric { name: MetricName::new(&name), ..counter.clone() };
    let (timers, gauges, sets) = (Vec::new(), Vec::new(), Vec::new());
    Arc::new(FlushSnapshot {
        counters: names.map(named).collect(),
        timers,
        gauges,
        sets,
        ..snapshot
    })
}

/// The remaining pieces of a scrape.
fn rest(body: &mut scrape::ScrapeBody) -> String {
    let pieces: Vec<Vec<u8>> = std::iter::from_fn(|| body.next_piece()).collect();
    String::from_utf8(pieces.concat()).unwrap()
}

fn text_scrape(prometheus: &PrometheusBackend) -> scrape::ScrapeBody {
    scrape::ScrapeBody::new(Arc::clone(&prometheus.families), scrape::ScrapeFormat::Text)
}

#[test]
fn pieces_of_scrape_have_each_family_once() {
    let mut prometheus = PrometheusBackend::new(&settings()).unwrap();
    let names = (0..5000).flat_map(|n| [format!("plain.{n}"), format!("many;n={n}")]);
    prometheus.flush(&counters_only(1000, names)).unwrap();
    let mut body = text_scrape(&prometheus);
    let first = body.next_piece().unwrap();
    assert!(first.len() < 128 << 10, "{}", first.len());
    let text = String::from_utf8(first).unwrap() + &rest(&mut body);
    let headers = text.lines().filter(|line| line.starts_with("# TYPE many_total "));
    assert_eq!(headers.count(), 1);
    let mut samples: Vec<&str> = text.lines().filter(|line| line.starts_with(['m', 'p'])).collect();
    assert_eq!(samples.len(), 10_000);
    samples.dedup();
    assert_eq!(samples.len(), 10_000);
    assert_eq!(text, scrape(&prometheus));
}

#[test]
fn scrapes_are_compressed_if_asked_for() {
    let mut prometheus = PrometheusBackend::new(&settings()).unwrap();
    let names = (0..50_000).map(|n| format!("many.{n}"));
    prometheus.flush(&counters_only(1000, names)).unwrap();
    let expected = scrape(&prometheus);
    for (headers, is_compressed) in [
        ("Accept-Encoding: gzip\r\n", true),
        ("Accept-Encoding: br;q=1.0, GZIP;q=0.8, *;q=0.1\r\n", true),
        ("Accept-Encoding: deflate, gzip;q=0\r\n", false),
        ("", false),
    ] {
        let (head, body) = get_with(&prometheus, "/metrics", headers);
        assert_eq!(head.contains("content-encoding: gzip"), is_compressed, "{head}");
        let mut text = String::new();
        if is_compressed {
            assert!(body.len() < expected.len() / 5, "{} of {}", body.len(), expected.len());
            flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut text).unwrap();
        } else {
            text = String::from_utf8(body).unwrap();
        }
        assert!(text == expected, "{headers}");
    }
}

#[test]
fn scrape_continues_after_series_change() {
    let settings = settings::PrometheusSettings { ttl: Duration::from_secs(5), ..settings() };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let names = |range: std::ops::Range<usize>| range.map(|n| format!("many;n={n:05}"));
    prometheus.flush(&counters_only(1000, names(0..5000))).unwrap();
    let mut body = text_scrape(&prometheus);
    let first = String::from_utf8(body.next_piece().unwrap()).unwrap();
    // Evicts some series that were rendered and some that were not, and adds others.
    let others = names(10..4990).chain(["a".to_owned(), "zzz".to_owned(), "many;n=9".to_owned()]);
    prometheus.flush(&counters_only(1010, others)).unwrap();
    let text = first + &rest(&mut body);
    let many = text.lines().filter(|line| line.starts_with("many_total{"));
    let numbers: Vec<&str> = many.filter_map(|line| line.split('"').nth(1)).collect();
    let expected: Vec<String> =
        (0..4990).map(|n| format!("{n:05}")).chain(["9".to_owned()]).collect();
    assert_eq!(numbers, expected);
    assert!(text.contains("\nzzz_total 30\n") && !text.contains("\na_total"));
    assert_eq!(text.matches("# TYPE many_total ").count(), 1);
}

#[test]
fn names_and_helps_survive_eviction() {
    let settings = settings::PrometheusSettings { ttl: Duration::from_secs(5), ..settings() };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let first = names(&["gone", "x.y;a=1", "x.y;a=2", "z"]);
    prometheus.flush(&counters_only(1000, first.into_iter())).unwrap();
    // The first key of the family `x_y_total` has no series any more.
    prometheus.flush(&counters_only(1010, names(&["x.y;a=2", "z"]).into_iter())).unwrap();
    let text = scrape(&prometheus);
    assert_lines(
        &text,
        &[
            "# HELP x_y_total The statsd counter x.y.",
            "x_y_total{a=\"2\"} 60",
            "z_total 60",
            "statsd_prometheus_series 2",
        ],
    );
    assert!(!text.contains("gone") && !text.contains("a=\"1\""), "{text}");
    prometheus.flush(&counters_only(1012, names(&["x.y;a=1"]).into_iter())).unwrap();
    assert_lines(&scrape(&prometheus), &["x_y_total{a=\"1\"} 30", "x_y_total{a=\"2\"} 60"]);
}

#[test]
fn repeated_metrics_do_not_renew_removed_series() {
    let settings = settings::PrometheusSettings { ttl: Duration::from_secs(15), ..settings() };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let flush = |prometheus: &mut PrometheusBackend, time: i64, idle: bool| {
        let mut snapshot = snapshot_at(time);
        snapshot.counters[0].idle = idle;
        snapshot.counters[0].value = if idle { 0.0 } else { 30.0 };
        snapshot.gauges[0].idle = idle;
        prometheus.flush(&Arc::new(snapshot)).unwrap();
        scrape(prometheus)
    };
    flush(&mut prometheus, 1000, false);
    assert_lines(&flush(&mut prometheus, 1010, true), &["pool_size -2.5", "api_hits_total 30"]);
    for time in [1020, 1030, 1040] {
        let text = flush(&mut prometheus, time, true);
        assert!(!text.contains("pool_size") && !text.contains("api_hits_total 0"), "{text}");
        assert_lines(&text, &["users 2"]);
    }
    assert_lines(&flush(&mut prometheus, 1050, false), &["pool_size -2.5", "api_hits_total 30"]);
}

/// A backend that waits for the values of another process.
fn successor(settings: &settings::PrometheusSettings) -> PrometheusBackend {
    let source = &mut InheritedSockets::default();
    PrometheusBackend::with_endpoint(settings, EndpointSource::Successor(source)).unwrap()
}

#[test]
fn values_continue_in_another_process() {
    for timers in [ObserverType::Summary, ObserverType::Histogram] {
        let settings = settings::PrometheusSettings { timers, ..settings() };
        let mut old = PrometheusBackend::new(&settings).unwrap();
        old.flush(&Arc::new(snapshot_at(TIMESTAMP))).unwrap();
        let state = old.export_state().unwrap();
        let mut new = successor(&settings);
        new.import_state(&state).unwrap();
        let own = |text: &str| text.lines().filter(|line| line.contains("statsd_")).count();
        let lines = |text: String| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.contains("statsd_"));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(lines(scrape(&new)), lines(scrape(&old)));
        for backend in [&mut old, &mut new] {
            backend.flush(&Arc::new(snapshot_at(TIMESTAMP + 10))).unwrap();
        }
        let (old, new) = (scrape(&old), scrape(&new));
        assert!(own(&new) > 0);
        assert_eq!(new, old);
        for end in (0..state.len()).step_by(7) {
            let mut other = successor(&settings);
            assert!(other.import_state(&state[..end]).is_err());
        }
    }
}

#[test]
fn shared_and_removed_series_continue_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping.yml");
    let rules = "mappings:\n- { match: one, name: all }\n- { match: other, name: all }\n";
    std::fs::write(&path, rules).unwrap();
    let ttl = Duration::from_secs(100);
    let settings = settings::PrometheusSettings { mapping: Some(path), ttl, ..settings() };
    let mut old = PrometheusBackend::new(&settings).unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let all = names(&["one", "gone;b=1", "x.y;a=1", "other", "x.y;a=2", "x_y"]);
    old.flush(&counters_only(TIMESTAMP, all.into_iter())).unwrap();
    let timed = |time: i64, value: f64| {
        let mut snapshot = snapshot_with_timed();
        snapshot.timestamp = time;
        snapshot.time =
            std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(time.unsigned_abs());
        for metric in &mut snapshot.timed {
            (metric.time, metric.value) = (time, value);
        }
        (snapshot.counters, snapshot.timers) = (Vec::new(), Vec::new());
        (snapshot.gauges, snapshot.sets) = (Vec::new(), Vec::new());
        Arc::new(snapshot)
    };
    old.flush(&timed(TIMESTAMP + 90, 3.0)).unwrap();
    let rest = || names(&["one", "x.y;a=1", "x.y;a=2", "x_y"]).into_iter();
    old.flush(&counters_only(TIMESTAMP + 90, rest())).unwrap();
    old.flush(&counters_only(TIMESTAMP + 100, rest())).unwrap();
    assert!(!scrape(&old).contains("gone"));
    let state = old.export_state().unwrap();
    let mut new = successor(&settings);
    new.import_state(&state).unwrap();
    // A removed series stays removed, the second key of a series continues it, and an older value
    // of a gauge does not count.
    let next = names(&["other", "gone;b=1", "x_y"]).into_iter();
    let mut repeated = FlushSnapshot::clone(&counters_only(TIMESTAMP + 110, next));
    (repeated.counters[1].idle, repeated.counters[1].value) = (true, 0.0);
    let repeated = Arc::new(repeated);
    for backend in [&mut old, &mut new] {
        backend.flush(&timed(TIMESTAMP + 80, 4.0)).unwrap();
        backend.flush(&repeated).unwrap();
    }
    let text = scrape(&new);
    assert_eq!(text, scrape(&old));
    assert_lines(&text, &["all 150", "load 3", "x_y_total 120"]);
    assert!(!text.contains("gone"));
    for at in 0..state.len() {
        let mut changed = state.clone();
        changed[at] ^= 0x81;
        let mut other = successor(&settings);
        if other.import_state(&changed).is_ok() {
            other.flush(&repeated).unwrap();
            scrape(&other);
        }
    }
}

#[test]
fn reloaded_mapping_moves_keys_of_shared_and_repeated_series() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mapping.yml");
    let write = |rules: &str| std::fs::write(&path, format!("mappings:\n{rules}")).unwrap();
    write("- { match: one, name: all }\n- { match: other, name: all }\n");
    let ttl = Duration::from_secs(100);
    let settings = settings::PrometheusSettings { mapping: Some(path.clone()), ttl, ..settings() };
    let mut prometheus = PrometheusBackend::new(&settings).unwrap();
    let reload = prometheus.reload_hook().unwrap();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let keys = || names(&["one", "other", "late;a=1"]).into_iter();
    prometheus.flush(&counters_only(1000, keys())).unwrap();
    assert_lines(&scrape(&prometheus), &["all 60", "late_total{a=\"1\"} 30"]);

    // The series stays for the second key only.
    write("- { match: one, name: first }\n- { match: other, name: all }\n");
    reload().unwrap();
    reload().unwrap();
    assert_lines(&scrape(&prometheus), &["all 60"]);
    prometheus.flush(&counters_only(1010, keys())).unwrap();
    let lines = ["all 90", "first 30", "late_total{a=\"1\"} 60"];
    assert_lines(&scrape(&prometheus), &lines);

    // Changed keys that do not occur again leave nothing, and others can still be removed.
    write("- { match: one, name: second }\n- { match: other, name: all }\n");
    reload().unwrap();
    prometheus.flush(&counters_only(1020, names(&["other"]).into_iter())).unwrap();
    prometheus.flush(&counters_only(1115, names(&["other"]).into_iter())).unwrap();
    let text = scrape(&prometheus);
    assert_lines(&text, &["all 150"]);
    for gone in [
        "
first",
        "
second ",
        "
late_total",
    ] {
        assert!(!text.contains(gone), "{text}");
    }

    // A key that is only repeated starts its new series, too.
    write("- { match: other, name: third }\n");
    reload().unwrap();
    let mut repeated = FlushSnapshot::clone(&counters_only(1120, names(&["other"]).into_iter()));
    repeated.counters[0].idle = true;
    prometheus.flush(&Arc::new(repeated)).unwrap();
    let text = scrape(&prometheus);
    assert!(text.contains("\nthird ") && !text.contains("\nall "), "{text}");
}

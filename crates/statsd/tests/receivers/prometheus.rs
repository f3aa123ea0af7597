//! Prometheus from Debian, with native histograms.

use std::{fs, process::Command, time::Duration};

use howdah_lab::wait_for;
use howdah_statsd::settings::{
    BackendSettings, ObserverType, PrometheusSettings, RemoteWriteSettings,
};

use crate::support::{
    RECEIVER_TIMEOUT, ReceiverProcess, encoded, free_port, http, program, send, serve, stop,
    wait_for_port,
};

/// The value of an expression as text, if there is one.
fn query(port: u16, expression: &str) -> Option<String> {
    let reply = http(port, "GET", &format!("/api/v1/query?query={}", encoded(expression)))?;
    let reply: serde_json::Value = serde_json::from_str(&reply).ok()?;
    let value = reply["data"]["result"][0]["value"][1].as_str()?;
    Some(value.to_owned())
}

#[test]
fn prometheus_scrapes_counted_values() {
    let Some(program) = program("prometheus", "run scripts/setup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let [ours, theirs] = [free_port(), free_port()];
    let prometheus = PrometheusSettings {
        listen: ([127, 0, 0, 1], ours).into(),
        timers: ObserverType::Histogram,
        ..PrometheusSettings::default()
    };
    let backends = BackendSettings { prometheus: Some(prometheus), ..BackendSettings::default() };
    let server = serve(backends, Duration::from_secs(1));
    send(&server);

    let config = folder.path().join("prometheus.yml");
    let job =
        format!("{{ job_name: statsd, static_configs: [{{ targets: ['127.0.0.1:{ours}'] }}] }}");
    fs::write(&config, format!("global: {{ scrape_interval: 1s }}\nscrape_configs: [{job}]\n"))
        .unwrap();
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{theirs}"))
        .args(["--enable-feature=native-histograms", "--log.level=warn"])
        .current_dir(folder.path());
    let _prometheus = ReceiverProcess::start(&mut command, &folder.path().join("output"));
    wait_for_port(theirs);

    for (expression, value) in [
        ("api_hits_total{code=''}", "30"),
        ("api_hits_total{code='500'}", "2"),
        ("pool_size", "-2.5"),
        // After an idle interval the set has no members.
        ("max_over_time(users[5m]) <= 2", "2"),
        ("histogram_count(api_latency_seconds)", "3"),
        ("statsd_kernel_drops_total", "0"),
    ] {
        let result = wait_for(expression, RECEIVER_TIMEOUT, || query(theirs, expression));
        assert!(
            result == value || expression.starts_with("max_over_time"),
            "{expression}: {result}"
        );
    }
    // Accurate to a bucket whose bounds are 9 % apart.
    let median = wait_for("a quantile", RECEIVER_TIMEOUT, || {
        query(theirs, "histogram_quantile(0.5, api_latency_seconds)")
    });
    let median: f64 = median.parse().unwrap();
    assert!((0.018..0.0225).contains(&median), "{median}");
    let sum =
        wait_for("a sum", RECEIVER_TIMEOUT, || query(theirs, "histogram_sum(api_latency_seconds)"));
    assert!((sum.parse::<f64>().unwrap() - 0.06).abs() < 1e-9, "{sum}");
    stop(server);
}

#[test]
fn prometheus_receives_remote_writes() {
    let Some(program) = program("prometheus", "run scripts/setup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let remote_write = RemoteWriteSettings {
        url: format!("http://127.0.0.1:{port}/api/v1/write"),
        timers: ObserverType::Histogram,
        labels: [("job".to_owned(), "statsd".to_owned())].into(),
        ..RemoteWriteSettings::default()
    };
    let backends =
        BackendSettings { remote_write: vec![remote_write], ..BackendSettings::default() };
    let server = serve(backends, Duration::from_secs(1));
    // The first intervals are spooled, because Prometheus starts after them.
    send(&server);

    let config = folder.path().join("prometheus.yml");
    fs::write(&config, "global: { scrape_interval: 1h }\n").unwrap();
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .args(["--web.enable-remote-write-receiver", "--log.level=warn"])
        .current_dir(folder.path());
    let _prometheus = ReceiverProcess::start(&mut command, &folder.path().join("output"));
    wait_for_port(port);

    for (expression, value) in [
        ("api_hits_total{code='',job='statsd'}", "30"),
        ("api_hits_total{code='500'}", "2"),
        ("pool_size", "-2.5"),
        ("api_latency_seconds_bucket{le='0.025'}", "2"),
        ("api_latency_seconds_bucket{le='+Inf'}", "3"),
        ("api_latency_seconds_count", "3"),
        ("statsd_kernel_drops_total{job='statsd'}", "0"),
    ] {
        let result = wait_for(expression, RECEIVER_TIMEOUT, || query(port, expression));
        assert_eq!(result, value, "{expression}");
    }
    send(&server);
    let grown = "api_hits_total{code=''} > 30";
    let result = wait_for(grown, RECEIVER_TIMEOUT, || query(port, grown));
    assert_eq!(result, "60");
    stop(server);
}

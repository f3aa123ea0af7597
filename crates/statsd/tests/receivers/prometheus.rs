//! Prometheus, as Debian has it, with native histograms.

use std::{fs, process::Command, time::Duration};

use howdah_statsd::settings::{Backends, Observer, Prometheus};

use crate::support::{
    Receiver, encoded, free_port, http, program, send, serve, stop, wait_for, wait_for_port,
};

/// The value of an expression, as text.
fn query(port: u16, expression: &str) -> Option<String> {
    let reply = http(port, "GET", &format!("/api/v1/query?query={}", encoded(expression)))?;
    let reply: serde_json::Value = serde_json::from_str(&reply).ok()?;
    let value = reply["data"]["result"][0]["value"][1].as_str()?;
    Some(value.to_owned())
}

#[test]
fn prometheus_scrapes_what_was_counted() {
    let Some(program) = program("prometheus", "run scripts/setup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let [ours, theirs] = [free_port(), free_port()];
    let prometheus = Prometheus {
        listen: ([127, 0, 0, 1], ours).into(),
        timers: Observer::Histogram,
        ..Prometheus::default()
    };
    let backends = Backends { prometheus: Some(prometheus), ..Backends::default() };
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
    let _prometheus = Receiver::start(&mut command, &folder.path().join("output"));
    wait_for_port(theirs);

    for (expression, value) in [
        ("api_hits_total{code=''}", "30"),
        ("api_hits_total{code='500'}", "2"),
        ("pool_size", "-2.5"),
        // A set that was idle since has no members.
        ("max_over_time(users[5m]) <= 2", "2"),
        ("histogram_count(api_latency_seconds)", "3"),
        ("statsd_kernel_drops_total", "0"),
    ] {
        let found = wait_for(expression, || query(theirs, expression));
        assert!(found == value || expression.starts_with("max_over_time"), "{expression}: {found}");
    }
    // Within a bucket whose bounds are 9 % apart.
    let median =
        wait_for("a quantile", || query(theirs, "histogram_quantile(0.5, api_latency_seconds)"));
    let median: f64 = median.parse().unwrap();
    assert!((0.018..0.0225).contains(&median), "{median}");
    let sum = wait_for("a sum", || query(theirs, "histogram_sum(api_latency_seconds)"));
    assert!((sum.parse::<f64>().unwrap() - 0.06).abs() < 1e-9, "{sum}");
    stop(server);
}

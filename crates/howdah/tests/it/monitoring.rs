//! The Grafana dashboards and Prometheus rules in `deploy/`, with a real Prometheus that scrapes
//! running commands.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres, wait_for, wait_until};
use serde_json::Value;

use crate::as_this_user;

/// Maximum wait for a process to start, or for a scrape.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Parts of the names of metrics that exist only while a feature is used, which the test does not.
const CONDITIONAL: &[&str] = &[
    "member",
    "mirror",
    "listen",
    "capture",
    "notification",
    "backend",
    "probe_extension",
    "probe_checkpoint",
    "probe_call",
    "probe_triggers",
    "probe_pressure",
    "probe_session_samples",
    "prefix_overflow",
    "rule_dropped",
    "followed_servers",
    "discovered_servers",
    "held_out",
    "hold_outs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Finds a program that was unpacked or built for tests, or an installed one. If there is none, a
/// message says `how` to get it.
fn program(name: &str, how: &str) -> Option<PathBuf> {
    let unpacked = root().join("target/tools/receivers/usr/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = [unpacked].into_iter().chain(std::env::split_paths(&path));
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()));
    if found.is_none() {
        let required = std::env::var_os("HOWDAH_RECEIVERS_REQUIRED").is_some_and(|it| it == "1");
        assert!(!required, "{name} is missing: run {how}");
        // Written to stderr directly, which the test harness does not capture.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {name} is missing: run {how}");
    }
    found
}

/// A process that is killed when dropped.
struct MonitoredProcess(Child);

impl Drop for MonitoredProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command that serves metrics. Returns where, and what it reported before.
fn start(folder: &Path, args: &[&str]) -> (MonitoredProcess, String, Vec<String>) {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
        .args(args)
        .current_dir(folder)
        .env("HOME", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut seen = Vec::new();
    let address = lines.by_ref().find_map(|line| {
        let address =
            line.strip_prefix("metrics: http://").and_then(|it| it.strip_suffix("/metrics"));
        let address = address.map(str::to_owned);
        seen.push(line);
        address
    });
    // Reads the rest, so that the process never blocks on a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    let address = address.unwrap_or_else(|| panic!("{args:?}: {seen:?}"));
    (MonitoredProcess(child), address, seen)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The answer of Prometheus to a request; `None` while it does not answer.
fn get(port: u16, path: &str) -> Option<Value> {
    serde_json::from_str(&get_text(&format!("127.0.0.1:{port}"), path)?).ok()
}

/// The text that a server sends for a request; `None` while it sends none.
fn get_text(address: &str, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect(address).ok()?;
    write!(socket, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut reply = String::new();
    socket.read_to_string(&mut reply).ok()?;
    Some(reply.split_once("\r\n\r\n")?.1.to_owned())
}

/// The answer to a query.
fn query(port: u16, expression: &str) -> Option<Value> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    get(port, &format!("/api/v1/query?query={encoded}"))
}

/// A metric's name without the suffixes of a histogram's series.
fn base_name(name: &str) -> &str {
    let suffixes = ["_bucket", "_sum", "_count"];
    suffixes.into_iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

/// The expressions of all dashboards, with Grafana's variables replaced.
fn dashboard_expressions() -> Vec<String> {
    let mut expressions = Vec::new();
    for file in fs::read_dir(root().join("deploy/grafana")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().unwrap();
                let expression = expression.replace("$__rate_interval", "1m");
                expressions.push(expression.replace("$job", ".*").replace("$instance", ".*"));
            }
        }
    }
    assert!(expressions.len() > 50, "{expressions:?}");
    expressions
}

#[test]
fn dashboards_and_rules_are_as_generated() {
    let check = Command::new(root().join("scripts/dashboards")).arg("--check").output().unwrap();
    let message = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "{message}run scripts/dashboards");
}

#[test]
fn rules_are_valid() {
    let Some(promtool) = program("promtool", "scripts/setup") else { return };
    let rules = root().join("deploy/prometheus/howdah.rules.yaml");
    let checked = Command::new(promtool).args(["check", "rules"]).arg(rules).output().unwrap();
    let output =
        String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{output}");
}

/// Every series that a command exposes is in a dashboard, and every metric of a dashboard is
/// exposed, unless its feature is not used.
#[test]
fn dashboards_and_rules_work_on_scraped_series() {
    let Some(prometheus) = program("prometheus", "scripts/setup") else { return };
    let cluster = skip_without_postgres("monitoring", Cluster::builder().start());
    let Some(cluster) = cluster else { return };
    let folder = tempfile::tempdir().unwrap();
    let uri = cluster.uri("postgres");
    let pool_settings = format!(
        "[pool]\nmode = 'transaction'\n[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\ntype = 'trust'\n[pool.users.postgres]\nsecret = ''\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        cluster.port()
    );
    fs::write(folder.path().join("pool.toml"), pool_settings).unwrap();
    let statsd = free_port();
    let statsd_settings = format!(
        "[statsd]\nflush-interval = '1s'\nmanagement = '127.0.0.1:0'\n[[statsd.listen]]\ntype = 'udp'\naddress = '127.0.0.1:0'\n\
         [statsd.backends.prometheus]\nlisten = '127.0.0.1:{statsd}'\n"
    );
    fs::write(folder.path().join("statsd.toml"), statsd_settings).unwrap();
    let user = as_this_user();
    let metrics = ["--metrics", "127.0.0.1:0"];
    let commands: [&[&str]; 4] = [
        &["pool", &user, "-c", "pool.toml", metrics[0], metrics[1]],
        &["top", &uri, "--watch", metrics[0], metrics[1]],
        &["probe", "run", &uri, "-o", "a.rec", metrics[0], metrics[1]],
        &["warm", "watch", &uri, "-o", "images", "--interval", "1s", metrics[0], metrics[1]],
    ];
    let started: Vec<_> = commands.iter().map(|args| start(folder.path(), args)).collect();
    let _statsd = MonitoredProcess(
        Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["statsd", "-c", "statsd.toml"])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let targets: Vec<String> = started
        .iter()
        .map(|(_, address, _)| address.clone())
        .chain([format!("127.0.0.1:{statsd}")])
        .map(|address| format!("'{address}'"))
        .collect();
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: ['{}']\n\
         scrape_configs: [{{ job_name: howdah, static_configs: [{{ targets: [{}] }}] }}]\n",
        root().join("deploy/prometheus/howdah.rules.yaml").display(),
        targets.join(", ")
    );
    fs::write(folder.path().join("prometheus.yml"), config).unwrap();
    let port = free_port();
    let _prometheus = MonitoredProcess(
        Command::new(prometheus)
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--log.level=error")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    // Metrics of pools exist once there are pools.
    let place = started[0].2.iter().find_map(|line| line.strip_prefix("listening: ")).unwrap();
    let pooler = place.rsplit_once(':').unwrap().1;
    let params = ConnParams::from_conninfo(format!(
        "host=127.0.0.1 port={pooler} user=postgres dbname=postgres"
    ));
    let target = ConnectTarget::resolve(&params, &Environment::empty()).unwrap();
    let mut client = Client::connect(&target).unwrap();
    client.query("select 1").unwrap();
    wait_until("all commands to be scraped", TIMEOUT, || {
        let up = query(port, "count(up == 1)");
        let count = targets.len().to_string();
        up.is_some_and(|up| up["data"]["result"][0]["value"][1].as_str() == Some(&count))
    });
    wait_until("an image and a second scrape", TIMEOUT, || {
        let taken = query(port, "howdah_warm_image_timestamp_seconds > 0");
        taken.is_some_and(|taken| !taken["data"]["result"].as_array().unwrap().is_empty())
    });

    let names = get(port, "/api/v1/label/__name__/values").unwrap();
    let is_own = |name: &&str| name.starts_with("howdah_") || name.starts_with("statsd_");
    let names = names["data"].as_array().unwrap().iter().filter_map(Value::as_str);
    let scraped: BTreeSet<String> =
        names.filter(is_own).map(|name| base_name(name).to_owned()).collect();
    let expressions = dashboard_expressions();
    let mut shown = BTreeSet::new();
    for expression in &expressions {
        let answer = query(port, expression).unwrap();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        let words = expression.split(|char: char| !char.is_alphanumeric() && char != '_');
        shown.extend(words.filter(is_own).map(|name| base_name(name).to_owned()));
    }
    let forgotten: Vec<_> = scraped.difference(&shown).collect();
    assert!(forgotten.is_empty(), "in no dashboard: {forgotten:?}");
    let missing = shown.difference(&scraped).map(String::as_str);
    let missing: Vec<&str> = missing
        .filter(|name| {
            let is_conditional = CONDITIONAL.iter().any(|part| name.contains(part));
            !name.starts_with("howdah_replay_") && !is_conditional
        })
        .collect();
    assert!(missing.is_empty(), "exposed by no command: {missing:?}");

    let rules = wait_for("all rules to be evaluated", TIMEOUT, || {
        let groups = get(port, "/api/v1/rules")?;
        let groups = groups["data"]["groups"].as_array()?.clone();
        let rules: Vec<Value> =
            groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect();
        rules.iter().all(|rule| rule["health"] != "unknown").then_some(rules)
    });
    assert!(rules.len() > 15, "{rules:?}");
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        // No rule fires for servers that have just started and are healthy.
        assert_ne!(rule["state"], "firing", "{rule}");
    }
}

/// A real OpenTelemetry collector receives the metrics that are also scraped, with the same values.
#[test]
fn collector_receives_the_scraped_metrics() {
    let Some(collector) = program("otel-receiver", "make receivers") else { return };
    let cluster = skip_without_postgres("a collector", Cluster::builder().start());
    let Some(cluster) = cluster else { return };
    let folder = tempfile::tempdir().unwrap();
    let (port, uri) = (free_port(), cluster.uri("postgres"));
    let config = format!(
        "yaml:{{receivers: {{otlp: {{protocols: {{http: {{endpoint: '127.0.0.1:{port}'}}}}}}}}, \
         exporters: {{debug: {{verbosity: detailed}}}}, \
         service: {{telemetry: {{metrics: {{level: none}}}}, \
         pipelines: {{metrics: {{receivers: [otlp], exporters: [debug]}}}}}}}}"
    );
    let output = folder.path().join("received");
    let file = fs::File::create(&output).unwrap();
    let _collector = MonitoredProcess(
        Command::new(collector)
            .arg(format!("--config={config}"))
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap(),
    );
    wait_until("the collector to listen", TIMEOUT, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let url = format!("http://127.0.0.1:{port}/v1/metrics");
    let to = ["--metrics", "127.0.0.1:0", "--metrics-otlp", &url];
    let commands: [&[&str]; 2] =
        [&["probe", "run", &uri, "-o", "a.rec"], &["top", &uri, "--watch", "--interval", "1s"]];
    for command in commands {
        let (_process, address, _) = start(folder.path(), &[command, &to].concat());
        wait_until("all scraped metrics to be received", TIMEOUT, || {
            let Some(scraped) = get_text(&address, "/metrics") else { return false };
            let received = fs::read_to_string(&output).unwrap();
            let samples = scraped.lines().filter(|line| line.starts_with("howdah_"));
            let mut names = samples.filter_map(|line| line.split(['{', ' ']).next()).peekable();
            names.peek().is_some()
                && names.all(|name| received.contains(&format!("Name: {}\n", base_name(name))))
        });
    }
    let received = fs::read_to_string(&output).unwrap();
    assert!(received.contains("service.name: Str(howdah)"), "{received}");
    let transactions = received.rsplit("Name: howdah_probe_transactions_total\n").next().unwrap();
    let transactions = transactions.split("\nMetric #").next().unwrap();
    let kind = ["IsMonotonic: true", "AggregationTemporality: Cumulative"];
    for part in kind.into_iter().chain(["end: Str(commit)", "end: Str(rollback)", "Value: "]) {
        assert!(transactions.contains(part), "{part} is not in {transactions}");
    }
}

//! Compares scrapes with statsd_exporter: both servers receive the same lines over TCP.
//!
//! Lines are random, with a new seed in each run, which is printed; `HOWDAH_TEST_SEED` repeats one.
//! Intended differences are listed in [`DIVERGENCES`], and a test checks that each exists.

use std::{
    collections::BTreeMap,
    io::Write as _,
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use howdah_connect::Environment;
use howdah_lab::wait_until;
use howdah_statsd::{
    backends,
    server::{ServerParts, StatsdServer},
    settings::{BackendSettings, ListenSettings, PrometheusSettings, StatsdSettings},
};

use crate::{
    differences,
    generate::PacketGenerator,
    support::{ReceiverProcess, free_port, http, program, wait_for_port},
};

/// Maximum time until all lines are in a scrape.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(60);

/// The counter of the last line, which is scraped after all others have arrived.
const LAST_LINE: &str = "last.line:1|c";

#[test]
fn random_lines_are_scraped_with_equal_values() {
    let Some(exporter) = exporter() else { return };
    let seed = crate::fresh_seed();
    let mut random = PacketGenerator::new(seed);
    let lines: Vec<String> = (0..4000).map(|_| random.exporter_line()).collect();
    let (theirs, ours) = (exporter.scrape(&lines), scrape_own(&lines));
    let differences = differences(&theirs, &ours);
    assert!(differences.is_empty(), "seed {seed}\n{}", differences.join("\n"));
    assert!(theirs.len() > 200, "only {} values", theirs.len());
}

/// Intended differences, each with a line that demonstrates it.
const DIVERGENCES: [(&str, &str); 4] = [
    ("sets are counted", "users:ann|s"),
    ("an unknown type is a counter", "u:1|x"),
    ("a tag without a value is a label", "t:1|c|#canary"),
    ("a name beginning with a tag style of others is left alone", "s[a=b]:1|c"),
];

#[test]
fn listed_divergences_from_exporter_exist() {
    let Some(exporter) = exporter() else { return };
    for (name, line) in DIVERGENCES {
        let lines = [line.to_owned()];
        let differences = differences(&exporter.scrape(&lines), &scrape_own(&lines));
        assert!(!differences.is_empty(), "{name}: the servers no longer differ");
    }
}

/// The installed program.
struct Exporter {
    program: PathBuf,
}

fn exporter() -> Option<Exporter> {
    let program = program("statsd_exporter", "run `make receivers`")?;
    Some(Exporter { program })
}

impl Exporter {
    /// Starts the exporter, sends the lines and returns what it exposes.
    fn scrape(&self, lines: &[String]) -> BTreeMap<String, f64> {
        let folder = tempfile::tempdir().unwrap();
        let [lines_port, web_port] = [free_port(), free_port()];
        let mut command = Command::new(&self.program);
        command
            .args(["--statsd.listen-udp=", &format!("--statsd.listen-tcp=127.0.0.1:{lines_port}")])
            .arg(format!("--web.listen-address=127.0.0.1:{web_port}"));
        let output = folder.path().join("output");
        let _exporter = ReceiverProcess::start(&mut command, &output);
        wait_for_port(lines_port);
        wait_for_port(web_port);
        send(lines, ([127, 0, 0, 1], lines_port).into());
        scraped(web_port, "last_line")
    }
}

/// Sends the lines to this server and returns what it exposes, with the exporter's names.
fn scrape_own(lines: &[String]) -> BTreeMap<String, f64> {
    let web_port = free_port();
    let listen = ([127, 0, 0, 1], web_port).into();
    let prometheus = PrometheusSettings { listen, ..PrometheusSettings::default() };
    let settings = StatsdSettings {
        listen: vec![ListenSettings::tcp(([127, 0, 0, 1], 0).into())],
        management: None,
        flush_interval: Duration::from_millis(200),
        backends: BackendSettings { prometheus: Some(prometheus), ..BackendSettings::default() },
        ..StatsdSettings::default()
    };
    let backends = backends::open(&settings, &Environment::empty()).unwrap();
    let parts = ServerParts { settings, backends, ..ServerParts::default() };
    let server = StatsdServer::start(parts).unwrap();
    send(lines, server.addresses()[0].unwrap());
    let scraped = scraped(web_port, "last_line_total");
    scraped.into_iter().map(|(series, value)| (exporter_name(&series), value)).collect()
}

/// Removes the suffixes that the exporter does not append.
fn exporter_name(series: &str) -> String {
    let (name, labels) = series.split_at(series.find('{').unwrap_or(series.len()));
    let name = match name.strip_suffix("_total") {
        Some(name) => name.to_owned(),
        None => name.replacen("_seconds_", "_", 1),
    };
    name + labels
}

fn send(lines: &[String], to: SocketAddr) {
    let mut stream = TcpStream::connect(to).unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    stream.write_all(text.as_bytes()).unwrap();
    stream.write_all(format!("{LAST_LINE}\n").as_bytes()).unwrap();
}

/// Scrapes until the counter of the last line is there. Returns the values of all series but
/// quantiles and the server's own.
fn scraped(port: u16, last: &str) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    wait_until("the last line in a scrape", SCRAPE_TIMEOUT, || {
        let text = http(port, "GET", "/metrics").unwrap_or_default();
        series = text.lines().filter_map(parsed).collect();
        series.contains_key(last)
    });
    let own = ["go_", "process_", "promhttp_", "statsd_"];
    series.retain(|name, _| !own.iter().any(|prefix| name.starts_with(prefix)));
    series
}

/// Parses a line of the text format to the series, with sorted labels, and its value.
fn parsed(line: &str) -> Option<(String, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    if line.starts_with('#') || series.contains("quantile=") {
        return None;
    }
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    // Values of the generated labels have no commas.
    let mut labels: Vec<&str> =
        labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()).collect();
    labels.sort_unstable();
    Some((format!("{name}{{{}}}", labels.join(",")).replace("{}", ""), value.parse().ok()?))
}

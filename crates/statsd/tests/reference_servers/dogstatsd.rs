//! Compares what a backend receives of DogStatsD's lines with a model of the documented protocol,
//! versions 1.0 to 1.3 and the fields of later ones.
//!
//! Lines are random, with a new seed in each run, which is printed; `HOWDAH_TEST_SEED` repeats one.
//! Intended differences are listed in [`DIVERGENCES`], and a test checks that each exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    net::TcpStream,
    path::Path,
    sync::{Arc, mpsc},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_lab::wait_until;
use howdah_statsd::{
    MetricName,
    backends::{BackendError, BackendStatus, MetricBackend, SnapshotRequirements},
    flush::{FlushSnapshot, MessageContent, ReceivedMessage, TimedType, TimerSamples},
    server::{ServerParts, StatsdServer},
    settings::{ListenSettings, StatsdDialect, StatsdSettings},
};

use crate::{differences, generate::PacketGenerator};

/// Maximum time until all lines have arrived.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(60);
/// An interval longer than any test: the only flush is the one at shutdown.
const NO_PERIODIC_FLUSH: Duration = Duration::from_secs(3600);

#[test]
fn random_lines_have_documented_meaning() {
    let seed = crate::fresh_seed();
    let mut random = PacketGenerator::new(seed);
    let now = now();
    let lines: Vec<String> = (0..6000).map(|_| random.dogstatsd_line(now)).collect();
    let (documented, ours) = (DocumentedServer::values(&lines), own_values(&lines));
    let differences = differences(&documented, &ours);
    assert!(differences.is_empty(), "seed {seed}\n{}", differences.join("\n"));
    assert!(documented.len() > 2000, "only {} values", documented.len());
}

/// Intended differences, each with lines that demonstrate it. The page about moving from other
/// servers has the same list.
const DIVERGENCES: [(&str, &str); 14] = [
    ("an unknown type is a counter", "u:1|x"),
    ("a line may have several types", "a:1|c:2|ms"),
    ("a negative timer is a bad line", "t:-1|ms"),
    ("numbers are those of JavaScript", "a:0x1F|c"),
    ("a rate of 0 is a bad line", "a:1|c|@0"),
    ("a rate above 1 is applied", "a:1|c|@2"),
    ("an excessive value is a bad line", "a:1e300|c"),
    ("names are left as they are", "a b/c:1|c"),
    ("the statistics of a timer are not weighted", "t:1|ms|@0.5\nt:4|ms"),
    ("a sampled count with a time is scaled", "a:1|c|@0.5|TNOW"),
    ("a time with another type is ignored", "t:1|ms|TNOW"),
    ("a time of another day is a bad line", "a:1|g|T1656581400"),
    ("gauges with differently ordered tags have no order", "g:1|g|#a,b\ng:2|g|#b,a"),
    ("a check's message may have line breaks", "_sc|a|0|m:first\\nsecond"),
];

#[test]
fn listed_divergences_from_dogstatsd_exist() {
    for (name, lines) in DIVERGENCES {
        let lines = lines.replace("NOW", &now().to_string());
        let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
        let differences = differences(&DocumentedServer::values(&lines), &own_values(&lines));
        assert!(!differences.is_empty(), "{name}: no difference");
    }
}

/// The table on the page about moving from other servers has a row for each difference, in order.
#[test]
fn page_lists_divergences_from_dogstatsd() {
    let page =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/guide/move-from-statsd.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("| lines | DogStatsD | here |\n|---|---|---|\n").unwrap();
    let rows = table.lines().take_while(|row| row.starts_with('|'));
    let listed: Vec<&str> = rows.map(|row| row.split(" | ").next().unwrap()).collect();
    let expected = DIVERGENCES.map(|(_, lines)| {
        let lines = lines.replace("NOW", "…").replace('|', "\\|").replace('\n', "`, `");
        format!("| `{lines}`")
    });
    assert_eq!(listed, expected);
}

/// A minute ago, in seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - 60
}

/// The values of one interval by the documented meaning of each line. Lines without one are
/// ignored.
#[derive(Debug, Default)]
struct DocumentedServer {
    counters: BTreeMap<String, f64>,
    gauges: BTreeMap<String, f64>,
    /// Values of timers, histograms and distributions, each with its weight.
    timers: BTreeMap<String, Vec<(f64, f64)>>,
    sets: BTreeMap<String, BTreeSet<String>>,
    /// Counts and gauges with a time.
    timed: BTreeMap<String, f64>,
    messages: Vec<String>,
}

/// The fields after the type of a line.
#[derive(Default)]
struct DocumentedFields<'l> {
    rate: Option<&'l str>,
    tags: Vec<&'l str>,
    container: Option<&'l str>,
    time: Option<&'l str>,
    cardinality: Option<&'l str>,
}

impl<'l> DocumentedFields<'l> {
    fn new(fields: impl Iterator<Item = &'l str>) -> Self {
        let mut found = Self::default();
        for field in fields {
            if let Some(rate) = field.strip_prefix('@') {
                found.rate = Some(rate);
            } else if let Some(tags) = field.strip_prefix('#') {
                found.tags = tags.split(',').filter(|tag| !tag.is_empty()).collect();
            } else if let Some(container) = field.strip_prefix("c:") {
                found.container = Some(container);
            } else if let Some(time) = field.strip_prefix('T') {
                found.time = Some(time);
            } else if let Some(cardinality) = field.strip_prefix("card:") {
                found.cardinality = Some(cardinality);
            }
        }
        found
    }

    /// The tag for the sender's container. Datadog's server adds the tags of that container, which
    /// only it knows.
    fn container_tag(&self) -> Option<String> {
        let parts: Vec<&str> = self.container?.split(',').collect();
        let id = parts.iter().find_map(|part| part.strip_prefix("ci-")).unwrap_or(parts[0]);
        (self.cardinality != Some("none")).then(|| format!("container_id:{id}"))
    }

    /// A name and its tags, whose order has no meaning.
    fn key(&self, name: &str) -> String {
        let mut tags: BTreeSet<String> = self.tags.iter().map(|tag| (*tag).to_owned()).collect();
        tags.extend(self.container_tag());
        key(name, tags)
    }
}

fn key(name: &str, tags: BTreeSet<String>) -> String {
    format!("{name}#{}", tags.into_iter().collect::<Vec<_>>().join(","))
}

/// An integer or a float.
fn documented_number(text: &str) -> Option<f64> {
    let is_number = text.chars().all(|char| char.is_ascii_digit() || "+-.eE".contains(char));
    text.parse().ok().filter(|_| is_number)
}

impl DocumentedServer {
    fn values(lines: &[String]) -> BTreeMap<String, f64> {
        let mut server = Self::default();
        for line in lines {
            if line.starts_with("_e{") {
                server.messages.extend(documented_event(line));
            } else if line.starts_with("_sc") {
                server.messages.extend(documented_check(line));
            } else {
                let _ = server.add(line);
            }
        }
        server.flattened()
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut parts = line.split('|');
        let (name, values) = parts.next()?.split_once(':').filter(|(name, _)| !name.is_empty())?;
        let kind = parts.next()?;
        let fields = DocumentedFields::new(parts);
        let allowed = |char: char| char.is_ascii_alphanumeric() || "_.".contains(char);
        let name = name.replace(|char| !allowed(char), "_");
        let key = fields.key(&name);
        let rate = fields.rate.map_or(Some(1.0), documented_number)?;
        if !(0.0..=1.0).contains(&rate) {
            return None;
        }
        let numbers = values.split(':').filter_map(documented_number);
        if let Some(time) = fields.time {
            let time: u64 = time.parse().ok().filter(|time| *time > 0)?;
            let key = format!("{kind}/{key}@{time}");
            match kind {
                // Not processed, except that this server adds what has the same time.
                "c" => numbers.for_each(|n| *self.timed.entry(key.clone()).or_default() += n),
                "g" => self.timed.extend(numbers.map(|n| (key.clone(), n))),
                _ => {}
            }
            return Some(());
        }
        match kind {
            "c" => numbers.for_each(|n| *self.counters.entry(key.clone()).or_default() += n / rate),
            "g" => self.gauges.extend(numbers.map(|n| (key.clone(), n))),
            "ms" | "h" | "d" => {
                numbers.for_each(|n| {
                    self.timers.entry(key.clone()).or_default().push((n, 1.0 / rate));
                });
            }
            "s" => drop(self.sets.entry(key).or_default().insert(values.to_owned())),
            _ => {}
        }
        Some(())
    }

    fn flattened(self) -> BTreeMap<String, f64> {
        let mut flat = BTreeMap::new();
        let mut put = |table: &str, values: BTreeMap<String, f64>| {
            flat.extend(values.into_iter().map(|(key, value)| (format!("{table}/{key}"), value)));
        };
        put("counters", self.counters);
        put("gauges", self.gauges);
        put("timed", self.timed);
        for (key, mut samples) in self.timers {
            samples.sort_by(|a, b| a.0.total_cmp(&b.0));
            let count: f64 = samples.iter().map(|(_, weight)| weight).sum();
            let sum: f64 = samples.iter().map(|(value, weight)| value * weight).sum();
            flat.insert(format!("timers/{key}/count"), count);
            flat.insert(format!("timers/{key}/mean"), sum / count);
            let values: Vec<f64> = samples.iter().map(|(value, _)| *value).collect();
            flat.extend(sample_entries(&key, &values));
        }
        for (key, members) in self.sets {
            flat.extend(members.iter().map(|member| (format!("sets/{key}/{member}"), 1.0)));
        }
        flat.extend(message_entries(self.messages));
        flat
    }
}

fn sample_entries(key: &str, samples: &[f64]) -> BTreeMap<String, f64> {
    let name = |at| format!("timers/{key}/sample {at}");
    samples.iter().enumerate().map(|(at, value)| (name(at), *value)).collect()
}

fn message_entries(messages: Vec<String>) -> impl Iterator<Item = (String, f64)> {
    messages.into_iter().enumerate().map(|(at, text)| (format!("message {at}: {text}"), 1.0))
}

/// The optional fields of events and service checks.
struct DocumentedMessage {
    time: Option<u64>,
    fields: BTreeMap<&'static str, String>,
    tags: Vec<String>,
}

impl DocumentedMessage {
    fn new(list: &str) -> Self {
        let mut message = Self { time: None, fields: BTreeMap::new(), tags: Vec::new() };
        for field in list.split('|') {
            for (prefix, name) in [
                ("h:", "host"),
                ("k:", "key"),
                ("p:", "priority"),
                ("s:", "source"),
                ("t:", "alert"),
                ("m:", "message"),
            ] {
                if let Some(value) = field.strip_prefix(prefix) {
                    message.fields.insert(name, value.to_owned());
                }
            }
            if let Some(time) = field.strip_prefix("d:") {
                message.time = time.parse().ok();
            }
            if let Some(tags) = field.strip_prefix('#') {
                message.tags = tags.split(',').map(str::to_owned).collect();
            }
        }
        message.tags.extend(DocumentedFields::new(list.split('|')).container_tag());
        message
    }

    /// A field that has one of several values, of which the first is the default.
    fn one_of(&self, name: &str, values: &[&str]) -> String {
        let value = self.fields.get(name).filter(|value| values.contains(&value.as_str()));
        value.map_or(values[0].to_owned(), String::clone)
    }

    fn text(&self, name: &str) -> String {
        self.fields.get(name).cloned().unwrap_or_default()
    }
}

fn documented_event(line: &str) -> Option<String> {
    let (lengths, rest) = line.strip_prefix("_e{")?.split_once("}:")?;
    let (title, text) = lengths.split_once(',')?;
    let (title, text): (usize, usize) = (title.parse().ok()?, text.parse().ok()?);
    let (title, rest) = rest.split_at_checked(title)?;
    let (text, rest) = rest.strip_prefix('|')?.split_at_checked(text)?;
    if title.is_empty() || !(rest.is_empty() || rest.starts_with('|')) {
        return None;
    }
    let message = DocumentedMessage::new(rest);
    let [title, text] = [title, text].map(|text| text.replace("\\n", "\n"));
    let alert = message.one_of("alert", &["info", "success", "warning", "error"]);
    let priority = message.one_of("priority", &["normal", "low"]);
    let [host, key, source] = ["host", "key", "source"].map(|name| message.text(name));
    let DocumentedMessage { time, tags, .. } = message;
    Some(format!(
        "event {title:?} {text:?} {time:?} {host:?} {key:?} {priority} {source:?} {alert} {tags:?}"
    ))
}

fn documented_check(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("_sc|")?.split_once('|')?;
    let (status, list) = rest.split_once('|').unwrap_or((rest, ""));
    let status = ["ok", "warning", "critical", "unknown"]
        .get(status.parse::<usize>().ok().filter(|_| status.len() == 1)?)?;
    let fields = DocumentedMessage::new(list);
    let [host, text] = ["host", "message"].map(|name| fields.text(name));
    let DocumentedMessage { time, tags, .. } = fields;
    (!name.is_empty())
        .then(|| format!("check {name:?} {status} {time:?} {host:?} {text:?} {tags:?}"))
}

/// A backend that passes snapshots to the test.
struct SnapshotSender {
    snapshots: mpsc::Sender<Arc<FlushSnapshot>>,
    status: BackendStatus,
}

impl MetricBackend for SnapshotSender {
    fn name(&self) -> &'static str {
        "test"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements {
            names_as_sent: true,
            timer_fields: true,
            messages: true,
            ..SnapshotRequirements::MINIMAL
        }
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        self.snapshots.send(Arc::clone(snapshot)).unwrap();
        Ok(())
    }
}

/// Sends the lines to this server and returns what a backend receives.
fn own_values(lines: &[String]) -> BTreeMap<String, f64> {
    let (sender, snapshots) = mpsc::channel();
    let settings = StatsdSettings {
        dialect: StatsdDialect::Dogstatsd,
        listen: vec![ListenSettings::tcp(([127, 0, 0, 1], 0).into())],
        management: None,
        flush_interval: NO_PERIODIC_FLUSH,
        ..StatsdSettings::default()
    };
    let backend = SnapshotSender { snapshots: sender, status: BackendStatus::default() };
    let parts =
        ServerParts { settings, backends: vec![Box::new(backend)], ..ServerParts::default() };
    let server = StatsdServer::start(parts).unwrap();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let mut stream = TcpStream::connect(server.addresses()[0].unwrap()).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    wait_until("all lines to arrive", ARRIVAL_TIMEOUT, || {
        server.account().sockets[0].bytes_total == text.len() as u64
    });
    let report = server.stop();
    assert!(report.undelivered.is_empty(), "{:?}", report.undelivered);
    flattened(&snapshots.recv().unwrap())
}

fn own_key(name: &MetricName) -> String {
    let tag = |(key, value): (_, _)| -> String { own_tag(key, value) };
    key(name.base(), name.tags().map(|(key, value)| tag((key, value))).collect())
}

fn own_tag(key: impl AsRef<str>, value: impl AsRef<str>) -> String {
    match (key.as_ref(), value.as_ref()) {
        (key, "") => key.to_owned(),
        (key, value) => format!("{key}:{value}"),
    }
}

fn flattened(snapshot: &FlushSnapshot) -> BTreeMap<String, f64> {
    let mut flat = BTreeMap::new();
    for counter in snapshot.counters_as_sent() {
        flat.insert(format!("counters/{}", own_key(&counter.name)), counter.value);
    }
    for gauge in snapshot.gauges_as_sent() {
        flat.insert(format!("gauges/{}", own_key(&gauge.name)), gauge.value);
    }
    for timer in snapshot.timers_as_sent() {
        let (key, summary) = (own_key(&timer.name), timer.summary.as_ref().unwrap());
        flat.insert(format!("timers/{key}/count"), summary.count);
        flat.insert(format!("timers/{key}/mean"), summary.mean);
        let TimerSamples::Exact(samples) = &timer.samples else { panic!("{key} is a sketch") };
        flat.extend(sample_entries(&key, samples));
    }
    for set in snapshot.sets_as_sent() {
        let key = own_key(&set.name);
        flat.extend(set.members.iter().map(|member| (format!("sets/{key}/{member}"), 1.0)));
    }
    for timed in &snapshot.timed {
        let kind = if timed.kind == TimedType::Counter { "c" } else { "g" };
        flat.insert(format!("timed/{kind}/{}@{}", own_key(&timed.sent), timed.time), timed.value);
    }
    flat.extend(message_entries(snapshot.messages.iter().map(message_text).collect()));
    flat.retain(|key, _| !key.contains("/statsd."));
    flat
}

fn message_text(message: &ReceivedMessage) -> String {
    // Without a time of the sender, it is that of receipt.
    let age = message.received_seconds() - message.time as f64;
    let time = (age > 2.0).then_some(message.time);
    let host = &message.host;
    let tags: Vec<String> = message.tags.iter().map(|(key, value)| own_tag(key, value)).collect();
    match &message.content {
        MessageContent::Event {
            title,
            text,
            aggregation_key,
            priority,
            source_type,
            alert_type,
        } => {
            let (priority, alert) = (priority.as_str(), alert_type.as_str());
            format!(
                "event {title:?} {text:?} {time:?} {host:?} {aggregation_key:?} {priority} \
                 {source_type:?} {alert} {tags:?}"
            )
        }
        MessageContent::Check { name, status, message } => {
            let status = status.as_str();
            format!("check {name:?} {status} {time:?} {host:?} {message:?} {tags:?}")
        }
    }
}

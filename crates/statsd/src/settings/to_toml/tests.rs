use std::{collections::BTreeSet, path::Path};

use super::*;
use crate::settings::ParsedSettings;

/// Sets every key to a value that is not its default.
const ALL_KEYS: &str = r#"
[statsd]
dialect = "dogstatsd"
management = "off"
health = "127.0.0.1:1"
healthy = false
flush-interval = "1s"
shutdown-timeout = "1500ms"
dump-messages = true
reload-on-change = true
takeover = "/run/takeover.sock"
[statsd.aggregation]
percentiles = [50, 99.9, -10]
histogram = [{ metric = "a", bins = [0.5, 5, "inf"] }]
calculated = ["count"]
delete-idle-counters = true
delete-idle-timers = true
delete-idle-sets = true
delete-idle-gauges = true
gauge-ttl = 3
ttl = "1h"
sanitise = false
prefix = "me"
extra-metrics = false
[statsd.tags]
dogstatsd = false
graphite = false
influx = false
librato = true
signalfx = true
[statsd.dogstatsd]
origin = false
timestamps = true
timestamp-age = "1h"
[statsd.types]
kv = true
absolute-counter = true
[statsd.limits]
keys = 1
key-bytes = 2
tags = 3
exact-samples = 4
exact-samples-total = 5
set-members = 6
set-overflow = "refuse"
member-bytes = 7
message-bytes = 8
keys-per-prefix = 9
prefix = [{ prefix = "a.", keys = 10, excess = "drop" }]
[[statsd.rules]]
id = "web"
name = "web*.**"
type = "timer"
tags = { level = "debug" }
rename = "web.$1"
drop-tags = ["pod"]
keep-tags = ["host"]
add-tags = { host = "$1" }
[[statsd.rules]]
name-regex = "x$"
action = "drop"
[statsd.static-tags]
price = "$$5"
[statsd.key-flush]
interval = "1s"
percent = 12.5
log = "/var/log/keys"
[statsd.log]
level = "debug"
syslog = "stats"
[[statsd.listen]]
type = "udp"
address = "[::1]:1"
readers = 2
buffer-bytes = 3
allow = ["10.0.0.0/8", "::1"]
[[statsd.listen]]
type = "tcp"
address = "127.0.0.1:1"
connections = 2
allow = ["192.168.1.7"]
tls-certificate = "/etc/statsd.crt"
tls-key = "/etc/statsd.key"
client-ca = "/etc/clients.crt"
token-file = "/etc/tokens"
handshake-timeout = "5s"
idle-timeout = "1m"
[[statsd.listen]]
type = "forward"
address = "127.0.0.1:1"
connections = 2
allow = ["192.168.1.8"]
tls-certificate = "/etc/statsd.crt"
tls-key = "/etc/statsd.key"
client-ca = "/etc/clients.crt"
token-file = "/etc/tokens"
handshake-timeout = "5s"
idle-timeout = "1m"
[[statsd.listen]]
type = "unixgram"
path = "/run/a"
mode = 0o660
owner = "me:us"
buffer-bytes = 3
[[statsd.listen]]
type = "unix"
path = "/run/b"
mode = 0o600
owner = "me"
connections = 2
idle-timeout = "1m"
[[statsd.backends.graphite]]
host = "g"
port = 1
pickle-port = 2
protocol = "pickle"
legacy-namespace = false
global-prefix = "a"
prefix-counter = "b"
prefix-timer = "c"
prefix-gauge = "d"
prefix-set = "e"
global-suffix = "f"
flush-counts = false
persistent = true
spool-bytes = 3
[statsd.backends.console]
pretty = true
[statsd.backends.file]
path = "/var/log/stats.tsv"
timestamps = true
[[statsd.backends.repeater]]
host = "r"
port = 1
protocol = "tcp"
[statsd.backends.prometheus]
listen = "127.0.0.1:1"
timers = "histogram"
quantiles = [0.25]
quantile-age = "1m"
buckets = [1, 2.5]
native-bucket-factor = 1.5
native-buckets-max = 20
mapping = "/etc/mapping.yml"
names = "exporter"
ttl = "1h"
series-max = 10
[[statsd.backends.remote-write]]
url = "http://p:9090/api/v1/write"
labels = { site = "x" }
timers = "histogram"
quantiles = [0.25]
quantile-age = "1m"
buckets = [1, 2.5]
mapping = "/etc/mapping.yml"
names = "exporter"
ttl = "1h"
series-max = 10
token-file = "/etc/token"
ca-file = "/etc/ca.pem"
spool-bytes = 1
[[statsd.backends.influx]]
url = "http://i:8086/write?db=d&u=joe&p=hunter2"
token-file = "/etc/token"
ca-file = "/etc/ca.pem"
spool-bytes = 1
[[statsd.backends.otlp]]
url = "http://o:4318/v1/metrics"
temporality = "delta"
resource = { "service.name" = "x" }
token-file = "/etc/token"
ca-file = "/etc/ca.pem"
spool-bytes = 1
[[statsd.backends.kafka]]
brokers = ["k:9092"]
topic = "t"
format = "influx"
tls = true
ca-file = "/etc/ca.pem"
user = "joe"
password-file = "/etc/password"
mechanism = "plain"
batch-bytes = 1024
spool-bytes = 1
[[statsd.backends.postgres]]
connection = "postgresql://joe:hunter2@db/metrics"
table = "t"
partition = "month"
retention = "30d"
format = "text"
events-table = "e"
checks-table = ""
spool-bytes = 1
[[statsd.backends.webhook]]
url = "https://w/hook"
token-file = "/etc/token"
ca-file = "/etc/ca.pem"
spool-bytes = 1
[[statsd.backends.exec]]
command = ["/usr/bin/sink", "--fast"]
format = "json"
timeout = "3s"
spool-bytes = 1
[[statsd.backends.forward]]
to = "[::1]:8128"
sender = "web1"
tls = true
ca-file = "/etc/ca.pem"
tls-certificate = "/etc/web1.crt"
tls-key = "/etc/web1.key"
token-file = "/etc/token"
spool-bytes = 1
[statsd.proxy]
nodes = [{ host = "n", port = 1, admin-port = 2 }]
check-interval = "3s"
"#;

fn read(text: &str) -> ParsedSettings {
    StatsdSettings::read(text, Path::new("f"), "host").unwrap()
}

/// Adds the paths of all keys below a value; items of arrays have no path of their own.
fn add_keys(value: &Value, path: &str, keys: &mut BTreeSet<String>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let path = format!("{path}.{key}");
                keys.insert(path.clone());
                add_keys(value, &path, keys);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_keys(item, path, keys)),
        _ => {}
    }
}

fn keys_of(text: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    add_keys(&toml::from_str(text).unwrap(), "", &mut keys);
    keys
}

#[test]
fn every_key_is_written_and_read_again() {
    let settings = read(ALL_KEYS).settings;
    let mut known = BTreeSet::new();
    let section = Value::try_from(&settings).unwrap();
    add_keys(&Table::from_iter([("statsd".to_owned(), section)]).into(), "", &mut known);
    assert_eq!(keys_of(ALL_KEYS), known, "the test's file has all settings");
    let written = settings.to_toml().unwrap();
    assert_eq!(keys_of(&written), known, "{written}");
    assert_eq!(read(&written).settings, settings, "{written}");
    assert!(written.contains("mode = 0o660\n"), "{written}");
    assert_eq!(settings.static_tags["price"], "$5");
}

#[test]
fn defaults_are_omitted() {
    assert_eq!(StatsdSettings::default().to_toml().unwrap(), "[statsd]\n");
    let text = "[statsd]\nflush-interval = \"1s\"\n\n[[statsd.backends.graphite]]\nhost = \"g\"\n";
    assert_eq!(read(text).settings.to_toml().unwrap(), text);
    let text = "[statsd.backends.console]\n";
    assert!(read(text).settings.to_toml().unwrap().ends_with(text));
}

#[test]
fn files_of_etsy_and_perl_yield_equal_settings_after_conversion() {
    let etsy = "{ port: 8127, mgmt_address: '127.0.0.1', graphiteHost: 'g', flushInterval: 1000,
        percentThreshold: [50, 99.9], deleteIdleStats: true, backends: ['./backends/graphite',
        './backends/repeater'], repeater: [{ host: 'r', port: 1 }],
        servers: [{ server: './servers/tcp', socket: '/run/s', socket_mod: '0660' }],
        histogram: [{ metric: '', bins: [0.5, 5, 'inf'] }], graphite: { globalSuffix: 'x\\ny' } }";
    let perl = "# x\n{ \"port\": 8125, \"backends\": [\"Console\", \"File\"],
        \"file\": {\"name\": \"/tmp/stats\"}, \"mgmt_address\": \"::\", }";
    let proxy = "{ nodes: [{ host: 'a', port: 1, adminport: 2 }], mgmt_address: '127.0.0.1' }";
    for text in [etsy, perl, proxy] {
        let settings = read(text).settings;
        let written = settings.to_toml().unwrap();
        assert_eq!(read(&written).settings, settings, "{written}");
    }
}

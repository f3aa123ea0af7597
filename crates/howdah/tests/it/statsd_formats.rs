//! `howdah statsd` with settings files of other servers, and `howdah statsd import`.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{TcpListener, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use howdah_lab::wait_for;

use crate::{
    howdah,
    statsd::{StatsdProcess, TIMEOUT, scrape},
    text, wait_for_line,
};

/// A port that was free a moment ago, for files in which 0 has another meaning.
fn free_udp_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn free_tcp_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts the server with a file, and with a management port on which tests can see the values.
fn start(folder: &Path, file: &str, content: &str) -> StatsdProcess {
    fs::write(folder.join(file), content).unwrap();
    StatsdProcess::start(folder, &["-c", file, "--management", "127.0.0.1:0"])
}

/// Accepts a connection, and returns the first line in it that contains `part`.
fn line_with(listener: &TcpListener, part: &str) -> String {
    wait_for(part, TIMEOUT, || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.find(|line| line.contains(part))
    })
}

#[test]
fn datadog_agent_file_receives_and_forwards() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = format!(
        "api_key: s3cret\nsite: datadoghq.eu\ndogstatsd_port: {}\nlog_level: info\n\
         statsd_forward_host: 127.0.0.1\nstatsd_forward_port: {}\n",
        free_udp_port(),
        receiver.local_addr().unwrap().port(),
    );
    let server = start(folder.path(), "datadog.yaml", &file);
    server.send("g:-5|g\ng:-3|g\na.b:3|c|#env:prod");
    server.wait_for_counter("a.b;env=prod");
    assert!(server.query("gauges\nquit\n").contains("g: -3"), "gauges are absolute");
    let mut packet = [0; 100];
    receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
    let length = receiver.recv(&mut packet).unwrap();
    assert_eq!(&packet[..length], b"g:-5|g\ng:-3|g\na.b:3|c|#env:prod");
    assert!(!server.started.contains("s3cret"), "{}", server.started);
    let (code, rest) = server.terminate();
    assert_eq!(code, Some(0), "{rest}");
}

#[test]
fn gostatsd_file_sends_to_graphite() {
    let folder = tempfile::tempdir().unwrap();
    let graphite = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = format!(
        "metrics-addr = '127.0.0.1:0'\nflush-interval = '50ms'\nbackends = 'graphite'\n\
         namespace = 'shop'\n[graphite]\naddress = '{}'\n",
        graphite.local_addr().unwrap(),
    );
    let server = start(folder.path(), "gostatsd.toml", &file);
    server.send("a.b:3|c");
    let line = line_with(&graphite, "a.b.count 3");
    assert!(line.starts_with("stats.counters.shop.a.b.count 3 "), "{line}");
}

#[test]
fn statsite_file_sends_to_graphite() {
    let folder = tempfile::tempdir().unwrap();
    let graphite = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = format!(
        "[statsite]\nbind_address = 127.0.0.1\nudp_port = {}\ntcp_port = 0\n\
         flush_interval = 0.05\nquantiles = 0.5\n\
         stream_cmd = python sinks/graphite.py 127.0.0.1 {} shop\n",
        free_udp_port(),
        graphite.local_addr().unwrap().port(),
    );
    let server = start(folder.path(), "statsite.conf", &file);
    server.send("t:320|ms");
    let line = line_with(&graphite, "t.upper_50 320");
    assert!(line.starts_with("shop.timers.t.upper_50 320 "), "{line}");
}

#[test]
fn telegraf_file_serves_prometheus() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_tcp_port();
    let file = format!(
        "[agent]\ninterval = '50ms'\nhostname = 'web1'\n[[inputs.statsd]]\nservice_address = '127.0.0.1:0'\n\
         [[inputs.mem]]\n[[outputs.prometheus_client]]\nlisten = '127.0.0.1:{port}'\n"
    );
    let server = start(folder.path(), "telegraf.conf", &file);
    server.send("a.b:3|c");
    let line = wait_for("the counter", TIMEOUT, || {
        let text = scrape(&format!("127.0.0.1:{port}"))?;
        text.lines().find(|line| line.starts_with("a_b_total")).map(str::to_owned)
    });
    assert_eq!(line, "a_b_total{host=\"web1\"} 3");
    let started = &server.started;
    assert!(started.contains("only statsd inputs are converted, not mem"), "{started}");
}

#[test]
fn statsd_exporter_flags_serve_mapped_names() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_tcp_port();
    let mapping = "mappings:\n- match: jobs.*.done\n  name: jobs_done\n  labels: { job: $1 }\n";
    fs::write(folder.path().join("mapping.yml"), mapping).unwrap();
    let file = format!(
        "--web.listen-address=127.0.0.1:{port}\n--statsd.listen-udp=127.0.0.1:0\n\
         --statsd.listen-tcp=\n--statsd.mapping-config=mapping.yml\n"
    );
    let server = start(folder.path(), "flags", &file);
    server.send("jobs.mail.done:3|c");
    let line = wait_for("the counter", TIMEOUT, || {
        let text = scrape(&format!("127.0.0.1:{port}"))?;
        text.lines().find(|line| line.starts_with("jobs_done")).map(str::to_owned)
    });
    assert_eq!(line, "jobs_done{job=\"mail\"} 3");
    // The mapping file itself is a settings file, too.
    let words = ["statsd", "--check", "-c", "mapping.yml"];
    howdah(folder.path()).args(words).assert().success();
}

#[test]
fn imported_file_starts_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let config = "{ port: 0, address: '127.0.0.1', mgmt_address: '127.0.0.1', mgmt_port: 0,\n \
                  title: 'x', flushInterval: 3600000, backends: ['console'] }";
    fs::write(folder.path().join("config.js"), config).unwrap();
    let words = ["statsd", "import", "config.js", "--dialect", "perl", "-o", "howdah.toml"];
    let output = howdah(folder.path()).args(words).assert().success();
    let messages = text(&output.get_output().stderr);
    assert!(messages.starts_with("written: howdah.toml\n"), "{messages}");
    assert!(messages.contains("keys without equal effect: 1"), "{messages}");
    let path = folder.path().join("howdah.toml");
    let written = fs::read_to_string(&path).unwrap();
    assert!(written.contains("config.js:2: title: not supported"), "{written}");
    assert!(written.contains("[statsd]\ndialect = \"perl\"\n"), "{written}");
    assert!(written.contains("reload-on-change = true\n"), "{written}");
    assert!(!written.contains("percentiles"), "only changed keys: {written}");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let server = StatsdProcess::start(folder.path(), &["-c", "howdah.toml"]);
    server.send("a.b:3|c");
    server.wait_for_counter("a.b");
    // A file with settings is not overwritten.
    howdah(folder.path()).args(words).assert().code(1);
}

#[test]
fn import_converts_flags_of_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["statsd", "import", "--exporter-args", "--statsd.listen-tcp= --log.level=debug"];
    let output = howdah(folder.path()).args(words).assert().success();
    let toml = text(&output.get_output().stdout);
    for line in ["# From --exporter-args.", "flush-interval = \"1s\"", "level = \"debug\""] {
        assert!(toml.lines().any(|found| found == line), "{line} in {toml}");
    }
    howdah(folder.path()).args(["statsd", "import"]).assert().code(2);
}

#[test]
fn import_of_an_unknown_format_names_all_formats() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("settings"), "hello\n").unwrap();
    let output = howdah(folder.path()).args(["statsd", "import", "settings"]).assert().code(1);
    let messages = text(&output.get_output().stderr);
    for name in ["[statsd]", "config.js", "datadog.yaml", "gostatsd", "statsite", "telegraf.conf"] {
        assert!(messages.contains(name), "{name} in {messages}");
    }
}

#[test]
fn changed_etsy_file_is_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let config = "{ port: 0, address: '127.0.0.1', mgmt_address: '127.0.0.1', mgmt_port: 0,
        flushInterval: 3600000, backends: ['console'], prefixStats: 'one' }";
    let mut server = start(folder.path(), "config.js", config);
    let mut output = String::new();
    server.wait_for_counter("one.packets_received");
    fs::write(folder.path().join("config.js"), "{ port: }").unwrap();
    wait_for_line(&mut server.stderr, &mut output, "keeping the old settings: ");
    let changed = config.replace("'one'", "'second', automaticConfigReload: false");
    fs::write(folder.path().join("config.js"), changed).unwrap();
    server.wait_for_counter("second.packets_received");
    wait_for_line(&mut server.stderr, &mut output, "settings reloaded");
    let (code, rest) = server.terminate();
    assert_eq!(code, Some(0), "{rest}");
}

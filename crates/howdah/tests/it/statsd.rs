//! `howdah statsd`: settings, signals, and clients.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpStream, UdpSocket},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use howdah_lab::{wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};

use crate::{howdah, text, wait_for_line, wait_for_value};

/// Maximum time for the server to react.
pub(crate) const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// A running `howdah statsd` with the addresses that it printed.
pub(crate) struct StatsdProcess {
    child: Child,
    pub(crate) stderr: BufReader<std::process::ChildStderr>,
    udp: String,
    management: String,
    /// The lines on stderr until the server was up.
    pub(crate) started: String,
}

impl StatsdProcess {
    pub(crate) fn start(folder: &Path, words: &[&str]) -> Self {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin!("howdah"))
            .args(["statsd", "--log-level=info", "--log-format=text"])
            .args(words)
            .current_dir(folder)
            .env("HOME", folder)
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut output = String::new();
        let udp = wait_for_value(&mut stderr, &mut output, "receiving: udp ");
        let management = wait_for_value(&mut stderr, &mut output, "management: ");
        wait_for_line(&mut stderr, &mut output, "server is up");
        Self { child, stderr, udp, management, started: output }
    }

    pub(crate) fn send(&self, packet: &str) {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(packet.as_bytes(), &self.udp).unwrap();
    }

    pub(crate) fn query(&self, commands: &str) -> String {
        let mut stream = TcpStream::connect(&self.management).unwrap();
        stream.write_all(commands.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    /// Waits until the management command `counters` lists a key.
    pub(crate) fn wait_for_counter(&self, key: &str) {
        wait_until(&format!("the counter {key}"), TIMEOUT, || {
            self.query("counters\nquit\n").contains(key)
        });
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends SIGTERM; returns the exit code and the rest of stderr.
    pub(crate) fn terminate(mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for StatsdProcess {
    fn drop(&mut self) {
        // It has ended if the test called `terminate`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CONFIG: &str = "{ port: 0, address: '127.0.0.1', mgmt_address: '127.0.0.1', mgmt_port: 0,
    flushInterval: 3600000, backends: ['File'], file: { name: 'stats.tsv' }, title: 'x' }";

#[test]
fn etsy_config_works_from_start_to_last_flush() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.js"), CONFIG).unwrap();
    let mut server = StatsdProcess::start(folder.path(), &["-c", "config.js"]);
    server.send("a.b:3|c\nt:320|ms\nnonsense");
    server.wait_for_counter("a.b");
    let reply = server.query("timers\nconfig\nquit\n");
    assert!(reply.starts_with("{ t: [ 320 ] }\nEND\n\n\nport: 0\n"), "{reply}");
    fs::write(folder.path().join("config.js"), CONFIG.replace("title", "prefixStats")).unwrap();
    server.signal(Signal::HUP);
    server.wait_for_counter("x.packets_received");
    fs::write(folder.path().join("config.js"), "{ port: }").unwrap();
    server.signal(Signal::HUP);
    let mut line = String::new();
    while !line.contains("keeping the old settings") {
        line.clear();
        assert!(server.stderr.read_line(&mut line).unwrap() > 0);
    }
    assert!(line.contains("config.js:1: a value cannot start with '}'"), "{line}");
    let (code, rest) = server.terminate();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("packets received 1, dropped at sockets 0"), "{rest}");
    let flushed = fs::read_to_string(folder.path().join("stats.tsv")).unwrap();
    assert!(flushed.contains("c\ta.b\t3\n"), "{flushed}");
}

#[test]
fn section_of_howdah_toml_is_used_by_default() {
    let folder = tempfile::tempdir().unwrap();
    let section = "[statsd]\nmanagement = '127.0.0.1:0'\n\
                   [[statsd.listen]]\ntype = 'udp'\naddress = '127.0.0.1:0'\n";
    // The user's own file is used by default; one in the working folder must be named.
    let own = folder.path().join(".config/howdah");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("howdah.toml"), section).unwrap();
    let server = StatsdProcess::start(folder.path(), &["--dialect", "perl"]);
    assert!(server.query("help\nquit\n").ends_with("delgauges, quit\r\n\r\n"));
    assert_eq!(server.terminate().0, Some(0));
    // Other commands accept the section.
    howdah(folder.path()).args(["config", "check"]).assert().success();
}

#[test]
fn config_errors_name_line_and_key() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.js"), "{\n prot: 8125,\n port: 'x' }").unwrap();
    let words = ["statsd", "--check", "-c", "config.js"];
    let output = howdah(folder.path()).args(words).assert().code(3);
    let messages = text(&output.get_output().stdout);
    assert_eq!(messages, "config.js:3: port: \"x\" is not a number\n");
    let output = howdah(folder.path()).args(["statsd", "-c", "config.js"]).assert().code(1);
    let messages = text(&output.get_output().stderr);
    assert!(
        messages.starts_with("howdah: cannot use the settings: config.js:3: port"),
        "{messages}"
    );
    let output = howdah(folder.path()).args(["statsd", "-c", "missing"]).assert().code(1);
    let messages = text(&output.get_output().stderr);
    assert!(
        messages.starts_with("howdah: cannot read the settings missing: No such file"),
        "{messages}"
    );
}

#[test]
fn unknown_keys_are_warnings_unless_the_check_is_strict() {
    let folder = tempfile::tempdir().unwrap();
    let config = "{ graphiteHost: '127.0.0.1', port: process.env.STATSD_TEST_PORT || 8125,\n \
                  flushintervall: 1000 * 10, mgmt_address: '127.0.0.1',\n \
                  backends: ['./backends/graphite', 'statsd-librato-backend'], librato: {} }";
    fs::write(folder.path().join("config.js"), config).unwrap();
    let words = ["statsd", "--check", "-c", "config.js"];
    let output = howdah(folder.path()).args(words).assert().code(0);
    let lenient = text(&output.get_output().stdout);
    let did_you_mean =
        "config.js:2: flushintervall: unknown key, ignored (did you mean `flushInterval`?)\n";
    assert!(lenient.starts_with(&format!("warning: {did_you_mean}")), "{lenient}");
    assert!(lenient.contains("\"statsd-librato-backend\" is not supported"), "{lenient}");
    let words = ["statsd", "--check", "--strict", "-c", "config.js"];
    let output = howdah(folder.path()).args(words).assert().code(3);
    let strict = text(&output.get_output().stdout);
    assert!(strict.starts_with(did_you_mean), "{strict}");
    // The environment variable is read.
    let output = howdah(folder.path())
        .args(["statsd", "--check", "-c", "config.js"])
        .env("STATSD_TEST_PORT", "no port")
        .assert()
        .code(3);
    let messages = text(&output.get_output().stdout);
    assert!(messages.contains("port: \"no port\" is not a number"), "{messages}");
}

#[test]
fn check_names_backend_that_was_not_built() {
    let folder = tempfile::tempdir().unwrap();
    let section = "[[statsd.backends.kafka]]\nbrokers = ['localhost:9092']\ntopic = 't'\n";
    fs::write(folder.path().join("statsd.toml"), section).unwrap();
    let words = ["statsd", "--check", "-c", "statsd.toml"];
    let code = if cfg!(feature = "kafka") { 0 } else { 3 };
    let output = howdah(folder.path()).args(words).assert().code(code);
    let messages = text(&output.get_output().stdout);
    let is_named = messages.contains("statsd.toml: backends.kafka: this program was built without");
    assert_eq!(is_named, code == 3, "{messages}");
    // Keys are checked in any build.
    let wrong = section.replace("'localhost:9092'", "'localhost'");
    fs::write(folder.path().join("statsd.toml"), wrong).unwrap();
    let output = howdah(folder.path()).args(words).assert().code(3);
    let messages = text(&output.get_output().stdout);
    assert!(messages.contains("brokers must be a list of host:port"), "{messages}");
}

#[test]
fn programs_run_as_root_only_if_no_other_user_can_change_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("statsd.toml");
    let settings = "[statsd]\nmanagement = '127.0.0.1:0'\n\
                [[statsd.listen]]\ntype = 'udp'\naddress = '127.0.0.1:0'\n\
                [[statsd.backends.exec]]\ncommand = ['tee', 'input']\n";
    fs::write(&path, settings).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let words = ["statsd", "--check", "-c", "statsd.toml"];
    if rustix::process::geteuid().is_root() {
        let output = howdah(folder.path()).args(words).assert().code(3);
        let messages = text(&output.get_output().stdout);
        assert!(
            messages.contains("statsd.toml: backends.exec: the server runs as root"),
            "{messages}"
        );
        assert!(messages.contains("chmod go-w"), "{messages}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    howdah(folder.path()).args(words).assert().code(0);
    let server = StatsdProcess::start(folder.path(), &["-c", "statsd.toml"]);
    server.send("a.b:3|c");
    server.wait_for_counter("a.b");
    let (code, rest) = server.terminate();
    assert_eq!(code, Some(0), "{rest}");
    let input = fs::read_to_string(folder.path().join("input")).unwrap();
    assert!(input.contains("counts.a.b|3|"), "{input}");
}

#[test]
fn rules_are_checked_and_tried_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let mapping = "mappings:\n- { match: 'web.*', name: 'web_$1', labels: { kind: web } }\n\
                   - { match: 'job.*', action: drop, name: x }\n";
    fs::write(folder.path().join("mapping.yaml"), mapping).unwrap();
    let rules = "[statsd]\n[[statsd.rules]]\nid = 'debug'\nname = 'debug.**'\naction = 'drop'\n\
                 [[statsd.rules]]\nname = 'web*.*'\nrename = 'web.$2'\ndrop-tags = ['pod']\n\
                 [statsd.static-tags]\nenv = '$STATSD_TEST_ENV'\n\
                 [statsd.backends.prometheus]\nmapping = 'mapping.yaml'\n";
    fs::write(folder.path().join("s.toml"), rules).unwrap();
    let lines = "debug.a.b:1|c\nweb07.login:320|ms|#pod:7,path:/x\n\njob.x;a=1\nnonsense:1\n";
    fs::write(folder.path().join("names"), lines).unwrap();
    let output = howdah(folder.path())
        .args(["statsd", "rules", "--test", "names", "-c", "s.toml"])
        .env("STATSD_TEST_ENV", "prod")
        .assert()
        .code(0);
    assert_eq!(
        text(&output.get_output().stdout),
        "debug.a.b:1|c\n  counter, debug: dropped\n\
         web07.login:320|ms|#pod:7,path:/x\n  timer, rule-2: web.login;path=/x;env=prod\n  \
         graphite: web.login;path=-x;env=prod\n  \
         prometheus: web_login{env=\"prod\",kind=\"web\",path=\"/x\"}\n\
         job.x;a=1\n  counter, no rule: job.x;a=1;env=prod\n  \
         prometheus: dropped by the mapping\n\
         nonsense:1\n  bad line: no_type\n"
    );
    let words = ["statsd", "--check", "-c", "s.toml"];
    let output = howdah(folder.path()).args(words).assert().code(3);
    assert_eq!(
        text(&output.get_output().stdout),
        "s.toml:11: static-tags.env: the environment variable STATSD_TEST_ENV is not set\n"
    );
    fs::write(folder.path().join("s.toml"), rules.replace("$2", "$3")).unwrap();
    let output = howdah(folder.path()).args(words).env("STATSD_TEST_ENV", "prod").assert().code(3);
    let messages = text(&output.get_output().stdout);
    assert!(messages.starts_with("s.toml:8: rules[1].rename: $3 has nothing"), "{messages}");
}

#[test]
fn mapping_file_and_rules_are_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let section = format!(
        "[statsd]\nmanagement = '127.0.0.1:0'\nflush-interval = '50ms'\n\
         [[statsd.listen]]\ntype = 'udp'\naddress = '127.0.0.1:0'\n\
         [statsd.backends.prometheus]\nlisten = '127.0.0.1:{port}'\nmapping = 'm.yaml'\n"
    );
    let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
    write("howdah.toml", &section);
    write("m.yaml", "mappings: [{ match: a, name: one }]\n");
    let mut server = StatsdProcess::start(folder.path(), &["-c", "howdah.toml"]);
    let wait_for_lines = |lines: &[&str]| {
        wait_until(&format!("{lines:?} at the endpoint"), TIMEOUT, || {
            let text = scrape(&format!("127.0.0.1:{port}")).unwrap_or_default();
            lines.iter().all(|line| text.lines().any(|found| found == *line))
        });
    };
    server.send("a:1|c\nb:1|c|#pod:1");
    wait_for_lines(&["one 1", "b_total{pod=\"1\"} 1"]);

    write("m.yaml", "mappings: [{ match: a, name: two }]\n");
    write("howdah.toml", &format!("{section}[[statsd.rules]]\nid = 'pods'\ndrop-tags = ['pod']\n"));
    server.signal(Signal::HUP);
    wait_until("the new rule", TIMEOUT, || server.query("cut\nquit\n").starts_with("rule pods: "));
    server.send("a:2|c\nb:2|c|#pod:1");
    wait_for_lines(&["two 2", "b_total 2"]);

    write("m.yaml", "mappings: [{ match: a }]\n");
    server.signal(Signal::HUP);
    let mut line = String::new();
    while !line.contains("keeping the old mapping") {
        line.clear();
        assert!(server.stderr.read_line(&mut line).unwrap() > 0);
    }
    assert!(line.contains("m.yaml:1: the mapping lacks the required key"), "{line}");
    server.send("a:3|c");
    wait_for_lines(&["two 5"]);
    assert_eq!(server.terminate().0, Some(0));
}

/// Scrapes a Prometheus endpoint; `None` if it does not answer.
pub(crate) fn scrape(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    Some(reply)
}

#[test]
fn dogstatsd_dialect_reads_gauges_tags_containers_and_timestamps() {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let section = format!(
        "[statsd]\nmanagement = '127.0.0.1:0'\nflush-interval = '50ms'\n\
         [[statsd.listen]]\ntype = 'udp'\naddress = '127.0.0.1:0'\n\
         [statsd.backends.prometheus]\nlisten = '127.0.0.1:{port}'\n"
    );
    fs::write(folder.path().join("howdah.toml"), section).unwrap();
    let server =
        StatsdProcess::start(folder.path(), &["-c", "howdah.toml", "--dialect", "dogstatsd"]);
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    server.send(&format!(
        "g:-5|g\ng:-3|g\nlate:7|g|T{now}\nt:1|ms|T{now}\nold:1|g|T1656581400\n\
         req:1|c|#city:Z\u{fc}rich|c:ci-83c\nreq:1|c|#city:Zrich\n_sc|db|0"
    ));
    let text = wait_for("req_total at the endpoint", TIMEOUT, || {
        let text = scrape(&format!("127.0.0.1:{port}")).unwrap_or_default();
        text.contains("req_total").then_some(text)
    });
    for line in [
        "g -3",
        "late 7",
        "req_total{city=\"Z\u{fc}rich\",container_id=\"83c\"} 1",
        "req_total{city=\"Zrich\"} 1",
        "statsd_service_checks_total 1",
        "statsd_bad_lines_seen_total 1",
        "statsd_timestamps_ignored_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(server.query("counters\nquit\n").contains("'req;city=Zrich': "));
    assert!(server.query("stats\nquit\n").contains("messages.service_checks: 1\n"));
    let (code, rest) = server.terminate();
    assert_eq!(code, Some(0), "{rest}");
    assert!(rest.contains("DogStatsD events and service checks are counted"), "{rest}");
}

#[test]
fn changed_backend_is_used_after_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let write = |sections: &str| {
        let text = format!(
            "[statsd]\nmanagement = '127.0.0.1:0'\nflush-interval = '100ms'\n\
             [[statsd.listen]]\ntype = 'udp'\naddress = '127.0.0.1:0'\n{sections}"
        );
        fs::write(folder.path().join("statsd.toml"), text).unwrap();
    };
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    write("[statsd.backends.file]\npath = 'one.tsv'\n");
    let server = StatsdProcess::start(folder.path(), &["-c", "statsd.toml"]);
    server.send("before:1|c");
    wait_until("the first file", TIMEOUT, || read("one.tsv").contains("c\tbefore\t1\n"));
    write("[statsd.backends.file]\npath = 'two.tsv'\n");
    server.signal(Signal::HUP);
    wait_until("the second file", TIMEOUT, || !read("two.tsv").is_empty());
    server.send("after:1|c");
    wait_until("the value", TIMEOUT, || read("two.tsv").contains("c\tafter\t1\n"));
    assert!(!read("one.tsv").contains("after"), "{}", read("one.tsv"));
    // A backend that cannot be started leaves the others as they are.
    write("[statsd.backends.prometheus]\nquantiles = [2.0]\n");
    server.signal(Signal::HUP);
    let (code, rest) = {
        let mut server = server;
        let mut line = String::new();
        while !line.contains("keeping the old backends") {
            line.clear();
            assert!(server.stderr.read_line(&mut line).unwrap() > 0);
        }
        assert!(line.contains("quantiles: must be numbers from 0 to 1"), "{line}");
        server.send("last:1|c");
        server.terminate()
    };
    assert_eq!(code, Some(0), "{rest}");
    assert!(read("two.tsv").contains("c\tlast\t1\n"));
}

#[test]
fn values_of_installed_clients_arrive_exactly() {
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("compat/statsd/run");
    let run = Command::new("python3")
        .arg(script)
        .arg("--installed")
        .env("HOWDAH", assert_cmd::cargo::cargo_bin!("howdah"))
        .output();
    let Ok(run) = run else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: python3 is missing: install it");
        return;
    };
    let output = text(&run.stdout);
    for line in output.lines().filter(|line| line.starts_with("SKIPPED ")) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    assert!(run.status.success(), "{output}{}", text(&run.stderr));
}

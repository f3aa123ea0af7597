//! Carbon from PyPI, with both of its protocols.

use std::{fs, process::Command};

use howdah_lab::wait_for;
use howdah_statsd::settings::{BackendSettings, GraphiteProtocol, GraphiteSettings};

use crate::support::{
    NO_PERIODIC_FLUSH, RECEIVER_TIMEOUT, ReceiverProcess, free_port, python, report_skipped, send,
    serve, stop, wait_for_port,
};

#[test]
fn carbon_stores_text_and_pickle_values() {
    let (python, how) = (python(), "run scripts/setup, or set HOWDAH_TEST_PYTHON");
    let carbon = python.with_file_name("carbon-cache.py");
    if !carbon.is_file() {
        return report_skipped("carbon-cache.py", how).unwrap_or_default();
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let [text, pickle, query] = [free_port(), free_port(), free_port()];
    fs::write(
        at("carbon.conf"),
        format!(
            "[cache]
STORAGE_DIR = {0}/storage
CONF_DIR = {0}
LOG_DIR = {0}
PID_DIR = {0}
LOCAL_DATA_DIR = {0}/whisper
ENABLE_TAGS = False
MAX_CREATES_PER_MINUTE = inf
MAX_UPDATES_PER_SECOND = inf
LINE_RECEIVER_INTERFACE = 127.0.0.1
LINE_RECEIVER_PORT = {text}
PICKLE_RECEIVER_INTERFACE = 127.0.0.1
PICKLE_RECEIVER_PORT = {pickle}
CACHE_QUERY_INTERFACE = 127.0.0.1
CACHE_QUERY_PORT = {query}
CARBON_METRIC_INTERVAL = 0
",
            folder.path().display()
        ),
    )
    .unwrap();
    fs::write(at("storage-schemas.conf"), "[all]\npattern = .*\nretentions = 1s:2h\n").unwrap();
    let mut command = Command::new(&python);
    command.arg(&carbon).arg(format!("--config={}", at("carbon.conf")));
    command.args(["--nodaemon", "start"]).env("GRAPHITE_ROOT", folder.path());
    let _carbon = ReceiverProcess::start(&mut command, &folder.path().join("output"));
    wait_for_port(text);
    wait_for_port(pickle);

    let by_text = GraphiteSettings {
        host: "127.0.0.1".to_owned(),
        port: text,
        ..GraphiteSettings::default()
    };
    let by_pickle = GraphiteSettings {
        protocol: GraphiteProtocol::Pickle,
        pickle_port: pickle,
        legacy_namespace: false,
        global_prefix: "pickled".to_owned(),
        persistent: true,
        ..by_text.clone()
    };
    let backends =
        BackendSettings { graphite: vec![by_text, by_pickle], ..BackendSettings::default() };
    let server = serve(backends, NO_PERIODIC_FLUSH);
    send(&server);
    stop(server);

    // Prints the values stored in a Whisper file.
    let script = "import sys, time, whisper\n\
        info, values = whisper.fetch(sys.argv[1], int(time.time()) - 3600)\n\
        print(*[value for value in values if value is not None])";
    for (metric, value) in [
        ("stats_counts/api/hits", "30.0"),
        ("stats/timers/api/latency/upper_90", "30.0"),
        ("stats/timers/api/latency/count", "3.0"),
        ("stats/gauges/pool/size", "-2.5"),
        ("stats/sets/users/count", "2.0"),
        ("pickled/counters/api/hits/count", "30.0"),
        ("pickled/timers/api/latency/mean", "20.0"),
        ("pickled/gauges/pool/size", "-2.5"),
    ] {
        let file = folder.path().join("whisper").join(format!("{metric}.wsp"));
        let stored = wait_for(metric, RECEIVER_TIMEOUT, || {
            let mut command = Command::new(&python);
            let output = command.args(["-c", script]).arg(&file).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
            (!text.is_empty()).then_some(text)
        });
        assert_eq!(stored, value, "{metric}");
    }
}

//! InfluxDB, as Debian has it.

use std::{fs, process::Command};

use howdah_statsd::settings::{Backends, Influx};

use crate::support::{
    AT_THE_END, Receiver, encoded, free_port, http, program, send, serve, stop, wait_for,
};

#[test]
fn influxdb_gives_back_what_was_sent() {
    let Some(influxd) = program("influxd", "run scripts/setup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let [port, other] = [free_port(), free_port()];
    let config = folder.path().join("influxdb.conf");
    fs::write(
        &config,
        format!(
            "reporting-disabled = true
bind-address = \"127.0.0.1:{other}\"
[meta]
dir = \"{0}/meta\"
[data]
dir = \"{0}/data\"
wal-dir = \"{0}/wal\"
[http]
bind-address = \"127.0.0.1:{port}\"
[monitor]
store-enabled = false
",
            folder.path().display()
        ),
    )
    .unwrap();
    let mut command = Command::new(influxd);
    command.arg("-config").arg(&config);
    let _influx = Receiver::start(&mut command, &folder.path().join("output"));
    let create = format!("/query?q={}", encoded("create database howdah"));
    wait_for("creating a database", || {
        http(port, "POST", &create).filter(|reply| reply.contains("statement_id"))
    });

    let influx = Influx {
        url: format!("http://127.0.0.1:{port}/write?db=howdah&precision=s"),
        token_file: None,
        ca_file: None,
        spool_bytes: 1 << 20,
    };
    let server = serve(Backends { influx: vec![influx], ..Backends::default() }, AT_THE_END);
    send(&server);
    stop(server);

    for (query, value) in [
        ("select \"count\" from \"api.hits\" where code = ''", "30"),
        ("select \"count\" from \"api.hits\" where code = '500'", "2"),
        ("select upper_90 from \"api.latency\" where metric_type = 'timer'", "30"),
        ("select sum_squares from \"api.latency\"", "1400"),
        ("select value from \"pool.size\"", "-2.5"),
        ("select \"count\" from \"users\" where metric_type = 'set'", "2"),
    ] {
        let path = format!("/query?db=howdah&epoch=s&q={}", encoded(query));
        let reply = http(port, "GET", &path).unwrap();
        let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
        let values = &reply["results"][0]["series"][0]["values"];
        assert_eq!(values.as_array().map(Vec::len), Some(1), "{query}: {reply}");
        assert_eq!(values[0][1].to_string(), value, "{query}: {reply}");
    }
}

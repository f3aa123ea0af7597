//! InfluxDB from Debian, over HTTP and HTTPS.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
};

use howdah_lab::wait_for;
use howdah_statsd::settings::{BackendSettings, InfluxSettings};

use crate::support::{
    NO_PERIODIC_FLUSH, RECEIVER_TIMEOUT, ReceiverProcess, TestCertificate, encoded, free_port,
    http, program, send, serve, stop, wait_for_port,
};

#[test]
fn influxdb_stores_sent_values() {
    let Some(influxd) = program("influxd", "run scripts/setup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let influx = InfluxServer { program: &influxd, folder: folder.path() };
    let (_running, port) = influx.start(None);
    influx.create(port);
    deliver(&format!("http://127.0.0.1:{port}"), None);
    check_stored_values(port);
}

#[test]
fn influxdb_stores_values_sent_with_tls() {
    let Some(influxd) = program("influxd", "run scripts/setup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(certificate) = TestCertificate::make(folder.path(), "influx", "localhost") else {
        return;
    };
    let influx = InfluxServer { program: &influxd, folder: folder.path() };
    // TLS is used only to deliver values, not to set up and check the database.
    let (running, port) = influx.start(None);
    influx.create(port);
    drop(running);
    let (running, port) = influx.start(Some(&certificate));
    wait_for_port(port);
    deliver(&format!("https://localhost:{port}"), Some(&certificate));
    drop(running);
    let (_running, port) = influx.start(None);
    check_stored_values(port);
}

#[test]
fn refused_influxdb_point_drops_only_itself() {
    let Some(influxd) = program("influxd", "run scripts/setup") else { return };
    let folder = tempfile::tempdir().unwrap();
    let influx = InfluxServer { program: &influxd, folder: folder.path() };
    let (_running, port) = influx.start(None);
    influx.create(port);
    // With a string stored in `value` of pool.size, InfluxDB refuses numbers in this field.
    let text = "pool.size,metric_type=gauge value=\"text\"";
    let reply = post(port, "/write?db=howdah&precision=s", text);
    assert!(reply.starts_with("HTTP/1.1 204"), "{reply}");
    let influx = InfluxSettings {
        url: format!("http://127.0.0.1:{port}/write?db=howdah&precision=s"),
        token_file: None,
        ca_file: None,
        spool_bytes: 1 << 20,
    };
    let server = serve(
        BackendSettings { influx: vec![influx], ..BackendSettings::default() },
        NO_PERIODIC_FLUSH,
    );
    send(&server);
    let undelivered = server.stop().undelivered;
    let [(name, why)] = &undelivered[..] else { panic!("{undelivered:?}") };
    assert_eq!(*name, "influx");
    let lost: u64 = why
        .split("values dropped: ")
        .nth(1)
        .and_then(|after| after.split(':').next()?.parse().ok())
        .unwrap();
    // One of about ten points; a line has six values on average.
    assert!((1..10).contains(&lost), "{why}");
    for (query, value) in [
        ("select \"count\" from \"api.hits\" where code = ''", "30"),
        ("select \"count\" from \"users\" where metric_type = 'set'", "2"),
    ] {
        let path = format!("/query?db=howdah&epoch=s&q={}", encoded(query));
        let reply = http(port, "GET", &path).unwrap();
        let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
        let values = &reply["results"][0]["series"][0]["values"];
        assert_eq!(values[0][1].to_string(), value, "{query}: {reply}");
    }
}

/// Posts a body and returns the complete reply.
fn post(port: u16, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}");
    write!(stream, "{head}\r\nConnection: close\r\n\r\n{body}").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

struct InfluxServer<'p> {
    program: &'p Path,
    folder: &'p Path,
}

impl InfluxServer<'_> {
    fn start(&self, certificate: Option<&TestCertificate>) -> (ReceiverProcess, u16) {
        let [port, other] = [free_port(), free_port()];
        let tls = certificate.map_or(String::new(), |certificate| {
            format!(
                "https-enabled = true\nhttps-certificate = {:?}\nhttps-private-key = {:?}\n",
                certificate.certificate, certificate.key
            )
        });
        let config = self.folder.join("influxdb.conf");
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
{tls}[monitor]
store-enabled = false
",
                self.folder.display()
            ),
        )
        .unwrap();
        let mut command = Command::new(self.program);
        command.arg("-config").arg(&config);
        (ReceiverProcess::start(&mut command, &self.folder.join("output")), port)
    }

    fn create(&self, port: u16) {
        let create = format!("/query?q={}", encoded("create database howdah"));
        wait_for("the database to be created", RECEIVER_TIMEOUT, || {
            http(port, "POST", &create).filter(|reply| reply.contains("statement_id"))
        });
    }
}

fn deliver(to: &str, certificate: Option<&TestCertificate>) {
    let influx = InfluxSettings {
        url: format!("{to}/write?db=howdah&precision=s"),
        token_file: None,
        ca_file: certificate.map(|certificate| certificate.certificate.clone()),
        spool_bytes: 1 << 20,
    };
    let server = serve(
        BackendSettings { influx: vec![influx], ..BackendSettings::default() },
        NO_PERIODIC_FLUSH,
    );
    send(&server);
    stop(server);
}

fn check_stored_values(port: u16) {
    wait_for_port(port);
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

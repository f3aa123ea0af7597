//! An OpenTelemetry collector, built by `make receivers`, that prints the received metrics.

use std::{collections::BTreeMap, fs, process::Command};

use howdah_lab::wait_for;
use howdah_statsd::settings::{BackendSettings, OtlpSettings, Temporality};

use crate::support::{
    NO_PERIODIC_FLUSH, RECEIVER_TIMEOUT, ReceiverProcess, TestCertificate, free_port, program,
    send, serve, stop, wait_for_port,
};

#[test]
fn collector_decodes_sent_metrics() {
    let Some(program) = program("otel-receiver", "run make receivers") else { return };
    // Without and with TLS.
    for (temporality, secure) in [(Temporality::Cumulative, false), (Temporality::Delta, true)] {
        let folder = tempfile::tempdir().unwrap();
        let certificate = secure
            .then(|| TestCertificate::make(folder.path(), "collector", "localhost"))
            .flatten();
        let tls = certificate.as_ref().map_or(String::new(), |made| {
            let (certificate, key) = (made.certificate.display(), made.key.display());
            format!(", tls: {{cert_file: '{certificate}', key_file: '{key}'}}")
        });
        let port = free_port();
        let config = format!(
            "yaml:{{receivers: {{otlp: {{protocols: {{http: {{endpoint: '127.0.0.1:{port}'{tls}}}}}}}}}, \
             exporters: {{debug: {{verbosity: detailed}}}}, \
             service: {{telemetry: {{metrics: {{level: none}}}}, \
             pipelines: {{metrics: {{receivers: [otlp], exporters: [debug]}}}}}}}}"
        );
        let output = folder.path().join("output");
        let _collector = ReceiverProcess::start(
            Command::new(&program).arg(format!("--config={config}")),
            &output,
        );
        wait_for_port(port);

        let otlp = OtlpSettings {
            url: match &certificate {
                Some(_) => format!("https://localhost:{port}/v1/metrics"),
                None => format!("http://127.0.0.1:{port}/v1/metrics"),
            },
            temporality,
            resource: BTreeMap::from([("service.name".to_owned(), "shop".to_owned())]),
            token_file: None,
            ca_file: certificate.map(|made| made.certificate),
            spool_bytes: 1 << 20,
        };
        let server = serve(
            BackendSettings { otlp: vec![otlp], ..BackendSettings::default() },
            NO_PERIODIC_FLUSH,
        );
        send(&server);
        stop(server);

        let text = wait_for("the metrics to arrive", RECEIVER_TIMEOUT, || {
            fs::read_to_string(&output).ok().filter(|text| text.contains("Name: users"))
        });
        let kind = match temporality {
            Temporality::Cumulative => "AggregationTemporality: Cumulative",
            Temporality::Delta => "AggregationTemporality: Delta",
        };
        let after = |name: &str| {
            let start = text.find(&format!("Name: {name}\n")).unwrap_or_else(|| panic!("{text}"));
            let rest = &text[start..];
            rest.split("\nMetric #").next().unwrap().to_owned()
        };
        let hits = after("api.hits");
        for part in ["IsMonotonic: true", kind, "Value: 30.0", "Value: 2.0", "code: Str(500)"] {
            assert!(hits.contains(part), "{part} is not in {hits}");
        }
        let latency = after("api.latency");
        for part in ["Unit: s", "ExponentialHistogram", kind, "Count: 3", "Sum: 0.06", "Min: 0.01"]
        {
            assert!(latency.contains(part), "{part} is not in {latency}");
        }
        assert!(after("pool.size").contains("Value: -2.5"), "{text}");
        assert!(after("users").contains("Value: 2.0"), "{text}");
        assert!(text.contains("service.name: Str(shop)"), "{text}");
    }
}

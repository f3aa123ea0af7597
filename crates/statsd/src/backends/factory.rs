//! Creates backends from settings.

use howdah_connect::Environment;
use howdah_http::client::EndpointError;

use super::{
    ConsoleOutput, FileBackend, GraphiteBackend, InfluxBackend, MetricBackend, OtlpBackend,
    PostgresBackend, PostgresError, PrometheusBackend, PrometheusError, WebhookBackend,
};
use crate::settings::StatsdSettings;

/// The reason why a backend cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendOpenError {
    /// The URL of an `influx` section is invalid, a file that the section names cannot be used, or
    /// TLS cannot be set up.
    #[error("cannot set up the influx backend")]
    Influx(#[source] EndpointError),
    /// The URL of an `otlp` section is invalid, a file that the section names cannot be used, or
    /// TLS cannot be set up.
    #[error("cannot set up the otlp backend")]
    Otlp(#[source] EndpointError),
    /// The `prometheus` section or its mapping file is invalid, or the endpoint cannot be started.
    #[error("cannot set up the prometheus backend")]
    Prometheus(#[from] PrometheusError),
    /// The URL of a `webhook` section is invalid, a file that the section names cannot be used, or
    /// TLS cannot be set up.
    #[error("cannot set up the webhook backend")]
    Webhook(#[source] EndpointError),
    /// The connection string or a table name of a `postgres` section is invalid.
    #[error("cannot set up the postgres backend")]
    Postgres(#[from] PostgresError),
}

/// Creates all configured backends, in the order of the reference page. Only the Prometheus
/// endpoint is opened here; the others connect when they first flush. The repeater is not included,
/// because the readers feed it ([`super::PacketRepeater`]).
///
/// # Errors
///
/// See [`BackendOpenError`].
pub fn open(
    settings: &StatsdSettings,
    environment: &Environment,
) -> Result<Vec<Box<dyn MetricBackend>>, BackendOpenError> {
    let configured = &settings.backends;
    let mut backends: Vec<Box<dyn MetricBackend>> = Vec::new();
    for graphite in &configured.graphite {
        backends.push(Box::new(GraphiteBackend::new(graphite.clone(), settings.dialect)));
    }
    if let Some(console) = &configured.console {
        backends.push(Box::new(ConsoleOutput::new(console, settings.dialect)));
    }
    if let Some(file) = &configured.file {
        backends.push(Box::new(FileBackend::new(file.clone())));
    }
    if let Some(prometheus) = &configured.prometheus {
        backends.push(Box::new(PrometheusBackend::new(prometheus)?));
    }
    for influx in &configured.influx {
        backends.push(Box::new(InfluxBackend::new(influx).map_err(BackendOpenError::Influx)?));
    }
    for otlp in &configured.otlp {
        backends.push(Box::new(OtlpBackend::new(otlp).map_err(BackendOpenError::Otlp)?));
    }
    for postgres in &configured.postgres {
        backends.push(Box::new(PostgresBackend::new(postgres.clone(), environment)?));
    }
    for webhook in &configured.webhook {
        backends.push(Box::new(WebhookBackend::new(webhook).map_err(BackendOpenError::Webhook)?));
    }
    Ok(backends)
}

#[test]
fn each_section_opens_backend() {
    let settings: StatsdSettings = toml::from_str(
        r#"
        [[backends.graphite]]
        host = "localhost"
        [backends.console]
        [backends.file]
        path = "/tmp/stats"
        [backends.prometheus]
        listen = "127.0.0.1:0"
        [[backends.influx]]
        url = "http://localhost:8086/write?db=x&p=secret"
        [[backends.otlp]]
        url = "http://localhost:4318/v1/metrics"
        temporality = "delta"
        resource = { "service.name" = "shop" }
        [[backends.postgres]]
        connection = "postgresql://me:secret@localhost/metrics"
        retention = "720h"
        partition = "month"
        format = "text"
        [[backends.webhook]]
        url = "http://localhost/events"
        "#,
    )
    .expect("settings");
    let backends = open(&settings, &Environment::empty().with_os_user("me")).expect("backends");
    let names: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
    let all =
        ["graphite", "console", "file", "prometheus", "influx", "otlp", "postgres", "webhook"];
    assert_eq!(names, all);
    assert!(!format!("{:?}", settings.backends.postgres).contains("secret"));

    let mut wrong = settings.clone();
    wrong.backends.influx[0].url = "http://me:secret@localhost/".to_owned();
    let error = open(&wrong, &Environment::empty()).err().expect("an error");
    let source = std::error::Error::source(&error).expect("a source").to_string();
    assert!(
        source.contains("is not a valid endpoint URL") && !source.contains("secret"),
        "{source}"
    );
}

//! From settings to backends.

use howdah_connect::Environment;
use howdah_post::EndpointError;

use super::{
    Backend, Console, File, Graphite, Influx, Otlp, Postgres, PostgresError, Prometheus,
    PrometheusError,
};
use crate::settings::Settings;

/// A backend cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An `influx` section.
    #[error("the influx backend")]
    Influx(#[source] EndpointError),
    /// An `otlp` section.
    #[error("the otlp backend")]
    Otlp(#[source] EndpointError),
    /// The `prometheus` section.
    #[error("the prometheus backend")]
    Prometheus(#[from] PrometheusError),
    /// A `postgres` section.
    #[error("the postgres backend")]
    Postgres(#[from] PostgresError),
}

/// Every backend that the settings ask for, in the order of the reference page. Nothing is connected
/// yet but the port for Prometheus; the repeater, which is fed by the readers, is not among them
/// ([`super::Repeater`]).
///
/// # Errors
///
/// Settings that make no sense, files that cannot be read, an address that cannot be listened at.
pub fn open(
    settings: &Settings,
    environment: &Environment,
) -> Result<Vec<Box<dyn Backend>>, OpenError> {
    let asked = &settings.backends;
    let mut backends: Vec<Box<dyn Backend>> = Vec::new();
    for graphite in &asked.graphite {
        backends.push(Box::new(Graphite::new(graphite.clone(), settings.dialect)));
    }
    if let Some(console) = &asked.console {
        backends.push(Box::new(Console::new(console, settings.dialect)));
    }
    if let Some(file) = &asked.file {
        backends.push(Box::new(File::new(file.clone())));
    }
    if let Some(prometheus) = &asked.prometheus {
        backends.push(Box::new(Prometheus::new(prometheus)?));
    }
    for influx in &asked.influx {
        backends.push(Box::new(Influx::new(influx).map_err(OpenError::Influx)?));
    }
    for otlp in &asked.otlp {
        backends.push(Box::new(Otlp::new(otlp).map_err(OpenError::Otlp)?));
    }
    for postgres in &asked.postgres {
        backends.push(Box::new(Postgres::new(postgres.clone(), environment)?));
    }
    Ok(backends)
}

#[test]
fn each_section_is_a_backend() {
    let settings: Settings = toml::from_str(
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
        "#,
    )
    .expect("settings");
    let backends = open(&settings, &Environment::empty().with_os_user("me")).expect("backends");
    let names: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
    let all = ["graphite", "console", "file", "prometheus", "influx", "otlp", "postgres"];
    assert_eq!(names, all);
    assert!(!format!("{:?}", settings.backends.postgres).contains("secret"));

    let mut wrong = settings.clone();
    wrong.backends.influx[0].url = "http://me:secret@localhost/".to_owned();
    let error = open(&wrong, &Environment::empty()).err().expect("an error");
    let source = std::error::Error::source(&error).expect("a source").to_string();
    assert!(source.contains("is no URL") && !source.contains("secret"), "{source}");
}

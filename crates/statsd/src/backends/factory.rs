//! Creates backends from settings.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use howdah_connect::Environment;
use howdah_http::client::EndpointError;

use super::{
    ConsoleOutput, EndpointSource, ExecBackend, FileBackend, ForwardBackend, GraphiteBackend,
    InfluxBackend, MetricBackend, OtlpBackend, PostgresBackend, PostgresError, PrometheusBackend,
    PrometheusError, RemoteWriteBackend, RemoteWriteError, ScrapeEndpoint, WebhookBackend,
};
use crate::{
    receiver::InheritedSockets,
    settings::{
        ConsoleSettings, ExecSettings, FileSettings, ForwardSettings, GraphiteProtocol,
        GraphiteSettings, InfluxSettings, KafkaSettings, OtlpSettings, PostgresSettings,
        PrometheusSettings, RemoteWriteSettings, StatsdDialect, StatsdSettings, WebhookSettings,
    },
};

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
    /// A `remote-write` section or its mapping file is invalid, a file that the section names
    /// cannot be used, or TLS cannot be set up.
    #[error("cannot set up the remote-write backend")]
    RemoteWrite(#[from] RemoteWriteError),
    /// The URL of a `webhook` section is invalid, a file that the section names cannot be used, or
    /// TLS cannot be set up.
    #[error("cannot set up the webhook backend")]
    Webhook(#[source] EndpointError),
    /// The password file or TLS of a `kafka` section cannot be used.
    #[cfg(feature = "kafka")]
    #[error("cannot set up the kafka backend")]
    Kafka(#[from] super::KafkaSetupError),
    /// There is a `kafka` section, but the program was built without the feature `kafka`.
    #[cfg(not(feature = "kafka"))]
    #[error("{}", crate::settings::KAFKA_MISSING)]
    KafkaMissing,
    /// The connection string or a table name of a `postgres` section is invalid.
    #[error("cannot set up the postgres backend")]
    Postgres(#[from] PostgresError),
    /// A file that a `forward` section names cannot be used, or TLS cannot be set up.
    #[error("cannot set up the forward backend")]
    Forward(#[source] EndpointError),
    /// The eventfd of an `exec` section cannot be created.
    #[error("cannot set up the exec backend")]
    Exec(#[source] io::Error),
}

/// One section of the backends' settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BackendSection {
    Graphite(GraphiteSettings),
    Console(ConsoleSettings),
    File(FileSettings),
    Prometheus(PrometheusSettings),
    RemoteWrite(RemoteWriteSettings),
    Influx(InfluxSettings),
    Kafka(KafkaSettings),
    Otlp(OtlpSettings),
    Postgres(PostgresSettings),
    Exec(ExecSettings),
    Webhook(WebhookSettings),
    Forward(ForwardSettings),
}

/// A backend that was opened from a section.
pub(crate) struct OpenedBackend {
    pub(crate) backend: Box<dyn MetricBackend>,
    /// The receiver and the form in which it gets values, without passwords. Another process may
    /// deliver this backend's batches, or continue with its state, only if its own is the same.
    pub(crate) destination: String,
    /// The endpoint of a Prometheus backend, which a later one may take over.
    pub(crate) endpoint: Option<Arc<ScrapeEndpoint>>,
}

impl BackendSection {
    /// Returns all sections, in the order of the reference page. The repeater's are not included,
    /// because the readers feed it ([`super::PacketRepeater`]).
    pub(crate) fn all(settings: &StatsdSettings) -> Vec<Self> {
        let StatsdSettings { backends: settings, aggregation, .. } = settings;
        // Series live as long as the metrics unless the section has a time.
        let or_ttl = |ttl: Duration| if ttl.is_zero() { aggregation.ttl } else { ttl };
        let prometheus = settings.prometheus.iter().map(|section| {
            let ttl = or_ttl(section.ttl);
            Self::Prometheus(PrometheusSettings { ttl, ..section.clone() })
        });
        let remote_write = settings.remote_write.iter().map(|section| {
            let ttl = or_ttl(section.ttl);
            Self::RemoteWrite(RemoteWriteSettings { ttl, ..section.clone() })
        });
        let all = settings.graphite.iter().cloned().map(Self::Graphite);
        all.chain(settings.console.iter().cloned().map(Self::Console))
            .chain(settings.file.iter().cloned().map(Self::File))
            .chain(prometheus)
            .chain(remote_write)
            .chain(settings.influx.iter().cloned().map(Self::Influx))
            .chain(settings.otlp.iter().cloned().map(Self::Otlp))
            .chain(settings.kafka.iter().cloned().map(Self::Kafka))
            .chain(settings.postgres.iter().cloned().map(Self::Postgres))
            .chain(settings.exec.iter().cloned().map(Self::Exec))
            .chain(settings.webhook.iter().cloned().map(Self::Webhook))
            .chain(settings.forward.iter().cloned().map(Self::Forward))
            .collect()
    }

    /// Whether the receiver needs the intervals in their order: it replaces or refuses values that
    /// are older than those it has.
    pub(crate) fn needs_order(&self) -> bool {
        matches!(self, Self::RemoteWrite(_) | Self::Forward(_))
    }

    /// Returns the address that the section's backend listens on, if it does.
    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        match self {
            Self::Prometheus(settings) => Some(settings.listen),
            _ => None,
        }
    }

    /// Returns [`OpenedBackend::destination`], except of a database, whose address depends on the
    /// environment.
    fn destination(&self) -> String {
        match self {
            // Scrapers come to the only endpoint.
            Self::Console(_) | Self::Prometheus(_) | Self::Postgres(_) => String::new(),
            Self::Graphite(settings) => {
                let port = match settings.protocol {
                    GraphiteProtocol::Text => settings.port,
                    GraphiteProtocol::Pickle => settings.pickle_port,
                };
                format!("{}:{port} {:?}", settings.host, settings.protocol)
            }
            Self::File(settings) => settings.path.display().to_string(),
            Self::RemoteWrite(settings) => without_secrets(&settings.url),
            Self::Influx(settings) => without_secrets(&settings.url),
            Self::Otlp(settings) => without_secrets(&settings.url),
            Self::Webhook(settings) => without_secrets(&settings.url),
            Self::Kafka(settings) => {
                let mut brokers = settings.brokers.clone();
                brokers.sort_unstable();
                format!("{} {} {:?}", brokers.join(","), settings.topic, settings.format)
            }
            Self::Exec(settings) => format!("{:?} {:?}", settings.command, settings.format),
            Self::Forward(settings) => format!("{}:{}", settings.to.host, settings.to.port),
        }
    }

    /// Opens the backend. Only the Prometheus endpoint is opened here; the others connect when they
    /// first flush.
    ///
    /// # Errors
    ///
    /// See [`BackendOpenError`].
    pub(crate) fn open(
        &self,
        dialect: StatsdDialect,
        environment: &Environment,
        source: EndpointSource<'_>,
    ) -> Result<OpenedBackend, BackendOpenError> {
        let mut endpoint = None;
        let mut destination = self.destination();
        let backend: Box<dyn MetricBackend> = match self {
            Self::Graphite(settings) => Box::new(GraphiteBackend::new(settings.clone(), dialect)),
            Self::Console(settings) => Box::new(ConsoleOutput::new(settings, dialect)),
            Self::File(settings) => Box::new(FileBackend::new(settings.clone())),
            Self::Prometheus(settings) => {
                let backend = PrometheusBackend::with_endpoint(settings, source)?;
                endpoint = Some(backend.endpoint());
                Box::new(backend)
            }
            Self::RemoteWrite(settings) => Box::new(RemoteWriteBackend::new(settings)?),
            Self::Influx(settings) => {
                Box::new(InfluxBackend::new(settings).map_err(BackendOpenError::Influx)?)
            }
            Self::Otlp(settings) => {
                Box::new(OtlpBackend::new(settings).map_err(BackendOpenError::Otlp)?)
            }
            #[cfg(feature = "kafka")]
            Self::Kafka(settings) => Box::new(super::KafkaBackend::new(settings)?),
            #[cfg(not(feature = "kafka"))]
            Self::Kafka(_) => return Err(BackendOpenError::KafkaMissing),
            Self::Postgres(settings) => {
                let backend = PostgresBackend::new(settings.clone(), environment)?;
                destination = backend.destination();
                Box::new(backend)
            }
            Self::Exec(settings) => {
                Box::new(ExecBackend::new(settings.clone()).map_err(BackendOpenError::Exec)?)
            }
            Self::Webhook(settings) => {
                Box::new(WebhookBackend::new(settings).map_err(BackendOpenError::Webhook)?)
            }
            Self::Forward(settings) => {
                let uname = rustix::system::uname();
                let backend = ForwardBackend::new(settings, &uname.nodename().to_string_lossy());
                Box::new(backend.map_err(BackendOpenError::Forward)?)
            }
        };
        Ok(OpenedBackend { backend, destination, endpoint })
    }
}

/// Returns a URL without user, password and token, which may change while the receiver stays the
/// same.
fn without_secrets(url: &str) -> String {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let is_public = |parameter: &&str| {
        let name = parameter.split('=').next().unwrap_or_default();
        !matches!(name, "u" | "p" | "token")
    };
    let query: Vec<&str> = query.split('&').filter(is_public).collect();
    format!("{scheme}://{host}/{path}?{}", query.join("&"))
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
    let sections = BackendSection::all(settings).into_iter();
    let opened = sections.map(|section| {
        let mut passed = InheritedSockets::default();
        section.open(settings.dialect, environment, EndpointSource::New(&mut passed))
    });
    opened.map(|opened| Ok(opened?.backend)).collect()
}

#[test]
fn each_section_opens_backend() {
    let text = r#"
        [[backends.graphite]]
        host = "localhost"
        [backends.console]
        [backends.file]
        path = "/tmp/stats"
        [backends.prometheus]
        listen = "127.0.0.1:0"
        [[backends.remote-write]]
        url = "http://localhost:9090/api/v1/write"
        labels = { job = "statsd" }
        [[backends.influx]]
        url = "http://localhost:8086/write?db=x&p=secret"
        [[backends.otlp]]
        url = "http://localhost:4318/v1/metrics"
        temporality = "delta"
        resource = { "service.name" = "shop" }
        KAFKA
        [[backends.postgres]]
        connection = "postgresql://me:secret@localhost/metrics"
        retention = "720h"
        partition = "month"
        format = "text"
        [[backends.exec]]
        command = ["/usr/bin/sink", "--fast"]
        format = "json"
        timeout = "3s"
        [[backends.webhook]]
        url = "http://localhost/events"
        [[backends.forward]]
        to = "[::1]:8128"
        "#;
    let kafka = "[[backends.kafka]]\nbrokers = ['localhost:9092']\ntopic = 'metrics'\n";
    let has_kafka = cfg!(feature = "kafka");
    let with_kafka: StatsdSettings =
        toml::from_str(&text.replace("KAFKA", kafka)).expect("settings");
    let without: StatsdSettings = toml::from_str(&text.replace("KAFKA", "")).expect("settings");
    let settings = if has_kafka {
        with_kafka
    } else {
        let error = open(&with_kafka, &Environment::empty()).err().expect("an error").to_string();
        assert!(error.contains("cargo build --features kafka"), "{error}");
        assert_eq!(with_kafka.backends.missing(), Some(("backends.kafka", &*error)));
        without
    };
    assert_eq!(settings.backends.missing(), None);
    let backends = open(&settings, &Environment::empty().with_os_user("me")).expect("backends");
    let names: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
    let mut all = vec![
        "graphite",
        "console",
        "file",
        "prometheus",
        "remote-write",
        "influx",
        "otlp",
        "kafka",
        "postgres",
        "exec",
        "webhook",
        "forward",
    ];
    all.retain(|name| has_kafka || *name != "kafka");
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

#[test]
fn destination_has_the_receiver_but_not_the_secrets() {
    let influx = "https://me:secret@db:8086/write?db=x&u=me&p=secret&rp=week";
    assert_eq!(without_secrets(influx), "https://db:8086/write?db=x&rp=week");
    let without = without_secrets("https://db:8086/write?db=x&rp=week");
    assert_eq!(without, without_secrets(influx));
    let graphite = |host: &str, port| {
        let settings = GraphiteSettings { host: host.into(), port, ..GraphiteSettings::default() };
        BackendSection::Graphite(settings).destination()
    };
    assert_eq!(graphite("a", 2003), graphite("a", 2003));
    assert_ne!(graphite("a", 2003), graphite("b", 2003));
    assert_ne!(graphite("a", 2003), graphite("a", 2103));
}

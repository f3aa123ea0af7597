//! `--metrics ADDR` serves the metrics of a running command to Prometheus; `--metrics-statsd ADDR`
//! sends them to a statsd server, and `--metrics-otlp URL` to an OpenTelemetry receiver.
//!
//! All run in threads of their own, so scrapes and the command's work never wait for each other.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use anyhow::Context as _;
use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use howdah_http::server::HttpServer;
use howdah_stats::Registry;

mod otlp;
mod periodic;
mod statsd;

use self::periodic::PeriodicSender;
use crate::{context::CommandContext, errors::WithHint as _};

/// Maximum open connections of scrapers and health checks. Idle ones are closed after ten seconds.
const CONNECTIONS_MAX: usize = 512;

/// Options of long-running commands. Flatten into their `Args`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MetricsArgs {
    /// Serve Prometheus metrics on this address under /metrics; port 0 picks a free port
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics: Option<String>,
    /// Send the same metrics to a statsd server, every ten seconds and at the end
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics_statsd: Option<String>,
    /// Send the same metrics to an OpenTelemetry (OTLP/HTTP) receiver, every ten seconds and at the
    /// end
    #[arg(long, value_name = "URL")]
    pub(crate) metrics_otlp: Option<String>,
    /// Send the token in this file to the OpenTelemetry receiver
    #[arg(long, value_name = "FILE", requires = "metrics_otlp")]
    pub(crate) metrics_otlp_token_file: Option<PathBuf>,
}

/// A guard that serves and sends metrics until it is dropped, and then sends them a last time.
#[derive(Debug)]
pub(crate) struct MetricsGuard {
    _server: Option<HttpServer>,
    _senders: Vec<PeriodicSender>,
    readiness: Arc<ReadinessCheck>,
}

/// The check whether a command accepts work, whose result `/readyz` reports. Without a check, the
/// command accepts work.
#[derive(Default)]
pub(crate) struct ReadinessCheck(OnceLock<Box<dyn Fn() -> bool + Send + Sync>>);

impl ReadinessCheck {
    fn is_ready(&self) -> bool {
        self.0.get().is_none_or(|is_ready| is_ready())
    }
}

impl std::fmt::Debug for ReadinessCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadinessCheck").field(&self.is_ready()).finish()
    }
}

impl MetricsGuard {
    /// Sets the check of `/readyz`, which answers 503 while it returns false, so that a load
    /// balancer sends no new clients. `/healthz` is not affected. Only the first call has an
    /// effect.
    pub(crate) fn ready_while(&self, is_ready: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.readiness.0.set(Box::new(is_ready));
    }
}

impl MetricsArgs {
    /// Whether any option requests metrics.
    pub(crate) fn is_enabled(&self) -> bool {
        self.metrics.is_some() || self.metrics_statsd.is_some() || self.metrics_otlp.is_some()
    }

    /// Serves and sends the context's registry as the options say, and reports the address. Keep
    /// the guard until the work is done.
    ///
    /// # Errors
    ///
    /// See [`serve`], [`statsd::start`] and [`otlp::start`].
    pub(crate) fn serve(&self, ctx: &CommandContext) -> anyhow::Result<MetricsGuard> {
        self.serve_with(ctx, Router::new())
    }

    /// Like [`Self::serve`], and also serves `routes` on the address of `--metrics`.
    ///
    /// # Errors
    ///
    /// See [`Self::serve`].
    pub(crate) fn serve_with(
        &self,
        ctx: &CommandContext,
        routes: Router,
    ) -> anyhow::Result<MetricsGuard> {
        let readiness = Arc::new(ReadinessCheck::default());
        let server = match &self.metrics {
            Some(address) => {
                let (registry, readiness) = (ctx.registry().clone(), Arc::clone(&readiness));
                let server = serve(address, registry, readiness, routes)?;
                ctx.announce(format_args!("metrics: http://{}/metrics", server.address()));
                tracing::info!(address = %server.address(), "serving metrics");
                Some(server)
            }
            None => None,
        };
        let mut senders = Vec::new();
        if let Some(address) = &self.metrics_statsd {
            senders.push(statsd::start(address, ctx.registry().clone())?);
        }
        if let Some(url) = &self.metrics_otlp {
            let token_file = self.metrics_otlp_token_file.as_ref();
            senders.push(otlp::start(url, token_file, ctx.registry().clone())?);
        }
        Ok(MetricsGuard { _server: server, _senders: senders, readiness })
    }
}

/// Serves `/metrics`, `/healthz`, from `readiness` `/readyz`, and `routes` on `address`.
///
/// # Errors
///
/// The address is not `HOST:PORT`, or binding to it fails, for example because it is in use.
pub(crate) fn serve(
    address: &str,
    registry: Registry,
    readiness: Arc<ReadinessCheck>,
    routes: Router,
) -> anyhow::Result<HttpServer> {
    let metrics = async move || {
        ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], registry.prometheus())
    };
    let ready = async move || {
        if readiness.is_ready() {
            (StatusCode::OK, "ready\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n")
        }
    };
    let router = routes
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .fallback(async || (StatusCode::NOT_FOUND, "try /metrics, /healthz or /readyz\n"));
    HttpServer::start("metrics", address, CONNECTIONS_MAX, router)
        .with_context(|| format!("cannot serve metrics on {address}"))
        .hint("--metrics takes HOST:PORT, such as 127.0.0.1:9127; port 0 picks a free port")
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpStream,
    };

    use howdah_stats::Description;

    use super::*;

    const SEEN: Description = Description::counter("t_seen_total", "Seen.");

    fn http_get(server: &HttpServer, path: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ready() -> Arc<ReadinessCheck> {
        Arc::default()
    }

    #[test]
    fn scrape_returns_current_values() {
        let registry = Registry::new();
        let server = serve("127.0.0.1:0", registry.clone(), ready(), Router::new()).unwrap();
        registry.counter(&SEEN).add(3);
        let answer = http_get(&server, "/metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.ends_with("\nt_seen_total 3\n"), "{answer}");
        assert!(http_get(&server, "/healthz").ends_with("\r\n\r\nok\n"));
        assert!(http_get(&server, "/readyz").ends_with("\r\n\r\nready\n"));
        assert!(http_get(&server, "/").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn used_address_is_reported_and_drop_frees_it() {
        let server = serve("127.0.0.1:0", Registry::new(), ready(), Router::new()).unwrap();
        let address = server.address().to_string();
        let error = serve(&address, Registry::new(), ready(), Router::new()).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with(&format!("cannot serve metrics on {address}: ")), "{text}");
        assert!(text.contains("in use"), "{text}");
        drop(server);
        serve(&address, Registry::new(), ready(), Router::new()).unwrap();
    }

    #[test]
    fn reference_page_lists_all_metrics() {
        let page = include_str!("../../../docs/src/reference/metrics.md");
        let labels = |metric: &Description| match metric.label_names() {
            [] => String::new(),
            names => format!("`{}`", names.join("`, `")),
        };
        let row = |metric: &Description| {
            let (name, kind, help) = (metric.name(), metric.kind().as_str(), metric.help());
            format!("| `{name}` | {kind} | {} | {help} |\n", labels(metric))
        };
        let tables = [
            howdah_replay::METRICS,
            howdah_warm::metrics::METRICS,
            howdah_warm::daemon::METRICS,
            howdah_top::METRICS,
            howdah_probe::recorder::METRICS,
            howdah_statsd::self_metrics::METRICS,
            howdah_pool::METRICS,
        ];
        for metrics in tables {
            let table: String = metrics.iter().map(row).collect();
            assert!(page.contains(&table), "docs/src/reference/metrics.md must contain:\n{table}");
        }
    }

    #[test]
    fn address_without_port_is_rejected() {
        assert!(serve("127.0.0.1", Registry::new(), ready(), Router::new()).is_err());
    }
}

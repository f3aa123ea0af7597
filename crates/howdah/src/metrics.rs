//! `--metrics ADDR`: the numbers of a running command, for Prometheus; `--metrics-statsd ADDR`: the
//! same for a statsd server.
//!
//! One thread with a runtime of its own, so that a scrape never waits for the work and the work
//! never waits for a scrape.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::Context as _;
use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    routing::get,
};
use howdah_stats::Registry;
use tokio::sync::oneshot;

mod impatient;
mod statsd;

use self::impatient::Impatient;
use self::statsd::StatsdSender;
use crate::{context::Context, errors::WithHint as _};

/// The option of commands that run long enough to be watched. Flatten it into their `Args`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct MetricsArgs {
    /// Serve Prometheus metrics at this address under /metrics; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics: Option<String>,
    /// Send the same metrics to a statsd server, every ten seconds and at the end
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics_statsd: Option<String>,
}

/// What serves and sends metrics. Keep it until the work is done: dropping it ends both, after a last
/// packet.
#[derive(Debug)]
pub(crate) struct Running {
    _server: Option<MetricsServer>,
    _sender: Option<StatsdSender>,
    is_ready: Ready,
}

/// Whether a command takes work: what `/readyz` answers.
type Ready = Arc<AtomicBool>;

impl Running {
    /// Says that the command takes no more work, though it still has some: `/readyz` answers 503 from
    /// now on, so that a load balancer sends nobody new, and `/healthz` as before.
    pub(crate) fn takes_no_more(&self) {
        self.is_ready.store(false, Ordering::Relaxed);
    }
}

impl MetricsArgs {
    /// Whether anybody asks for figures.
    pub(crate) fn is_wanted(&self) -> bool {
        self.metrics.is_some() || self.metrics_statsd.is_some()
    }

    /// Serves and sends the context's registry as the options say, and says where it is served. Keep
    /// what it returns until the work is done.
    ///
    /// # Errors
    ///
    /// See [`serve`] and [`StatsdSender::start`].
    pub(crate) fn serve(&self, ctx: &Context) -> anyhow::Result<Running> {
        let is_ready = Arc::new(AtomicBool::new(true));
        let server = match &self.metrics {
            Some(address) => {
                let server = serve(address, ctx.registry().clone(), Arc::clone(&is_ready))?;
                ctx.announce(format_args!("metrics: http://{}/metrics", server.address()));
                tracing::info!(address = %server.address(), "serving metrics");
                Some(server)
            }
            None => None,
        };
        let start = |address: &String| StatsdSender::start(address, ctx.registry().clone());
        let sender = self.metrics_statsd.as_ref().map(start).transpose()?;
        Ok(Running { _server: server, _sender: sender, is_ready })
    }
}

/// A running server. Dropping it closes the port and ends the thread.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell: what went wrong in it was logged there.
            let _ = thread.join();
        }
    }
}

/// Listens at `address` and answers `/metrics`, `/healthz` and, by `is_ready`, `/readyz`.
///
/// # Errors
///
/// The address is not `HOST:PORT`, or it cannot be listened at, say because somebody else does.
pub(crate) fn serve(
    address: &str,
    registry: Registry,
    is_ready: Ready,
) -> anyhow::Result<MetricsServer> {
    let listener = listen(address)
        .with_context(|| format!("cannot serve metrics at {address}"))
        .hint("--metrics takes HOST:PORT, such as 127.0.0.1:9127; port 0 takes a free one")?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = thread::Builder::new().name("metrics".into()).spawn(move || {
        runtime.block_on(async {
            let serving = tokio::spawn(async {
                if let Err(error) = answer(listener, registry, is_ready).await {
                    tracing::error!(%error, "metrics are no longer served");
                }
            });
            // The sender is never used, only dropped.
            let _ = stopped.await;
            // The runtime ends with this block, and what is still being answered with it.
            serving.abort();
        });
    })?;
    Ok(MetricsServer { address, stop: Some(stop), thread: Some(thread) })
}

fn listen(address: &str) -> io::Result<TcpListener> {
    let addresses: Vec<_> = address.to_socket_addrs()?.collect();
    TcpListener::bind(&addresses[..])
}

async fn answer(listener: TcpListener, registry: Registry, is_ready: Ready) -> io::Result<()> {
    let listener = Impatient::new(tokio::net::TcpListener::from_std(listener)?);
    let metrics = async move || {
        ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], registry.prometheus())
    };
    let ready = async move || match is_ready.load(Ordering::Relaxed) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "takes no more\n"),
    };
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .fallback(async || (StatusCode::NOT_FOUND, "try /metrics, /healthz or /readyz\n"));
    axum::serve(listener, app).await
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

    fn ask(server: &MetricsServer, path: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn ready() -> Ready {
        Arc::new(AtomicBool::new(true))
    }

    #[test]
    fn numbers_are_those_of_the_moment() {
        let registry = Registry::new();
        let server = serve("127.0.0.1:0", registry.clone(), ready()).unwrap();
        registry.counter(&SEEN).add(3);
        let answer = ask(&server, "/metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
        assert!(answer.ends_with("\nt_seen_total 3\n"), "{answer}");
        assert!(ask(&server, "/healthz").ends_with("\r\n\r\nok\n"));
        assert!(ask(&server, "/readyz").ends_with("\r\n\r\nready\n"));
        assert!(ask(&server, "/").starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn a_taken_address_is_said_and_a_dropped_one_is_free() {
        let server = serve("127.0.0.1:0", Registry::new(), ready()).unwrap();
        let address = server.address().to_string();
        let error = serve(&address, Registry::new(), ready()).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with(&format!("cannot serve metrics at {address}: ")), "{text}");
        assert!(text.contains("in use"), "{text}");
        drop(server);
        serve(&address, Registry::new(), ready()).unwrap();
    }

    #[test]
    fn the_reference_page_holds_the_table() {
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
            howdah_keeper::METRICS,
            howdah_top::METRICS,
            howdah_pool::METRICS,
        ];
        for metrics in tables {
            let table: String = metrics.iter().map(row).collect();
            assert!(page.contains(&table), "docs/src/reference/metrics.md has to hold:\n{table}");
        }
    }

    #[test]
    fn an_address_without_a_port_is_refused() {
        assert!(serve("127.0.0.1", Registry::new(), ready()).is_err());
    }
}

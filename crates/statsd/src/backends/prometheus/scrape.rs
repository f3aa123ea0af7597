//! `/metrics`, in the text format or, if the scraper prefers it, in protobuf.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    routing::get,
};
use howdah_http::server::HttpServer;
use parking_lot::Mutex;

use super::{families::FamilyTable, protobuf, text};

/// Maximum number of open connections, each of which may hold a rendered table.
const CONNECTIONS_MAX: usize = 16;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// An endpoint that serves the values of one backend, and of its successor after a reload. Dropping
/// it closes the port.
#[derive(Debug)]
pub(crate) struct ScrapeEndpoint {
    server: HttpServer,
    served: ServedTable,
}

/// The table to serve, which is locked only for a moment, and the table's own lock.
type ServedTable = Arc<Mutex<Arc<Mutex<FamilyTable>>>>;

impl ScrapeEndpoint {
    /// Listens at an address and serves a table.
    ///
    /// # Errors
    ///
    /// The address cannot be bound, or the server's thread cannot be started.
    pub(super) fn open(address: SocketAddr, families: Arc<Mutex<FamilyTable>>) -> io::Result<Self> {
        let served = Arc::new(Mutex::new(families));
        Ok(Self { server: serve(address, Arc::clone(&served))?, served })
    }

    /// Returns the address that the endpoint listens on.
    pub(super) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Serves a table from now on.
    pub(super) fn serve(&self, families: &Arc<Mutex<FamilyTable>>) {
        let mut served = self.served.lock();
        if !Arc::ptr_eq(&served, families) {
            *served = Arc::clone(families);
        }
    }
}

/// Serves the values until the returned server is dropped.
fn serve(address: SocketAddr, served: ServedTable) -> io::Result<HttpServer> {
    let metrics = async move |headers: HeaderMap| {
        let families = served.lock().clone();
        let families = families.lock();
        if prefers_protobuf(&headers) {
            ([(CONTENT_TYPE, PROTOBUF)], protobuf::render(&families))
        } else {
            ([(CONTENT_TYPE, TEXT)], text::render(&families).into_bytes())
        }
    };
    let router = Router::new()
        .route("/metrics", get(metrics))
        .fallback(async || (StatusCode::NOT_FOUND, "try /metrics\n"));
    HttpServer::start("prometheus", address, CONNECTIONS_MAX, router)
}

/// Whether protobuf is the first format of the `Accept` header: Prometheus lists the preferred one
/// first.
fn prefers_protobuf(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let first = accept.split(',').next().unwrap_or_default();
    first.contains("application/vnd.google.protobuf")
        && first.contains("io.prometheus.client.MetricFamily")
        && first.contains("delimited")
}

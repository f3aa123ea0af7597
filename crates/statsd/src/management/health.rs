//! The health endpoint: `/healthz` returns 200 and `up`, or 503 and `down`, like the management
//! port's `health`.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use axum::{Router, http::StatusCode, routing::any};
use howdah_http::server::HttpServer;

use crate::server::{ServerCore, ServerStartError};

const CONNECTIONS_MAX: usize = 64;

/// Serves `/` and `/healthz`, with any method, until the returned server is dropped.
pub(crate) fn serve(
    listener: TcpListener,
    core: &Arc<ServerCore>,
) -> Result<HttpServer, ServerStartError> {
    let address = listener.local_addr().unwrap_or(SocketAddr::from(([0; 4], 0)));
    let core = Arc::clone(core);
    let health = async move || {
        if core.is_healthy() {
            (StatusCode::OK, "up\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "down\n")
        }
    };
    let router = Router::new()
        .route("/", any(health.clone()))
        .route("/healthz", any(health))
        .fallback(async || (StatusCode::NOT_FOUND, "try /healthz\n"));
    HttpServer::start_on("statsd-health", listener, CONNECTIONS_MAX, router)
        .map_err(|source| ServerStartError::Listen { purpose: "health checks", address, source })
}

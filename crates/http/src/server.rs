//! A small HTTP server in a separate thread: axum on a single-threaded runtime.
//!
//! It is meant for scrapes and health checks: few requests, without bodies. A connection serves one
//! request, is closed when it is idle for too long, and is refused while too many others are open.
//! Responses are rendered one after another; sending one does not delay the next.
//!
//! [`HttpServer::start_pages`] also serves pages to browsers, and protects them from other sites;
//! [`HttpServer::start_control`] serves programs on this machine only, and
//! [`HttpServer::start_readings`] also those on other machines that have a certificate.

mod connections;
mod pages;
mod tls;

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::Arc,
    thread::{self, JoinHandle},
};

use axum::{
    Router,
    http::{HeaderValue, header::CONNECTION},
    middleware::map_response,
    response::Response,
};
use tokio::sync::{Semaphore, oneshot};

use self::connections::LimitedListener;
pub use self::{
    pages::{PageAccess, PageServerError},
    tls::MutualTls,
};

/// A running server. Dropping it closes the port and ends its thread, which aborts responses in
/// progress.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    connections_max: usize,
    permits: Arc<Semaphore>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens on the first of the addresses that can be bound, and serves `router` in a thread
    /// called `name`. Connections beyond `connections_max` are closed without a reply.
    ///
    /// # Errors
    ///
    /// No address can be bound, for example because it is in use, or the thread cannot be started.
    pub fn start(
        name: &'static str,
        addresses: impl ToSocketAddrs,
        connections_max: usize,
        router: Router,
    ) -> io::Result<Self> {
        Self::serve(name, TcpListener::bind(addresses)?, connections_max, router, None)
    }

    /// Like [`Self::start`], on a socket that listens already, for example because another process
    /// has passed it on.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start_on(
        name: &'static str,
        listener: TcpListener,
        connections_max: usize,
        router: Router,
    ) -> io::Result<Self> {
        Self::serve(name, listener, connections_max, router, None)
    }

    /// Like [`Self::start`], for pages that browsers read: only GET and HEAD requests are served,
    /// and only if the `Host` header and, if there is one, the `Origin` header name this server.
    /// Requests caused by other sites are refused unless they are navigations. Security headers are
    /// added to each response, except those that it sets itself; the default
    /// `Content-Security-Policy` allows nothing.
    ///
    /// # Errors
    ///
    /// Other machines could reach the address although `access` does not allow it, the address
    /// cannot be bound, or the thread cannot be started.
    pub fn start_pages(
        name: &'static str,
        address: SocketAddr,
        access: &PageAccess,
        connections_max: usize,
        router: Router,
    ) -> Result<Self, PageServerError> {
        pages::check_address(address, access)?;
        let serve = || {
            let listener = TcpListener::bind(address)?;
            let router = pages::protected(router, listener.local_addr()?, access);
            Self::serve(name, listener, connections_max, router, None)
        };
        serve().map_err(|source| PageServerError::Listen { address, source })
    }

    /// Like [`Self::start`], for requests by which programs on this machine control this one: the
    /// address must be a loopback address, the `Host` header must name it, and requests from
    /// browsers are refused, because any page that they show could send them.
    ///
    /// # Errors
    ///
    /// The address is not a loopback address or cannot be bound, or the thread cannot be started.
    pub fn start_control(
        name: &'static str,
        address: SocketAddr,
        connections_max: usize,
        router: Router,
    ) -> Result<Self, PageServerError> {
        pages::check_address(address, &PageAccess::default())?;
        let serve = || {
            let listener = TcpListener::bind(address)?;
            let router = pages::controlled(router, listener.local_addr()?);
            Self::serve(name, listener, connections_max, router, None)
        };
        serve().map_err(|source| PageServerError::Listen { address, source })
    }

    /// Like [`Self::start`], for programs that read: only GET and HEAD requests are served, and
    /// none from a browser. Without `tls`, the address must be a loopback address, and the `Host`
    /// header must name one, with any port, as through a tunnel. With `tls`, only clients with a
    /// certificate of its CA are served, on any address.
    ///
    /// # Errors
    ///
    /// The address is not a loopback address and `tls` is missing, the address cannot be bound, or
    /// the thread cannot be started.
    pub fn start_readings(
        name: &'static str,
        address: SocketAddr,
        tls: Option<&MutualTls>,
        connections_max: usize,
        router: Router,
    ) -> Result<Self, PageServerError> {
        let access = PageAccess { allow_remote: tls.is_some(), ..PageAccess::default() };
        pages::check_address(address, &access)?;
        let serve = || {
            let listener = TcpListener::bind(address)?;
            let router = pages::for_readers(router, tls.is_some());
            Self::serve(name, listener, connections_max, router, tls)
        };
        serve().map_err(|source| PageServerError::Listen { address, source })
    }

    fn serve(
        name: &'static str,
        listener: TcpListener,
        connections_max: usize,
        router: Router,
        tls: Option<&MutualTls>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let permits = Arc::new(Semaphore::new(connections_max));
        let listener = {
            let _in_runtime = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener)?;
            LimitedListener::new(name, listener, Arc::clone(&permits), tls.map(MutualTls::acceptor))
        };
        let router = router.layer(map_response(close_connection));
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            runtime.block_on(async {
                let serving = tokio::spawn(async move {
                    if let Err(error) = axum::serve(listener, router).await {
                        tracing::error!(%error, server = name, "HTTP server failed");
                    }
                });
                // The sender is never used, only dropped.
                let _ = stopped.await;
                serving.abort();
            });
            // This drops responses in progress, and does not wait for files that are being read.
            runtime.shutdown_background();
        })?;
        Ok(Self { address, connections_max, permits, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of open connections, including those that have not sent a request yet.
    pub fn open_connections(&self) -> usize {
        self.connections_max.saturating_sub(self.permits.available_permits())
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has logged its errors.
            let _ = thread.join();
        }
    }
}

/// Makes the server close the connection. Requests are too rare for connections to be worth keeping
/// open, and open connections count towards the limit.
async fn close_connection(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpStream,
    };

    use axum::routing::get;

    use super::*;

    fn start(address: &str, connections_max: usize) -> io::Result<HttpServer> {
        let router = Router::new().route("/healthz", get(async || "ok\n"));
        HttpServer::start("test-http", address, connections_max, router)
    }

    #[test]
    fn connection_is_closed_after_one_response() {
        let server = start("127.0.0.1:0", 1).unwrap();
        for (path, status) in [("/healthz", "200 OK"), ("/", "404 Not Found")] {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).unwrap();
            assert!(response.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{response}");
            assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
        }
    }

    #[test]
    fn used_address_is_reported_and_drop_frees_it() {
        let server = start("127.0.0.1:0", 1).unwrap();
        let address = server.address().to_string();
        assert_eq!(start(&address, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(server);
        start(&address, 1).unwrap();
        assert!(start("127.0.0.1", 1).is_err(), "no port");
    }
}

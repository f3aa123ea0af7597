//! `/metrics`, in the text format or, if the scraper prefers it, in protobuf.
//!
//! A response is rendered in pieces, each when the one before it has been sent, because a million
//! series take more than 100 MB. The table is locked for one piece at a time.

use std::{
    io::{self, Write as _},
    mem,
    net::{SocketAddr, TcpListener},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody},
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY},
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use flate2::{Compression, write::GzEncoder};
use howdah_http::server::HttpServer;
use howdah_stats::prometheus::PrometheusText;
use http_body::Frame;
use parking_lot::Mutex;

use super::{cursor::ScrapeCursor, families::FamilyTable, protobuf, text};
use crate::receiver::{InheritedSocket, InheritedSockets};

/// The purpose of the socket, for another process.
const PURPOSE: &str = "prometheus";

/// Maximum number of open connections, each of which may have a rendered piece.
const CONNECTIONS_MAX: usize = 16;

/// Size of a piece in bytes; the last run of series may exceed it.
const PIECE_BYTES: usize = 64 << 10;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// An endpoint that serves the values of one backend, and of its successor after a reload. Dropping
/// it closes the port.
#[derive(Debug)]
pub(crate) struct ScrapeEndpoint {
    listener: TcpListener,
    /// The configured address.
    configured: SocketAddr,
    address: SocketAddr,
    /// `None` while scrapes wait.
    server: Mutex<Option<HttpServer>>,
    served: ServedTable,
}

/// Where the endpoint of a Prometheus backend comes from.
#[derive(Debug)]
pub(crate) enum EndpointSource<'p> {
    /// It is opened, with a passed socket if there is one, and serves at once.
    New(&'p mut InheritedSockets),
    /// Like `New`, but it serves nothing before the values of another process have arrived, or the
    /// first flush: a counter must not start at 0 in between.
    Successor(&'p mut InheritedSockets),
    /// It was opened by an earlier backend.
    Earlier(&'p Arc<ScrapeEndpoint>),
}

/// The table to serve, which is locked only for a moment, and the table's own lock.
type ServedTable = Arc<Mutex<Arc<Mutex<FamilyTable>>>>;

impl ScrapeEndpoint {
    /// Listens at an address, with a passed socket if there is one. Scrapes wait until
    /// [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub(super) fn open(
        configured: SocketAddr,
        passed: &mut InheritedSockets,
        families: Arc<Mutex<FamilyTable>>,
    ) -> io::Result<Self> {
        let listener = passed.listener(PURPOSE, configured)?;
        let address = listener.local_addr()?;
        let served = Arc::new(Mutex::new(families));
        Ok(Self { listener, configured, address, server: Mutex::new(None), served })
    }

    /// Serves the table from now on.
    ///
    /// # Errors
    ///
    /// The server's thread cannot be started.
    pub(super) fn start(&self) -> io::Result<()> {
        let mut server = self.server.lock();
        if server.is_none() {
            *server = Some(serve(self.listener.try_clone()?, Arc::clone(&self.served))?);
        }
        Ok(())
    }

    /// Returns a copy of the socket, for another process.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub(crate) fn passed_socket(&self) -> io::Result<InheritedSocket> {
        Ok(InheritedSocket {
            label: format!("{PURPOSE} {}", self.configured),
            descriptor: self.listener.try_clone()?.into(),
            is_managed: false,
        })
    }

    /// Returns the address that the endpoint listens on.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves another table from now on.
    pub(super) fn serve(&self, families: &Arc<Mutex<FamilyTable>>) {
        let mut served = self.served.lock();
        if !Arc::ptr_eq(&served, families) {
            *served = Arc::clone(families);
        }
    }
}

/// Serves the values until the returned server is dropped.
fn serve(listener: TcpListener, served: ServedTable) -> io::Result<HttpServer> {
    let metrics = async move |headers: HeaderMap| {
        let families = served.lock().clone();
        let format =
            if prefers_protobuf(&headers) { ScrapeFormat::Protobuf } else { ScrapeFormat::Text };
        let content_type = match format {
            ScrapeFormat::Text => TEXT,
            ScrapeFormat::Protobuf => PROTOBUF,
        };
        let body = ScrapeBody::new(families, format);
        let variation = (VARY, "Accept, Accept-Encoding");
        let response: Response = if accepts_gzip(&headers) {
            let headers = [(CONTENT_TYPE, content_type), (CONTENT_ENCODING, "gzip"), variation];
            (headers, Body::new(body.compressed())).into_response()
        } else {
            ([(CONTENT_TYPE, content_type), variation], Body::new(body)).into_response()
        };
        response
    };
    let router = Router::new()
        .route("/metrics", get(metrics))
        .fallback(async || (StatusCode::NOT_FOUND, "try /metrics\n"));
    HttpServer::start_on("prometheus", listener, CONNECTIONS_MAX, router)
}

/// The exposition format of a response.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScrapeFormat {
    Text,
    Protobuf,
}

/// A response body, rendered in pieces.
pub(super) struct ScrapeBody {
    families: Arc<Mutex<FamilyTable>>,
    format: ScrapeFormat,
    /// `None` once everything is rendered.
    cursor: Option<ScrapeCursor>,
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl ScrapeBody {
    pub(super) fn new(families: Arc<Mutex<FamilyTable>>, format: ScrapeFormat) -> Self {
        Self { families, format, cursor: Some(ScrapeCursor::default()), encoder: None }
    }

    /// Compresses the body with gzip.
    fn compressed(self) -> Self {
        Self { encoder: Some(GzEncoder::new(Vec::new(), Compression::fast())), ..self }
    }

    /// Renders pieces until there are bytes to send; `None` at the end.
    fn next_bytes(&mut self) -> io::Result<Option<Vec<u8>>> {
        while let Some(piece) = self.next_piece() {
            let Some(encoder) = &mut self.encoder else { return Ok(Some(piece)) };
            encoder.write_all(&piece)?;
            if self.cursor.is_none() {
                encoder.try_finish()?;
            }
            let bytes = mem::take(encoder.get_mut());
            if !bytes.is_empty() {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// Renders the next piece; `None` if there is none. The last one has the server's own metrics.
    pub(super) fn next_piece(&mut self) -> Option<Vec<u8>> {
        let cursor = self.cursor.as_mut()?;
        let families = self.families.lock();
        let (more, piece) = match self.format {
            ScrapeFormat::Text => {
                let mut out = PrometheusText::default();
                let more = cursor.advance(&families, |run| {
                    text::write_run(&mut out, run);
                    out.byte_count() < PIECE_BYTES
                });
                if !more {
                    text::write_self_metrics(&mut out, &families);
                }
                (more, out.into_string().into_bytes())
            }
            ScrapeFormat::Protobuf => {
                let mut out = Vec::new();
                let more = cursor.advance(&families, |run| {
                    protobuf::write_run(&mut out, run);
                    out.len() < PIECE_BYTES
                });
                if !more {
                    protobuf::write_self_metrics(&mut out, &families);
                }
                (more, out)
            }
        };
        drop(families);
        if !more {
            self.cursor = None;
        }
        Some(piece)
    }
}

impl HttpBody for ScrapeBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let bytes = self.get_mut().next_bytes().transpose();
        Poll::Ready(bytes.map(|bytes| bytes.map(|bytes| Frame::data(bytes.into()))))
    }
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

/// Whether the `Accept-Encoding` header has gzip, and not with the weight 0.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(ACCEPT_ENCODING).into_iter();
    let mut codings =
        lists.filter_map(|value| value.to_str().ok()).flat_map(|list| list.split(','));
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight != Some(0.0)
    })
}

//! The connection of a request, as ureq's transport, and ureq's settings.
//!
//! ureq's own transport is not used, because it stops at the first failed write: a server that
//! refuses a large body early closes before it has read everything, and its reply contains the
//! reason. Also, TLS is configured as for PostgreSQL connections, and one deadline applies to all
//! calls.
//!
//! ureq's transport interface may change with any minor version, so `Cargo.toml` pins the minor
//! version.

use std::{
    fmt, io,
    io::{Read, Write},
    sync::Arc,
    time::Instant,
};

use howdah_connect::deadline::DeadlineStream;
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use ureq::{
    Agent, Error,
    unversioned::{
        resolver::DefaultResolver,
        transport::{
            Buffers, ConnectionDetails, Connector, Either, LazyBuffers, NextTimeout, Transport,
        },
    },
};

/// Size in bytes of the input and the output buffer. A reply's head must fit into the input buffer.
const BUFFER_BYTES: usize = 64 << 10;

/// Returns an agent that does nothing but send a request and return the reply.
pub(super) fn agent(user_agent: &'static str, connector: impl Connector) -> Agent {
    let config = Agent::config_builder()
        .user_agent(user_agent)
        .accept("")
        .accept_encoding("")
        // By default, ureq uses the proxy that the environment variables name.
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .max_idle_connections(0)
        .build();
    Agent::with_parts(config, connector, DefaultResolver::default())
}

/// The TLS parameters that authenticate an endpoint's server.
#[derive(Debug)]
pub(super) struct TlsParameters {
    pub(super) config: Arc<ClientConfig>,
    pub(super) server_name: ServerName<'static>,
}

/// Connects to the first address of an endpoint's host that accepts the connection.
#[derive(Debug)]
pub(super) struct EndpointConnector {
    pub(super) tls: Option<TlsParameters>,
}

type TlsStream = StreamOwned<ClientConnection, DeadlineStream>;

impl Connector for EndpointConnector {
    type Out = Either<StreamTransport<DeadlineStream>, StreamTransport<TlsStream>>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _chained: Option<()>,
    ) -> Result<Option<Self::Out>, Error> {
        // Requests have a global timeout only, so this is the deadline of the whole request.
        let deadline = Instant::now().checked_add(*details.timeout.after);
        let deadline = deadline.ok_or(Error::ConnectionFailed)?;
        let stream = DeadlineStream::connect(details.addrs.iter().copied(), deadline)
            .map_err(connection_error)?;
        Ok(Some(match &self.tls {
            None => Either::A(StreamTransport::new(stream, false)),
            Some(TlsParameters { config, server_name }) => {
                let tls = ClientConnection::new(Arc::clone(config), server_name.clone())
                    .map_err(|error| connection_error(io::Error::other(error)))?;
                Either::B(StreamTransport::new(StreamOwned::new(tls, stream), true))
            }
        }))
    }
}

/// Wraps an error so that ureq does not interpret it: its own errors have other meanings.
fn connection_error(error: io::Error) -> Error {
    Error::Other(Box::new(error))
}

/// A connection that reads the reply even if the request cannot be written completely.
pub(super) struct StreamTransport<S> {
    stream: S,
    is_tls: bool,
    buffers: LazyBuffers,
    /// A failed write, which is reported unless a reply arrives.
    write_error: Option<io::Error>,
    has_reply: bool,
}

impl<S> StreamTransport<S> {
    fn new(stream: S, is_tls: bool) -> Self {
        let buffers = LazyBuffers::new(BUFFER_BYTES, BUFFER_BYTES);
        Self { stream, is_tls, buffers, write_error: None, has_reply: false }
    }
}

impl<S> fmt::Debug for StreamTransport<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamTransport").field("is_tls", &self.is_tls).finish_non_exhaustive()
    }
}

impl<S: Read + Write + Send + Sync + 'static> Transport for StreamTransport<S> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, _timeout: NextTimeout) -> Result<(), Error> {
        // After an error, the rest of the request is discarded.
        if self.write_error.is_none() {
            let output = &self.buffers.output()[..amount];
            let written = self.stream.write_all(output).and_then(|()| self.stream.flush());
            self.write_error = written.err();
        }
        Ok(())
    }

    fn await_input(&mut self, _timeout: NextTimeout) -> Result<bool, Error> {
        let read = match self.stream.read(self.buffers.input_append_buf()) {
            // Many servers close TLS connections without close_notify.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        };
        if !self.has_reply
            && !matches!(read, Ok(1..))
            && let Some(error) = self.write_error.take()
        {
            return Err(connection_error(error));
        }
        let bytes = read.map_err(connection_error)?;
        self.has_reply |= bytes > 0;
        self.buffers.input_appended(bytes);
        Ok(bytes > 0)
    }

    fn is_open(&mut self) -> bool {
        // Connections are never reused.
        false
    }

    fn is_tls(&self) -> bool {
        self.is_tls
    }
}

/// Replies to any request with the same bytes.
#[derive(Debug)]
pub(super) struct ReplyConnector(pub(super) Arc<[u8]>);

impl Connector for ReplyConnector {
    type Out = StreamTransport<ReplyStream>;

    fn connect(
        &self,
        _details: &ConnectionDetails<'_>,
        _chained: Option<()>,
    ) -> Result<Option<Self::Out>, Error> {
        let reply = io::Cursor::new(Arc::clone(&self.0));
        Ok(Some(StreamTransport::new(ReplyStream(reply), false)))
    }
}

/// Discards the request and returns a reply.
pub(super) struct ReplyStream(io::Cursor<Arc<[u8]>>);

impl Read for ReplyStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for ReplyStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

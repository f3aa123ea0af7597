//! [`Client`]: a blocking connection for programs that run a few statements, one at a time.
//!
//! The results of a call are held in memory (up to [`RESULT_BYTES_MAX`]): this is simple, not fast.
//! Replay and pool use the event loop of the net crate instead.

mod cancel;
mod connect;
mod error;
mod login;
mod request;
mod result;
mod socket;
mod versions;

use std::{
    fmt,
    io::{Read, Write},
    time::{Duration, Instant},
};

use howdah_session as session;
use howdah_wire::ValueFormat;

pub use cancel::{CancelError, CancelHandle};
pub use error::{AttemptFailure, ConnectError, ConnectFailure, QueryError, SqlError};
pub use result::{ResultRow, ResultSet};

use crate::{ConnectTarget, Endpoint};
use request::{CopyInSource, CopyOutSink, ResultCollector};
use socket::Socket;

/// Maximum total size of the rows that a call returns, in bytes as received.
pub const RESULT_BYTES_MAX: usize = 256 << 20;

/// A blocking connection to a PostgreSQL server.
///
/// ```no_run
/// use howdah_connect::{Client, Environment, ConnectTarget, ConnParams};
///
/// let words = ConnParams::from_conninfo("postgresql://anna@db1/shop?sslmode=verify-full");
/// let target = ConnectTarget::resolve(&words, &Environment::from_process())?;
/// let mut client = Client::connect(&target)?;
/// for row in &client.query("select id, name from customer")?[0].rows {
///     println!("{:?} {:?}", row.text(0), row.text(1));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Text is UTF-8 in both directions, unless the database encoding is `SQL_ASCII`: then the server
/// does not convert text. Notices are logged with `tracing`. Dropping the client sends Terminate to
/// the server.
///
/// After a [`QueryError::Sql`] the connection usually remains usable. After an error for which
/// [`QueryError::is_fatal`] returns true, every further call fails.
pub struct Client {
    session: session::ClientSession,
    socket: Socket,
    endpoint: Endpoint,
    timeout: Option<Duration>,
    cancel: Option<CancelHandle>,
    closed: bool,
}

impl Client {
    /// Connects to the first endpoint of `target` that is reachable and has the requested kind of
    /// session, with TLS as configured.
    ///
    /// Endpoints that cannot be reached, disconnect, are starting up or shutting down, or have
    /// another kind of session are skipped; one that refuses the login, or with which TLS cannot be
    /// established, ends the search, much as in libpq. Each attempt (an address and an encryption
    /// method) has [`ConnectTarget::connect_timeout`] to complete the login; resolving a host name,
    /// or connecting to a unix socket, may take longer.
    ///
    /// # Errors
    ///
    /// The TLS settings cannot be applied, the system provides no random numbers, or the search
    /// ended without a connection. In the last case, the error contains the failure of each
    /// attempt.
    pub fn connect(target: &ConnectTarget) -> Result<Self, ConnectError> {
        connect::connect(target)
    }

    /// Runs one or more statements by the simple protocol, and returns one result for each.
    ///
    /// # Errors
    ///
    /// A statement failed, in which case those before it may have taken effect; `sql` contains a
    /// zero byte; or the connection failed, timed out, or returned more than [`RESULT_BYTES_MAX`].
    /// `COPY` from or to the client is an error: see [`Client::copy_out`] and [`Client::copy_in`].
    pub fn query(&mut self, sql: &str) -> Result<Vec<ResultSet>, QueryError> {
        let mut rows = ResultCollector::default();
        self.run(&mut rows, |session| session.query(sql.as_bytes()).map(drop))?;
        Ok(rows.results)
    }

    /// Runs one statement with values for `$1`, `$2`, … by the extended protocol. The server infers
    /// their types; `None` is NULL.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::query`].
    pub fn query_with(
        &mut self,
        sql: &str,
        values: &[Option<&str>],
    ) -> Result<ResultSet, QueryError> {
        self.query_with_in(ValueFormat::Text, sql, values)
    }

    /// Runs one statement like [`Client::query_with`], and returns the columns of its result in
    /// `format`.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::query`].
    pub fn query_with_in(
        &mut self,
        format: ValueFormat,
        sql: &str,
        values: &[Option<&str>],
    ) -> Result<ResultSet, QueryError> {
        let mut rows = ResultCollector::default();
        self.run(&mut rows, |session| {
            session.parse(b"", sql.as_bytes(), &[])?;
            let values = values.iter().map(|value| value.map(str::as_bytes));
            session.bind_with_formats(b"", b"", &[], values, &[format])?;
            session.describe_portal(b"")?;
            session.execute(b"", 0)?;
            session.sync();
            Ok(())
        })?;
        Ok(rows.results.pop().unwrap_or_default())
    }

    /// Prepares `sql` under `name`, for [`Client::query_prepared`].
    ///
    /// # Errors
    ///
    /// The errors of [`Client::query`].
    pub fn prepare(&mut self, name: &str, sql: &str) -> Result<(), QueryError> {
        self.run(&mut ResultCollector::default(), |session| {
            session.parse(name.as_bytes(), sql.as_bytes(), &[])?;
            session.sync();
            Ok(())
        })
    }

    /// Runs the statement prepared under `name` with values for `$1`, `$2`, …; `None` is NULL. The
    /// result has no column names.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::query`].
    pub fn query_prepared(
        &mut self,
        name: &str,
        values: &[Option<&str>],
    ) -> Result<ResultSet, QueryError> {
        self.query_prepared_in(ValueFormat::Text, name, values)
    }

    /// Runs a statement like [`Client::query_prepared`], and returns the columns of its result in
    /// `format`.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::query`].
    pub fn query_prepared_in(
        &mut self,
        format: ValueFormat,
        name: &str,
        values: &[Option<&str>],
    ) -> Result<ResultSet, QueryError> {
        let mut rows = ResultCollector::default();
        self.run(&mut rows, |session| {
            let values = values.iter().map(|value| value.map(str::as_bytes));
            session.bind_with_formats(b"", name.as_bytes(), &[], values, &[format])?;
            session.execute(b"", 0)?;
            session.sync();
            Ok(())
        })?;
        Ok(rows.results.pop().unwrap_or_default())
    }

    /// Runs `sql` and returns the first cell of the first row of the first result that has rows;
    /// `None` without such a cell, or if it is NULL.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::query`].
    pub fn one_value(&mut self, sql: &str) -> Result<Option<String>, QueryError> {
        let results = self.query(sql)?;
        let row = results.iter().find_map(|result| result.rows.first());
        Ok(row.and_then(|row| row.text(0)).map(std::borrow::Cow::into_owned))
    }

    /// Runs a `COPY … TO STDOUT`, writes its data to `writer` as it arrives, and returns the number
    /// of rows.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::query`], or `sql` is another statement, which was executed. If
    /// `writer` fails, the connection cannot be used any more, because the remaining data could be
    /// long.
    pub fn copy_out(&mut self, sql: &str, writer: &mut dyn Write) -> Result<u64, QueryError> {
        let mut copy = CopyOutSink::new(writer);
        self.run(&mut copy, |session| session.query(sql.as_bytes()).map(drop))?;
        copy.finish()
    }

    /// Runs a `COPY … FROM STDIN` with the data of `reader`, sent in pieces as it is read, and
    /// returns the number of rows. Pieces need not end at row boundaries.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::query`], or `sql` is another statement, which was executed. If
    /// `reader` fails, the `COPY` is ended without effect and the connection remains usable.
    pub fn copy_in(&mut self, sql: &str, reader: &mut dyn Read) -> Result<u64, QueryError> {
        let mut copy = CopyInSource::new(reader);
        self.run(&mut copy, |session| session.query(sql.as_bytes()).map(drop))?;
        copy.finish()
    }

    /// Sets how long each call that runs a statement may take from now on; `None` means no limit.
    /// A call that takes longer fails, and the connection cannot be used any more. The server may
    /// continue its work: see [`Client::cancel_handle`].
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Returns a handle that cancels a statement of this connection from another thread, if the
    /// server sent a cancel key.
    pub fn cancel_handle(&self) -> Option<CancelHandle> {
        self.cancel.clone()
    }

    /// Returns a session parameter as reported by the server: `server_version`, `TimeZone`,
    /// `in_hot_standby`, …
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.session.parameter(name)
    }

    /// Returns the server's version as one number, `170002` for 17.2; `None` if the server reported
    /// none, or one that cannot be parsed. Poolers may report any version.
    pub fn server_version_num(&self) -> Option<u32> {
        versions::number(self.parameter("server_version")?)
    }

    /// Returns the connected endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether the connection is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.socket.is_encrypted()
    }

    /// Returns the process id of the session's backend, if the server sent it.
    pub fn process_id(&self) -> Option<i32> {
        self.session.cancel_key().map(session::CancelKey::process_id)
    }

    /// Sends Terminate and closes the connection, as dropping the client does.
    pub fn close(self) {}

    /// Sends Terminate and waits up to `timeout` until the server has closed the connection and
    /// thereby freed the connection slot. After [`Client::close`], the server frees the slot some
    /// time later.
    pub fn close_and_wait(mut self, timeout: Duration) {
        if self.closed {
            return;
        }
        self.closed = true;
        self.session.terminate();
        self.socket.set_deadline(Some(Instant::now() + timeout));
        let is_sent = self.socket.send(self.session.transmit()).is_ok();
        // Notices may precede the end.
        while is_sent && self.socket.receive(&mut [0; 1024]).is_ok_and(|bytes| bytes > 0) {}
        self.socket.close();
    }

    fn deadline(&self) -> Option<Instant> {
        self.timeout.map(|timeout| Instant::now() + timeout)
    }
}

/// Omits data that was sent or received.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("endpoint", &self.endpoint)
            .field("process_id", &self.process_id())
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        self.session.terminate();
        // Terminate is a courtesy to a server that may be gone, so do not wait long for it.
        self.socket.set_deadline(Some(Instant::now() + Duration::from_secs(1)));
        let _ = self.socket.send(self.session.transmit());
        self.socket.close();
    }
}

//! Runs one request and collects the results.

use std::io::{self, Read, Write};

use howdah_session::{self as session, SessionEvent};
use howdah_wire::backend::{ServerError, Severity};

use super::{Client, QueryError, RESULT_BYTES_MAX, ResultRow, ResultSet};

/// Receives the results of a request.
pub(super) trait ResultSink {
    /// Whether the sink accepts COPY data from the server.
    const ACCEPTS_COPY: bool;

    /// Reads the next piece of COPY data for the server into `buffer`, and returns its length; 0 at
    /// the end. `None` if the sink has no such data.
    fn read_copy_data(&mut self, _buffer: &mut [u8]) -> Option<io::Result<usize>> {
        None
    }

    /// Handles one event. The caller handles some itself, such as errors, notices and the end of
    /// the reply.
    ///
    /// # Errors
    ///
    /// The connection must be closed.
    fn handle_event(&mut self, event: SessionEvent<'_>) -> Result<(), QueryError>;
}

impl Client {
    /// Sends a request and passes its results to `sink`.
    pub(super) fn run<S: ResultSink>(
        &mut self,
        sink: &mut S,
        request: impl FnOnce(&mut session::ClientSession) -> Result<(), session::EncodeError>,
    ) -> Result<(), QueryError> {
        if self.closed {
            return Err(QueryError::Closed);
        }
        self.socket.set_deadline(self.deadline());
        let requested = request(&mut self.session);
        if requested.is_err() {
            // The part of a batch that is already queued must be ended with a Sync.
            if self.session.outstanding().next().is_none() {
                return Ok(requested?);
            }
            self.session.sync();
        }
        let result = self.exchange(sink);
        self.session.discard_rows(false);
        self.closed = result.as_ref().is_err_and(QueryError::is_fatal);
        requested?;
        result
    }

    /// Sends and receives until the request is answered.
    fn exchange<S: ResultSink>(&mut self, sink: &mut S) -> Result<(), QueryError> {
        let mut error = None;
        let mut buffer = [0; 16 << 10];
        loop {
            self.send()?;
            while let Some(event) = self.session.poll_event()? {
                match event {
                    SessionEvent::Ready(_) => {
                        // Each Sync has its own ReadyForQuery; the request ends with the last of
                        // them. An error is returned only then, so that the connection is ready
                        // for the next request.
                        if self.session.pending_ready_count() == 0 {
                            return error.map_or(Ok(()), Err);
                        }
                    }
                    SessionEvent::Error(reported) => {
                        let ends = reported.severity().is_some_and(Severity::closes_connection);
                        let sql = QueryError::Sql(Box::new((&reported).into()));
                        // FATAL and PANIC: the server closes the connection without ReadyForQuery.
                        if ends {
                            return Err(sql);
                        }
                        error.get_or_insert(sql);
                    }
                    SessionEvent::Notice(notice) => log_notice(&notice),
                    SessionEvent::CopyIn => match self.send_copy(sink)? {
                        Ok(()) => {}
                        Err(cause) => {
                            error.get_or_insert(cause);
                        }
                    },
                    // Only replication commands start COPY BOTH; this client does not support them.
                    SessionEvent::CopyBoth => {
                        error.get_or_insert(QueryError::Replication);
                        self.refuse_copy()?;
                    }
                    // The protocol cannot decline COPY TO STDOUT, so its data is read and
                    // discarded.
                    SessionEvent::CopyOut if !S::ACCEPTS_COPY => {
                        error.get_or_insert(QueryError::CopyOutput);
                        self.session.discard_rows(true);
                    }
                    other => sink.handle_event(other)?,
                }
            }
            // The events above may have queued messages: send them before waiting for the server.
            if self.session.transmit().is_empty() {
                self.receive(&mut buffer)?;
            }
        }
    }

    /// Sends the client's COPY data in pieces, so that little of it is buffered. The inner error is
    /// set if there was no data or reading it failed: then a CopyFail is in the output, and the
    /// server's reply is still expected.
    ///
    /// A server that has failed in the meantime reads to the end of the data and discards it
    /// (`CopyData` in `PostgresMain`), so sending never blocks on a reply.
    fn send_copy<S: ResultSink>(
        &mut self,
        sink: &mut S,
    ) -> Result<Result<(), QueryError>, QueryError> {
        let mut piece = vec![0; COPY_PIECE_BYTES];
        loop {
            match sink.read_copy_data(&mut piece) {
                Some(Ok(0)) => {
                    self.session.copy_done();
                    return Ok(Ok(()));
                }
                Some(Ok(bytes)) => {
                    self.session.copy_data(&piece[..bytes])?;
                    self.send()?;
                }
                Some(Err(error)) => {
                    self.refuse_copy()?;
                    return Ok(Err(QueryError::Reader(error)));
                }
                None => {
                    self.refuse_copy()?;
                    return Ok(Err(QueryError::NoCopyData));
                }
            }
        }
    }

    fn refuse_copy(&mut self) -> Result<(), QueryError> {
        self.session.copy_fail(b"this program has no data for it")?;
        // In a batch the server has skipped the Sync that was sent already.
        if self.session.pending_ready_count() == 0 {
            self.session.sync();
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), QueryError> {
        let bytes = self.session.transmit();
        match self.socket.send(bytes) {
            // A server that closed the connection has probably sent an error first.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(self.connection_error(error))
            }
            _ => {
                let bytes = bytes.len();
                self.session.transmitted(bytes);
                Ok(())
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), QueryError> {
        match self.socket.receive(buffer) {
            Ok(0) => Err(QueryError::Lost(io::ErrorKind::UnexpectedEof.into())),
            Ok(bytes) => {
                self.session.handle_input(&buffer[..bytes]);
                Ok(())
            }
            Err(error) => Err(self.connection_error(error)),
        }
    }

    fn connection_error(&self, error: io::Error) -> QueryError {
        match (error.kind(), self.timeout) {
            (io::ErrorKind::TimedOut, Some(after)) => QueryError::TimedOut { after },
            _ => QueryError::Lost(error),
        }
    }
}

/// Maximum length of a piece of COPY data, in bytes.
const COPY_PIECE_BYTES: usize = 64 << 10;

/// Collects results in memory.
#[derive(Default)]
pub(super) struct ResultCollector {
    pub(super) results: Vec<ResultSet>,
    current: ResultSet,
    bytes: usize,
}

impl ResultSink for ResultCollector {
    const ACCEPTS_COPY: bool = false;

    fn handle_event(&mut self, event: SessionEvent<'_>) -> Result<(), QueryError> {
        match event {
            SessionEvent::RowDescription(fields) => {
                let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
                self.current.columns = fields.map(|field| name(field.name)).collect();
            }
            SessionEvent::Row(row) => {
                self.bytes += row.body_bytes() as usize;
                if self.bytes > RESULT_BYTES_MAX {
                    return Err(QueryError::TooLarge { bytes_max: RESULT_BYTES_MAX });
                }
                let cells = row.cells().into_iter().flatten();
                self.current.rows.push(ResultRow(cells.map(|cell| cell.map(Into::into)).collect()));
            }
            SessionEvent::CommandComplete(tag) => {
                self.current.tag = String::from_utf8_lossy(tag.as_bytes()).into_owned();
                self.results.push(std::mem::take(&mut self.current));
            }
            SessionEvent::EmptyQuery => self.results.push(std::mem::take(&mut self.current)),
            _ => {}
        }
        Ok(())
    }
}

/// Writes COPY data to a writer.
pub(super) struct CopyOutSink<'w> {
    writer: &'w mut dyn Write,
    has_started: bool,
    rows: u64,
}

impl<'w> CopyOutSink<'w> {
    pub(super) fn new(writer: &'w mut dyn Write) -> Self {
        Self { writer, has_started: false, rows: 0 }
    }

    /// Returns the number of rows copied.
    pub(super) fn finish(self) -> Result<u64, QueryError> {
        if self.has_started { Ok(self.rows) } else { Err(QueryError::NotCopy) }
    }
}

impl ResultSink for CopyOutSink<'_> {
    const ACCEPTS_COPY: bool = true;

    fn handle_event(&mut self, event: SessionEvent<'_>) -> Result<(), QueryError> {
        match event {
            SessionEvent::CopyOut => self.has_started = true,
            SessionEvent::CopyData(data) => {
                let data = data.data().unwrap_or_default();
                self.writer.write_all(data).map_err(QueryError::Writer)?;
            }
            SessionEvent::CommandComplete(tag) => self.rows += tag.rows().unwrap_or(0),
            _ => {}
        }
        Ok(())
    }
}

/// Reads COPY data from a reader.
pub(super) struct CopyInSource<'r> {
    reader: &'r mut dyn Read,
    has_started: bool,
    rows: u64,
}

impl<'r> CopyInSource<'r> {
    pub(super) fn new(reader: &'r mut dyn Read) -> Self {
        Self { reader, has_started: false, rows: 0 }
    }

    /// Returns the number of rows copied.
    pub(super) fn finish(self) -> Result<u64, QueryError> {
        if self.has_started { Ok(self.rows) } else { Err(QueryError::NotCopyIn) }
    }
}

impl ResultSink for CopyInSource<'_> {
    const ACCEPTS_COPY: bool = false;

    fn read_copy_data(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        self.has_started = true;
        loop {
            match self.reader.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return Some(other),
            }
        }
    }

    fn handle_event(&mut self, event: SessionEvent<'_>) -> Result<(), QueryError> {
        if let SessionEvent::CommandComplete(tag) = event {
            self.rows += tag.rows().unwrap_or(0);
        }
        Ok(())
    }
}

/// Logs a notice from the server.
pub(super) fn log_notice(notice: &ServerError<'_>) {
    let message = String::from_utf8_lossy(notice.message());
    let sqlstate = String::from_utf8_lossy(notice.sqlstate());
    match notice.severity() {
        Some(Severity::Warning) => tracing::warn!(%sqlstate, "{message}"),
        Some(Severity::Notice | Severity::Info) => tracing::info!(%sqlstate, "{message}"),
        _ => tracing::debug!(%sqlstate, "{message}"),
    }
}

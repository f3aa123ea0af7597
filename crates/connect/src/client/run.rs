//! Runs one request and gathers what comes back.

use std::io::{self, Read, Write};

use howdah_session::{self as session, Event};
use howdah_wire::backend::{ServerError, Severity};

use super::{Client, QueryError, RESULT_BYTES_MAX, ResultSet, Row};

/// Takes what comes back.
pub(super) trait Sink {
    /// Whether it has a place for COPY data.
    const TAKES_COPY: bool;

    /// The next piece of the data of a COPY from us, into `buffer`: its length, 0 at the end. `None`
    /// from a sink that has no such data.
    fn give(&mut self, _buffer: &mut [u8]) -> Option<io::Result<usize>> {
        None
    }

    /// Takes one event. Errors, notices and the end of the answer are seen to already.
    ///
    /// # Errors
    ///
    /// The connection has to be closed.
    fn take(&mut self, event: Event<'_>) -> Result<(), QueryError>;
}

impl Client {
    /// Makes a request and hands what comes back to `sink`.
    pub(super) fn run<S: Sink>(
        &mut self,
        sink: &mut S,
        request: impl FnOnce(&mut session::Client) -> Result<(), session::EncodeError>,
    ) -> Result<(), QueryError> {
        if self.closed {
            return Err(QueryError::Closed);
        }
        self.socket.set_deadline(self.deadline());
        let requested = request(&mut self.session);
        if requested.is_err() {
            // A batch of which a part is queued has to be ended.
            if self.session.owed().next().is_none() {
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
    fn exchange<S: Sink>(&mut self, sink: &mut S) -> Result<(), QueryError> {
        let mut error = None;
        let mut buffer = [0; 16 << 10];
        loop {
            self.send()?;
            while let Some(event) = self.session.poll_event()? {
                match event {
                    Event::Ready(_) => {
                        if self.session.ready_owed() == 0 {
                            return error.map_or(Ok(()), Err);
                        }
                    }
                    Event::Error(reported) => {
                        let ends = reported.severity().is_some_and(Severity::ends_session);
                        let sql = QueryError::Sql(Box::new((&reported).into()));
                        if ends {
                            return Err(sql);
                        }
                        error.get_or_insert(sql);
                    }
                    Event::Notice(notice) => log_notice(&notice),
                    Event::CopyIn => match self.send_copy(sink)? {
                        Ok(()) => {}
                        Err(cause) => {
                            error.get_or_insert(cause);
                        }
                    },
                    Event::CopyBoth => {
                        error.get_or_insert(QueryError::Copy);
                        self.refuse_copy()?;
                    }
                    Event::CopyOut if !S::TAKES_COPY => {
                        error.get_or_insert(QueryError::Copy);
                        self.session.discard_rows(true);
                    }
                    other => sink.take(other)?,
                }
            }
            if self.session.transmit().is_empty() {
                self.receive(&mut buffer)?;
            }
        }
    }

    /// Sends the data of a COPY from us, a piece at a time so that little of it is held. The inner
    /// error says why there was none, or no more: the COPY was refused then, and the server's answer
    /// to that is to follow.
    ///
    /// A server that has failed meanwhile reads on to the end of the data and throws it away
    /// (`CopyData` in `PostgresMain`), so that sending never waits for an answer.
    fn send_copy<S: Sink>(&mut self, sink: &mut S) -> Result<Result<(), QueryError>, QueryError> {
        let mut piece = vec![0; COPY_PIECE_BYTES];
        loop {
            match sink.give(&mut piece) {
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
                    return Ok(Err(QueryError::Copy));
                }
            }
        }
    }

    fn refuse_copy(&mut self) -> Result<(), QueryError> {
        self.session.copy_fail(b"this program has no data for it")?;
        // In a batch the server has skipped the Sync that was sent already.
        if self.session.ready_owed() == 0 {
            self.session.sync();
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), QueryError> {
        let bytes = self.session.transmit();
        match self.socket.send(bytes) {
            // A server that has hung up has probably said why.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(self.lost(error)),
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
            Err(error) => Err(self.lost(error)),
        }
    }

    fn lost(&self, error: io::Error) -> QueryError {
        match (error.kind(), self.timeout) {
            (io::ErrorKind::TimedOut, Some(after)) => QueryError::TimedOut { after },
            _ => QueryError::Lost(error),
        }
    }
}

/// Bytes of one piece of COPY data.
const COPY_PIECE_BYTES: usize = 64 << 10;

/// Gathers results in memory.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) results: Vec<ResultSet>,
    current: ResultSet,
    bytes: usize,
}

impl Sink for Rows {
    const TAKES_COPY: bool = false;

    fn take(&mut self, event: Event<'_>) -> Result<(), QueryError> {
        match event {
            Event::RowDescription(fields) => {
                let name = |bytes| String::from_utf8_lossy(bytes).into_owned();
                self.current.columns = fields.map(|field| name(field.name)).collect();
            }
            Event::Row(row) => {
                self.bytes += row.body_bytes() as usize;
                if self.bytes > RESULT_BYTES_MAX {
                    return Err(QueryError::TooLarge { bytes_max: RESULT_BYTES_MAX });
                }
                let cells = row.cells().into_iter().flatten();
                self.current.rows.push(Row(cells.map(|cell| cell.map(Into::into)).collect()));
            }
            Event::CommandComplete(tag) => {
                self.current.tag = String::from_utf8_lossy(tag.as_bytes()).into_owned();
                self.results.push(std::mem::take(&mut self.current));
            }
            Event::EmptyQuery => self.results.push(std::mem::take(&mut self.current)),
            _ => {}
        }
        Ok(())
    }
}

/// Passes COPY data on.
pub(super) struct Copy<'w> {
    writer: &'w mut dyn Write,
    begun: bool,
    rows: u64,
}

impl<'w> Copy<'w> {
    pub(super) fn new(writer: &'w mut dyn Write) -> Self {
        Self { writer, begun: false, rows: 0 }
    }

    /// The number of rows copied.
    pub(super) fn finish(self) -> Result<u64, QueryError> {
        if self.begun { Ok(self.rows) } else { Err(QueryError::NotCopy) }
    }
}

impl Sink for Copy<'_> {
    const TAKES_COPY: bool = true;

    fn take(&mut self, event: Event<'_>) -> Result<(), QueryError> {
        match event {
            Event::CopyOut => self.begun = true,
            Event::CopyData(data) => {
                let data = data.data().unwrap_or_default();
                self.writer.write_all(data).map_err(QueryError::Writer)?;
            }
            Event::CommandComplete(tag) => self.rows += tag.rows().unwrap_or(0),
            _ => {}
        }
        Ok(())
    }
}

/// Gives COPY data.
pub(super) struct CopyIn<'r> {
    reader: &'r mut dyn Read,
    begun: bool,
    rows: u64,
}

impl<'r> CopyIn<'r> {
    pub(super) fn new(reader: &'r mut dyn Read) -> Self {
        Self { reader, begun: false, rows: 0 }
    }

    /// The number of rows copied.
    pub(super) fn finish(self) -> Result<u64, QueryError> {
        if self.begun { Ok(self.rows) } else { Err(QueryError::NotCopyIn) }
    }
}

impl Sink for CopyIn<'_> {
    const TAKES_COPY: bool = false;

    fn give(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        self.begun = true;
        loop {
            match self.reader.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return Some(other),
            }
        }
    }

    fn take(&mut self, event: Event<'_>) -> Result<(), QueryError> {
        if let Event::CommandComplete(tag) = event {
            self.rows += tag.rows().unwrap_or(0);
        }
        Ok(())
    }
}

/// Logs what the server remarks.
pub(super) fn log_notice(notice: &ServerError<'_>) {
    let message = String::from_utf8_lossy(notice.message());
    let sqlstate = String::from_utf8_lossy(notice.sqlstate());
    match notice.severity() {
        Some(Severity::Warning) => tracing::warn!(%sqlstate, "{message}"),
        Some(Severity::Notice | Severity::Info) => tracing::info!(%sqlstate, "{message}"),
        _ => tracing::debug!(%sqlstate, "{message}"),
    }
}

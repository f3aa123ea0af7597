//! The requests of a client.

use howdah_wire::{
    EncodeError, ValueFormat,
    frontend::{DescribeTarget, encode},
};

use super::{ClientSession, Request, RequestId};

/// Requests to the server. Each is appended to [`ClientSession::transmit`], or deferred until the
/// login is complete; on a closed connection it is dropped.
///
/// An empty name refers to the unnamed statement or portal. A request that cannot be encoded,
/// because of a zero byte in a text or a limit of the protocol, is an [`EncodeError`] and has no
/// effect.
impl ClientSession {
    /// Runs one or more statements with the simple query protocol.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn query(&mut self, sql: &[u8]) -> Result<RequestId, EncodeError> {
        self.request(Request::Query, |buf| encode::query(buf, sql))
    }

    /// Prepares `sql` as `statement`. `types` holds the OIDs of its first parameters, 0 for those
    /// whose type the server should infer.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn parse(
        &mut self,
        statement: &[u8],
        sql: &[u8],
        types: &[u32],
    ) -> Result<RequestId, EncodeError> {
        self.request(Request::Parse, |buf| encode::parse(buf, statement, sql, types))
    }

    /// Binds `values` in text format to `statement` and creates `portal`, whose result will be in
    /// text format.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn bind<'v>(
        &mut self,
        portal: &[u8],
        statement: &[u8],
        values: impl IntoIterator<Item = Option<&'v [u8]>>,
    ) -> Result<RequestId, EncodeError> {
        self.bind_with_formats(portal, statement, &[], values, &[])
    }

    /// Binds `values` to `statement` and creates `portal`. An empty list of formats means text for
    /// all; a single format applies to all; otherwise there is one format per value, or per column
    /// of the result.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn bind_with_formats<'v>(
        &mut self,
        portal: &[u8],
        statement: &[u8],
        formats: &[ValueFormat],
        values: impl IntoIterator<Item = Option<&'v [u8]>>,
        result_formats: &[ValueFormat],
    ) -> Result<RequestId, EncodeError> {
        self.request(Request::Bind, |buf| {
            encode::bind(buf, portal, statement, formats, values, result_formats)
        })
    }

    /// Describes a prepared statement.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn describe_statement(&mut self, statement: &[u8]) -> Result<RequestId, EncodeError> {
        let target = DescribeTarget::Statement(statement);
        self.request(Request::DescribeStatement, |buf| encode::describe(buf, target))
    }

    /// Describes a portal.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn describe_portal(&mut self, portal: &[u8]) -> Result<RequestId, EncodeError> {
        let target = DescribeTarget::Portal(portal);
        self.request(Request::DescribePortal, |buf| encode::describe(buf, target))
    }

    /// Executes a portal, returning at most `max_rows` rows; 0 means no limit.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn execute(&mut self, portal: &[u8], max_rows: u32) -> Result<RequestId, EncodeError> {
        self.request(Request::Execute, |buf| encode::execute(buf, portal, max_rows))
    }

    /// Closes a prepared statement. Closing one that does not exist is not an error.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn close_statement(&mut self, statement: &[u8]) -> Result<RequestId, EncodeError> {
        self.request(Request::Close, |buf| encode::close(buf, DescribeTarget::Statement(statement)))
    }

    /// Closes a portal. Closing one that does not exist is not an error.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn close_portal(&mut self, portal: &[u8]) -> Result<RequestId, EncodeError> {
        self.request(Request::Close, |buf| encode::close(buf, DescribeTarget::Portal(portal)))
    }

    /// Calls the function with OID `function`; arguments and result are text.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn call_function<'v>(
        &mut self,
        function: u32,
        arguments: impl IntoIterator<Item = Option<&'v [u8]>>,
    ) -> Result<RequestId, EncodeError> {
        self.request(Request::FunctionCall, |buf| {
            encode::function_call(buf, function, &[], arguments, ValueFormat::Text)
        })
    }

    /// Calls a function like [`ClientSession::call_function`], with formats for the arguments, by
    /// the rule of [`howdah_wire::Formats`], and for the result.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn call_function_with_formats<'v>(
        &mut self,
        function: u32,
        formats: &[ValueFormat],
        arguments: impl IntoIterator<Item = Option<&'v [u8]>>,
        result_format: ValueFormat,
    ) -> Result<RequestId, EncodeError> {
        self.request(Request::FunctionCall, |buf| {
            encode::function_call(buf, function, formats, arguments, result_format)
        })
    }

    /// Asks the server to send pending output, without ending the batch.
    pub fn flush(&mut self) {
        if let Some(buf) = self.protocol.request_buffer() {
            encode::flush(buf);
        }
    }

    /// Ends a batch.
    ///
    /// Between [`crate::SessionEvent::CopyIn`] and the end of the COPY data a server ignores Syncs;
    /// in that state none is sent, and the returned request is never answered.
    pub fn sync(&mut self) -> RequestId {
        let ignored = self.protocol.pipeline.ignores_sync();
        match self.protocol.request_buffer().filter(|_| !ignored) {
            Some(buf) => {
                encode::sync(buf);
                self.protocol.pipeline.sent(Request::Sync)
            }
            None => self.protocol.pipeline.unsent(),
        }
    }

    /// Sends a piece of COPY data. Pieces need not end at row boundaries.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn copy_data(&mut self, data: &[u8]) -> Result<(), EncodeError> {
        self.protocol.request_buffer().map_or(Ok(()), |buf| encode::copy_data(buf, data))
    }

    /// Ends the COPY data.
    pub fn copy_done(&mut self) {
        if let Some(buf) = self.protocol.request_buffer() {
            encode::copy_done(buf);
            self.protocol.pipeline.sent(Request::CopyEnd);
        }
    }

    /// Makes the COPY fail; the server's error message quotes `reason`.
    ///
    /// # Errors
    ///
    /// See [`EncodeError`].
    pub fn copy_fail(&mut self, reason: &[u8]) -> Result<(), EncodeError> {
        self.request(Request::CopyEnd, |buf| encode::copy_fail(buf, reason)).map(drop)
    }

    /// Sends Terminate. The server then closes the connection, and [`ClientSession::handle_eof`]
    /// reports no error.
    pub fn terminate(&mut self) {
        if let Some(buf) = self.protocol.request_buffer() {
            encode::terminate(buf);
        }
        self.protocol.terminated = true;
    }

    fn request(
        &mut self,
        request: Request,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<RequestId, EncodeError> {
        match self.protocol.request_buffer() {
            Some(buf) => {
                write(buf)?;
                Ok(self.protocol.pipeline.sent(request))
            }
            None => Ok(self.protocol.pipeline.unsent()),
        }
    }
}

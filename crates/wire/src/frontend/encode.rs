//! Appends a frontend's messages to a buffer.
//!
//! A function that fails leaves the buffer unchanged. An empty name is the unnamed statement or
//! portal. A string that contains a zero byte is an [`EncodeError::Nul`]; a value may contain any
//! bytes. A message of 2 GiB or more is an [`EncodeError::TooLong`].

use super::DescribeTarget;
use crate::{
    Frontend, ValueFormat,
    writer::{self, BodyWriter, EncodeError},
};

/// Appends Query, which runs the text of one or more statements.
///
/// # Errors
///
/// The text contains a zero byte, or the message would have 2 GiB or more.
pub fn query(buf: &mut Vec<u8>, sql: &[u8]) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Query.tag(), |body| body.string("query", sql))
}

/// Appends Parse, which prepares `sql` as `statement`. `types` contains the OIDs of its first
/// parameters, 0 for those whose type the server should infer.
///
/// # Errors
///
/// A string contains a zero byte, there are over 65,535 types, or the message would have 2 GiB or
/// more.
pub fn parse(
    buf: &mut Vec<u8>,
    statement: &[u8],
    sql: &[u8],
    types: &[u32],
) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Parse.tag(), |body| {
        body.string("statement name", statement)?;
        body.string("query", sql)?;
        body.list("parameter types", types, |body, oid| {
            body.u32(*oid);
            Ok(())
        })
    })
}

/// Appends Bind, which binds `values` to `statement` and creates `portal`.
///
/// Formats follow the rule of [`crate::Formats`]: no format means text for all values, one format
/// applies to all, and otherwise each value has its own. The server checks whether their number
/// matches.
///
/// # Errors
///
/// A name contains a zero byte, a list has over 65,535 elements, or a value or the message would
/// have 2 GiB or more.
pub fn bind<'v>(
    buf: &mut Vec<u8>,
    portal: &[u8],
    statement: &[u8],
    formats: &[ValueFormat],
    values: impl IntoIterator<Item = Option<&'v [u8]>>,
    result_formats: &[ValueFormat],
) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Bind.tag(), |body| {
        body.string("portal name", portal)?;
        body.string("statement name", statement)?;
        format_codes(body, formats)?;
        body.list("values", values, BodyWriter::value)?;
        format_codes(body, result_formats)
    })
}

/// Appends Describe, for a prepared statement or portal.
///
/// # Errors
///
/// The name contains a zero byte.
pub fn describe(buf: &mut Vec<u8>, target: DescribeTarget<'_>) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Describe.tag(), |body| write_target(body, target))
}

/// Appends Close, for a prepared statement or portal. Closing one that does not exist is not an
/// error.
///
/// # Errors
///
/// The name contains a zero byte.
pub fn close(buf: &mut Vec<u8>, target: DescribeTarget<'_>) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Close.tag(), |body| write_target(body, target))
}

/// Appends Execute, which runs a portal and returns at most `max_rows` rows; 0 means no limit. The
/// protocol's maximum is 2³¹ - 1; higher limits are reduced to that.
///
/// # Errors
///
/// The name contains a zero byte.
pub fn execute(buf: &mut Vec<u8>, portal: &[u8], max_rows: u32) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Execute.tag(), |body| {
        body.string("portal name", portal)?;
        body.i32(i32::try_from(max_rows).unwrap_or(i32::MAX));
        Ok(())
    })
}

/// Appends Flush: asks the server to send pending output, without ending the batch.
pub fn flush(buf: &mut Vec<u8>) {
    writer::empty(buf, Frontend::Flush.tag());
}

/// Appends Sync, which ends a batch. The server ends the implicit transaction, if one is open, and
/// sends ReadyForQuery.
pub fn sync(buf: &mut Vec<u8>) {
    writer::empty(buf, Frontend::Sync.tag());
}

/// Appends CopyData with a piece of COPY data. Pieces need not end at row boundaries.
///
/// # Errors
///
/// The message would have 2 GiB or more.
pub fn copy_data(buf: &mut Vec<u8>, data: &[u8]) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::CopyData.tag(), |body| {
        body.bytes(data);
        Ok(())
    })
}

/// Appends CopyDone, which ends the COPY data.
pub fn copy_done(buf: &mut Vec<u8>) {
    writer::empty(buf, Frontend::CopyDone.tag());
}

/// Appends CopyFail, which makes the COPY fail; the server's error message quotes `reason`.
///
/// # Errors
///
/// The reason contains a zero byte.
pub fn copy_fail(buf: &mut Vec<u8>, reason: &[u8]) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::CopyFail.tag(), |body| body.string("reason", reason))
}

/// Appends FunctionCall, which calls the function with OID `function`. Formats follow the rule of
/// [`crate::Formats`].
///
/// # Errors
///
/// There are over 65,535 arguments or formats, or an argument or the message would have 2 GiB or
/// more.
pub fn function_call<'v>(
    buf: &mut Vec<u8>,
    function: u32,
    formats: &[ValueFormat],
    arguments: impl IntoIterator<Item = Option<&'v [u8]>>,
    result_format: ValueFormat,
) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::FunctionCall.tag(), |body| {
        body.u32(function);
        format_codes(body, formats)?;
        body.list("arguments", arguments, BodyWriter::value)?;
        body.u16(result_format.code());
        Ok(())
    })
}

/// Appends Terminate, which ends the session.
pub fn terminate(buf: &mut Vec<u8>) {
    writer::empty(buf, Frontend::Terminate.tag());
}

/// Appends the reply to a password request: the password, or [`crate::auth::md5`] of it.
///
/// # Errors
///
/// The password contains a zero byte.
pub fn password(buf: &mut Vec<u8>, password: &[u8]) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Authentication.tag(), |body| body.string("password", password))
}

/// Appends SASLInitialResponse, which chooses a SASL mechanism, with its initial data if it has
/// any.
///
/// # Errors
///
/// The name contains a zero byte.
pub fn sasl_initial_response(
    buf: &mut Vec<u8>,
    mechanism: &[u8],
    data: Option<&[u8]>,
) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Authentication.tag(), |body| {
        body.string("mechanism", mechanism)?;
        body.value(data)
    })
}

/// Appends SASLResponse with a later message of a SASL mechanism.
///
/// # Errors
///
/// The message has 2 GiB or more.
pub fn sasl_response(buf: &mut Vec<u8>, data: &[u8]) -> Result<(), EncodeError> {
    writer::message(buf, Frontend::Authentication.tag(), |body| {
        body.bytes(data);
        Ok(())
    })
}

fn format_codes(body: &mut BodyWriter<'_>, formats: &[ValueFormat]) -> Result<(), EncodeError> {
    body.list("format codes", formats, |body, format| {
        body.u16(format.code());
        Ok(())
    })
}

fn write_target(body: &mut BodyWriter<'_>, target: DescribeTarget<'_>) -> Result<(), EncodeError> {
    match target {
        DescribeTarget::Statement(name) => {
            body.u8(b'S');
            body.string("statement name", name)
        }
        DescribeTarget::Portal(name) => {
            body.u8(b'P');
            body.string("portal name", name)
        }
    }
}

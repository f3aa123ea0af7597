//! Appends a backend's messages to a buffer.
//!
//! A function that fails leaves the buffer unchanged. A string that contains a zero byte is an
//! [`EncodeError::Nul`]; a value may contain any bytes. A message of 2 GiB or more is an
//! [`EncodeError::TooLong`].

use super::{ErrorField, FieldDescription, Notification, Severity, TransactionStatus};
use crate::{
    Backend, ValueFormat,
    startup::{CancelKey, ProtocolVersion},
    writer::{self, BodyWriter, EncodeError},
};

/// A message without a body, such as ParseComplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// Reply to Bind.
    BindComplete,
    /// Reply to Close.
    CloseComplete,
    /// The COPY data is complete.
    CopyDone,
    /// The query string contained no statement.
    EmptyQueryResponse,
    /// The described statement or portal returns no rows.
    NoData,
    /// Reply to Parse.
    ParseComplete,
    /// Execute reached its row limit.
    PortalSuspended,
}

impl Bare {
    /// Returns the kind of the message.
    pub const fn kind(self) -> Backend {
        match self {
            Self::BindComplete => Backend::BindComplete,
            Self::CloseComplete => Backend::CloseComplete,
            Self::CopyDone => Backend::CopyDone,
            Self::EmptyQueryResponse => Backend::EmptyQueryResponse,
            Self::NoData => Backend::NoData,
            Self::ParseComplete => Backend::ParseComplete,
            Self::PortalSuspended => Backend::PortalSuspended,
        }
    }
}

/// Appends a message without a body.
pub fn bare(buf: &mut Vec<u8>, message: Bare) {
    writer::empty(buf, message.kind().tag());
}

/// An authentication request, or AuthenticationOk, for [`authentication`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuthenticationRequest<'a> {
    /// The login is accepted.
    Ok,
    /// Requests the password in clear text.
    CleartextPassword,
    /// Requests an md5 of password, user and salt.
    Md5Password {
        /// Random bytes, which must be different for each login.
        salt: [u8; 4],
    },
    /// Requests SASL with one of these mechanisms, the preferred one first.
    Sasl(&'a [&'a [u8]]),
    /// Sends a further message of the mechanism.
    SaslContinue(&'a [u8]),
    /// Sends the last message of the mechanism.
    SaslFinal(&'a [u8]),
}

/// Appends an authentication request.
///
/// # Errors
///
/// The name of a mechanism contains a zero byte.
pub fn authentication(
    buf: &mut Vec<u8>,
    request: AuthenticationRequest<'_>,
) -> Result<(), EncodeError> {
    writer::message(buf, Backend::Authentication.tag(), |body| {
        match request {
            AuthenticationRequest::Ok => body.u32(0),
            AuthenticationRequest::CleartextPassword => body.u32(3),
            AuthenticationRequest::Md5Password { salt } => {
                body.u32(5);
                body.bytes(&salt);
            }
            AuthenticationRequest::Sasl(mechanisms) => {
                body.u32(10);
                for name in mechanisms {
                    body.string("mechanism", name)?;
                }
                body.u8(0);
            }
            AuthenticationRequest::SaslContinue(data) => {
                body.u32(11);
                body.bytes(data);
            }
            AuthenticationRequest::SaslFinal(data) => {
                body.u32(12);
                body.bytes(data);
            }
        }
        Ok(())
    })
}

/// Appends BackendKeyData with the cancel key. A secret of any length other than four bytes
/// requires protocol 3.2.
pub fn backend_key_data(buf: &mut Vec<u8>, key: &CancelKey) {
    let body_bytes = u32::try_from(key.secret().len()).expect("a secret has at most 256 bytes") + 8;
    buf.push(Backend::BackendKeyData.tag().0);
    buf.extend_from_slice(&body_bytes.to_be_bytes());
    buf.extend_from_slice(&key.process_id().to_be_bytes());
    buf.extend_from_slice(key.secret());
}

/// Appends CommandComplete with the command tag.
///
/// # Errors
///
/// The tag contains a zero byte.
pub fn command_complete(buf: &mut Vec<u8>, tag: &[u8]) -> Result<(), EncodeError> {
    writer::message(buf, Backend::CommandComplete.tag(), |body| body.string("command tag", tag))
}

/// Appends CopyData with a piece of COPY data.
///
/// # Errors
///
/// The message would have 2 GiB or more.
pub fn copy_data(buf: &mut Vec<u8>, data: &[u8]) -> Result<(), EncodeError> {
    writer::message(buf, Backend::CopyData.tag(), |body| {
        body.bytes(data);
        Ok(())
    })
}

/// The direction of a COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStart {
    /// The frontend sends data.
    In,
    /// The backend sends data.
    Out,
    /// Both sides may send data.
    Both,
}

/// Appends CopyInResponse, CopyOutResponse or CopyBothResponse, which starts a COPY.
///
/// # Errors
///
/// There are over 65,535 columns.
pub fn copy_response(
    buf: &mut Vec<u8>,
    start: CopyStart,
    format: ValueFormat,
    columns: &[ValueFormat],
) -> Result<(), EncodeError> {
    let kind = match start {
        CopyStart::In => Backend::CopyInResponse,
        CopyStart::Out => Backend::CopyOutResponse,
        CopyStart::Both => Backend::CopyBothResponse,
    };
    writer::message(buf, kind.tag(), |body| {
        body.u8(u8::from(format == ValueFormat::Binary));
        body.list("columns", columns, |body, format| {
            body.u16(format.code());
            Ok(())
        })
    })
}

/// Appends DataRow with one row.
///
/// # Errors
///
/// There are over 65,535 cells, or a cell or the message would have 2 GiB or more.
pub fn data_row<'v>(
    buf: &mut Vec<u8>,
    cells: impl IntoIterator<Item = Option<&'v [u8]>>,
) -> Result<(), EncodeError> {
    writer::message(buf, Backend::DataRow.tag(), |body| {
        body.list("cells", cells, BodyWriter::value)
    })
}

/// Returns the four fields that PostgreSQL sends with every error or notice: the localized and the
/// English severity (here the same text), the SQLSTATE and the message. Pass them, with any other
/// fields after them, to [`error_response`] or [`notice_response`].
pub fn essentials<'v>(
    severity: Severity,
    sqlstate: &'v [u8],
    message: &'v [u8],
) -> [(u8, &'v [u8]); 4] {
    let severity = severity.as_str().as_bytes();
    [
        (ErrorField::LocalizedSeverity.code(), severity),
        (ErrorField::Severity.code(), severity),
        (ErrorField::Sqlstate.code(), sqlstate),
        (ErrorField::Message.code(), message),
    ]
}

/// Appends ErrorResponse with [`essentials`] and any other fields, as code bytes and texts.
///
/// # Errors
///
/// A text contains a zero byte, or a code byte is zero.
pub fn error_response<'v>(
    buf: &mut Vec<u8>,
    fields: impl IntoIterator<Item = (u8, &'v [u8])>,
) -> Result<(), EncodeError> {
    report(buf, Backend::ErrorResponse, fields)
}

/// Appends NoticeResponse, with fields as in [`error_response`].
///
/// # Errors
///
/// A text contains a zero byte, or a code byte is zero.
pub fn notice_response<'v>(
    buf: &mut Vec<u8>,
    fields: impl IntoIterator<Item = (u8, &'v [u8])>,
) -> Result<(), EncodeError> {
    report(buf, Backend::NoticeResponse, fields)
}

/// Appends FunctionCallResponse with the value of a function call; `None` is SQL NULL.
///
/// # Errors
///
/// The message would have 2 GiB or more.
pub fn function_call_response(buf: &mut Vec<u8>, value: Option<&[u8]>) -> Result<(), EncodeError> {
    writer::message(buf, Backend::FunctionCallResponse.tag(), |body| body.value(value))
}

/// Appends NegotiateProtocolVersion with the supported version and the unsupported options. Send it
/// once, before any authentication request.
///
/// # Errors
///
/// The name of an option contains a zero byte.
pub fn negotiate_protocol_version(
    buf: &mut Vec<u8>,
    newest: ProtocolVersion,
    unknown_options: &[&[u8]],
) -> Result<(), EncodeError> {
    writer::message(buf, Backend::NegotiateProtocolVersion.tag(), |body| {
        let count = unknown_options.len();
        body.u32(newest.code());
        body.u32(
            u32::try_from(count).map_err(|_| EncodeError::TooMany { field: "options", count })?,
        );
        unknown_options.iter().try_for_each(|name| body.string("option", name))
    })
}

/// Appends NotificationResponse, which forwards a NOTIFY.
///
/// # Errors
///
/// A text contains a zero byte.
pub fn notification_response(
    buf: &mut Vec<u8>,
    notification: Notification<'_>,
) -> Result<(), EncodeError> {
    writer::message(buf, Backend::NotificationResponse.tag(), |body| {
        body.i32(notification.process_id);
        body.string("channel", notification.channel)?;
        body.string("payload", notification.payload)
    })
}

/// Appends ParameterDescription with the parameter types of a statement.
///
/// # Errors
///
/// There are over 65,535 types.
pub fn parameter_description(buf: &mut Vec<u8>, types: &[u32]) -> Result<(), EncodeError> {
    writer::message(buf, Backend::ParameterDescription.tag(), |body| {
        body.list("parameter types", types, |body, oid| {
            body.u32(*oid);
            Ok(())
        })
    })
}

/// Appends ParameterStatus with the value of a session parameter.
///
/// # Errors
///
/// A text contains a zero byte.
pub fn parameter_status(buf: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Result<(), EncodeError> {
    writer::message(buf, Backend::ParameterStatus.tag(), |body| {
        body.string("name", name)?;
        body.string("value", value)
    })
}

/// Appends ReadyForQuery: the server is ready for the next query.
pub fn ready_for_query(buf: &mut Vec<u8>, status: TransactionStatus) {
    buf.extend_from_slice(&[Backend::ReadyForQuery.tag().0, 0, 0, 0, 5, status.byte()]);
}

/// Appends RowDescription with the columns of a result.
///
/// # Errors
///
/// A name contains a zero byte, or there are over 65,535 columns.
pub fn row_description<'v>(
    buf: &mut Vec<u8>,
    fields: impl IntoIterator<Item = FieldDescription<'v>>,
) -> Result<(), EncodeError> {
    writer::message(buf, Backend::RowDescription.tag(), |body| {
        body.list("columns", fields, |body, field| {
            body.string("column name", field.name)?;
            body.u32(field.table);
            body.i16(field.column);
            body.u32(field.type_oid);
            body.i16(field.type_bytes);
            body.i32(field.type_modifier);
            body.u16(field.format.code());
            Ok(())
        })
    })
}

fn report<'v>(
    buf: &mut Vec<u8>,
    kind: Backend,
    fields: impl IntoIterator<Item = (u8, &'v [u8])>,
) -> Result<(), EncodeError> {
    writer::message(buf, kind.tag(), |body| {
        for (code, text) in fields {
            if code == 0 {
                return Err(EncodeError::Nul { field: "field code" });
            }
            body.u8(code);
            body.string("field", text)?;
        }
        body.u8(0);
        Ok(())
    })
}

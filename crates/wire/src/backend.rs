//! Messages of a backend: [`BackendMessage`] decodes them, [`encode`] encodes them.

pub mod encode;

mod authentication;
mod command_tag;
mod row_description;
mod server_error;

pub use authentication::{Authentication, Mechanisms};
pub use command_tag::CommandTag;
pub use row_description::{FieldDescription, RowDescription};
pub use server_error::{ErrorField, ServerError, Severity};

use crate::{
    Backend, Cells, Formats, Frame, Oids, ValueFormat,
    reader::{BodyReader, DecodeError},
    startup::{CancelKey, ProtocolVersion},
};

/// A message from a backend, borrowing from the frame it came in.
///
/// Texts are bytes in the encoding given by `client_encoding`, or in the server's encoding until
/// `client_encoding` takes effect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum BackendMessage<'a> {
    /// An authentication request, or AuthenticationOk.
    Authentication(Authentication<'a>),
    /// The key for a CancelRequest to this session.
    BackendKeyData(CancelKey),
    /// Reply to Bind.
    BindComplete,
    /// Reply to Close.
    CloseComplete,
    /// A statement succeeded.
    CommandComplete(CommandTag<'a>),
    /// A piece of COPY data.
    CopyData(&'a [u8]),
    /// The COPY data is complete.
    CopyDone,
    /// The server waits for COPY data.
    CopyInResponse(CopyFormat<'a>),
    /// COPY data follows.
    CopyOutResponse(CopyFormat<'a>),
    /// Both sides may send COPY data.
    CopyBothResponse(CopyFormat<'a>),
    /// One row of a result.
    DataRow(Cells<'a>),
    /// The query string contained no statement.
    EmptyQueryResponse,
    /// A statement or the session failed.
    ErrorResponse(ServerError<'a>),
    /// The value of a function call; `None` is SQL NULL.
    FunctionCallResponse(Option<&'a [u8]>),
    /// The newest protocol version that the server supports, and the options that it does not.
    NegotiateProtocolVersion(NegotiateProtocolVersion<'a>),
    /// The described statement or portal returns no rows.
    NoData,
    /// A warning or other notice.
    NoticeResponse(ServerError<'a>),
    /// A notification that a session sent with NOTIFY.
    NotificationResponse(Notification<'a>),
    /// Types of the parameters of the described statement.
    ParameterDescription(Oids<'a>),
    /// A session parameter's value.
    ParameterStatus {
        /// Name of the parameter.
        name: &'a [u8],
        /// New value of the parameter.
        value: &'a [u8],
    },
    /// Reply to Parse.
    ParseComplete,
    /// Execute reached its row limit.
    PortalSuspended,
    /// The server waits for the next query.
    ReadyForQuery(TransactionStatus),
    /// Descriptions of the columns of a result.
    RowDescription(RowDescription<'a>),
}

impl<'a> BackendMessage<'a> {
    /// Reads the fields of a frame.
    ///
    /// # Errors
    ///
    /// The tag is unknown, or the body does not have the layout of its kind: the server is at
    /// fault.
    pub fn parse(frame: Frame<'a>) -> Result<Self, DecodeError> {
        let Frame { tag, body } = frame;
        let kind = Backend::from_tag(tag).ok_or(DecodeError::UnknownTag { tag })?;
        let mut reader = BodyReader::new(kind.name(), body);
        let message = Self::read(kind, &mut reader)?;
        reader.finish(message)
    }

    fn read(kind: Backend, reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        Ok(match kind {
            Backend::Authentication => Self::Authentication(Authentication::read(reader)?),
            Backend::BackendKeyData => Self::BackendKeyData(CancelKey::read(reader)?),
            Backend::BindComplete => Self::BindComplete,
            Backend::CloseComplete => Self::CloseComplete,
            Backend::CommandComplete => Self::CommandComplete(CommandTag::read(reader)?),
            Backend::CopyData => Self::CopyData(reader.remainder()),
            Backend::CopyDone => Self::CopyDone,
            Backend::CopyInResponse => Self::CopyInResponse(CopyFormat::read(reader)?),
            Backend::CopyOutResponse => Self::CopyOutResponse(CopyFormat::read(reader)?),
            Backend::CopyBothResponse => Self::CopyBothResponse(CopyFormat::read(reader)?),
            Backend::DataRow => Self::DataRow(Cells::read(reader)?),
            Backend::EmptyQueryResponse => Self::EmptyQueryResponse,
            Backend::ErrorResponse => Self::ErrorResponse(ServerError::read(reader)?),
            Backend::FunctionCallResponse => Self::FunctionCallResponse(reader.value("value")?),
            Backend::NegotiateProtocolVersion => {
                Self::NegotiateProtocolVersion(NegotiateProtocolVersion::read(reader)?)
            }
            Backend::NoData => Self::NoData,
            Backend::NoticeResponse => Self::NoticeResponse(ServerError::read(reader)?),
            Backend::NotificationResponse => Self::NotificationResponse(Notification {
                process_id: reader.i32("process id")?,
                channel: reader.string("channel")?,
                payload: reader.string("payload")?,
            }),
            Backend::ParameterDescription => Self::ParameterDescription(Oids::read(reader)?),
            Backend::ParameterStatus => Self::ParameterStatus {
                name: reader.string("name")?,
                value: reader.string("value")?,
            },
            Backend::ParseComplete => Self::ParseComplete,
            Backend::PortalSuspended => Self::PortalSuspended,
            Backend::ReadyForQuery => Self::ReadyForQuery(TransactionStatus::read(reader)?),
            Backend::RowDescription => Self::RowDescription(RowDescription::read(reader)?),
        })
    }

    /// Returns the kind, without the fields.
    pub fn kind(&self) -> Backend {
        match self {
            Self::Authentication(_) => Backend::Authentication,
            Self::BackendKeyData(_) => Backend::BackendKeyData,
            Self::BindComplete => Backend::BindComplete,
            Self::CloseComplete => Backend::CloseComplete,
            Self::CommandComplete(_) => Backend::CommandComplete,
            Self::CopyData(_) => Backend::CopyData,
            Self::CopyDone => Backend::CopyDone,
            Self::CopyInResponse(_) => Backend::CopyInResponse,
            Self::CopyOutResponse(_) => Backend::CopyOutResponse,
            Self::CopyBothResponse(_) => Backend::CopyBothResponse,
            Self::DataRow(_) => Backend::DataRow,
            Self::EmptyQueryResponse => Backend::EmptyQueryResponse,
            Self::ErrorResponse(_) => Backend::ErrorResponse,
            Self::FunctionCallResponse(_) => Backend::FunctionCallResponse,
            Self::NegotiateProtocolVersion(_) => Backend::NegotiateProtocolVersion,
            Self::NoData => Backend::NoData,
            Self::NoticeResponse(_) => Backend::NoticeResponse,
            Self::NotificationResponse(_) => Backend::NotificationResponse,
            Self::ParameterDescription(_) => Backend::ParameterDescription,
            Self::ParameterStatus { .. } => Backend::ParameterStatus,
            Self::ParseComplete => Backend::ParseComplete,
            Self::PortalSuspended => Backend::PortalSuspended,
            Self::ReadyForQuery(_) => Backend::ReadyForQuery,
            Self::RowDescription(_) => Backend::RowDescription,
        }
    }
}

/// The transaction status of a session, as in ReadyForQuery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionStatus {
    /// `I`: not in a transaction.
    Idle,
    /// `T`: in a transaction.
    InTransaction,
    /// `E`: in a failed transaction, which accepts only statements that end it or roll back to a
    /// savepoint.
    Failed,
}

impl TransactionStatus {
    /// Returns the byte on the wire.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }

    /// Returns the status for a byte, if it is valid.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::InTransaction),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }

    fn read(reader: &mut BodyReader<'_>) -> Result<Self, DecodeError> {
        let byte = reader.u8("transaction status")?;
        Self::from_byte(byte).ok_or(reader.bad_value("transaction status", byte))
    }
}

/// Formats of the COPY data that follows.
#[derive(Clone, Debug)]
pub struct CopyFormat<'a> {
    /// Format of the COPY as a whole.
    pub format: ValueFormat,
    /// Format of each column; all are the same as `format` in practice.
    pub columns: Formats<'a>,
}

impl<'a> CopyFormat<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let format = match reader.u8("format")? {
            0 => ValueFormat::Text,
            1 => ValueFormat::Binary,
            other => return Err(reader.bad_value("format", other)),
        };
        Ok(Self { format, columns: Formats::read(reader)? })
    }
}

/// Fields of a NotificationResponse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification<'a> {
    /// Process id of the session that executed NOTIFY.
    pub process_id: i32,
    /// Name of the channel.
    pub channel: &'a [u8],
    /// The payload; may be empty.
    pub payload: &'a [u8],
}

/// Fields of a NegotiateProtocolVersion.
#[derive(Clone, Debug)]
pub struct NegotiateProtocolVersion<'a> {
    /// The newest minor version that the server supports within the requested major version.
    pub newest: ProtocolVersion,
    /// The requested `_pq_.` options that the server does not support.
    pub unknown_options: ProtocolOptions<'a>,
}

/// Names of protocol options.
#[derive(Clone)]
pub struct ProtocolOptions<'a> {
    rest: BodyReader<'a>,
}

impl<'a> NegotiateProtocolVersion<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let newest = ProtocolVersion::from_code(reader.u32("version")?);
        let count = reader.u32("number of options")?;
        let unknown_options = ProtocolOptions { rest: reader.clone() };
        for _ in 0..count {
            reader.string("option")?;
        }
        Ok(Self { newest, unknown_options })
    }
}

impl<'a> Iterator for ProtocolOptions<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.rest.string("option").ok()
    }
}

crate::lists::debug_as_list!(ProtocolOptions);

#[cfg(test)]
pub(crate) mod tests;

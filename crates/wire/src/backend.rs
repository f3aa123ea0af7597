//! Messages that a backend sends: [`Message`] reads them, [`encode`] writes them.

pub mod encode;

mod authentication;
mod command_tag;
mod row_description;
mod server_error;

pub use authentication::{Authentication, Mechanisms};
pub use command_tag::CommandTag;
pub use row_description::{Field, RowDescription};
pub use server_error::{ErrorField, ServerError, Severity};

use crate::{
    Backend, Cells, Format, Formats, Frame, Oids,
    read::{DecodeError, Reader},
    startup::{CancelKey, ProtocolVersion},
};

/// A message from a backend, borrowing from the frame it came in.
///
/// Text is bytes in the encoding that `client_encoding` names, or the server's own before that is
/// settled.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Message<'a> {
    /// A step of authentication, or its success.
    Authentication(Authentication<'a>),
    /// What a CancelRequest for this session has to say.
    BackendKeyData(CancelKey),
    /// Reply to Bind.
    BindComplete,
    /// Reply to Close.
    CloseComplete,
    /// A statement ended well.
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
    /// One row.
    DataRow(Cells<'a>),
    /// The query string held nothing.
    EmptyQueryResponse,
    /// An error.
    ErrorResponse(ServerError<'a>),
    /// The value of a function call; `None` is SQL NULL.
    FunctionCallResponse(Option<&'a [u8]>),
    /// What the server speaks of what was asked for.
    NegotiateProtocolVersion(NegotiateProtocolVersion<'a>),
    /// The statement described returns no rows.
    NoData,
    /// A warning or remark.
    NoticeResponse(ServerError<'a>),
    /// NOTIFY of another session.
    NotificationResponse(Notification<'a>),
    /// Types of the parameters of the statement described.
    ParameterDescription(Oids<'a>),
    /// A setting's value.
    ParameterStatus {
        /// Name of the setting.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// Reply to Parse.
    ParseComplete,
    /// Execute reached its row limit.
    PortalSuspended,
    /// The server waits for the next query.
    ReadyForQuery(TransactionStatus),
    /// Columns of the rows to come.
    RowDescription(RowDescription<'a>),
}

impl<'a> Message<'a> {
    /// Reads the fields of a frame.
    ///
    /// # Errors
    ///
    /// No such message, or a body that does not have its layout: the server is at fault.
    pub fn parse(frame: Frame<'a>) -> Result<Self, DecodeError> {
        let Frame { tag, body } = frame;
        let kind = Backend::from_tag(tag).ok_or(DecodeError::UnknownTag { tag })?;
        let mut reader = Reader::new(kind.name(), body);
        let message = Self::read(kind, &mut reader)?;
        reader.end(message)
    }

    fn read(kind: Backend, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
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

    /// The kind, without the fields.
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

/// What a session is in, as ReadyForQuery says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransactionStatus {
    /// `I`: in no transaction.
    Idle,
    /// `T`: in a transaction.
    InTransaction,
    /// `E`: in a failed transaction, which takes nothing but its end.
    Failed,
}

impl TransactionStatus {
    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }

    /// The status a byte stands for, if any.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::InTransaction),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let byte = reader.u8("transaction status")?;
        Self::from_byte(byte).ok_or(reader.bad_value("transaction status", byte))
    }
}

/// Formats of the COPY data to come.
#[derive(Clone, Debug)]
pub struct CopyFormat<'a> {
    /// Of the whole.
    pub format: Format,
    /// Of each column.
    pub columns: Formats<'a>,
}

impl<'a> CopyFormat<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let format = match reader.u8("format")? {
            0 => Format::Text,
            1 => Format::Binary,
            other => return Err(reader.bad_value("format", other)),
        };
        Ok(Self { format, columns: Formats::read(reader)? })
    }
}

/// Fields of a NotificationResponse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification<'a> {
    /// Process id of the session that notified.
    pub process_id: i32,
    /// Name of the channel.
    pub channel: &'a [u8],
    /// What it said; may be empty.
    pub payload: &'a [u8],
}

/// Fields of a NegotiateProtocolVersion.
#[derive(Clone, Debug)]
pub struct NegotiateProtocolVersion<'a> {
    /// The newest version the server speaks within the major version asked for.
    pub newest: ProtocolVersion,
    /// The `_pq_.` options it does not know.
    pub unknown_options: Options<'a>,
}

/// Names of protocol options.
#[derive(Clone)]
pub struct Options<'a> {
    rest: Reader<'a>,
}

impl<'a> NegotiateProtocolVersion<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let newest = ProtocolVersion::from_code(reader.u32("version")?);
        let count = reader.u32("number of options")?;
        let unknown_options = Options { rest: reader.clone() };
        for _ in 0..count {
            reader.string("option")?;
        }
        Ok(Self { newest, unknown_options })
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.rest.string("option").ok()
    }
}

crate::lists::debug_as_list!(Options);

#[cfg(test)]
pub(crate) mod tests;

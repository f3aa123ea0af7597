//! Messages of a frontend: [`FrontendMessage`] decodes them, [`encode`] encodes them.

pub mod encode;

use crate::{
    Cells, Formats, Frame, Frontend, Oids, ValueFormat,
    reader::{BodyReader, DecodeError},
};

/// A message from a frontend, borrowing from the frame it came in.
///
/// Texts are bytes in the client's encoding, which the message does not specify.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FrontendMessage<'a> {
    /// Binds values to a prepared statement, which makes a portal.
    Bind(Bind<'a>),
    /// Closes a prepared statement or portal.
    Close(DescribeTarget<'a>),
    /// A piece of COPY data.
    CopyData(&'a [u8]),
    /// The COPY data is complete.
    CopyDone,
    /// Makes the COPY fail with this reason.
    CopyFail {
        /// Text for the server's error message.
        reason: &'a [u8],
    },
    /// Requests a description of a prepared statement or portal.
    Describe(DescribeTarget<'a>),
    /// Runs a portal.
    Execute {
        /// Name of the portal; empty for the unnamed one.
        portal: &'a [u8],
        /// Maximum number of rows; 0 for no limit.
        max_rows: u32,
    },
    /// Requests pending output.
    Flush,
    /// Calls a function by its OID (the fast-path interface).
    FunctionCall(FunctionCall<'a>),
    /// Prepares a statement.
    Parse(Parse<'a>),
    /// A response to an authentication request: see [`PasswordMessage`] and
    /// [`SaslInitialResponse`]. The body of a later SASL response is the data itself.
    Authentication(&'a [u8]),
    /// Runs statements with the simple query protocol.
    Query {
        /// Text of the statements.
        sql: &'a [u8],
    },
    /// Ends a batch of extended-protocol messages.
    Sync,
    /// Ends the session.
    Terminate,
}

impl<'a> FrontendMessage<'a> {
    /// Reads the fields of a frame.
    ///
    /// # Errors
    ///
    /// The tag is unknown, or the body does not have the layout of its kind: the client is at
    /// fault.
    pub fn parse(frame: Frame<'a>) -> Result<Self, DecodeError> {
        let Frame { tag, body } = frame;
        let kind = Frontend::from_tag(tag).ok_or(DecodeError::UnknownTag { tag })?;
        let mut reader = BodyReader::new(kind.name(), body);
        let message = match kind {
            Frontend::Bind => Self::Bind(Bind::read(&mut reader)?),
            Frontend::Close => Self::Close(DescribeTarget::read(&mut reader)?),
            Frontend::CopyData => Self::CopyData(reader.remainder()),
            Frontend::CopyDone => Self::CopyDone,
            Frontend::CopyFail => Self::CopyFail { reason: reader.string("reason")? },
            Frontend::Describe => Self::Describe(DescribeTarget::read(&mut reader)?),
            Frontend::Execute => Self::Execute {
                portal: reader.string("portal name")?,
                // The server treats a negative limit like 0, as no limit.
                max_rows: u32::try_from(reader.i32("row limit")?).unwrap_or(0),
            },
            Frontend::Flush => Self::Flush,
            Frontend::FunctionCall => Self::FunctionCall(FunctionCall::read(&mut reader)?),
            Frontend::Parse => Self::Parse(Parse::read(&mut reader)?),
            Frontend::Authentication => Self::Authentication(reader.remainder()),
            Frontend::Query => Self::Query { sql: reader.string("query")? },
            Frontend::Sync => Self::Sync,
            Frontend::Terminate => Self::Terminate,
        };
        reader.finish(message)
    }

    /// Returns the kind, without the fields.
    pub fn kind(&self) -> Frontend {
        match self {
            Self::Bind(_) => Frontend::Bind,
            Self::Close(_) => Frontend::Close,
            Self::CopyData(_) => Frontend::CopyData,
            Self::CopyDone => Frontend::CopyDone,
            Self::CopyFail { .. } => Frontend::CopyFail,
            Self::Describe(_) => Frontend::Describe,
            Self::Execute { .. } => Frontend::Execute,
            Self::Flush => Frontend::Flush,
            Self::FunctionCall(_) => Frontend::FunctionCall,
            Self::Parse(_) => Frontend::Parse,
            Self::Authentication(_) => Frontend::Authentication,
            Self::Query { .. } => Frontend::Query,
            Self::Sync => Frontend::Sync,
            Self::Terminate => Frontend::Terminate,
        }
    }
}

/// The target of a Describe or Close; an empty name is the unnamed one.
///
/// Layout: `S` or `P`, then the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescribeTarget<'a> {
    /// The prepared statement with this name.
    Statement(&'a [u8]),
    /// The portal with this name.
    Portal(&'a [u8]),
}

impl<'a> DescribeTarget<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        match reader.u8("target")? {
            b'S' => Ok(Self::Statement(reader.string("statement name")?)),
            b'P' => Ok(Self::Portal(reader.string("portal name")?)),
            other => Err(reader.bad_value("target", other)),
        }
    }
}

/// Fields of a Parse.
#[derive(Clone, Debug)]
pub struct Parse<'a> {
    /// Name for the prepared statement; empty for the unnamed one.
    pub statement: &'a [u8],
    /// Text of one statement.
    pub sql: &'a [u8],
    /// OIDs of the types of the first parameters; 0 where the server should infer the type.
    pub types: Oids<'a>,
}

impl<'a> Parse<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            statement: reader.string("statement name")?,
            sql: reader.string("query")?,
            types: Oids::read(reader)?,
        })
    }
}

/// Fields of a Bind.
#[derive(Clone, Debug)]
pub struct Bind<'a> {
    /// Name for the portal; empty for the unnamed one.
    pub portal: &'a [u8],
    /// Name of the prepared statement.
    pub statement: &'a [u8],
    /// Formats of `values`.
    pub formats: Formats<'a>,
    /// Values of the statement's parameters.
    pub values: Cells<'a>,
    /// Requested formats of the result columns.
    pub result_formats: Formats<'a>,
}

impl<'a> Bind<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            portal: reader.string("portal name")?,
            statement: reader.string("statement name")?,
            formats: Formats::read(reader)?,
            values: Cells::read(reader)?,
            result_formats: Formats::read(reader)?,
        })
    }
}

/// Fields of a FunctionCall.
#[derive(Clone, Debug)]
pub struct FunctionCall<'a> {
    /// OID of the function in `pg_proc`.
    pub function: u32,
    /// Formats of `arguments`.
    pub formats: Formats<'a>,
    /// Values of the function's arguments.
    pub arguments: Cells<'a>,
    /// Requested format of the result.
    pub result_format: ValueFormat,
}

impl<'a> FunctionCall<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            function: reader.u32("function")?,
            formats: Formats::read(reader)?,
            arguments: Cells::read(reader)?,
            result_format: ValueFormat::read(reader)?,
        })
    }
}

/// The body of a [`FrontendMessage::Authentication`] that answers a password request, in clear text
/// or as md5.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PasswordMessage<'a> {
    /// The password or its digest.
    pub password: &'a [u8],
}

impl std::fmt::Debug for PasswordMessage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PasswordMessage(…)")
    }
}

impl<'a> PasswordMessage<'a> {
    /// Reads the body.
    ///
    /// # Errors
    ///
    /// The body is not a single string.
    pub fn parse(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = BodyReader::new("PasswordMessage", body);
        let password = reader.string("password")?;
        reader.finish(Self { password })
    }
}

/// The body of a [`FrontendMessage::Authentication`] that answers an offer of SASL mechanisms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaslInitialResponse<'a> {
    /// Name of the chosen mechanism.
    pub mechanism: &'a [u8],
    /// The initial data of the mechanism, if any.
    pub data: Option<&'a [u8]>,
}

impl<'a> SaslInitialResponse<'a> {
    /// Reads the body.
    ///
    /// # Errors
    ///
    /// The body is not a string and a value.
    pub fn parse(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = BodyReader::new("SASLInitialResponse", body);
        let mechanism = reader.string("mechanism")?;
        let data = reader.value("response")?;
        reader.finish(Self { mechanism, data })
    }
}

#[cfg(test)]
pub(crate) mod tests;

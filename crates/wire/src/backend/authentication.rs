//! Authentication requests: one kind of message, in which a code determines the request.

use crate::reader::{BodyReader, DecodeError};

/// An authentication request of a server.
///
/// Layout: `code: u32`, then data that depends on the code.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Authentication<'a> {
    /// 0: the server has accepted the login.
    Ok,
    /// 2: Kerberos V5, which no supported server uses.
    KerberosV5,
    /// 3: the server requests the password in clear text.
    CleartextPassword,
    /// 5: the server requests an md5 of password, user and salt; see [`crate::auth::md5`].
    Md5Password {
        /// Random bytes, different for each login.
        salt: [u8; 4],
    },
    /// 6: credentials of a unix socket, which no supported server uses.
    ScmCredential,
    /// 7: the server requests GSSAPI authentication.
    Gss,
    /// 8: the server sends further GSSAPI or SSPI data.
    GssContinue(&'a [u8]),
    /// 9: the server, on Windows, requests SSPI authentication.
    Sspi,
    /// 10: the server requests SASL, and offers these mechanisms.
    Sasl(Mechanisms<'a>),
    /// 11: the server sends a further message of the mechanism.
    SaslContinue(&'a [u8]),
    /// 12: the server sends the last message of the mechanism; `Ok` follows.
    SaslFinal(&'a [u8]),
}

impl<'a> Authentication<'a> {
    pub(super) fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        Ok(match reader.i32("code")? {
            0 => Self::Ok,
            2 => Self::KerberosV5,
            3 => Self::CleartextPassword,
            5 => Self::Md5Password { salt: reader.array("salt")? },
            6 => Self::ScmCredential,
            7 => Self::Gss,
            8 => Self::GssContinue(reader.remainder()),
            9 => Self::Sspi,
            10 => Self::Sasl(Mechanisms::read(reader)?),
            11 => Self::SaslContinue(reader.remainder()),
            12 => Self::SaslFinal(reader.remainder()),
            other => return Err(reader.bad_value("code", other)),
        })
    }

    /// Returns the code on the wire.
    pub const fn code(&self) -> u32 {
        match self {
            Self::Ok => 0,
            Self::KerberosV5 => 2,
            Self::CleartextPassword => 3,
            Self::Md5Password { .. } => 5,
            Self::ScmCredential => 6,
            Self::Gss => 7,
            Self::GssContinue(_) => 8,
            Self::Sspi => 9,
            Self::Sasl(_) => 10,
            Self::SaslContinue(_) => 11,
            Self::SaslFinal(_) => 12,
        }
    }

    /// Returns a common name of the method: the keyword of `pg_hba.conf`, except for SASL and the
    /// methods that no supported server uses.
    pub const fn method(&self) -> &'static str {
        match self {
            Self::Ok => "trust",
            Self::KerberosV5 => "Kerberos V5",
            Self::CleartextPassword => "password",
            Self::Md5Password { .. } => "md5",
            Self::ScmCredential => "SCM credential",
            Self::Gss | Self::GssContinue(_) => "gss",
            Self::Sspi => "sspi",
            Self::Sasl(_) | Self::SaslContinue(_) | Self::SaslFinal(_) => "SASL",
        }
    }
}

/// Names of SASL mechanisms, the preferred one first.
///
/// Layout: strings, terminated by an empty one.
#[derive(Clone)]
pub struct Mechanisms<'a> {
    rest: BodyReader<'a>,
}

impl<'a> Mechanisms<'a> {
    fn read(reader: &mut BodyReader<'a>) -> Result<Self, DecodeError> {
        let mechanisms = Self { rest: reader.clone() };
        while !reader.string("mechanism")?.is_empty() {}
        Ok(mechanisms)
    }
}

impl<'a> Iterator for Mechanisms<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.rest.string("mechanism").ok().filter(|name| !name.is_empty())
    }
}

crate::lists::debug_as_list!(Mechanisms);

//! Authentication requests: one message kind, told apart by a code.

use crate::read::{DecodeError, Reader};

/// What a server asks of a client that logs in.
///
/// Layout: `code: u32`, then what the code prescribes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Authentication<'a> {
    /// 0: the client is who it says.
    Ok,
    /// 2: Kerberos V5, which no supported server asks for.
    KerberosV5,
    /// 3: the password as it is.
    CleartextPassword,
    /// 5: an md5 of password, user and salt; see [`crate::auth::md5`].
    Md5Password {
        /// Chosen anew for each login.
        salt: [u8; 4],
    },
    /// 6: credentials of a unix socket, which no supported server asks for.
    ScmCredential,
    /// 7: GSSAPI.
    Gss,
    /// 8: more GSSAPI or SSPI data.
    GssContinue(&'a [u8]),
    /// 9: SSPI.
    Sspi,
    /// 10: SASL, by one of these mechanisms.
    Sasl(Mechanisms<'a>),
    /// 11: the mechanism goes on.
    SaslContinue(&'a [u8]),
    /// 12: the mechanism is done; `Ok` follows.
    SaslFinal(&'a [u8]),
}

impl<'a> Authentication<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
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

    /// The code on the wire.
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

    /// What people call the method; the words of `pg_hba.conf` where it has one.
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
/// Layout: strings, and an empty one at the end.
#[derive(Clone)]
pub struct Mechanisms<'a> {
    rest: Reader<'a>,
}

impl<'a> Mechanisms<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
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

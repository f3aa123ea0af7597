//! The way in: from the startup packet to the first ReadyForQuery.

use howdah_wire::{
    Backend, EncodeError, Secret,
    auth::{
        self,
        scram::{
            ChannelBinding, ClientFinal, ClientFirst, ClientKeys, SCRAM_SHA_256, SCRAM_SHA_256_PLUS,
        },
    },
    backend::{Authentication, Mechanisms},
    frontend::encode,
    startup::{self, ProtocolVersion},
};

use crate::Error;

/// Who wants in, and how they prove it.
#[derive(Clone, Debug)]
pub struct Login {
    /// Name of the role.
    pub user: String,
    /// Name of the database.
    pub database: String,
    /// Its password, if it has one.
    pub password: Option<Secret>,
    /// More settings for the startup packet: `application_name`, `client_encoding`, `options`, …
    pub parameters: Vec<(String, String)>,
    /// Over TLS, the hash of the server's certificate that `tls-server-end-point` prescribes
    /// (RFC 5929). Makes SCRAM fail if somebody sits in between.
    pub channel_binding: Option<Vec<u8>>,
}

impl Login {
    /// Appends the startup packet. It asks for protocol 3.0, which every server and pooler speaks
    /// and which holds all that is needed here.
    pub(super) fn startup(&self, buf: &mut Vec<u8>) -> Result<(), EncodeError> {
        let own = [("user", &self.user), ("database", &self.database)];
        let more = self.parameters.iter().map(|(name, value)| (name.as_str(), value));
        let parameters =
            own.into_iter().chain(more).map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        startup::startup(buf, ProtocolVersion::V3_0, parameters)
    }
}

/// Where the login stands. Each step knows what may come next, so that a server can neither skip its
/// own proof nor ask twice.
#[derive(Debug)]
pub(super) enum Handshake {
    /// The startup packet is out.
    Asked { login: Login, nonce: [u8; 18], keys: ClientKeys },
    /// SCRAM has begun.
    Scram(ClientFirst),
    /// Our proof is out, the server's is to come.
    Proof(ClientFinal),
    /// Nothing is missing but the server's consent.
    Proven,
    /// We are in; the server reports its settings.
    Settling,
    /// A step failed. Nobody sees this, since the connection fails with it.
    Broken,
}

impl Handshake {
    pub(super) fn new(login: Login, nonce: [u8; 18]) -> Self {
        Self::Asked { login, nonce, keys: ClientKeys::default() }
    }

    /// Shares keys with other logins. Of no use once SCRAM has begun.
    pub(super) fn share_keys(&mut self, shared: ClientKeys) {
        if let Self::Asked { keys, .. } = self {
            *keys = shared;
        }
    }

    /// Takes an authentication request and appends the answer to `buf`.
    pub(super) fn answer(
        &mut self,
        request: Authentication<'_>,
        buf: &mut Vec<u8>,
    ) -> Result<(), Error> {
        *self = match (std::mem::replace(self, Self::Broken), request) {
            (Self::Asked { .. } | Self::Proven, Authentication::Ok) => Self::Settling,
            (Self::Scram(_) | Self::Proof(_), Authentication::Ok) => {
                return Err(Error::ServerUnproven);
            }
            (Self::Asked { login, nonce, keys }, request) => {
                begin(login, nonce, keys, &request, buf)?
            }
            (Self::Scram(scram), Authentication::SaslContinue(data)) => {
                let proof = scram.receive(data)?;
                encode::sasl_response(buf, proof.message())?;
                Self::Proof(proof)
            }
            (Self::Proof(proof), Authentication::SaslFinal(data)) => {
                proof.verify(data)?;
                Self::Proven
            }
            (state, _) => return Err(state.unexpected(Backend::Authentication)),
        };
        Ok(())
    }

    /// Checks that a message comes after the server has let us in.
    pub(super) fn expect_settling(&self, message: Backend) -> Result<(), Error> {
        match self {
            Self::Settling => Ok(()),
            state => Err(state.unexpected(message)),
        }
    }

    fn unexpected(&self, message: Backend) -> Error {
        let state = match self {
            Self::Asked { .. } => "waiting for an authentication request",
            Self::Scram(_) | Self::Proof(_) => "in the middle of SCRAM",
            Self::Proven => "waiting for the login to be accepted",
            Self::Settling | Self::Broken => "already authenticated",
        };
        Error::Unexpected { message, state }
    }
}

/// Answers the first request.
fn begin(
    login: Login,
    nonce: [u8; 18],
    keys: ClientKeys,
    request: &Authentication<'_>,
    buf: &mut Vec<u8>,
) -> Result<Handshake, Error> {
    let Login { user, password, channel_binding, .. } = login;
    let method = request.method();
    let password = || password.ok_or(Error::PasswordMissing { method });
    match request {
        Authentication::CleartextPassword => {
            encode::password(buf, password()?.expose())?;
            Ok(Handshake::Proven)
        }
        Authentication::Md5Password { salt } => {
            let digest = auth::md5(user.as_bytes(), password()?.expose(), *salt);
            encode::password(buf, &digest)?;
            Ok(Handshake::Proven)
        }
        Authentication::Sasl(mechanisms) => {
            let binding = choose(mechanisms, channel_binding)?;
            let scram = ClientFirst::new(password()?, binding, nonce).with_keys(keys);
            encode::sasl_initial_response(buf, scram.mechanism(), Some(&scram.message()))?;
            Ok(Handshake::Scram(scram))
        }
        Authentication::KerberosV5
        | Authentication::ScmCredential
        | Authentication::Gss
        | Authentication::Sspi => {
            Err(Error::UnsupportedAuthentication { method: method.to_owned() })
        }
        _ => Err(Error::Unexpected {
            message: Backend::Authentication,
            state: "waiting for an authentication request",
        }),
    }
}

/// The strongest mechanism that both sides can do.
fn choose(mechanisms: &Mechanisms<'_>, hash: Option<Vec<u8>>) -> Result<ChannelBinding, Error> {
    let offers = |wanted: &[u8]| mechanisms.clone().any(|offered| offered == wanted);
    match hash {
        Some(hash) if offers(SCRAM_SHA_256_PLUS) => Ok(ChannelBinding::TlsServerEndPoint(hash)),
        Some(_) if offers(SCRAM_SHA_256) => Ok(ChannelBinding::NotOffered),
        None if offers(SCRAM_SHA_256) => Ok(ChannelBinding::Unsupported),
        _ => {
            let names: Vec<_> = mechanisms.clone().map(String::from_utf8_lossy).collect();
            Err(Error::UnsupportedAuthentication { method: format!("SASL ({})", names.join(", ")) })
        }
    }
}

//! Logs in: from the startup packet to the first ReadyForQuery.

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

use crate::SessionError;

/// The data with which a client logs in.
#[derive(Clone, Debug)]
pub struct Login {
    /// Name of the role to log in as.
    pub user: String,
    /// Name of the database.
    pub database: String,
    /// Password of the role, if it has one.
    pub password: Option<Secret>,
    /// Additional startup parameters: `application_name`, `client_encoding`, `options`, …
    pub parameters: Vec<(String, String)>,
    /// Hash of the server's certificate for the channel binding `tls-server-end-point` (RFC 5929),
    /// by which SCRAM detects a man in the middle; `None` without channel binding.
    pub channel_binding: Option<Vec<u8>>,
}

impl Login {
    /// Appends the startup packet. It requests protocol 3.0, which every server and pooler supports
    /// and which has all the features that this client uses.
    pub(super) fn startup(&self, buf: &mut Vec<u8>) -> Result<(), EncodeError> {
        let own = [("user", &self.user), ("database", &self.database)];
        let more = self.parameters.iter().map(|(name, value)| (name.as_str(), value));
        let parameters =
            own.into_iter().chain(more).map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        startup::startup(buf, ProtocolVersion::V3_0, parameters)
    }
}

/// The state of the login. Each state accepts only valid next messages, so that a server can
/// neither end SCRAM without its own proof nor send a request twice.
#[derive(Debug)]
pub(super) enum Handshake {
    /// The startup packet is in the output; the first authentication request is expected.
    StartupSent { login: Login, nonce: [u8; 18], keys: ClientKeys },
    /// The client's first SCRAM message is in the output; the server's is expected.
    Scram(ClientFirst),
    /// The client's proof is in the output; the server's is expected.
    ProofSent(ClientFinal),
    /// The password is in the output, or SCRAM is complete; AuthenticationOk is expected.
    AwaitingOk,
    /// The login was accepted; ReadyForQuery is expected, after parameters and the cancel key.
    AwaitingReady,
    /// A step is in progress or has failed, in which case the connection fails with it.
    Broken,
}

impl Handshake {
    pub(super) fn new(login: Login, nonce: [u8; 18]) -> Self {
        Self::StartupSent { login, nonce, keys: ClientKeys::default() }
    }

    /// Shares keys with other logins. Has no effect after the first authentication request.
    pub(super) fn share_keys(&mut self, shared: ClientKeys) {
        if let Self::StartupSent { keys, .. } = self {
            *keys = shared;
        }
    }

    /// Handles an authentication request and appends the reply, if it needs one, to `buf`.
    pub(super) fn handle_request(
        &mut self,
        request: Authentication<'_>,
        buf: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        *self = match (std::mem::replace(self, Self::Broken), request) {
            (Self::StartupSent { .. } | Self::AwaitingOk, Authentication::Ok) => {
                Self::AwaitingReady
            }
            (Self::Scram(_) | Self::ProofSent(_), Authentication::Ok) => {
                return Err(SessionError::ServerUnproven);
            }
            (Self::StartupSent { login, nonce, keys }, request) => {
                first_reply(login, nonce, keys, &request, buf)?
            }
            (Self::Scram(scram), Authentication::SaslContinue(data)) => {
                let proof = scram.receive(data)?;
                encode::sasl_response(buf, proof.message())?;
                Self::ProofSent(proof)
            }
            (Self::ProofSent(proof), Authentication::SaslFinal(data)) => {
                proof.verify(data)?;
                Self::AwaitingOk
            }
            (state, _) => return Err(state.unexpected(Backend::Authentication)),
        };
        Ok(())
    }

    /// Checks that the server accepted the login before it sent this message.
    pub(super) fn expect_awaiting_ready(&self, message: Backend) -> Result<(), SessionError> {
        match self {
            Self::AwaitingReady => Ok(()),
            state => Err(state.unexpected(message)),
        }
    }

    fn unexpected(&self, message: Backend) -> SessionError {
        let state = match self {
            Self::StartupSent { .. } => "while waiting for an authentication request",
            Self::Scram(_) | Self::ProofSent(_) => "during SCRAM authentication",
            Self::AwaitingOk => "while waiting for AuthenticationOk",
            Self::AwaitingReady | Self::Broken => "after AuthenticationOk",
        };
        SessionError::Unexpected { message, state }
    }
}

/// Replies to the first authentication request.
fn first_reply(
    login: Login,
    nonce: [u8; 18],
    keys: ClientKeys,
    request: &Authentication<'_>,
    buf: &mut Vec<u8>,
) -> Result<Handshake, SessionError> {
    let Login { user, password, channel_binding, .. } = login;
    let method = request.method();
    let password = || password.ok_or(SessionError::PasswordMissing { method });
    match request {
        Authentication::CleartextPassword => {
            encode::password(buf, password()?.expose())?;
            Ok(Handshake::AwaitingOk)
        }
        Authentication::Md5Password { salt } => {
            let digest = auth::md5(user.as_bytes(), password()?.expose(), *salt);
            encode::password(buf, &digest)?;
            Ok(Handshake::AwaitingOk)
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
            Err(SessionError::UnsupportedAuthentication { method: method.to_owned() })
        }
        _ => Err(SessionError::Unexpected {
            message: Backend::Authentication,
            state: "while waiting for an authentication request",
        }),
    }
}

/// Returns the channel binding of the strongest SCRAM mechanism that both sides support.
fn choose(
    mechanisms: &Mechanisms<'_>,
    hash: Option<Vec<u8>>,
) -> Result<ChannelBinding, SessionError> {
    let offers = |name: &[u8]| mechanisms.clone().any(|offered| offered == name);
    match hash {
        Some(hash) if offers(SCRAM_SHA_256_PLUS) => Ok(ChannelBinding::TlsServerEndPoint(hash)),
        Some(_) if offers(SCRAM_SHA_256) => Ok(ChannelBinding::NotOffered),
        None if offers(SCRAM_SHA_256) => Ok(ChannelBinding::Unsupported),
        _ => {
            let names: Vec<_> = mechanisms.clone().map(String::from_utf8_lossy).collect();
            Err(SessionError::UnsupportedAuthentication {
                method: format!("SASL ({})", names.join(", ")),
            })
        }
    }
}

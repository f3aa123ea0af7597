//! What a server asks of us, and our answers.

use howdah_wire::{
    Backend, Secret,
    auth::{
        self,
        scram::{
            ChannelBinding, ClientFinal, ClientFirst, ClientKeys, SCRAM_SHA_256_PLUS, ScramKeys,
            Verifier,
        },
    },
    backend::{Authentication, Mechanisms},
    frontend::encode,
};

use super::{ServerIntent, ServerLoginError, ServerProtection, Work};
use crate::config::StoredSecret;

/// Where the proof stands. Each step knows what may come next, so a server can neither skip its own
/// proof nor ask twice.
#[derive(Debug)]
pub(super) enum Proof {
    /// Nothing was asked yet.
    Asked { keys: ClientKeys, nonce: [u8; 18] },
    /// SCRAM has begun. The password is there if keys may have to be made of it.
    First { scram: Box<ClientFirst>, password: Option<Secret>, keys: ClientKeys },
    /// Keys are made; then this message is answered.
    Computing { scram: Box<ClientFirst>, server_first: Vec<u8> },
    /// Our proof is out, the server's is to come.
    Final(Box<ClientFinal>),
    /// Nothing is missing but the server's consent.
    Proven,
    /// We are in.
    Accepted,
    /// A step failed, and the connection with it.
    Broken,
}

/// What comes of a request.
pub(super) struct Said {
    pub(super) proof: Proof,
    pub(super) work: Option<Work>,
}

impl From<Proof> for Said {
    fn from(proof: Proof) -> Self {
        Self { proof, work: None }
    }
}

impl Proof {
    pub(super) fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted)
    }

    /// Answers a request.
    pub(super) fn answer(
        self,
        request: &Authentication<'_>,
        intent: &ServerIntent,
        output: &mut Vec<u8>,
    ) -> Result<Said, ServerLoginError> {
        match (self, request) {
            (Self::Asked { .. } | Self::Proven, Authentication::Ok) => Ok(Self::Accepted.into()),
            (Self::First { .. } | Self::Computing { .. } | Self::Final(_), Authentication::Ok) => {
                Err(ServerLoginError::Unproven)
            }
            (Self::Asked { .. }, Authentication::CleartextPassword) => {
                plain(intent, output).map(Said::from)
            }
            (Self::Asked { .. }, Authentication::Md5Password { salt }) => {
                md5(intent, *salt, output).map(Said::from)
            }
            (Self::Asked { keys, nonce }, Authentication::Sasl(mechanisms)) => {
                begin(intent, mechanisms, keys, nonce, output).map(Said::from)
            }
            (Self::First { scram, password, keys }, Authentication::SaslContinue(server_first)) => {
                let cost = scram.cost(server_first)?;
                let server_first = server_first.to_vec();
                match cost.zip(password) {
                    Some(((salt, iterations), password)) => Ok(Said {
                        proof: Self::Computing { scram, server_first },
                        work: Some(Work { password, salt, iterations, keys }),
                    }),
                    None => finish(*scram, &server_first, output).map(Said::from),
                }
            }
            (Self::Final(end), Authentication::SaslFinal(word)) => {
                end.verify(word)?;
                Ok(Self::Proven.into())
            }
            (Self::Asked { .. }, other) => Err(ServerLoginError::Method { method: other.method() }),
            _ => Err(ServerLoginError::Unexpected { message: Backend::Authentication }),
        }
    }

    /// Goes on with keys that were made. They are where the exchange looks for them, so that it costs
    /// nothing now; and should they have been pushed out meanwhile, they are made once more.
    pub(super) fn with(
        self,
        _keys: ScramKeys,
        output: &mut Vec<u8>,
    ) -> Result<Self, ServerLoginError> {
        match self {
            Self::Computing { scram, server_first } => finish(*scram, &server_first, output),
            _ => Err(ServerLoginError::Unexpected { message: Backend::Authentication }),
        }
    }
}

fn finish(
    scram: ClientFirst,
    server_first: &[u8],
    output: &mut Vec<u8>,
) -> Result<Proof, ServerLoginError> {
    let end = scram.receive(server_first)?;
    encode::sasl_response(output, end.message())?;
    Ok(Proof::Final(Box::new(end)))
}

fn plain(intent: &ServerIntent, output: &mut Vec<u8>) -> Result<Proof, ServerLoginError> {
    let Some(StoredSecret::Plain(password)) = intent.secret() else {
        return Err(ServerLoginError::NoSecret { method: "password" });
    };
    if intent.protection == ServerProtection::None {
        return Err(ServerLoginError::PlainWithoutTls);
    }
    encode::password(output, password.expose())?;
    Ok(Proof::Proven)
}

fn md5(
    intent: &ServerIntent,
    salt: [u8; 4],
    output: &mut Vec<u8>,
) -> Result<Proof, ServerLoginError> {
    let user = intent.identity.user.as_bytes();
    let answer = match intent.secret() {
        Some(StoredSecret::Plain(password)) => auth::md5(user, password.expose(), salt),
        Some(StoredSecret::Md5(stored)) => {
            let stored = stored.expose().first_chunk();
            let stored = stored.ok_or(ServerLoginError::NoSecret { method: "md5" })?;
            auth::md5_of_stored(stored, salt)
        }
        Some(StoredSecret::Scram(_)) | None => {
            return Err(ServerLoginError::NoSecret { method: "md5" });
        }
    };
    encode::password(output, &answer)?;
    Ok(Proof::Proven)
}

/// Chooses a mechanism and sends the first message: with channel binding where both sides can.
fn begin(
    intent: &ServerIntent,
    mechanisms: &Mechanisms<'_>,
    keys: ClientKeys,
    nonce: [u8; 18],
    output: &mut Vec<u8>,
) -> Result<Proof, ServerLoginError> {
    let offered = |name| mechanisms.clone().any(|mechanism| mechanism == name);
    let binding = match &intent.protection {
        ServerProtection::Tls { end_point_hash: Some(hash) } if offered(SCRAM_SHA_256_PLUS) => {
            ChannelBinding::TlsServerEndPoint(hash.clone())
        }
        ServerProtection::Tls { end_point_hash: Some(_) } => ChannelBinding::NotOffered,
        _ => ChannelBinding::Unsupported,
    };
    if !offered(binding.mechanism()) {
        return Err(ServerLoginError::Method { method: "a SASL mechanism other than SCRAM" });
    }
    let (scram, password) = match (intent.secret(), &intent.client_keys) {
        (Some(StoredSecret::Plain(password)), _) => {
            let scram = ClientFirst::new(password.clone(), binding, nonce).with_keys(keys.clone());
            (scram, Some(password.clone()))
        }
        // Keys of the client's login: they are of use if what we keep and what the server keeps is
        // the same, which the server's salt will show.
        (Some(StoredSecret::Scram(stored)), Some(shown))
            if Verifier::from_keys(shown) == **stored =>
        {
            (ClientFirst::from_keys(shown.clone(), binding, nonce), None)
        }
        (None, Some(shown)) => (ClientFirst::from_keys(shown.clone(), binding, nonce), None),
        _ => return Err(ServerLoginError::NoSecret { method: "scram-sha-256" }),
    };
    encode::sasl_initial_response(output, scram.mechanism(), Some(&scram.message()))?;
    Ok(Proof::First { scram: Box::new(scram), password, keys })
}

//! What a client is asked, and whether its answer proves anything.

use howdah_wire::{
    Secret,
    auth::{
        self,
        scram::{
            ClientKeys, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, ScramKeys, ServerFirst,
            Verifier,
        },
    },
    frontend::{PasswordMessage, SaslInitialResponse},
};
use subtle::ConstantTimeEq;

use super::{ClientRules, Entropy, Known, needs::Needs};
use crate::{
    auth::{MESSAGE_BYTES_MAX, PASSWORD_BYTES_MAX, Rejection, Work, startup::StartupRequest},
    config::StoredSecret,
};

/// What is known of the connection.
pub(super) struct Facts {
    pub(super) end_point_hash: Option<Vec<u8>>,
    pub(super) nonce: [u8; 18],
}

/// What a client was asked.
#[derive(Debug)]
pub(super) enum Question {
    /// For the password; it is compared with this. `None`: nobody's.
    Plain(Option<StoredSecret>),
    /// For an md5; it is compared with that of this stored hash. `None`: nobody's.
    Md5 { salt: [u8; 4], stored: Option<Secret> },
    /// For SCRAM's first message.
    Sasl { mechanisms: &'static [&'static [u8]], secret: Option<StoredSecret> },
    /// For SCRAM's proof.
    Proof(Box<ServerFirst>),
}

/// An answer that can be judged once keys are there.
#[derive(Debug)]
pub(super) enum Answer {
    /// The keys are of the password that the client sent.
    Plain(Box<Verifier>),
    /// The keys are of the password that we have; this is SCRAM's first message.
    Sasl { plus: bool, client_first: Vec<u8> },
}

/// What comes of a step.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Ask this.
    Ask(Question),
    /// Make keys, then go on with the answer.
    Compute(Work, Answer),
    /// It is who it says.
    Proven { last_word: Option<Vec<u8>>, keys: Option<ScramKeys> },
}

const PROVEN: Verdict = Verdict::Proven { last_word: None, keys: None };

impl ClientRules {
    /// The first question, if there is one.
    pub(super) fn question(
        &self,
        wish: &StartupRequest,
        needs: Needs,
        known: Option<Known>,
        facts: &Facts,
        entropy: Entropy,
    ) -> Result<Verdict, Rejection> {
        let is_known = known.is_some();
        let secret = known.and_then(|known| known.secret).filter(|secret| !secret.is_empty());
        match needs {
            Needs::Nothing => Ok(PROVEN),
            Needs::ToBeKnown if is_known => Ok(PROVEN),
            Needs::ToBeKnown => Err(Rejection::UnknownUser(wish.user.clone())),
            Needs::Plain => Ok(Verdict::Ask(Question::Plain(secret))),
            Needs::Md5 => Ok(Verdict::Ask(match secret {
                Some(StoredSecret::Scram(_)) => Question::sasl(secret, facts),
                None if self.mock_is_scram => Question::sasl(None, facts),
                secret => Question::md5(&wish.user, secret.as_ref(), entropy.salt),
            })),
            Needs::Scram => Ok(Verdict::Ask(Question::sasl(secret, facts))),
        }
    }
}

impl Question {
    fn sasl(secret: Option<StoredSecret>, facts: &Facts) -> Self {
        let mechanisms: &'static [&'static [u8]] = match facts.end_point_hash {
            Some(_) => &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256],
            None => &[SCRAM_SHA_256],
        };
        Self::Sasl { mechanisms, secret }
    }

    fn md5(user: &str, secret: Option<&StoredSecret>, salt: [u8; 4]) -> Self {
        let stored = match secret {
            Some(StoredSecret::Md5(stored)) => Some(stored.clone()),
            Some(StoredSecret::Plain(password)) => {
                let stored = auth::md5_stored(user.as_bytes(), password.expose());
                Some(Secret::from(&stored[..]))
            }
            Some(StoredSecret::Scram(_)) | None => None,
        };
        Self::Md5 { salt, stored }
    }

    /// Longest body of the answer.
    pub(super) fn answer_bytes_max(&self) -> u32 {
        match self {
            Self::Plain(_) => PASSWORD_BYTES_MAX,
            Self::Md5 { .. } | Self::Sasl { .. } | Self::Proof(_) => MESSAGE_BYTES_MAX,
        }
    }

    /// Judges the answer, the body of a message.
    pub(super) fn answered(
        self,
        body: &[u8],
        wish: &StartupRequest,
        rules: &ClientRules,
        facts: &Facts,
    ) -> Result<Verdict, Rejection> {
        let wrong = || Rejection::Password(wish.user.clone());
        match self {
            Self::Plain(secret) => plain(body, secret, wish),
            Self::Md5 { salt, stored } => {
                let answer = password(body)?;
                // Somebody who does not exist has no hash, and nothing is right.
                let stored = stored.as_ref().and_then(|stored| stored.expose().first_chunk());
                let expected = stored.map(|stored| auth::md5_of_stored(stored, salt));
                let is_right = expected.is_some_and(|expected| expected[..].ct_eq(answer).into());
                if is_right { Ok(PROVEN) } else { Err(wrong()) }
            }
            Self::Sasl { mechanisms, secret } => {
                let response = SaslInitialResponse::parse(body).map_err(|_| Rejection::Scram)?;
                if !mechanisms.contains(&response.mechanism) {
                    return Err(Rejection::Mechanism);
                }
                let plus = response.mechanism == SCRAM_SHA_256_PLUS;
                let client_first = response.data.ok_or(Rejection::Scram)?;
                begin(secret, client_first, plus, wish, rules, facts)
            }
            Self::Proof(server) => match server.finish(body) {
                Ok(end) => {
                    Ok(Verdict::Proven { last_word: Some(end.message), keys: Some(end.keys) })
                }
                Err(ScramError::ClientUnproven) => Err(wrong()),
                Err(error) => Err(scram(&error)),
            },
        }
    }
}

impl Answer {
    /// Judges the answer now that the keys are there.
    pub(super) fn with(
        self,
        keys: ScramKeys,
        wish: &StartupRequest,
        facts: &Facts,
    ) -> Result<Verdict, Rejection> {
        let verifier = Verifier::from_keys(&keys);
        match self {
            Self::Plain(stored) if verifier == *stored => {
                Ok(Verdict::Proven { last_word: None, keys: Some(keys) })
            }
            Self::Plain(_) => Err(Rejection::Password(wish.user.clone())),
            Self::Sasl { plus, client_first } => exchange(verifier, &client_first, plus, facts),
        }
    }
}

fn password(body: &[u8]) -> Result<&[u8], Rejection> {
    let layout = |error: howdah_wire::DecodeError| Rejection::Layout(error.to_string());
    PasswordMessage::parse(body).map(|message| message.password).map_err(layout)
}

fn plain(
    body: &[u8],
    secret: Option<StoredSecret>,
    wish: &StartupRequest,
) -> Result<Verdict, Rejection> {
    let sent = password(body)?;
    let is_right = match secret {
        // An empty password is nobody's, whatever is stored.
        _ if sent.is_empty() => false,
        None => false,
        Some(StoredSecret::Plain(password)) => password.expose().ct_eq(sent).into(),
        Some(StoredSecret::Md5(stored)) => {
            stored.expose().ct_eq(&auth::md5_stored(wish.user.as_bytes(), sent)).into()
        }
        Some(StoredSecret::Scram(verifier)) => {
            let work = Work {
                password: Secret::from(sent),
                salt: verifier.salt().to_vec(),
                iterations: verifier.iterations(),
                // What strangers type is not to push out what is worth keeping.
                keys: ClientKeys::default(),
            };
            return Ok(Verdict::Compute(work, Answer::Plain(verifier)));
        }
    };
    if is_right { Ok(PROVEN) } else { Err(Rejection::Password(wish.user.clone())) }
}

/// Answers SCRAM's first message. One that does not exist, or whose secret is an md5, gets an
/// exchange that looks like any other and ends like one with a wrong password.
fn begin(
    secret: Option<StoredSecret>,
    client_first: &[u8],
    plus: bool,
    wish: &StartupRequest,
    rules: &ClientRules,
    facts: &Facts,
) -> Result<Verdict, Rejection> {
    let (user, iterations) = (wish.user.as_bytes(), rules.config.auth.scram_iterations);
    let verifier = match secret {
        Some(StoredSecret::Scram(verifier)) => *verifier,
        Some(StoredSecret::Plain(password)) => {
            let salt = Verifier::mock_salt(&rules.mock.0, user).to_vec();
            match rules.keys.known(&password, &salt, iterations) {
                Some(keys) => Verifier::from_keys(&keys),
                None => {
                    let work = Work { password, salt, iterations, keys: rules.keys.clone() };
                    let answer = Answer::Sasl { plus, client_first: client_first.to_vec() };
                    return Ok(Verdict::Compute(work, answer));
                }
            }
        }
        Some(StoredSecret::Md5(_)) | None => Verifier::mock(&rules.mock.0, user, iterations),
    };
    exchange(verifier, client_first, plus, facts)
}

fn exchange(
    verifier: Verifier,
    client_first: &[u8],
    plus: bool,
    facts: &Facts,
) -> Result<Verdict, Rejection> {
    let hash = facts.end_point_hash.as_deref();
    let server = ServerFirst::receive(verifier, client_first, hash, plus, facts.nonce);
    let server = server.map_err(|error| scram(&error))?;
    Ok(Verdict::Ask(Question::Proof(Box::new(server))))
}

fn scram(error: &ScramError) -> Rejection {
    match error {
        ScramError::ChannelBinding => Rejection::ChannelBinding,
        _ => Rejection::Scram,
    }
}

//! [`ServerHandshake`]: our way into a server.

mod error;
mod prove;

use std::mem;

use howdah_wire::{
    Backend, Frame,
    auth::scram::{ClientKeys, ScramKeys},
    backend::{Authentication, Message, TransactionStatus},
    frontend::encode,
    startup::{self, CancelKey, ProtocolVersion},
};

use self::prove::{Proof, Said};
use super::{DerivedKeys, Work};
use crate::{
    Setting,
    config::{ServerIdentity, StoredSecret},
};

pub use error::ServerLoginError;

/// Longest message of a server before it is ready. libpq takes 30,000 bytes of an error and 2,000 of
/// anything else; a setting may be long.
const MESSAGE_BYTES_MAX: u32 = 64 * 1024;

/// Most settings that a server reports. PostgreSQL 18 reports 16; extensions may add to them.
const PARAMETERS_MAX: usize = 256;

/// Our way into a server: from the startup packet, on a connection on which TLS is settled, to the
/// first ReadyForQuery.
///
/// # Contract
///
/// The driver writes what [`ServerHandshake::take_output`] holds, at once and after each step; gives
/// what it reads to [`ServerHandshake::receive`], and does the step that comes back. An error ends
/// the connection.
///
/// # States
///
/// ```text
///  new ─► asked ─┬ Ok ──────────────────────────────────────────► settling ─► ready
///                ├ plain, md5 ─────────────────────────► proven ──► Ok ─▲
///                └ SASL ─► first ─(work)─► final ─► signature checked ──┘
/// ```
///
/// A query that is to be run first (`connect-query`) is run between settling and ready.
#[derive(Debug)]
pub struct ServerHandshake {
    intent: ServerIntent,
    proof: Proof,
    input: Vec<u8>,
    output: Vec<u8>,
    version: ProtocolVersion,
    parameters: Vec<Setting>,
    cancel_key: Option<CancelKey>,
    /// Whether the query that is to be run first was sent.
    runs_query: bool,
}

/// What we want at a server, and what we have to show for it.
#[derive(Clone, Debug)]
pub struct ServerIntent {
    /// Who we are there, and what our connection begins with.
    pub identity: ServerIdentity,
    /// More to begin with: the `replication` and settings of the client that needs the connection.
    pub parameters: Vec<Setting>,
    /// Newest protocol to ask for: 3.2, or 3.0 after [`ServerLoginError::may_retry_as_3_0`].
    pub newest: ProtocolVersion,
    /// Keys that the client's login by SCRAM has shown: they open a server which keeps the same
    /// secret, where there is no password to use.
    pub client_keys: Option<ScramKeys>,
    /// How the connection is protected.
    pub protection: ServerProtection,
}

/// How a connection to a server is protected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerProtection {
    /// Anybody between us may listen.
    None,
    /// Anybody between us may listen, and the settings allow passwords in the clear all the same.
    CleartextAllowed,
    /// A unix socket or a loopback address: only the machine's administrator may listen.
    Local,
    /// TLS.
    Tls {
        /// The hash of the server's certificate that `tls-server-end-point` prescribes; `None` if it
        /// has none.
        end_point_hash: Option<Vec<u8>>,
    },
}

/// What the driver does next, once the output is written.
#[derive(Debug)]
pub enum ServerStep {
    /// Read.
    Read,
    /// Have this done, then [`ServerHandshake::work_done`].
    Work(Work),
    /// The server lets us work.
    Ready(Box<ServerReady>),
}

/// A server that lets us work.
#[derive(Debug)]
pub struct ServerReady {
    /// What the pool needs to know.
    pub login: crate::ServerLogin,
    /// The protocol agreed on.
    pub version: ProtocolVersion,
    /// What it has sent already behind its first ReadyForQuery.
    pub received: Vec<u8>,
}

impl ServerHandshake {
    /// Begins: the startup packet is in the output. `nonce` has to be random and never used before;
    /// `keys` are those of passwords, shared by all logins.
    ///
    /// # Errors
    ///
    /// A name or value contains a zero byte.
    pub fn new(
        intent: ServerIntent,
        keys: ClientKeys,
        nonce: [u8; 18],
    ) -> Result<Self, ServerLoginError> {
        let mut output = Vec::new();
        let identity = &intent.identity;
        let own = [("user", identity.user.as_str()), ("database", identity.database.as_str())];
        let configured = identity.parameters.iter().map(|(name, value)| (&**name, &**value));
        let texts = own.into_iter().chain(configured);
        let texts = texts.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let settings = intent.parameters.iter().map(|it| (&*it.name, &*it.value));
        startup::startup(&mut output, intent.newest, texts.chain(settings))?;
        Ok(Self {
            proof: Proof::Asked { keys, nonce },
            input: Vec::new(),
            output,
            version: intent.newest,
            parameters: Vec::new(),
            cancel_key: None,
            runs_query: false,
            intent,
        })
    }

    /// Bytes to write before the step is done.
    pub fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    /// Takes bytes that came from the server.
    ///
    /// # Errors
    ///
    /// We are not let in, or would not want to be.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<ServerStep, ServerLoginError> {
        self.input.extend_from_slice(bytes);
        self.go_on()
    }

    /// Takes the result of [`ServerStep::Work`].
    ///
    /// # Errors
    ///
    /// Those of [`ServerHandshake::receive`].
    pub fn work_done(&mut self, derived: DerivedKeys) -> Result<ServerStep, ServerLoginError> {
        let proof = mem::replace(&mut self.proof, Proof::Broken);
        self.proof = proof.with(derived.0, &mut self.output)?;
        self.go_on()
    }

    fn go_on(&mut self) -> Result<ServerStep, ServerLoginError> {
        // While keys are made, what comes is kept for later: a server waits for our proof.
        if let Proof::Computing { .. } = self.proof {
            let is_full = self.input.len() > MESSAGE_BYTES_MAX as usize;
            return if is_full { Err(ServerLoginError::TooMuch) } else { Ok(ServerStep::Read) };
        }
        let input = mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while let Some((frame, behind)) = Frame::split(rest, MESSAGE_BYTES_MAX)? {
            rest = behind;
            let is_ready = frame.tag == Backend::ReadyForQuery.tag();
            let step = self.message(frame)?;
            if is_ready && !self.runs_connect_query()? {
                return Ok(ServerStep::Ready(Box::new(self.ready(rest))));
            }
            if let Some(work) = step {
                self.input = rest.to_vec();
                return Ok(ServerStep::Work(work));
            }
        }
        self.input = rest.to_vec();
        Ok(ServerStep::Read)
    }

    fn message(&mut self, frame: Frame<'_>) -> Result<Option<Work>, ServerLoginError> {
        match Message::parse(frame)? {
            Message::ErrorResponse(error) => {
                let has_begun = !matches!(self.proof, Proof::Asked { .. });
                Err(ServerLoginError::refused(&error, self.intent.newest, has_begun))
            }
            // What a server says aside before we are in is for nobody.
            Message::NoticeResponse(_) => Ok(None),
            Message::NegotiateProtocolVersion(answer) => {
                let newest = answer.newest;
                if newest > self.version || newest < ProtocolVersion::V3_0 {
                    return Err(ServerLoginError::Version { newest });
                }
                // There is no 3.1.
                let is_new = newest >= ProtocolVersion::V3_2;
                self.version = if is_new { ProtocolVersion::V3_2 } else { ProtocolVersion::V3_0 };
                Ok(None)
            }
            Message::Authentication(request) => self.authentication(&request),
            Message::ParameterStatus { name, value } if self.proof.is_accepted() => {
                if self.parameters.len() >= PARAMETERS_MAX {
                    return Err(ServerLoginError::TooMuch);
                }
                self.parameters.retain(|setting| !setting.name.eq_ignore_ascii_case(name));
                self.parameters.push(Setting::new(name, value));
                Ok(None)
            }
            Message::BackendKeyData(key) if self.proof.is_accepted() => {
                self.cancel_key = Some(key);
                Ok(None)
            }
            Message::ReadyForQuery(TransactionStatus::Idle) if self.proof.is_accepted() => Ok(None),
            // What the query has to say is for nobody; that it went well is what counts.
            Message::RowDescription(_)
            | Message::DataRow(_)
            | Message::CommandComplete(_)
            | Message::EmptyQueryResponse
                if self.runs_query =>
            {
                Ok(None)
            }
            other => Err(ServerLoginError::Unexpected { message: other.kind() }),
        }
    }

    fn authentication(
        &mut self,
        request: &Authentication<'_>,
    ) -> Result<Option<Work>, ServerLoginError> {
        let proof = mem::replace(&mut self.proof, Proof::Broken);
        let Said { proof, work } = proof.answer(request, &self.intent, &mut self.output)?;
        self.proof = proof;
        Ok(work)
    }

    /// Sends the query that is to be run first, if there is one that was not sent yet.
    fn runs_connect_query(&mut self) -> Result<bool, ServerLoginError> {
        let Some(query) = self.intent.identity.connect_query.take() else { return Ok(false) };
        encode::query(&mut self.output, query.as_bytes())?;
        self.runs_query = true;
        Ok(true)
    }

    fn ready(&mut self, rest: &[u8]) -> ServerReady {
        ServerReady {
            login: crate::ServerLogin {
                parameters: mem::take(&mut self.parameters),
                cancel_key: self.cancel_key.take(),
            },
            version: self.version,
            received: rest.to_vec(),
        }
    }
}

impl ServerIntent {
    /// What there is to show, the best first.
    fn secret(&self) -> Option<&StoredSecret> {
        self.identity.secret.as_ref().filter(|secret| !secret.is_empty())
    }
}

#[cfg(test)]
mod tests;

//! [`ClientHandshake`]: a client's way in.

mod needs;
mod prove;
mod rules;

use std::{mem, sync::Arc};

use howdah_connect::SslMode;
use howdah_wire::{
    Frame, HeaderError, Tag,
    auth::scram::ScramKeys,
    backend::encode::{self, AuthenticationRequest},
    startup::{
        CancelKey, EncryptionReply, PACKET_BYTES_MAX, Packet, ProtocolVersion, Startup,
        StartupPacketError,
    },
};

use self::{
    needs::Needs,
    prove::{Answer, Question},
};
use super::{DerivedKeys, MESSAGE_BYTES_MAX, Rejection, Work, startup::StartupRequest};
use crate::{
    ServerRole, Setting,
    config::{CONSOLE_DATABASES, Lookup, StoredSecret},
    hba::Origin,
};

pub use rules::{ClientRules, Known};

/// A client's way in, from its first byte to AuthenticationOk.
///
/// # Contract
///
/// The driver gives what it reads to [`ClientHandshake::receive`]. Whatever the step that comes
/// back, it first writes what [`ClientHandshake::take_output`] holds, then does the step:
///
/// * [`ClientStep::Read`]: read more, and receive it;
/// * [`ClientStep::StartTls`]: shake hands, then [`ClientHandshake::tls_started`];
/// * [`ClientStep::Work`]: run it on another thread, then [`ClientHandshake::work_done`];
/// * [`ClientStep::LookUp`]: ask a server, then [`ClientHandshake::looked_up`];
/// * the others end the handshake: it is dropped.
///
/// A driver whose deadline has passed calls [`ClientHandshake::refuse`].
///
/// # States
///
/// ```text
///           ┌── GSSENCRequest: 'N' ──┐
///  new ──► opening ◄─────────────────┘
///           │  │ SSLRequest: 'N', or 'S' ─► TLS ─► opening       0x16: TLS at once
///           │  └ CancelRequest ─► over
///           └ startup packet ─┬ any, trust, cert ──────────────────────────► admitted
///                             └─(look-up)─┬ trust ─────────────────────────►
///                                         ├ plain, md5 ─► password ────────►
///                                         └ scram ─► first ─(work)─► final ►
/// ```
///
/// # Cost
///
/// Holds at most one packet or message that is not whole, and what came behind it in one read. A
/// login by SCRAM with a stored secret costs four hashes.
#[derive(Debug)]
pub struct ClientHandshake {
    rules: Arc<ClientRules>,
    entropy: Entropy,
    from: Origin,
    input: Vec<u8>,
    output: Vec<u8>,
    state: State,
    asked_for_tls: bool,
    asked_for_gss: bool,
    tls: Option<TlsFacts>,
    /// The user and the database of the startup packet.
    names: Option<(String, String)>,
}

#[derive(Debug)]
enum State {
    /// Waiting for a packet.
    Opening,
    /// Waiting for TLS; whether it began without being asked for.
    Tls { is_direct: bool },
    /// Waiting for what a server knows of the user.
    LookingUp(Box<StartupRequest>, Needs),
    /// Waiting for an answer to a question.
    Asked(Box<StartupRequest>, Question),
    /// Waiting for work to be done.
    Working(Box<StartupRequest>, Answer),
    /// Nothing is left to do.
    Over,
}

/// What the driver does next, once the output is written.
#[derive(Debug)]
pub enum ClientStep {
    /// Read.
    Read,
    /// Shake hands.
    StartTls {
        /// Bytes that belong to the handshake already: TLS that began at once. Empty otherwise.
        received: Vec<u8>,
    },
    /// Have this done.
    Work(Work),
    /// Have this looked up.
    LookUp(Lookup),
    /// Route this request to cancel, and close.
    Cancel(CancelKey),
    /// The client is in: the rest of the conversation is the pool's.
    Admitted(Box<AuthenticatedClient>),
    /// Close. The reason is for the log; the client was told if it could be.
    Close(Rejection),
}

/// A client that is in. It has been sent AuthenticationOk and nothing behind.
#[derive(Debug)]
pub struct AuthenticatedClient {
    /// Who it is.
    pub user: String,
    /// The database it asked for, which is one of the configuration.
    pub database: String,
    /// The protocol agreed on, 3.0 or 3.2.
    pub version: ProtocolVersion,
    /// Whether it is who runs this process, at the console, by name `howdah` or `pgbouncer`.
    pub is_owner: bool,
    /// Whether it wants to replicate.
    pub replication: Replication,
    /// Which servers of a cluster would do, by `target_session_attrs`.
    pub role: Option<ServerRole>,
    /// What its connection is to begin with, as asked for by parameters and `options`.
    pub settings: Vec<Setting>,
    /// The keys that its login by SCRAM has shown.
    pub scram_keys: Option<ScramKeys>,
    /// Its secret, if that was looked up: servers may ask for it, too.
    pub secret: Option<StoredSecret>,
    /// What it has sent already behind its login.
    pub received: Vec<u8>,
}

/// Whether a connection replicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// It does not.
    None,
    /// All of the server.
    Physical,
    /// One database.
    Logical,
}

/// Random bytes for one login, never used before.
#[derive(Clone, Copy)]
pub struct Entropy {
    /// For SCRAM.
    pub nonce: [u8; 18],
    /// For md5.
    pub salt: [u8; 4],
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entropy(…)")
    }
}

/// What a TLS handshake with a client has come to.
#[derive(Clone, Debug, Default)]
pub struct TlsFacts {
    /// The protocol agreed on by ALPN.
    pub alpn: Option<Vec<u8>>,
    /// The hash of our own certificate that `tls-server-end-point` prescribes; `None` if it has none.
    pub end_point_hash: Option<Vec<u8>>,
    /// Whether the client has shown a certificate, which was verified.
    pub has_certificate: bool,
    /// The common name of its subject, if it has one.
    pub common_name: Option<String>,
}

/// First byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;

impl ClientHandshake {
    /// A client that has connected, from there.
    pub fn new(rules: Arc<ClientRules>, from: Origin, entropy: Entropy) -> Self {
        Self {
            rules,
            entropy,
            from,
            input: Vec::new(),
            output: Vec::new(),
            state: State::Opening,
            asked_for_tls: false,
            asked_for_gss: false,
            tls: None,
            names: None,
        }
    }

    /// The user and the database that the client has named, once its startup packet is there; empty where it
    /// named none.
    pub fn names(&self) -> Option<(&str, &str)> {
        self.names.as_ref().map(|(user, database)| (user.as_str(), database.as_str()))
    }

    /// Has the client come from elsewhere than it seemed; before the first byte.
    pub fn set_origin(&mut self, from: Origin) {
        self.from = from;
    }

    /// Takes bytes that came from the client: within TLS once it has started.
    pub fn receive(&mut self, bytes: &[u8]) -> ClientStep {
        if let State::Tls { .. } = self.state {
            return self.reject(Rejection::UnencryptedData("SSL"));
        }
        self.input.extend_from_slice(bytes);
        self.go_on()
    }

    /// Takes the news that TLS has started.
    pub fn tls_started(&mut self, facts: TlsFacts) -> ClientStep {
        let State::Tls { is_direct } = self.state else { return self.reject(Rejection::NoStartup) };
        let is_postgresql = facts.alpn.as_deref() == Some(b"postgresql");
        if is_direct && !is_postgresql {
            return self.reject(Rejection::NoAlpn);
        }
        self.tls = Some(facts);
        self.state = State::Opening;
        self.go_on()
    }

    /// Takes the result of [`ClientStep::Work`].
    pub fn work_done(&mut self, derived: DerivedKeys) -> ClientStep {
        match mem::replace(&mut self.state, State::Over) {
            State::Working(wish, answer) => {
                match self.proof(answer.with(derived.0, &wish, &self.facts())) {
                    Ok(verdict) => self.conclude(wish, verdict),
                    Err(rejection) => self.reject(rejection),
                }
            }
            _ => self.reject(Rejection::NoStartup),
        }
    }

    /// Takes the result of [`ClientStep::LookUp`]: what is known of the user, or `None` if there is no
    /// such user, or if nobody could tell. The client cannot see which.
    pub fn looked_up(&mut self, known: Option<Known>) -> ClientStep {
        match mem::replace(&mut self.state, State::Over) {
            State::LookingUp(mut wish, needs) => {
                let listed = self.rules.listed(&wish.user);
                wish.secret = known.as_ref().and_then(|known| known.secret.clone());
                match self.ask(wish, needs, known.or(listed)) {
                    Ok(step) => step,
                    Err(rejection) => self.reject(rejection),
                }
            }
            _ => self.reject(Rejection::NoStartup),
        }
    }

    /// Ends it for a reason of the driver's: [`Rejection::Timeout`], [`Rejection::TooMany`].
    pub fn refuse(&mut self, why: Rejection) -> ClientStep {
        self.reject(why)
    }

    /// Bytes to write before the step is done.
    pub fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    fn go_on(&mut self) -> ClientStep {
        loop {
            let step = match mem::replace(&mut self.state, State::Over) {
                State::Opening => self.opening(),
                State::Asked(wish, question) => self.asked(wish, question),
                waiting @ (State::Working(..)
                | State::LookingUp(..)
                | State::Tls { .. }
                | State::Over) => {
                    // A client that sends on while we compute is read on until it fills the limit.
                    self.state = waiting;
                    let is_full = self.input.len() > 2 * MESSAGE_BYTES_MAX as usize;
                    return if is_full {
                        self.reject(Rejection::TooLong)
                    } else {
                        ClientStep::Read
                    };
                }
            };
            match step {
                Ok(Some(step)) => return step,
                Ok(None) => {}
                Err(rejection) => return self.reject(rejection),
            }
        }
    }

    fn reject(&mut self, why: Rejection) -> ClientStep {
        // Before TLS has answered, an error would be read as part of the handshake.
        if !matches!(self.state, State::Tls { .. }) {
            why.write(&mut self.output);
        }
        self.state = State::Over;
        self.input = Vec::new();
        ClientStep::Close(why)
    }

    /// Takes one packet without a tag. `Ok(None)` is to go on.
    fn opening(&mut self) -> Result<Option<ClientStep>, Rejection> {
        let may_begin_tls = !self.asked_for_tls && self.tls.is_none() && self.offers_tls();
        if self.input.first() == Some(&TLS_HANDSHAKE) && may_begin_tls {
            self.asked_for_tls = true;
            self.state = State::Tls { is_direct: true };
            return Ok(Some(ClientStep::StartTls { received: mem::take(&mut self.input) }));
        }
        let input = mem::take(&mut self.input);
        let Some((packet, rest)) = Packet::split(&input, PACKET_BYTES_MAX).map_err(no_packet)?
        else {
            self.input = input;
            self.state = State::Opening;
            return Ok(Some(ClientStep::Read));
        };
        match packet {
            Packet::SslRequest => self.encryption_asked(rest),
            Packet::GssEncRequest => {
                if mem::replace(&mut self.asked_for_gss, true) {
                    return Err(Rejection::AskedTwice(5680));
                }
                if !rest.is_empty() {
                    return Err(Rejection::UnencryptedData("GSSAPI encryption"));
                }
                self.output.push(EncryptionReply::Refused.byte());
                self.state = State::Opening;
                Ok(None)
            }
            Packet::CancelRequest(key) => Ok(Some(ClientStep::Cancel(key))),
            Packet::Startup(startup) => {
                self.names = Some(names_in(&startup));
                let needs_tls = self.rules.config.tls.client_mode() >= SslMode::Require;
                if needs_tls && self.tls.is_none() && !self.is_unix() {
                    return Err(Rejection::TlsRequired);
                }
                let wish = StartupRequest::read(&startup, &self.rules.config)?;
                wish.negotiate(&mut self.output);
                self.input = rest.to_vec();
                self.question(Box::new(wish)).map(Some)
            }
        }
    }

    fn encryption_asked(&mut self, rest: &[u8]) -> Result<Option<ClientStep>, Rejection> {
        if mem::replace(&mut self.asked_for_tls, true) || self.tls.is_some() {
            return Err(Rejection::AskedTwice(5679));
        }
        if !rest.is_empty() {
            return Err(Rejection::UnencryptedData("SSL"));
        }
        if self.offers_tls() {
            self.output.push(EncryptionReply::Tls.byte());
            self.state = State::Tls { is_direct: false };
            return Ok(Some(ClientStep::StartTls { received: Vec::new() }));
        }
        self.output.push(EncryptionReply::Refused.byte());
        self.state = State::Opening;
        Ok(None)
    }

    fn is_unix(&self) -> bool {
        matches!(self.from, Origin::Unix { .. })
    }

    fn offers_tls(&self) -> bool {
        !self.is_unix() && self.rules.config.tls.client_mode() != SslMode::Disable
    }

    /// Asks for the proof that the configuration wants, once it is known of whom.
    fn question(&mut self, mut wish: Box<StartupRequest>) -> Result<ClientStep, Rejection> {
        wish.is_owner = self.rules.is_owner(&wish, self.from);
        let needs = self.rules.needs(&wish, self.from, self.tls.as_ref())?;
        let listed = self.rules.listed(&wish.user);
        if !wish.is_owner
            && listed.as_ref().is_none_or(|known| known.secret.is_none())
            && let Some(lookup) = self.rules.lookup(&wish)
        {
            self.state = State::LookingUp(wish, needs);
            return Ok(ClientStep::LookUp(lookup));
        }
        self.ask(wish, needs, listed)
    }

    fn ask(
        &mut self,
        wish: Box<StartupRequest>,
        needs: Needs,
        known: Option<Known>,
    ) -> Result<ClientStep, Rejection> {
        let verdict = self.rules.question(&wish, needs, known, &self.facts(), self.entropy);
        match self.proof(verdict) {
            Ok(verdict) => Ok(self.conclude(wish, verdict)),
            Err(rejection) => Err(rejection),
        }
    }

    fn facts(&self) -> prove::Facts {
        let facts = self.tls.clone().unwrap_or_default();
        prove::Facts { end_point_hash: facts.end_point_hash, nonce: self.entropy.nonce }
    }

    /// Takes one message.
    fn asked(
        &mut self,
        wish: Box<StartupRequest>,
        question: Question,
    ) -> Result<Option<ClientStep>, Rejection> {
        let input = mem::take(&mut self.input);
        let split =
            Frame::split(&input, question.answer_bytes_max()).map_err(|error| match error {
                HeaderError::TooLong { .. } => Rejection::TooLong,
                _ => Rejection::Layout(
                    "a message's length is less than its own four bytes".to_owned(),
                ),
            });
        // A message of another kind is refused by its tag, however long it says to be.
        if let Some(tag) = input.first().filter(|tag| **tag != b'p') {
            return Err(Rejection::NoPassword(*tag));
        }
        let Some((frame, rest)) = split? else {
            self.input = input;
            self.state = State::Asked(wish, question);
            return Ok(Some(ClientStep::Read));
        };
        debug_assert_eq!(frame.tag, Tag(b'p'));
        let verdict = question.answered(frame.body, &wish, &self.rules, &self.facts());
        let verdict = self.proof(verdict)?;
        self.input = rest.to_vec();
        Ok(Some(self.conclude(wish, verdict)))
    }

    /// Writes what a step of the proof has to say.
    fn proof(
        &mut self,
        verdict: Result<prove::Verdict, Rejection>,
    ) -> Result<prove::Verdict, Rejection> {
        let verdict = verdict?;
        let mut say = |request| {
            encode::authentication(&mut self.output, request).expect("names have no zero byte");
        };
        match &verdict {
            prove::Verdict::Ask(Question::Plain(_)) => {
                say(AuthenticationRequest::CleartextPassword);
            }
            prove::Verdict::Ask(Question::Md5 { salt, .. }) => {
                say(AuthenticationRequest::Md5Password { salt: *salt });
            }
            prove::Verdict::Ask(Question::Sasl { mechanisms, .. }) => {
                say(AuthenticationRequest::Sasl(mechanisms));
            }
            prove::Verdict::Ask(Question::Proof(server)) => {
                say(AuthenticationRequest::SaslContinue(server.message()));
            }
            prove::Verdict::Proven { last_word: Some(word), .. } => {
                say(AuthenticationRequest::SaslFinal(word));
            }
            prove::Verdict::Proven { .. } | prove::Verdict::Compute(..) => {}
        }
        Ok(verdict)
    }

    fn conclude(&mut self, wish: Box<StartupRequest>, verdict: prove::Verdict) -> ClientStep {
        match verdict {
            prove::Verdict::Ask(question) => {
                self.state = State::Asked(wish, question);
                self.go_on()
            }
            prove::Verdict::Compute(work, answer) => {
                self.state = State::Working(wish, answer);
                ClientStep::Work(work)
            }
            prove::Verdict::Proven { keys, .. } => self.admit(*wish, keys),
        }
    }

    fn admit(&mut self, wish: StartupRequest, scram_keys: Option<ScramKeys>) -> ClientStep {
        // Whether somebody may use the console, it decides itself.
        let is_console = CONSOLE_DATABASES.contains(&wish.database.as_str());
        if !is_console && self.rules.config.database(&wish.database).is_none() {
            return self.reject(Rejection::UnknownDatabase(wish.database));
        }
        encode::authentication(&mut self.output, AuthenticationRequest::Ok)
            .expect("it has no text");
        ClientStep::Admitted(Box::new(AuthenticatedClient {
            user: wish.user,
            database: wish.database,
            version: wish.version,
            is_owner: wish.is_owner,
            replication: wish.replication,
            role: wish.role,
            settings: wish.settings,
            scram_keys,
            secret: wish.secret,
            received: mem::take(&mut self.input),
        }))
    }
}

/// The user and the database of a startup packet, whatever else is wrong with it.
fn names_in(startup: &Startup<'_>) -> (String, String) {
    let find = |wanted: &[u8]| {
        let mut parameters = startup.parameters.clone();
        let found = parameters.find(|(name, _)| *name == wanted).map(|(_, value)| value);
        String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
    };
    (find(b"user"), find(b"database"))
}

fn no_packet(error: StartupPacketError) -> Rejection {
    match error {
        StartupPacketError::Malformed(error) => Rejection::Layout(error.to_string()),
        _ => Rejection::NoStartup,
    }
}

#[cfg(test)]
mod tests;

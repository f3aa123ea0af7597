//! The way from a socket to a session, past the guard.

use howdah_session as session;
use howdah_wire::{
    Backend, Frame, Header,
    backend::{Authentication, Message},
};

use super::{AuthPolicy, LoginRefused};

/// Most bytes of one message before the server has let us in. Nobody has proved anything yet.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Hands a session what its server sends, each authentication request only after a [`AuthPolicy`]
/// has judged it.
///
/// A session answers what it is given, so the guard has to stand before it. Once the server has let
/// us in there is nothing left to guard, and bytes pass through untouched.
#[derive(Debug)]
pub struct GuardedInput {
    /// `None` once the server has let us in.
    guard: Option<AuthPolicy>,
    /// The beginning of a message.
    held: Vec<u8>,
}

/// A server asks for something that must not be answered, or does not speak the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoginFault {
    /// The guard forbids it.
    #[error(transparent)]
    Refused(#[from] LoginRefused),
    /// What the server sent is no message of the protocol.
    #[error(transparent)]
    Protocol(#[from] session::Error),
}

impl GuardedInput {
    /// The way past `guard`, for one login.
    pub fn new(guard: AuthPolicy) -> Self {
        Self { guard: Some(guard), held: Vec::new() }
    }

    /// Takes bytes of the server, and hands on those that are judged.
    ///
    /// # Errors
    ///
    /// Nothing more may be sent: close the connection. What came before the offending message has
    /// been handed on.
    pub fn handle(
        &mut self,
        bytes: &[u8],
        session: &mut session::Client,
    ) -> Result<(), LoginFault> {
        if self.guard.is_none() {
            session.handle_input(bytes);
            return Ok(());
        }
        self.held.extend_from_slice(bytes);
        let mut judged = 0;
        let result = loop {
            let Some(guard) = &mut self.guard else { break Ok(()) };
            match judge_message(&self.held[judged..], guard) {
                Ok(None) => break Ok(()),
                Ok(Some(AllowedMessage { message_bytes, is_in })) => {
                    judged += message_bytes;
                    if is_in {
                        self.guard = None;
                    }
                }
                Err(fault) => break Err(fault),
            }
        };
        if self.guard.is_none() {
            judged = self.held.len();
        }
        session.handle_input(&self.held[..judged]);
        self.held.drain(..judged);
        if self.guard.is_none() {
            self.held = Vec::new();
        }
        result
    }
}

/// A message that may be answered.
struct AllowedMessage {
    message_bytes: usize,
    /// It was the server's word that we are let in.
    is_in: bool,
}

/// Shows the guard the first message; `None` while it is not all there.
fn judge_message(
    bytes: &[u8],
    guard: &mut AuthPolicy,
) -> Result<Option<AllowedMessage>, LoginFault> {
    let split = Frame::split(bytes, MESSAGE_BYTES_MAX).map_err(session::Error::from)?;
    let Some((frame, _)) = split else { return Ok(None) };
    let mut is_in = false;
    if Backend::from_tag(frame.tag) == Some(Backend::Authentication)
        && let Message::Authentication(request) =
            Message::parse(frame).map_err(session::Error::from)?
    {
        guard.check(&request)?;
        is_in = matches!(request, Authentication::Ok);
    }
    Ok(Some(AllowedMessage { message_bytes: Header::BYTES + frame.body.len(), is_in }))
}

#[cfg(test)]
mod tests {
    use howdah_session::{Client, Event, Login};
    use howdah_wire::backend::encode::{self, AuthenticationRequest};

    use super::*;
    use crate::{
        settings::{Origin, Settings},
        tls::TlsSettings,
    };

    fn client() -> Client {
        let login = Login {
            user: "u".to_owned(),
            database: "d".to_owned(),
            password: Some("secret".into()),
            parameters: Vec::new(),
            channel_binding: None,
        };
        let mut client = Client::new(login, [7; 18]);
        client.transmitted(client.transmit().len());
        client
    }

    fn input(require_auth: &str) -> GuardedInput {
        let mut settings = Settings::default();
        settings.set("require_auth", require_auth, Origin::Typed).unwrap();
        let guard = AuthPolicy::resolve(&settings, &TlsSettings::default()).unwrap();
        GuardedInput::new(guard.for_login(false))
    }

    /// A request for the password in the clear, or the word that all is well, and what follows it.
    fn let_in(ask: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        if ask {
            encode::authentication(&mut bytes, AuthenticationRequest::CleartextPassword).unwrap();
        }
        encode::authentication(&mut bytes, AuthenticationRequest::Ok).unwrap();
        bytes.extend_from_slice(b"Z\0\0\0\x05I");
        bytes
    }

    #[test]
    fn a_request_that_is_refused_never_reaches_the_session() {
        let bytes = let_in(true);
        for split in 0..bytes.len() {
            let (mut client, mut input) = (client(), input("scram-sha-256"));
            let mut fault = input.handle(&bytes[..split], &mut client);
            if fault.is_ok() {
                fault = input.handle(&bytes[split..], &mut client);
            }
            let refused = LoginRefused::Method { method: "password" };
            assert_eq!(fault, Err(refused.into()), "{split}");
            assert!(client.poll_event().unwrap().is_none());
            assert_eq!(client.transmit(), b"", "the password was given away");
        }
    }

    #[test]
    fn what_is_allowed_passes_in_pieces_of_any_size() {
        let bytes = let_in(false);
        for size in 1..=bytes.len() {
            let (mut client, mut input) = (client(), input(""));
            for piece in bytes.chunks(size) {
                input.handle(piece, &mut client).unwrap();
            }
            assert!(matches!(client.poll_event().unwrap(), Some(Event::LoggedIn)), "{size}");
            assert!(input.held.is_empty() && input.guard.is_none());
        }
    }

    #[test]
    fn a_message_without_end_is_not_waited_for() {
        let (mut client, mut input) = (client(), input(""));
        let fault = input.handle(b"R\x7f\0\0\0....", &mut client);
        assert!(matches!(fault, Err(LoginFault::Protocol(_))), "{fault:?}");
    }
}

//! Filters the bytes from a socket to a session through the authentication policy.

use howdah_session as session;
use howdah_wire::{
    Backend, Frame, Header,
    backend::{Authentication, BackendMessage},
};

use super::{AuthPolicy, LoginRefused};

/// Maximum body length, in bytes, of a message that arrives before the server has accepted the
/// login.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// A filter that passes the server's bytes to a session, but an authentication request only after
/// an [`AuthPolicy`] has accepted it.
///
/// A session answers every request that it receives, so the policy must be applied first. Once the
/// server has accepted the login, bytes pass through unchecked.
#[derive(Debug)]
pub struct AuthFilter {
    /// The policy; `None` once the server has accepted the login.
    policy: Option<AuthPolicy>,
    /// An incomplete message from the end of the input so far.
    buffer: Vec<u8>,
}

/// The reason why a login must be aborted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// The policy forbids the request.
    #[error(transparent)]
    Refused(#[from] LoginRefused),
    /// The server violated the protocol, or the client cannot do what the login needs.
    #[error(transparent)]
    Protocol(#[from] session::SessionError),
}

impl AuthFilter {
    /// Creates the filter for one login.
    pub fn new(policy: AuthPolicy) -> Self {
        Self { policy: Some(policy), buffer: Vec::new() }
    }

    /// Handles bytes from the server and passes on the messages that were checked.
    ///
    /// # Errors
    ///
    /// The login must be aborted: close the connection without sending anything. Messages before
    /// the offending one have already been passed on.
    pub fn handle(
        &mut self,
        bytes: &[u8],
        session: &mut session::ClientSession,
    ) -> Result<(), LoginError> {
        if self.policy.is_none() {
            session.handle_input(bytes);
            return Ok(());
        }
        self.buffer.extend_from_slice(bytes);
        let mut checked = 0;
        let result = loop {
            let Some(policy) = &mut self.policy else { break Ok(()) };
            match check_message(&self.buffer[checked..], policy) {
                Ok(None) => break Ok(()),
                Ok(Some(AllowedMessage { message_bytes, is_in })) => {
                    checked += message_bytes;
                    if is_in {
                        self.policy = None;
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if self.policy.is_none() {
            checked = self.buffer.len();
        }
        session.handle_input(&self.buffer[..checked]);
        self.buffer.drain(..checked);
        if self.policy.is_none() {
            self.buffer = Vec::new();
        }
        result
    }
}

/// A message that may be passed on.
struct AllowedMessage {
    message_bytes: usize,
    /// Whether the message is AuthenticationOk.
    is_in: bool,
}

/// Checks the first message; returns `None` while the message is incomplete.
fn check_message(
    bytes: &[u8],
    policy: &mut AuthPolicy,
) -> Result<Option<AllowedMessage>, LoginError> {
    let split = Frame::split(bytes, MESSAGE_BYTES_MAX).map_err(session::SessionError::from)?;
    let Some((frame, _)) = split else { return Ok(None) };
    let mut is_in = false;
    if Backend::from_tag(frame.tag) == Some(Backend::Authentication)
        && let BackendMessage::Authentication(request) =
            BackendMessage::parse(frame).map_err(session::SessionError::from)?
    {
        policy.check(&request)?;
        is_in = matches!(request, Authentication::Ok);
    }
    Ok(Some(AllowedMessage { message_bytes: Header::BYTES + frame.body.len(), is_in }))
}

#[cfg(test)]
mod tests {
    use howdah_session::{ClientSession, Login, SessionEvent};
    use howdah_wire::backend::encode::{self, AuthenticationRequest};

    use super::*;
    use crate::{setting_origin::SettingOrigin, settings::KeywordValues, tls::TlsSettings};

    fn client() -> ClientSession {
        let login = Login {
            user: "u".to_owned(),
            database: "d".to_owned(),
            password: Some("secret".into()),
            parameters: Vec::new(),
            channel_binding: None,
        };
        let mut client = ClientSession::new(login, [7; 18]);
        client.transmitted(client.transmit().len());
        client
    }

    fn input(require_auth: &str) -> AuthFilter {
        let mut settings = KeywordValues::default();
        settings.set("require_auth", require_auth, SettingOrigin::Argument).unwrap();
        let policy = AuthPolicy::resolve(&settings, &TlsSettings::default()).unwrap();
        AuthFilter::new(policy.for_login(false))
    }

    /// Returns a clear-text password request if `ask`, then AuthenticationOk and the messages after
    /// it.
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
    fn refused_request_never_reaches_session() {
        let bytes = let_in(true);
        for split in 0..bytes.len() {
            let (mut client, mut input) = (client(), input("scram-sha-256"));
            let mut error = input.handle(&bytes[..split], &mut client);
            if error.is_ok() {
                error = input.handle(&bytes[split..], &mut client);
            }
            let refused = LoginRefused::Method { method: "password" };
            assert_eq!(error, Err(refused.into()), "{split}");
            assert!(client.poll_event().unwrap().is_none());
            assert_eq!(client.transmit(), b"", "the password was sent");
        }
    }

    #[test]
    fn allowed_messages_pass_in_pieces_of_any_size() {
        let bytes = let_in(false);
        for size in 1..=bytes.len() {
            let (mut client, mut input) = (client(), input(""));
            for piece in bytes.chunks(size) {
                input.handle(piece, &mut client).unwrap();
            }
            assert!(matches!(client.poll_event().unwrap(), Some(SessionEvent::LoggedIn)), "{size}");
            assert!(input.buffer.is_empty() && input.policy.is_none());
        }
    }

    #[test]
    fn oversized_message_is_refused_immediately() {
        let (mut client, mut input) = (client(), input(""));
        let error = input.handle(b"R\x7f\0\0\0....", &mut client);
        assert!(matches!(error, Err(LoginError::Protocol(_))), "{error:?}");
    }
}

//! A scripted peer: encodes a server's messages, and decodes the client's.

use howdah_session::{ClientSession, Login, Secret};
use howdah_wire::{
    EncodeError, Frame, Frontend,
    backend::{
        Severity, TransactionStatus,
        encode::{self, AuthenticationRequest, Bare},
    },
    frontend::FrontendMessage,
    startup::{CancelKey, PACKET_BYTES_MAX, Packet},
};

/// A sequence of server messages.
#[derive(Default)]
pub(crate) struct ServerScript(pub(crate) Vec<u8>);

impl ServerScript {
    pub(crate) fn auth(self, request: AuthenticationRequest<'_>) -> Self {
        self.with(|buf| encode::authentication(buf, request))
    }

    pub(crate) fn bare(self, message: Bare) -> Self {
        self.with(|buf| {
            encode::bare(buf, message);
            Ok(())
        })
    }

    pub(crate) fn complete(self, tag: &str) -> Self {
        self.with(|buf| encode::command_complete(buf, tag.as_bytes()))
    }

    pub(crate) fn row(self, cell: &[u8]) -> Self {
        self.with(|buf| encode::data_row(buf, [Some(cell)]))
    }

    pub(crate) fn error(self, severity: Severity, sqlstate: &str) -> Self {
        let fields = encode::essentials(severity, sqlstate.as_bytes(), b"because");
        self.with(|buf| encode::error_response(buf, fields))
    }

    pub(crate) fn setting(self, name: &str, value: &str) -> Self {
        self.with(|buf| encode::parameter_status(buf, name.as_bytes(), value.as_bytes()))
    }

    pub(crate) fn key(self, key: &CancelKey) -> Self {
        self.with(|buf| {
            encode::backend_key_data(buf, key);
            Ok(())
        })
    }

    pub(crate) fn ready(self, status: TransactionStatus) -> Self {
        self.with(|buf| {
            encode::ready_for_query(buf, status);
            Ok(())
        })
    }

    pub(crate) fn with(
        mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Self {
        write(&mut self.0).unwrap();
        self
    }
}

pub(crate) fn login(password: Option<&str>) -> Login {
    Login {
        user: "alice".into(),
        database: "shop".into(),
        password: password.map(Secret::from),
        parameters: vec![("application_name".into(), "test".into())],
        channel_binding: None,
    }
}

/// A client whose startup packet has been sent.
pub(crate) fn started(login: Login) -> ClientSession {
    let mut client = ClientSession::new(login, [1; 18]);
    let packet = Packet::split(client.transmit(), PACKET_BYTES_MAX).unwrap().unwrap();
    assert!(matches!(packet, (Packet::Startup(_), b"")));
    client.transmitted(client.transmit().len());
    client
}

/// A client that is logged in and idle.
pub(crate) fn open() -> ClientSession {
    let mut client = started(login(None));
    client.handle_input(
        &ServerScript::default().auth(AuthenticationRequest::Ok).ready(TransactionStatus::Idle).0,
    );
    assert_eq!(crate::describe::events(&mut client), Ok(vec!["LoggedIn".to_owned()]));
    client
}

/// Kinds of the client's pending messages, which then count as sent.
pub(crate) fn sent(client: &mut ClientSession) -> Vec<Frontend> {
    let mut kinds = Vec::new();
    let mut rest = client.transmit();
    while let Some((frame, after)) = Frame::split(rest, u32::MAX).unwrap() {
        kinds.push(FrontendMessage::parse(frame).unwrap().kind());
        rest = after;
    }
    assert_eq!(rest, b"");
    client.transmitted(client.transmit().len());
    kinds
}

/// The body of the client's only pending message, which then counts as sent.
pub(crate) fn sent_body(client: &mut ClientSession) -> Vec<u8> {
    let (frame, rest) = Frame::split(client.transmit(), u32::MAX).unwrap().unwrap();
    assert_eq!(rest, b"");
    let body = frame.body.to_vec();
    client.transmitted(client.transmit().len());
    body
}

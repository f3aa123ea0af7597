//! Tests of successful and failed logins.

use howdah_session::{
    ClientSession, EncodeError, ErrorOrigin, ScramKeys, SessionError, Severity, TransactionStatus,
};
use howdah_wire::{
    Backend,
    auth::{
        self,
        scram::{SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, ScramVerifier, ServerFirst},
    },
    backend::encode::AuthenticationRequest,
    frontend::{PasswordMessage, SaslInitialResponse},
    startup::{CancelKey, PACKET_BYTES_MAX, Packet, ProtocolVersion},
};

use crate::{
    describe::events,
    peer::{ServerScript, login, sent, sent_body, started},
};

#[test]
fn startup_packet_contains_user_and_database() {
    let client = ClientSession::new(login(None), [1; 18]);
    let Ok(Some((Packet::Startup(startup), b""))) =
        Packet::split(client.transmit(), PACKET_BYTES_MAX)
    else {
        panic!()
    };
    assert_eq!(startup.version, ProtocolVersion::V3_0);
    let expected: [(&[u8], &[u8]); 3] =
        [(b"user", b"alice"), (b"database", b"shop"), (b"application_name", b"test")];
    assert_eq!(startup.parameters.collect::<Vec<_>>(), expected);
}

#[test]
fn trust_login_succeeds() {
    let mut client = started(login(None));
    let key = CancelKey::new(7, b"key!").unwrap();
    let welcome = ServerScript::default()
        .auth(AuthenticationRequest::Ok)
        .setting("server_version", "15.18")
        .key(&key)
        .ready(TransactionStatus::Idle);
    // Byte by byte: incomplete messages produce no events.
    let mut lines = Vec::new();
    for byte in &welcome.0 {
        assert!(!client.is_ready());
        client.handle_input(std::slice::from_ref(byte));
        lines.extend(events(&mut client).unwrap());
    }
    assert_eq!(lines, ["ParameterStatus server_version=15.18", "LoggedIn"]);
    assert!(client.is_ready());
    assert_eq!(client.parameter("server_version"), Some("15.18"));
    assert_eq!(client.cancel_key(), Some(&key));
}

#[test]
fn passwords_are_sent_by_requested_method() {
    let mut client = started(login(Some("sesame")));
    client.handle_input(&ServerScript::default().auth(AuthenticationRequest::CleartextPassword).0);
    assert_eq!(events(&mut client), Ok(vec![]));
    let body = sent_body(&mut client);
    assert_eq!(PasswordMessage::parse(&body).unwrap().password, b"sesame");

    let mut client = started(login(Some("sesame")));
    let salt = *b"salt";
    client
        .handle_input(&ServerScript::default().auth(AuthenticationRequest::Md5Password { salt }).0);
    assert_eq!(events(&mut client), Ok(vec![]));
    let body = sent_body(&mut client);
    let expected = auth::md5(b"alice", b"sesame", salt);
    assert_eq!(PasswordMessage::parse(&body).unwrap().password, expected);
    accepted(&mut client);
}

#[test]
fn scram_authenticates_both_sides() {
    for (hash, mechanism) in [(None, SCRAM_SHA_256), (Some(b"hash".to_vec()), SCRAM_SHA_256_PLUS)] {
        let mut client = started(howdah_session::Login {
            channel_binding: hash.clone(),
            ..login(Some("sesame"))
        });
        let offer: &[&[u8]] = &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256];
        let server = scram_challenge(&mut client, offer, mechanism, hash.as_deref());
        let proof = sent_body(&mut client);
        let last = server.verify(&proof).unwrap();
        client
            .handle_input(&ServerScript::default().auth(AuthenticationRequest::SaslFinal(&last)).0);
        assert_eq!(events(&mut client), Ok(vec![]));
        accepted(&mut client);
    }
}

#[test]
fn shared_keys_are_computed_once() {
    let keys = ScramKeys::default();
    for _ in 0..3 {
        let mut client = started(login(Some("sesame")));
        client.share_scram_keys(keys.clone());
        let server = scram_challenge(&mut client, &[SCRAM_SHA_256], SCRAM_SHA_256, None);
        let proof = sent_body(&mut client);
        let last = server.verify(&proof).unwrap();
        client
            .handle_input(&ServerScript::default().auth(AuthenticationRequest::SaslFinal(&last)).0);
        assert_eq!(events(&mut client), Ok(vec![]));
        accepted(&mut client);
        assert_eq!(keys.len(), 1);
    }
}

#[test]
fn server_without_proof_is_refused() {
    let skips = |says: ServerScript| {
        let mut client = started(login(Some("sesame")));
        let offer: &[&[u8]] = &[SCRAM_SHA_256];
        drop(scram_challenge(&mut client, offer, SCRAM_SHA_256, None));
        client.handle_input(&says.0);
        events(&mut client)
    };
    let ok = ServerScript::default().auth(AuthenticationRequest::Ok);
    assert_eq!(skips(ok), Err(SessionError::ServerUnproven));
    let ready = ServerScript::default().ready(TransactionStatus::Idle);
    assert!(matches!(skips(ready), Err(SessionError::Unexpected { .. })));
    let forged = b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let forged = ServerScript::default().auth(AuthenticationRequest::SaslFinal(forged));
    assert_eq!(skips(forged), Err(SessionError::Scram(ScramError::ServerUnproven)));
    // A clear-text password request in the middle of SCRAM is refused.
    let downgrade = ServerScript::default().auth(AuthenticationRequest::CleartextPassword);
    assert!(matches!(skips(downgrade), Err(SessionError::Unexpected { .. })));
}

#[test]
fn messages_before_authentication_ok_are_refused() {
    let early = |says: ServerScript| {
        let mut client = started(login(Some("sesame")));
        client.handle_input(&says.0);
        events(&mut client).unwrap_err()
    };
    let unexpected = |message, state| SessionError::Unexpected { message, state };
    assert_eq!(
        early(ServerScript::default().ready(TransactionStatus::Idle)),
        unexpected(Backend::ReadyForQuery, "while waiting for an authentication request")
    );
    assert_eq!(
        early(ServerScript::default().key(&CancelKey::new(1, b"key!").unwrap())),
        unexpected(Backend::BackendKeyData, "while waiting for an authentication request")
    );
    assert_eq!(
        early(ServerScript::default().row(b"1")),
        unexpected(Backend::DataRow, "during the login")
    );
    let twice = ServerScript::default()
        .auth(AuthenticationRequest::CleartextPassword)
        .auth(AuthenticationRequest::CleartextPassword);
    assert_eq!(
        early(twice),
        unexpected(Backend::Authentication, "while waiting for AuthenticationOk")
    );
}

#[test]
fn errors_have_an_origin() {
    let failed = |login, says: ServerScript| {
        let mut client = started(login);
        client.handle_input(&says.0);
        let error = events(&mut client).unwrap_err();
        assert_eq!(events(&mut client), Err(error.clone()), "the error persists");
        assert!(client.is_closed());
        (error.origin(), error.to_string())
    };
    assert_eq!(
        failed(login(None), ServerScript::default().auth(AuthenticationRequest::CleartextPassword)),
        (
            ErrorOrigin::Login,
            "the server asks for a password (password), but none is configured".to_owned()
        )
    );
    assert_eq!(
        failed(
            login(Some("x")),
            ServerScript::default().auth(AuthenticationRequest::Sasl(&[b"OAUTHBEARER"]))
        ),
        (
            ErrorOrigin::Unsupported,
            "the server asks for SASL (OAUTHBEARER) authentication, which is not supported"
                .to_owned()
        )
    );
    assert_eq!(
        failed(login(None), ServerScript(b"R\0\0\0\x08\0\0\0\x07".to_vec())),
        (
            ErrorOrigin::Unsupported,
            "the server asks for gss authentication, which is not supported".to_owned()
        )
    );
    assert_eq!(
        failed(login(None), ServerScript(b"HTTP/1.1 400 Bad Request\r\n".to_vec())).0,
        ErrorOrigin::Server
    );
}

#[test]
fn unencodable_login_is_an_error() {
    let zero = howdah_session::Login { user: "al\0ice".into(), ..login(None) };
    let mut client = ClientSession::new(zero, [1; 18]);
    assert_eq!(client.transmit(), b"");
    let error = events(&mut client).unwrap_err();
    assert_eq!(error, SessionError::Login(EncodeError::Nul { field: "parameter value" }));
    assert_eq!(error.origin(), ErrorOrigin::Login);
}

#[test]
fn refused_login_is_an_event_and_closes_session() {
    let mut client = started(login(None));
    client.handle_input(&ServerScript::default().error(Severity::Fatal, "3D000").0);
    assert_eq!(events(&mut client), Ok(vec!["Error 3D000".to_owned()]));
    assert!(client.is_closed());
    assert_eq!(client.handle_eof(), Ok(()));
}

#[test]
fn lost_connection_is_an_error() {
    let mut client = started(login(None));
    assert_eq!(client.handle_eof(), Err(SessionError::ConnectionLost));
    assert_eq!(events(&mut client), Err(SessionError::ConnectionLost));
}

#[test]
fn long_messages_before_login_are_refused() {
    let mut client = started(login(None));
    client.handle_input(b"E\0\x01\0\x05");
    assert!(matches!(events(&mut client), Err(SessionError::Header(_))));
}

#[test]
fn other_major_protocol_version_is_refused() {
    let offer = |code: &[u8; 4]| {
        let mut client = started(login(None));
        client.handle_input(&[b"v\0\0\0\x0c", &code[..], b"\0\0\0\0"].concat());
        events(&mut client)
    };
    assert_eq!(offer(b"\0\x03\0\0"), Ok(vec![]));
    let offered = ProtocolVersion { major: 4, minor: 0 };
    assert_eq!(offer(b"\0\x04\0\0"), Err(SessionError::ProtocolVersion { offered }));
}

#[test]
fn early_requests_are_deferred_until_login() {
    let mut client = started(login(None));
    client.query(b"select 1").unwrap();
    assert_eq!(client.transmit(), b"", "a server would take it for a password");
    assert_eq!(client.pending_ready_count(), 1);
    client.handle_input(&ServerScript::default().auth(AuthenticationRequest::Ok).0);
    assert_eq!(events(&mut client), Ok(vec![]));
    assert_eq!(client.transmit(), b"");
    client.handle_input(&ServerScript::default().ready(TransactionStatus::Idle).0);
    assert_eq!(events(&mut client), Ok(vec!["LoggedIn".to_owned()]));
    assert!(!client.is_ready());
    assert_eq!(sent(&mut client), [howdah_wire::Frontend::Query]);
    client.handle_input(
        &ServerScript::default().complete("SELECT 1").ready(TransactionStatus::Idle).0,
    );
    assert_eq!(events(&mut client).unwrap().len(), 2);
    assert!(client.is_ready());
}

#[test]
fn debug_hides_password() {
    let mut client = started(login(Some("sesame")));
    assert!(!format!("{client:?}").contains("sesame"));
    client.handle_input(&ServerScript::default().auth(AuthenticationRequest::CleartextPassword).0);
    assert_eq!(events(&mut client), Ok(vec![]));
    let shown = format!("{client:?}");
    assert!(!shown.contains("sesame") && !shown.contains("115, 101, 115"), "{shown}");
}

/// The server's part of SCRAM up to its challenge, which is passed to the client.
fn scram_challenge(
    client: &mut ClientSession,
    offer: &[&[u8]],
    mechanism: &[u8],
    hash: Option<&[u8]>,
) -> ServerFirst {
    client.handle_input(&ServerScript::default().auth(AuthenticationRequest::Sasl(offer)).0);
    assert_eq!(events(client), Ok(vec![]));
    let body = sent_body(client);
    let first = SaslInitialResponse::parse(&body).unwrap();
    assert_eq!(first.mechanism, mechanism);
    let verifier = ScramVerifier::from_password(b"sesame", b"salt", 4096.try_into().unwrap());
    let plus = mechanism == SCRAM_SHA_256_PLUS;
    let server = ServerFirst::receive(verifier, first.data.unwrap(), hash, plus, [2; 18]).unwrap();
    client.handle_input(
        &ServerScript::default().auth(AuthenticationRequest::SaslContinue(server.message())).0,
    );
    assert_eq!(events(client), Ok(vec![]));
    server
}

fn accepted(client: &mut ClientSession) {
    let welcome =
        ServerScript::default().auth(AuthenticationRequest::Ok).ready(TransactionStatus::Idle);
    client.handle_input(&welcome.0);
    assert_eq!(events(client), Ok(vec!["LoggedIn".to_owned()]));
}

//! The way in, and the ways not to get in.

use howdah_session::{Client, EncodeError, Error, Fault, ScramKeys, Severity, TransactionStatus};
use howdah_wire::{
    Backend,
    auth::{
        self,
        scram::{SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, ServerFirst, Verifier},
    },
    backend::encode::AuthenticationRequest,
    frontend::{PasswordMessage, SaslInitialResponse},
    startup::{CancelKey, PACKET_BYTES_MAX, Packet, ProtocolVersion},
};

use crate::{
    describe::events,
    peer::{Says, login, sent, sent_body, started},
};

#[test]
fn the_startup_packet_says_who_and_where() {
    let client = Client::new(login(None), [1; 18]);
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
fn a_trusting_server_lets_us_in() {
    let mut client = started(login(None));
    let key = CancelKey::new(7, b"key!").unwrap();
    let welcome = Says::default()
        .auth(AuthenticationRequest::Ok)
        .setting("server_version", "15.18")
        .key(&key)
        .ready(TransactionStatus::Idle);
    // Byte by byte: what is not whole is waited for.
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
fn passwords_are_sent_as_asked() {
    let mut client = started(login(Some("sesame")));
    client.handle_input(&Says::default().auth(AuthenticationRequest::CleartextPassword).0);
    assert_eq!(events(&mut client), Ok(vec![]));
    let body = sent_body(&mut client);
    assert_eq!(PasswordMessage::parse(&body).unwrap().password, b"sesame");

    let mut client = started(login(Some("sesame")));
    let salt = *b"salt";
    client.handle_input(&Says::default().auth(AuthenticationRequest::Md5Password { salt }).0);
    assert_eq!(events(&mut client), Ok(vec![]));
    let body = sent_body(&mut client);
    let expected = auth::md5(b"alice", b"sesame", salt);
    assert_eq!(PasswordMessage::parse(&body).unwrap().password, expected);
    accepted(&mut client);
}

#[test]
fn scram_proves_both_sides() {
    for (hash, mechanism) in [(None, SCRAM_SHA_256), (Some(b"hash".to_vec()), SCRAM_SHA_256_PLUS)] {
        let mut client = started(howdah_session::Login {
            channel_binding: hash.clone(),
            ..login(Some("sesame"))
        });
        let offer: &[&[u8]] = &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256];
        let server = scram_challenge(&mut client, offer, mechanism, hash.as_deref());
        let proof = sent_body(&mut client);
        let last = server.verify(&proof).unwrap();
        client.handle_input(&Says::default().auth(AuthenticationRequest::SaslFinal(&last)).0);
        assert_eq!(events(&mut client), Ok(vec![]));
        accepted(&mut client);
    }
}

#[test]
fn logins_with_one_password_compute_its_keys_once() {
    let keys = ScramKeys::default();
    for _ in 0..3 {
        let mut client = started(login(Some("sesame")));
        client.share_scram_keys(keys.clone());
        let server = scram_challenge(&mut client, &[SCRAM_SHA_256], SCRAM_SHA_256, None);
        let proof = sent_body(&mut client);
        let last = server.verify(&proof).unwrap();
        client.handle_input(&Says::default().auth(AuthenticationRequest::SaslFinal(&last)).0);
        assert_eq!(events(&mut client), Ok(vec![]));
        accepted(&mut client);
        assert_eq!(keys.len(), 1);
    }
}

#[test]
fn a_server_that_skips_its_proof_is_not_believed() {
    let skips = |says: Says| {
        let mut client = started(login(Some("sesame")));
        let offer: &[&[u8]] = &[SCRAM_SHA_256];
        drop(scram_challenge(&mut client, offer, SCRAM_SHA_256, None));
        client.handle_input(&says.0);
        events(&mut client)
    };
    let ok = Says::default().auth(AuthenticationRequest::Ok);
    assert_eq!(skips(ok), Err(Error::ServerUnproven));
    let ready = Says::default().ready(TransactionStatus::Idle);
    assert!(matches!(skips(ready), Err(Error::Unexpected { .. })));
    let forged = b"v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let forged = Says::default().auth(AuthenticationRequest::SaslFinal(forged));
    assert_eq!(skips(forged), Err(Error::Scram(ScramError::ServerUnproven)));
    // Asking for the password in the clear in the middle of SCRAM gets nothing.
    let downgrade = Says::default().auth(AuthenticationRequest::CleartextPassword);
    assert!(matches!(skips(downgrade), Err(Error::Unexpected { .. })));
}

#[test]
fn messages_before_consent_are_refused() {
    let early = |says: Says| {
        let mut client = started(login(Some("sesame")));
        client.handle_input(&says.0);
        events(&mut client).unwrap_err()
    };
    let unexpected = |message, state| Error::Unexpected { message, state };
    assert_eq!(
        early(Says::default().ready(TransactionStatus::Idle)),
        unexpected(Backend::ReadyForQuery, "waiting for an authentication request")
    );
    assert_eq!(
        early(Says::default().key(&CancelKey::new(1, b"key!").unwrap())),
        unexpected(Backend::BackendKeyData, "waiting for an authentication request")
    );
    assert_eq!(early(Says::default().row(b"1")), unexpected(Backend::DataRow, "logging in"));
    let twice = Says::default()
        .auth(AuthenticationRequest::CleartextPassword)
        .auth(AuthenticationRequest::CleartextPassword);
    assert_eq!(
        early(twice),
        unexpected(Backend::Authentication, "waiting for the login to be accepted")
    );
}

#[test]
fn errors_say_who_has_to_change_something() {
    let failed = |login, says: Says| {
        let mut client = started(login);
        client.handle_input(&says.0);
        let error = events(&mut client).unwrap_err();
        assert_eq!(events(&mut client), Err(error.clone()), "the connection stays dead");
        assert!(client.is_closed());
        (error.fault(), error.to_string())
    };
    assert_eq!(
        failed(login(None), Says::default().auth(AuthenticationRequest::CleartextPassword)),
        (Fault::Login, "the server asks for a password (password), and none is given".to_owned())
    );
    assert_eq!(
        failed(
            login(Some("x")),
            Says::default().auth(AuthenticationRequest::Sasl(&[b"OAUTHBEARER"]))
        ),
        (
            Fault::Unsupported,
            "the server asks for SASL (OAUTHBEARER) authentication, which is not supported"
                .to_owned()
        )
    );
    assert_eq!(
        failed(login(None), Says(b"R\0\0\0\x08\0\0\0\x07".to_vec())),
        (
            Fault::Unsupported,
            "the server asks for gss authentication, which is not supported".to_owned()
        )
    );
    assert_eq!(
        failed(login(None), Says(b"HTTP/1.1 400 Bad Request\r\n".to_vec())).0,
        Fault::Server
    );
}

#[test]
fn a_login_that_cannot_be_written_is_an_error() {
    let zero = howdah_session::Login { user: "al\0ice".into(), ..login(None) };
    let mut client = Client::new(zero, [1; 18]);
    assert_eq!(client.transmit(), b"");
    let error = events(&mut client).unwrap_err();
    assert_eq!(error, Error::Login(EncodeError::Nul { field: "parameter value" }));
    assert_eq!(error.fault(), Fault::Login);
}

#[test]
fn a_refusal_is_an_event_and_the_end() {
    let mut client = started(login(None));
    client.handle_input(&Says::default().error(Severity::Fatal, "3D000").0);
    assert_eq!(events(&mut client), Ok(vec!["Error 3D000".to_owned()]));
    assert!(client.is_closed());
    assert_eq!(client.handle_end(), Ok(()));
}

#[test]
fn a_server_that_goes_away_is_an_error() {
    let mut client = started(login(None));
    assert_eq!(client.handle_end(), Err(Error::ConnectionLost));
    assert_eq!(events(&mut client), Err(Error::ConnectionLost));
}

#[test]
fn nothing_long_is_accepted_before_the_login() {
    let mut client = started(login(None));
    client.handle_input(b"E\0\x01\0\x05");
    assert!(matches!(events(&mut client), Err(Error::Header(_))));
}

#[test]
fn a_server_of_another_major_version_is_refused() {
    let offer = |code: &[u8; 4]| {
        let mut client = started(login(None));
        client.handle_input(&[b"v\0\0\0\x0c", &code[..], b"\0\0\0\0"].concat());
        events(&mut client)
    };
    assert_eq!(offer(b"\0\x03\0\0"), Ok(vec![]));
    let offered = ProtocolVersion { major: 4, minor: 0 };
    assert_eq!(offer(b"\0\x04\0\0"), Err(Error::ProtocolVersion { offered }));
}

#[test]
fn requests_made_early_wait_for_the_login() {
    let mut client = started(login(None));
    client.query(b"select 1").unwrap();
    assert_eq!(client.transmit(), b"", "a server would take it for a password");
    assert_eq!(client.ready_owed(), 1);
    client.handle_input(&Says::default().auth(AuthenticationRequest::Ok).0);
    assert_eq!(events(&mut client), Ok(vec![]));
    assert_eq!(client.transmit(), b"");
    client.handle_input(&Says::default().ready(TransactionStatus::Idle).0);
    assert_eq!(events(&mut client), Ok(vec!["LoggedIn".to_owned()]));
    assert!(!client.is_ready());
    assert_eq!(sent(&mut client), [howdah_wire::Frontend::Query]);
    client.handle_input(&Says::default().complete("SELECT 1").ready(TransactionStatus::Idle).0);
    assert_eq!(events(&mut client).unwrap().len(), 2);
    assert!(client.is_ready());
}

#[test]
fn debug_shows_no_password() {
    let mut client = started(login(Some("sesame")));
    assert!(!format!("{client:?}").contains("sesame"));
    client.handle_input(&Says::default().auth(AuthenticationRequest::CleartextPassword).0);
    assert_eq!(events(&mut client), Ok(vec![]));
    let shown = format!("{client:?}");
    assert!(!shown.contains("sesame") && !shown.contains("115, 101, 115"), "{shown}");
}

/// The server's part of SCRAM up to its challenge, which the client has taken.
fn scram_challenge(
    client: &mut Client,
    offer: &[&[u8]],
    mechanism: &[u8],
    hash: Option<&[u8]>,
) -> ServerFirst {
    client.handle_input(&Says::default().auth(AuthenticationRequest::Sasl(offer)).0);
    assert_eq!(events(client), Ok(vec![]));
    let body = sent_body(client);
    let first = SaslInitialResponse::parse(&body).unwrap();
    assert_eq!(first.mechanism, mechanism);
    let verifier = Verifier::from_password(b"sesame", b"salt", 4096.try_into().unwrap());
    let plus = mechanism == SCRAM_SHA_256_PLUS;
    let server = ServerFirst::receive(verifier, first.data.unwrap(), hash, plus, [2; 18]).unwrap();
    client.handle_input(
        &Says::default().auth(AuthenticationRequest::SaslContinue(server.message())).0,
    );
    assert_eq!(events(client), Ok(vec![]));
    server
}

fn accepted(client: &mut Client) {
    let welcome = Says::default().auth(AuthenticationRequest::Ok).ready(TransactionStatus::Idle);
    client.handle_input(&welcome.0);
    assert_eq!(events(client), Ok(vec!["LoggedIn".to_owned()]));
}

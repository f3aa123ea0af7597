//! Dialogues with a server.

use howdah_wire::{
    Secret,
    auth::{
        self,
        scram::{SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, ScramVerifier, ServerFirst},
    },
    backend::encode::{self, AuthenticationRequest},
    frontend::SaslInitialResponse,
    startup::{PACKET_BYTES_MAX, Packet},
};

use super::*;

fn intent(secret: Option<&str>) -> ServerIntent {
    ServerIntent {
        identity: ServerIdentity {
            user: "app".to_owned(),
            is_forced: false,
            database: "shop".to_owned(),
            secret: secret.map(StoredSecret::parse),
            parameters: vec![("application_name".to_owned(), "pooled".to_owned())],
            connect_query: None,
        },
        parameters: vec![SessionParameter::new("geqo", "off")],
        newest: ProtocolVersion::V3_2,
        client_keys: None,
        protection: ServerProtection::None,
    }
}

fn start_login(intent: ServerIntent) -> ServerHandshake {
    let mut server = ServerHandshake::new(intent, ClientKeys::default(), [1; 18]).unwrap();
    server.take_output();
    server
}

fn request(request: AuthenticationRequest<'_>) -> Vec<u8> {
    let mut buf = Vec::new();
    encode::authentication(&mut buf, request).unwrap();
    buf
}

/// Returns AuthenticationOk and the messages up to ReadyForQuery.
fn login_messages() -> Vec<u8> {
    let mut buf = request(AuthenticationRequest::Ok);
    encode::parameter_status(&mut buf, b"server_version", b"18.0").unwrap();
    encode::parameter_status(&mut buf, b"TimeZone", b"UTC").unwrap();
    encode::parameter_status(&mut buf, b"timezone", b"CET").unwrap();
    encode::backend_key_data(&mut buf, &CancelKey::new(5, &[7; 32]).unwrap());
    encode::ready_for_query(&mut buf, TransactionStatus::Idle);
    buf
}

fn ready(step: Result<ServerStep, ServerLoginError>) -> ServerReady {
    match step {
        Ok(ServerStep::Ready(ready)) => *ready,
        other => panic!("{other:?}"),
    }
}

/// Runs a SCRAM login to a server with the verifier of `password`; keys are derived at once.
fn scram(
    mut client: ServerHandshake,
    password: &str,
    hash: Option<&[u8]>,
) -> Result<ServerStep, ServerLoginError> {
    let mechanisms: &[&[u8]] = match hash {
        Some(_) => &[SCRAM_SHA_256_PLUS, SCRAM_SHA_256],
        None => &[SCRAM_SHA_256],
    };
    client.receive(&request(AuthenticationRequest::Sasl(mechanisms)))?;
    let output = client.take_output();
    let (frame, _) = Frame::split(&output, 1000).unwrap().unwrap();
    let first = SaslInitialResponse::parse(frame.body).unwrap();
    let verifier =
        ScramVerifier::from_password(password.as_bytes(), b"salt", 2.try_into().unwrap());
    let plus = first.mechanism == SCRAM_SHA_256_PLUS;
    let server = ServerFirst::receive(verifier, first.data.unwrap(), hash, plus, [2; 18]).unwrap();
    let step = client.receive(&request(AuthenticationRequest::SaslContinue(server.message())))?;
    if let ServerStep::DeriveKeys(derivation) = step {
        assert!(matches!(client.keys_derived(derivation.run())?, ServerStep::Read));
    }
    let output = client.take_output();
    let (frame, _) = Frame::split(&output, 1000).unwrap().unwrap();
    let last = match server.verify(frame.body) {
        Ok(last) => request(AuthenticationRequest::SaslFinal(&last)),
        Err(_) => refusal(b"28P01", "password authentication failed for user \"app\""),
    };
    client.receive(&[last, login_messages()].concat())
}

fn refusal(sqlstate: &[u8], text: &str) -> Vec<u8> {
    let mut buf = Vec::new();
    let fields =
        encode::essentials(howdah_wire::backend::Severity::Fatal, sqlstate, text.as_bytes());
    encode::error_response(&mut buf, fields).unwrap();
    buf
}

#[test]
fn startup_packet_contains_identity_and_parameters() {
    let mut server = ServerHandshake::new(intent(None), ClientKeys::default(), [1; 18]).unwrap();
    let output = server.take_output();
    let Ok(Some((Packet::Startup(startup), b""))) = Packet::split(&output, PACKET_BYTES_MAX) else {
        panic!()
    };
    assert_eq!(startup.version, ProtocolVersion::V3_2);
    let text = |it: &[u8]| String::from_utf8(it.to_vec()).unwrap();
    let parameters: Vec<_> = startup.parameters.map(|(n, v)| text(n) + "=" + &text(v)).collect();
    assert_eq!(parameters, ["user=app", "database=shop", "application_name=pooled", "geqo=off"]);
    let mut broken = intent(None);
    broken.identity.user = "a\0b".to_owned();
    assert!(ServerHandshake::new(broken, ClientKeys::default(), [1; 18]).is_err());
}

#[test]
fn reported_parameters_survive_any_split_of_the_input() {
    let bytes = [login_messages(), b"N\0\0\0\x05\0".to_vec()].concat();
    for cut in 0..bytes.len() {
        let mut server = start_login(intent(None));
        let mut step = server.receive(&bytes[..cut]);
        if let Ok(ServerStep::Read) = step {
            step = server.receive(&bytes[cut..]);
        }
        let ready = ready(step);
        let parameters = format!("{:?}", ready.login.parameters);
        assert_eq!(parameters, "[server_version=18.0, timezone=CET]", "the later value wins");
        assert_eq!(ready.login.cancel_key.unwrap().secret(), [7; 32]);
        assert_eq!(ready.version, ProtocolVersion::V3_2);
    }
    let mut server = start_login(intent(None));
    assert_eq!(ready(server.receive(&bytes)).received, b"N\0\0\0\x05\0");
}

#[test]
fn older_protocol_is_negotiated_or_retried() {
    let mut older = Vec::new();
    encode::negotiate_protocol_version(&mut older, ProtocolVersion::V3_0, &[]).unwrap();
    let ready = ready(start_login(intent(None)).receive(&[older, login_messages()].concat()));
    assert_eq!(ready.version, ProtocolVersion::V3_0);
    let mut newer = Vec::new();
    let version = ProtocolVersion { major: 3, minor: 3 };
    encode::negotiate_protocol_version(&mut newer, version, &[]).unwrap();
    let error = start_login(intent(None)).receive(&newer).unwrap_err();
    assert_eq!(error, ServerLoginError::Version { newest: version });
    // A server that does not support negotiation.
    let error = start_login(intent(None)).receive(&refusal(b"08P01", "unsupported")).unwrap_err();
    assert!(error.may_retry_as_3_0());
    let older = ServerIntent { newest: ProtocolVersion::V3_0, ..intent(None) };
    assert!(!start_login(older).receive(&refusal(b"08P01", "no")).unwrap_err().may_retry_as_3_0());
}

#[test]
fn scram_uses_password_or_keys_of_the_clients_login() {
    ready(scram(start_login(intent(Some("sesame"))), "sesame", None));
    let error = scram(start_login(intent(Some("sesame"))), "other", None).unwrap_err();
    assert_eq!(error.to_string(), "password authentication failed for user \"app\"");
    assert_eq!(error.failure().sqlstate, *b"28P01");

    let keys = |password: &str| {
        let keys = ClientKeys::default();
        keys.get_or_compute(&Secret::from(password), b"salt", 2.try_into().unwrap())
    };
    let stored = ScramVerifier::from_keys(&keys("sesame")).to_text();
    let with = |secret: Option<&str>, client_keys| {
        start_login(ServerIntent { client_keys, ..intent(secret) })
    };
    ready(scram(with(Some(&stored), Some(keys("sesame"))), "sesame", None));
    ready(scram(with(None, Some(keys("sesame"))), "sesame", None));
    let no_secret = ServerLoginError::NoSecret { method: "scram-sha-256" };
    for client in [with(Some(&stored), None), with(None, None)] {
        assert_eq!(scram(client, "sesame", None).unwrap_err(), no_secret);
    }
    // Keys that do not match the configured verifier.
    let client = with(Some(&stored), Some(keys("other")));
    assert_eq!(scram(client, "other", None).unwrap_err(), no_secret);
    let other_salt =
        ClientKeys::default().get_or_compute(&"sesame".into(), b"tlas", 2.try_into().unwrap());
    let error = scram(with(None, Some(other_salt)), "sesame", None).unwrap_err();
    assert_eq!(error, ServerLoginError::Scram(ScramError::KeyMismatch));
}

#[test]
fn keys_are_derived_once_for_all_logins() {
    let keys = ClientKeys::default();
    for needs_derivation in [true, false] {
        let mut client =
            ServerHandshake::new(intent(Some("sesame")), keys.clone(), [1; 18]).unwrap();
        client.take_output();
        client.receive(&request(AuthenticationRequest::Sasl(&[SCRAM_SHA_256]))).unwrap();
        let output = client.take_output();
        let (frame, _) = Frame::split(&output, 1000).unwrap().unwrap();
        let first = SaslInitialResponse::parse(frame.body).unwrap();
        let verifier = ScramVerifier::from_password(b"sesame", b"salt", 2.try_into().unwrap());
        let server =
            ServerFirst::receive(verifier, first.data.unwrap(), None, false, [2; 18]).unwrap();
        let step = client.receive(&request(AuthenticationRequest::SaslContinue(server.message())));
        match step.unwrap() {
            ServerStep::DeriveKeys(derivation) if needs_derivation => drop(derivation.run()),
            ServerStep::Read if !needs_derivation => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn scram_uses_channel_binding_when_offered() {
    let with = |hash: Option<&[u8]>| {
        let protection = ServerProtection::Tls { end_point_hash: hash.map(<[u8]>::to_vec) };
        start_login(ServerIntent { protection, ..intent(Some("sesame")) })
    };
    ready(scram(with(Some(b"hash")), "sesame", Some(b"hash")));
    ready(scram(with(Some(b"hash")), "sesame", None));
    assert!(scram(with(Some(b"hash")), "sesame", Some(b"else")).is_err());
}

#[test]
fn md5_uses_password_or_stored_hash() {
    let salted = request(AuthenticationRequest::Md5Password { salt: *b"salt" });
    let stored = String::from_utf8(auth::md5_stored(b"app", b"sesame").to_vec()).unwrap();
    for secret in ["sesame", &stored] {
        let mut client = start_login(intent(Some(secret)));
        assert!(matches!(client.receive(&salted), Ok(ServerStep::Read)));
        let mut expected = Vec::new();
        let response = auth::md5(b"app", b"sesame", *b"salt");
        howdah_wire::frontend::encode::password(&mut expected, &response).unwrap();
        assert_eq!(client.take_output(), expected);
        ready(client.receive(&login_messages()));
    }
    let error = start_login(intent(None)).receive(&salted).unwrap_err();
    assert_eq!(error, ServerLoginError::NoSecret { method: "md5" });
}

#[test]
fn cleartext_password_is_sent_only_on_protected_connection() {
    let asks = request(AuthenticationRequest::CleartextPassword);
    let with = |protection| start_login(ServerIntent { protection, ..intent(Some("sesame")) });
    let mut bare = with(ServerProtection::None);
    assert_eq!(bare.receive(&asks).unwrap_err(), ServerLoginError::CleartextWithoutTls);
    assert!(bare.take_output().is_empty());
    let tls = ServerProtection::Tls { end_point_hash: None };
    for protection in [tls, ServerProtection::Local, ServerProtection::CleartextAllowed] {
        let mut client = with(protection);
        client.receive(&asks).unwrap();
        assert_eq!(client.take_output(), b"p\0\0\0\x0bsesame\0");
        ready(client.receive(&login_messages()));
    }
}

#[test]
fn refusal_is_kept_verbatim_and_may_be_transient() {
    let sent = refusal(b"57P03", "the database system is starting up");
    let error = start_login(intent(None)).receive(&sent).unwrap_err();
    assert!(error.is_transient() && !error.may_retry_as_3_0());
    assert!(matches!(&error, ServerLoginError::Refused { verbatim, .. } if *verbatim == sent));
    let failure = error.failure();
    assert_eq!(failure.sqlstate, *b"57P03");
    assert_eq!(failure.message, "the database system is starting up");
    let error = start_login(intent(None)).receive(&refusal(b"3D000", "no database")).unwrap_err();
    assert!(!error.is_transient());
}

#[test]
fn server_must_prove_itself_and_follow_the_protocol() {
    let sasl = request(AuthenticationRequest::Sasl(&[SCRAM_SHA_256]));
    let mut early = start_login(intent(Some("sesame")));
    let step = early.receive(&[sasl.clone(), login_messages()].concat());
    assert_eq!(step.unwrap_err(), ServerLoginError::Unproven);
    let mut twice = start_login(intent(Some("sesame")));
    assert!(twice.receive(&[sasl.clone(), sasl].concat()).is_err());
    for bytes in [
        &b"Z\0\0\0\x05I"[..],
        b"S\0\0\0\x08a\0b\0",
        b"T\0\0\0\x06\0\0",
        b"R\0\0\0\x08\0\0\0\x07",
        b"R\x7f\xff\xff\xff",
        b"R\0\0\0\x03",
        b"?\0\0\0\x04",
    ] {
        assert!(start_login(intent(Some("sesame"))).receive(bytes).is_err(), "{bytes:?}");
    }
    let mut endless = start_login(intent(None));
    endless.receive(&request(AuthenticationRequest::Ok)).unwrap();
    let mut settings = Vec::new();
    for number in 0..=PARAMETERS_MAX {
        encode::parameter_status(&mut settings, number.to_string().as_bytes(), b"").unwrap();
    }
    assert_eq!(endless.receive(&settings).unwrap_err(), ServerLoginError::LimitExceeded);
}

#[test]
fn debug_output_contains_no_secrets() {
    let keys =
        ClientKeys::default().get_or_compute(&"sesame".into(), b"salt", 2.try_into().unwrap());
    let client_keys = Some(keys);
    let mut client = start_login(ServerIntent { client_keys, ..intent(Some("sesame")) });
    client.receive(&request(AuthenticationRequest::Sasl(&[SCRAM_SHA_256]))).unwrap();
    assert!(!format!("{client:?}").contains("sesame"));
}

#[test]
fn connect_query_runs_before_login_is_complete() {
    let mut with = intent(None);
    with.identity.connect_query = Some("set role x".to_owned());
    let mut client = start_login(with.clone());
    assert!(matches!(client.receive(&login_messages()), Ok(ServerStep::Read)));
    assert_eq!(client.take_output(), b"Q\0\0\0\x0fset role x\0");
    let mut done = b"C\0\0\0\x08SET\0".to_vec();
    encode::ready_for_query(&mut done, TransactionStatus::Idle);
    assert_eq!(ready(client.receive(&done)).login.parameters.len(), 2);

    let mut client = start_login(with.clone());
    client.receive(&login_messages()).unwrap();
    let error = client.receive(&refusal(b"22023", "no such role")).unwrap_err();
    assert_eq!(error.failure().sqlstate, *b"22023");
    // A connect query must not leave a transaction open.
    let mut client = start_login(with);
    client.receive(&login_messages()).unwrap();
    let mut open = Vec::new();
    encode::ready_for_query(&mut open, TransactionStatus::InTransaction);
    assert!(client.receive(&open).is_err());
    assert!(start_login(intent(None)).receive(&[login_messages(), done].concat()).is_ok());
}

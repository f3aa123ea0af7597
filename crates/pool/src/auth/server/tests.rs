//! Dialogues: what a server sends, and what it gets.

use howdah_wire::{
    Secret,
    auth::{
        self,
        scram::{SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramError, ServerFirst, Verifier},
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
        parameters: vec![Setting::new("geqo", "off")],
        newest: ProtocolVersion::V3_2,
        client_keys: None,
        protection: ServerProtection::None,
    }
}

fn begin(intent: ServerIntent) -> ServerHandshake {
    let mut server = ServerHandshake::new(intent, ClientKeys::default(), [1; 18]).unwrap();
    server.take_output();
    server
}

fn request(request: AuthenticationRequest<'_>) -> Vec<u8> {
    let mut buf = Vec::new();
    encode::authentication(&mut buf, request).unwrap();
    buf
}

/// AuthenticationOk and what follows it.
fn welcome() -> Vec<u8> {
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

/// A login by SCRAM at a server that keeps the secret of `word`, work being done at once.
fn scram(
    mut client: ServerHandshake,
    word: &str,
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
    let verifier = Verifier::from_password(word.as_bytes(), b"salt", 2.try_into().unwrap());
    let plus = first.mechanism == SCRAM_SHA_256_PLUS;
    let server = ServerFirst::receive(verifier, first.data.unwrap(), hash, plus, [2; 18]).unwrap();
    let step = client.receive(&request(AuthenticationRequest::SaslContinue(server.message())))?;
    if let ServerStep::Work(work) = step {
        assert!(matches!(client.work_done(work.run())?, ServerStep::Read));
    }
    let output = client.take_output();
    let (frame, _) = Frame::split(&output, 1000).unwrap().unwrap();
    let last = match server.verify(frame.body) {
        Ok(last) => request(AuthenticationRequest::SaslFinal(&last)),
        Err(_) => refusal(b"28P01", "password authentication failed for user \"app\""),
    };
    client.receive(&[last, welcome()].concat())
}

fn refusal(sqlstate: &[u8], text: &str) -> Vec<u8> {
    let mut buf = Vec::new();
    let fields =
        encode::essentials(howdah_wire::backend::Severity::Fatal, sqlstate, text.as_bytes());
    encode::error_response(&mut buf, fields).unwrap();
    buf
}

#[test]
fn the_startup_packet_says_who_we_are() {
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
fn what_the_server_reports_is_kept_wherever_its_bytes_are_cut() {
    let bytes = [welcome(), b"N\0\0\0\x05\0".to_vec()].concat();
    for cut in 0..bytes.len() {
        let mut server = begin(intent(None));
        let mut step = server.receive(&bytes[..cut]);
        if let Ok(ServerStep::Read) = step {
            step = server.receive(&bytes[cut..]);
        }
        let ready = ready(step);
        let parameters = format!("{:?}", ready.login.parameters);
        assert_eq!(parameters, "[server_version=18.0, timezone=CET]", "the later value counts");
        assert_eq!(ready.login.cancel_key.unwrap().secret(), [7; 32]);
        assert_eq!(ready.version, ProtocolVersion::V3_2);
    }
    let mut server = begin(intent(None));
    assert_eq!(ready(server.receive(&bytes)).received, b"N\0\0\0\x05\0");
}

#[test]
fn an_older_server_says_so() {
    let mut older = Vec::new();
    encode::negotiate_protocol_version(&mut older, ProtocolVersion::V3_0, &[]).unwrap();
    let ready = ready(begin(intent(None)).receive(&[older, welcome()].concat()));
    assert_eq!(ready.version, ProtocolVersion::V3_0);
    let mut newer = Vec::new();
    let version = ProtocolVersion { major: 3, minor: 3 };
    encode::negotiate_protocol_version(&mut newer, version, &[]).unwrap();
    let error = begin(intent(None)).receive(&newer).unwrap_err();
    assert_eq!(error, ServerLoginError::Version { newest: version });
    // One that knows nothing of negotiation.
    let error = begin(intent(None)).receive(&refusal(b"08P01", "unsupported")).unwrap_err();
    assert!(error.may_retry_as_3_0());
    let old = ServerIntent { newest: ProtocolVersion::V3_0, ..intent(None) };
    assert!(!begin(old).receive(&refusal(b"08P01", "no")).unwrap_err().may_retry_as_3_0());
}

#[test]
fn scram_takes_the_password_or_the_keys_of_the_clients_login() {
    ready(scram(begin(intent(Some("sesame"))), "sesame", None));
    let error = scram(begin(intent(Some("sesame"))), "other", None).unwrap_err();
    assert_eq!(error.to_string(), "password authentication failed for user \"app\"");
    assert_eq!(error.failure().sqlstate, *b"28P01");

    let keys = |word: &str| {
        let keys = ClientKeys::default();
        keys.of(&Secret::from(word), b"salt", 2.try_into().unwrap())
    };
    let stored = Verifier::from_keys(&keys("sesame")).to_text();
    let with =
        |secret: Option<&str>, client_keys| begin(ServerIntent { client_keys, ..intent(secret) });
    ready(scram(with(Some(&stored), Some(keys("sesame"))), "sesame", None));
    ready(scram(with(None, Some(keys("sesame"))), "sesame", None));
    let no_secret = ServerLoginError::NoSecret { method: "scram-sha-256" };
    for client in [with(Some(&stored), None), with(None, None)] {
        assert_eq!(scram(client, "sesame", None).unwrap_err(), no_secret);
    }
    // Keys of another secret than the one that is kept for this server.
    let client = with(Some(&stored), Some(keys("other")));
    assert_eq!(scram(client, "other", None).unwrap_err(), no_secret);
    let other_salt = ClientKeys::default().of(&"sesame".into(), b"tlas", 2.try_into().unwrap());
    let error = scram(with(None, Some(other_salt)), "sesame", None).unwrap_err();
    assert_eq!(error, ServerLoginError::Scram(ScramError::OtherKeys));
}

#[test]
fn keys_are_made_once_for_all_logins() {
    let keys = ClientKeys::default();
    for work_is_left in [true, false] {
        let mut client =
            ServerHandshake::new(intent(Some("sesame")), keys.clone(), [1; 18]).unwrap();
        client.take_output();
        client.receive(&request(AuthenticationRequest::Sasl(&[SCRAM_SHA_256]))).unwrap();
        let output = client.take_output();
        let (frame, _) = Frame::split(&output, 1000).unwrap().unwrap();
        let first = SaslInitialResponse::parse(frame.body).unwrap();
        let verifier = Verifier::from_password(b"sesame", b"salt", 2.try_into().unwrap());
        let server =
            ServerFirst::receive(verifier, first.data.unwrap(), None, false, [2; 18]).unwrap();
        let step = client.receive(&request(AuthenticationRequest::SaslContinue(server.message())));
        match step.unwrap() {
            ServerStep::Work(work) if work_is_left => drop(work.run()),
            ServerStep::Read if !work_is_left => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn scram_is_bound_to_the_connection() {
    let with = |hash: Option<&[u8]>| {
        let protection = ServerProtection::Tls { end_point_hash: hash.map(<[u8]>::to_vec) };
        begin(ServerIntent { protection, ..intent(Some("sesame")) })
    };
    ready(scram(with(Some(b"hash")), "sesame", Some(b"hash")));
    ready(scram(with(Some(b"hash")), "sesame", None));
    assert!(scram(with(Some(b"hash")), "sesame", Some(b"else")).is_err());
}

#[test]
fn md5_takes_the_password_or_its_hash() {
    let salted = request(AuthenticationRequest::Md5Password { salt: *b"salt" });
    let stored = String::from_utf8(auth::md5_stored(b"app", b"sesame").to_vec()).unwrap();
    for secret in ["sesame", &stored] {
        let mut client = begin(intent(Some(secret)));
        assert!(matches!(client.receive(&salted), Ok(ServerStep::Read)));
        let mut expected = Vec::new();
        let answer = auth::md5(b"app", b"sesame", *b"salt");
        howdah_wire::frontend::encode::password(&mut expected, &answer).unwrap();
        assert_eq!(client.take_output(), expected);
        ready(client.receive(&welcome()));
    }
    let error = begin(intent(None)).receive(&salted).unwrap_err();
    assert_eq!(error, ServerLoginError::NoSecret { method: "md5" });
}

#[test]
fn a_password_goes_in_the_clear_only_where_nobody_listens() {
    let asks = request(AuthenticationRequest::CleartextPassword);
    let with = |protection| begin(ServerIntent { protection, ..intent(Some("sesame")) });
    let mut bare = with(ServerProtection::None);
    assert_eq!(bare.receive(&asks).unwrap_err(), ServerLoginError::PlainWithoutTls);
    assert!(bare.take_output().is_empty());
    let tls = ServerProtection::Tls { end_point_hash: None };
    for protection in [tls, ServerProtection::Local, ServerProtection::CleartextAllowed] {
        let mut client = with(protection);
        client.receive(&asks).unwrap();
        assert_eq!(client.take_output(), b"p\0\0\0\x0bsesame\0");
        ready(client.receive(&welcome()));
    }
}

#[test]
fn a_refusal_is_kept_verbatim_and_some_will_pass() {
    let sent = refusal(b"57P03", "the database system is starting up");
    let error = begin(intent(None)).receive(&sent).unwrap_err();
    assert!(error.is_transient() && !error.may_retry_as_3_0());
    assert!(matches!(&error, ServerLoginError::Refused { verbatim, .. } if *verbatim == sent));
    let failure = error.failure();
    assert_eq!(failure.sqlstate, *b"57P03");
    assert_eq!(failure.message, "the database system is starting up");
    let error = begin(intent(None)).receive(&refusal(b"3D000", "no database")).unwrap_err();
    assert!(!error.is_transient());
}

#[test]
fn a_server_must_prove_itself_and_keep_the_order() {
    let sasl = request(AuthenticationRequest::Sasl(&[SCRAM_SHA_256]));
    let mut early = begin(intent(Some("sesame")));
    let step = early.receive(&[sasl.clone(), welcome()].concat());
    assert_eq!(step.unwrap_err(), ServerLoginError::Unproven);
    let mut twice = begin(intent(Some("sesame")));
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
        assert!(begin(intent(Some("sesame"))).receive(bytes).is_err(), "{bytes:?}");
    }
    let mut endless = begin(intent(None));
    endless.receive(&request(AuthenticationRequest::Ok)).unwrap();
    let mut settings = Vec::new();
    for number in 0..=PARAMETERS_MAX {
        encode::parameter_status(&mut settings, number.to_string().as_bytes(), b"").unwrap();
    }
    assert_eq!(endless.receive(&settings).unwrap_err(), ServerLoginError::TooMuch);
}

#[test]
fn nothing_secret_is_in_a_debug_text() {
    let keys = ClientKeys::default().of(&"sesame".into(), b"salt", 2.try_into().unwrap());
    let client_keys = Some(keys);
    let mut client = begin(ServerIntent { client_keys, ..intent(Some("sesame")) });
    client.receive(&request(AuthenticationRequest::Sasl(&[SCRAM_SHA_256]))).unwrap();
    assert!(!format!("{client:?}").contains("sesame"));
}

#[test]
fn a_query_to_be_run_first_is_run_before_anybody_gets_the_connection() {
    let mut with = intent(None);
    with.identity.connect_query = Some("set role x".to_owned());
    let mut client = begin(with.clone());
    assert!(matches!(client.receive(&welcome()), Ok(ServerStep::Read)));
    assert_eq!(client.take_output(), b"Q\0\0\0\x0fset role x\0");
    let mut done = b"C\0\0\0\x08SET\0".to_vec();
    encode::ready_for_query(&mut done, TransactionStatus::Idle);
    assert_eq!(ready(client.receive(&done)).login.parameters.len(), 2);

    let mut client = begin(with.clone());
    client.receive(&welcome()).unwrap();
    let error = client.receive(&refusal(b"22023", "no such role")).unwrap_err();
    assert_eq!(error.failure().sqlstate, *b"22023");
    // A transaction that is left open is not for the next one.
    let mut client = begin(with);
    client.receive(&welcome()).unwrap();
    let mut open = Vec::new();
    encode::ready_for_query(&mut open, TransactionStatus::InTransaction);
    assert!(client.receive(&open).is_err());
    assert!(begin(intent(None)).receive(&[welcome(), done].concat()).is_ok());
}

//! Dialogues with a client.

use std::path::Path;

use howdah_pool_config::Config;
use howdah_wire::{
    Secret,
    auth::{
        self,
        scram::{ChannelBinding, ClientFirst, ClientKeys, ScramVerifier},
    },
    backend::{Authentication, BackendMessage},
    frontend::encode,
    startup::{GSS_ENC_REQUEST_PACKET, SSL_REQUEST_PACKET, startup},
};

use super::*;

const TCP: ClientOrigin =
    ClientOrigin::Tcp(Some(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)));
const UNIX: ClientOrigin = ClientOrigin::Unix { uid: Some(1000) };
const ENTROPY: Entropy = Entropy { nonce: [3; 18], salt: *b"salt" };

/// Rules with an authentication method and `more` lines of `[pool]`.
fn rules(method: &str, more: &str) -> Arc<ClientRules> {
    let verifier = ScramVerifier::from_password(b"scram", b"stored salt", 2.try_into().unwrap());
    let stored = String::from_utf8(auth::md5_stored(b"hashed", b"md5").to_vec()).unwrap();
    let text = format!(
        "[pool]\n{more}\n[pool.auth]\ntype = '{method}'\nscram-iterations = 2\n\
         [pool.databases.shop]\nuser = 'app'\n[pool.users]\nalice = {{ secret = 'sesame' }}\n\
         stored = {{ secret = '{}' }}\nhashed = {{ secret = '{stored}' }}\nempty = {{ secret = '' }}\n\
         settings = {{ pool-size = 1 }}\n",
        verifier.to_text(),
    );
    let read = Config::read_str(&text, Path::new("test.toml")).unwrap();
    Arc::new(ClientRules::new(Arc::new(read.config), [9; 32], ClientKeys::default()))
}

const TLS: &str = "tls.client = { mode = 'allow', certificate = 'c', key = 'k', ca-file = 'a' }";

fn client(method: &str) -> ClientHandshake {
    ClientHandshake::new(rules(method, ""), TCP, ENTROPY)
}

fn hello(user: &str) -> Vec<u8> {
    packet(ProtocolVersion::V3_0, &[("user", user), ("database", "shop")])
}

fn packet(version: ProtocolVersion, parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut buf = Vec::new();
    let parameters = parameters.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    startup(&mut buf, version, parameters).unwrap();
    buf
}

fn password(text: &[u8]) -> Vec<u8> {
    let mut buf = Vec::new();
    encode::password(&mut buf, text).unwrap();
    buf
}

/// Returns the messages sent to the client, in Debug format.
fn sent(client: &mut ClientHandshake) -> Vec<String> {
    let output = client.take_output();
    let mut rest = output.as_slice();
    let mut sent = Vec::new();
    while let Some((frame, tail)) = Frame::split(rest, 1 << 20).unwrap() {
        sent.push(match BackendMessage::parse(frame).unwrap() {
            BackendMessage::ErrorResponse(error) => error.to_string(),
            message => format!("{message:?}"),
        });
        rest = tail;
    }
    sent
}

fn admitted(step: ClientStep) -> AuthenticatedClient {
    match step {
        ClientStep::Authenticated(admitted) => *admitted,
        other => panic!("{other:?}"),
    }
}

fn rejected(step: &ClientStep) -> String {
    match step {
        ClientStep::Close(why) => why.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Runs a SCRAM login with this password; keys are derived at once.
fn scram(
    mut client: ClientHandshake,
    hello: &[u8],
    password_text: &str,
    binding: ChannelBinding,
) -> (ClientStep, ClientHandshake, Vec<String>) {
    let derive = |client: &mut ClientHandshake, step| match step {
        ClientStep::DeriveKeys(derivation) => client.keys_derived(derivation.run()),
        step => step,
    };
    let step = client.receive(hello);
    assert!(matches!(step, ClientStep::Read), "{step:?}");
    let mut received = sent(&mut client);
    let first = ClientFirst::new(Secret::from(password_text), binding, [1; 18]);
    let mut bytes = Vec::new();
    encode::sasl_initial_response(&mut bytes, first.mechanism(), Some(&first.message())).unwrap();
    let step = client.receive(&bytes);
    let step = derive(&mut client, step);
    assert!(matches!(step, ClientStep::Read), "{step:?}");
    let output = client.take_output();
    let (frame, _) = Frame::split(&output, 1000).unwrap().unwrap();
    let BackendMessage::Authentication(Authentication::SaslContinue(server_first)) =
        BackendMessage::parse(frame).unwrap()
    else {
        panic!()
    };
    received.push(String::from_utf8(server_first.to_vec()).unwrap());
    let end = first.receive(server_first).unwrap();
    bytes.clear();
    encode::sasl_response(&mut bytes, end.message()).unwrap();
    let step = client.receive(&bytes);
    received.extend(sent(&mut client));
    (step, client, received)
}

#[test]
fn trust_admits_known_users_only() {
    let mut trusting = client("trust");
    let alice = admitted(trusting.receive(&[hello("alice"), b"Q\0\0\0\x05\0".to_vec()].concat()));
    assert_eq!((alice.user.as_str(), alice.database.as_str()), ("alice", "shop"));
    assert_eq!(alice.received, b"Q\0\0\0\x05\0", "bytes after the startup packet are kept");
    assert_eq!(trusting.take_output(), b"R\0\0\0\x08\0\0\0\0");

    let mut trusting = client("trust");
    rejected(&trusting.receive(&hello("nobody")));
    assert_eq!(sent(&mut trusting), ["FATAL: role \"nobody\" does not exist (SQLSTATE 28000)"]);
    admitted(client("any").receive(&hello("nobody")));
}

#[test]
fn trust_refuses_users_entry_without_secret() {
    admitted(client("trust").receive(&hello("empty")));
    let mut trusting = client("trust");
    rejected(&trusting.receive(&hello("settings")));
    assert_eq!(sent(&mut trusting), ["FATAL: role \"settings\" does not exist (SQLSTATE 28000)"]);
}

#[test]
fn partial_startup_packet_waits_for_the_rest() {
    let hello = packet(ProtocolVersion::V3_2, &[("user", "alice"), ("database", "shop")]);
    for end in 0..hello.len() {
        let mut client = client("trust");
        assert!(matches!(client.receive(&hello[..end]), ClientStep::Read));
        assert!(client.take_output().is_empty());
        assert_eq!(admitted(client.receive(&hello[end..])).version, ProtocolVersion::V3_2);
    }
}

#[test]
fn scram_admits_correct_password_and_returns_keys() {
    for (user, password_text) in [("alice", "sesame"), ("stored", "scram")] {
        let none = ChannelBinding::Unsupported;
        let (step, ..) = scram(client("scram-sha-256"), &hello(user), password_text, none.clone());
        assert!(admitted(step).scram_keys.is_some());
        let (step, _, received) = scram(client("scram-sha-256"), &hello(user), "wrong", none);
        assert_eq!(rejected(&step), format!("password authentication failed for user \"{user}\""));
        assert!(received.last().unwrap().ends_with("(SQLSTATE 28P01)"), "{received:?}");
    }
}

#[test]
fn second_login_reuses_derived_keys() {
    let rules = rules("scram-sha-256", "");
    let client = || ClientHandshake::new(rules.clone(), TCP, ENTROPY);
    scram(client(), &hello("alice"), "sesame", ChannelBinding::Unsupported);
    assert_eq!(rules.keys.len(), 1);
    let mut second = client();
    second.receive(&hello("alice"));
    let first = ClientFirst::new(Secret::from("x"), ChannelBinding::Unsupported, [1; 18]);
    let mut bytes = Vec::new();
    encode::sasl_initial_response(&mut bytes, first.mechanism(), Some(&first.message())).unwrap();
    assert!(matches!(second.receive(&bytes), ClientStep::Read), "no key derivation is needed");
}

#[test]
fn unknown_users_get_the_same_scram_exchange() {
    let none = || ChannelBinding::Unsupported;
    let login = |user: &str| {
        let (step, _, received) = scram(client("scram-sha-256"), &hello(user), "wrong", none());
        assert!(rejected(&step).starts_with("password authentication failed"));
        let shape: Vec<_> = received.iter().map(|it| it.replace(user, "USER").len()).collect();
        (shape, received[1].clone())
    };
    let (known, first) = login("alice");
    for user in ["nobody", "hashed", "empty"] {
        let (shape, second) = login(user);
        assert_eq!(shape, known, "{user}");
        assert_ne!(second, first, "each has a salt of its own");
        assert_eq!(second, login(user).1, "which stays the same");
    }
}

#[test]
fn md5_accepts_password_or_stored_hash() {
    let login = |user: &str, response: &[u8]| {
        let mut client = client("md5");
        assert!(matches!(client.receive(&hello(user)), ClientStep::Read));
        assert_eq!(client.take_output(), b"R\0\0\0\x0c\0\0\0\x05salt");
        client.receive(&password(response))
    };
    let response = |user: &str, password_text: &str| {
        auth::md5(user.as_bytes(), password_text.as_bytes(), *b"salt")
    };
    admitted(login("alice", &response("alice", "sesame")));
    admitted(login("hashed", &response("hashed", "md5")));
    for (user, password_text) in [("alice", "md5"), ("hashed", "x"), ("nobody", ""), ("empty", "")]
    {
        let refused = format!("password authentication failed for user \"{user}\"");
        assert_eq!(rejected(&login(user, &response(user, password_text))), refused);
    }
    // A user with a SCRAM secret gets a SCRAM request.
    let (step, ..) = scram(client("md5"), &hello("stored"), "scram", ChannelBinding::Unsupported);
    admitted(step);
}

#[test]
fn plain_password_is_checked_against_every_form_of_secret() {
    let login = |user: &str, password_text: &str| {
        let mut client = client("plain");
        assert!(matches!(client.receive(&hello(user)), ClientStep::Read));
        assert_eq!(client.take_output(), b"R\0\0\0\x08\0\0\0\x03");
        match client.receive(&password(password_text.as_bytes())) {
            ClientStep::DeriveKeys(derivation) => client.keys_derived(derivation.run()),
            step => step,
        }
    };
    for (user, password_text) in [("alice", "sesame"), ("hashed", "md5"), ("stored", "scram")] {
        admitted(login(user, password_text));
        rejected(&login(user, "wrong"));
        rejected(&login(user, ""));
    }
    rejected(&login("empty", ""));
    rejected(&login("nobody", "x"));
}

#[test]
fn encryption_request_is_accepted_once_and_only_first() {
    let gss = GSS_ENC_REQUEST_PACKET.to_vec();
    let ssl = SSL_REQUEST_PACKET.to_vec();
    let mut plain = client("trust");
    assert!(matches!(plain.receive(&gss), ClientStep::Read));
    assert!(matches!(plain.receive(&ssl), ClientStep::Read));
    assert_eq!(plain.take_output(), b"NN");
    admitted(plain.receive(&hello("alice")));

    for (packets, refused) in [
        ([ssl.clone(), ssl.clone()], "unsupported frontend protocol 1234.5679"),
        ([gss.clone(), gss.clone()], "unsupported frontend protocol 1234.5680"),
    ] {
        let mut twice = client("trust");
        twice.receive(&packets[0]);
        assert!(rejected(&twice.receive(&packets[1])).starts_with(refused));
    }
    for (request, name) in [(&ssl, "SSL"), (&gss, "GSSAPI encryption")] {
        let early = [request.clone(), hello("alice")].concat();
        let refused = format!("received unencrypted data after {name} request");
        assert_eq!(rejected(&client("trust").receive(&early)), refused);
    }
}

#[test]
fn tls_starts_on_request_or_directly() {
    let tls = || ClientHandshake::new(rules("trust", TLS), TCP, ENTROPY);
    let postgresql =
        ClientTlsInfo { alpn: Some(b"postgresql".to_vec()), ..ClientTlsInfo::default() };
    let mut asked = tls();
    let step = asked.receive(&SSL_REQUEST_PACKET);
    assert!(matches!(step, ClientStep::StartTls { received } if received.is_empty()));
    assert_eq!(asked.take_output(), b"S");
    let mut early = tls();
    early.receive(&SSL_REQUEST_PACKET);
    early.take_output();
    assert_eq!(rejected(&early.receive(b"x")), "received unencrypted data after SSL request");
    assert!(early.take_output().is_empty(), "an error would be read as part of the handshake");
    assert!(matches!(asked.tls_started(ClientTlsInfo::default()), ClientStep::Read));
    assert!(rejected(&asked.receive(&SSL_REQUEST_PACKET)).contains("1234.5679"), "TLS in TLS");

    let mut direct = tls();
    let step = direct.receive(b"\x16\x03\x01");
    assert!(matches!(step, ClientStep::StartTls { received } if received == b"\x16\x03\x01"));
    assert!(matches!(direct.tls_started(postgresql), ClientStep::Read));
    admitted(direct.receive(&hello("alice")));
    let mut http = tls();
    http.receive(b"\x16\x03\x01");
    rejected(&http.tls_started(ClientTlsInfo::default()));
    assert!(http.take_output().is_empty());

    rejected(&client("trust").receive(b"\x16\x03\x01\x00\x00"));
    let mut unix = ClientHandshake::new(rules("trust", TLS), UNIX, ENTROPY);
    unix.receive(&SSL_REQUEST_PACKET);
    assert_eq!(unix.take_output(), b"N", "a unix socket needs none");
}

#[test]
fn required_tls_is_reported() {
    let required = TLS.replace("allow", "require");
    let mut plain = ClientHandshake::new(rules("trust", &required), TCP, ENTROPY);
    plain.receive(&hello("alice"));
    assert_eq!(sent(&mut plain), ["FATAL: SSL required (SQLSTATE 28000)"]);
    let mut unix = ClientHandshake::new(rules("trust", &required), UNIX, ENTROPY);
    admitted(unix.receive(&hello("alice")));
}

#[test]
fn certificate_authenticates_its_common_name() {
    let verified = TLS.replace("allow", "verify-full");
    let login = |name: Option<&str>| {
        let mut client = ClientHandshake::new(rules("cert", &verified), TCP, ENTROPY);
        client.receive(&SSL_REQUEST_PACKET);
        let common_name = name.map(str::to_owned);
        client.tls_started(ClientTlsInfo { common_name, ..ClientTlsInfo::default() });
        client.receive(&hello("alice"))
    };
    admitted(login(Some("alice")));
    let refused = "certificate authentication failed for user \"alice\"";
    assert_eq!(rejected(&login(Some("bob"))), refused);
    assert_eq!(rejected(&login(None)), refused);
}

#[test]
fn scram_channel_binding_is_checked() {
    let login = |ours: &[u8], binding: ChannelBinding| {
        let mut client = ClientHandshake::new(rules("scram-sha-256", TLS), TCP, ENTROPY);
        client.receive(&SSL_REQUEST_PACKET);
        client.take_output();
        let end_point_hash = Some(ours.to_vec());
        client.tls_started(ClientTlsInfo { end_point_hash, ..ClientTlsInfo::default() });
        scram(client, &hello("stored"), "scram", binding)
    };
    let bound = |hash: &[u8]| ChannelBinding::TlsServerEndPoint(hash.to_vec());
    let (step, _, received) = login(b"hash", bound(b"hash"));
    admitted(step);
    assert!(received[0].contains("SCRAM-SHA-256-PLUS") || received[0].contains("80, 76, 85, 83"));
    let (step, _, received) = login(b"hash", bound(b"another"));
    assert_eq!(rejected(&step), "SCRAM channel binding check failed");
    assert!(received.last().unwrap().ends_with("(SQLSTATE 28000)"));
    admitted(login(b"hash", ChannelBinding::Unsupported).0);
}

#[test]
fn newer_protocol_is_negotiated_and_older_refused() {
    let v = |major, minor| ProtocolVersion { major, minor };
    let login = |version, parameters: &[(&str, &str)]| {
        let own = [("user", "alice"), ("database", "shop")];
        let mut client = client("trust");
        let step = client.receive(&packet(version, &[&own[..], parameters].concat()));
        (step, sent(&mut client))
    };
    for (asked, agreed) in [(v(3, 0), v(3, 0)), (v(3, 1), v(3, 0)), (v(3, 2), v(3, 2))] {
        let (step, received) = login(asked, &[]);
        assert_eq!(admitted(step).version, agreed);
        assert_eq!(received.len(), 1, "{received:?}");
    }
    let (step, received) = login(v(3, 9999), &[("_pq_.grease", "1")]);
    assert_eq!(admitted(step).version, v(3, 2));
    assert!(received[0].starts_with("NegotiateProtocolVersion"), "{received:?}");
    assert!(received[0].contains("minor: 2"), "{received:?}");
    let (_, received) = login(v(2, 0), &[]);
    let refused = "FATAL: unsupported frontend protocol 2.0: server supports 3.0 to 3.2";
    assert_eq!(received, [format!("{refused} (SQLSTATE 0A000)")]);
}

#[test]
fn startup_parameters_are_tracked_ignored_or_refused() {
    let ignoring = "ignored-startup-parameters = ['extra_float_digits']";
    let login = |more: &str, parameters: &[(&str, &str)]| {
        let own = [("user", "alice"), ("database", "shop")];
        let mut client = ClientHandshake::new(rules("trust", more), TCP, ENTROPY);
        let step = client.receive(&packet(ProtocolVersion::V3_0, &[&own[..], parameters].concat()));
        match step {
            ClientStep::Authenticated(client) => {
                client.settings.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join(" ")
            }
            other => rejected(&other),
        }
    };
    let digits = ("extra_float_digits", "3");
    assert_eq!(login("", &[digits]), "unsupported startup parameter: extra_float_digits");
    assert_eq!(login(ignoring, &[digits, ("datestyle", "ISO")]), "datestyle=ISO");
    let options = |text| [("options", text)];
    assert_eq!(login("", &options("-c intervalstyle=iso_8601")), "intervalstyle=iso_8601");
    let refused = "unsupported startup parameter in options: geqo";
    assert_eq!(login("", &options("-c geqo=off")), refused);
    assert!(login("", &options("-d 3")).starts_with("unsupported options startup parameter: only"));
    let lenient = "ignored-startup-parameters = ['options']";
    assert_eq!(login(lenient, &options("-c geqo=off --TimeZone=UTC")), "TimeZone=UTC");
    assert_eq!(login(lenient, &options("-d 3")), "");
}

#[test]
fn replication_is_a_boolean_or_database() {
    let login = |value: &str| {
        let parameters = [("user", "alice"), ("database", "shop"), ("replication", value)];
        client("trust").receive(&packet(ProtocolVersion::V3_0, &parameters))
    };
    for (value, expected) in [
        ("database", Replication::Logical),
        ("true", Replication::Physical),
        ("on", Replication::Physical),
        ("Y", Replication::Physical),
        ("of", Replication::None),
        ("0", Replication::None),
    ] {
        assert_eq!(admitted(login(value)).replication, expected, "{value}");
    }
    for value in ["", "o", "perhaps", "truely"] {
        let refused = format!("invalid value for parameter \"replication\": \"{value}\"");
        assert_eq!(rejected(&login(value)), refused);
    }
}

#[test]
fn replication_connection_keeps_every_startup_parameter() {
    let options = "-c extra_float_digits=3 -c datestyle=ISO";
    // `replication` takes effect even if it comes last.
    let parameters = [
        ("user", "alice"),
        ("database", "shop"),
        ("options", options),
        ("geqo", "off"),
        ("application_name", "sub"),
        ("replication", "database"),
    ];
    let it = admitted(client("trust").receive(&packet(ProtocolVersion::V3_0, &parameters)));
    let settings: Vec<_> = it.settings.iter().map(|setting| format!("{setting:?}")).collect();
    let options_parameter = format!("options={options}");
    assert_eq!(settings, [options_parameter.as_str(), "geqo=off", "application_name=sub"]);
    // Ignored parameters are not sent; other connections with them are refused.
    let passing =
        ClientHandshake::new(rules("trust", "ignored-startup-parameters = ['geqo']"), TCP, ENTROPY);
    let mut passing = passing;
    let it = admitted(passing.receive(&packet(ProtocolVersion::V3_0, &parameters)));
    assert_eq!(it.settings.len(), 2);
    let plain = packet(ProtocolVersion::V3_0, &parameters[..3]);
    let refused = rejected(&client("trust").receive(&plain));
    assert!(refused.contains("extra_float_digits"), "{refused}");
}

/// Rules with a user list file.
fn listed(method: &str, list: &str) -> Arc<ClientRules> {
    let text = format!("[pool.auth]\ntype = '{method}'\nfile = '{list}'\n[pool.databases.shop]\n");
    let read = Config::read_str(&text, Path::new("test.toml")).unwrap();
    Arc::new(ClientRules::new(Arc::new(read.config), [9; 32], ClientKeys::default()))
}

#[test]
fn cleartext_password_over_65530_bytes_is_refused() {
    let token = "t".repeat(howdah_pool_config::SECRET_BYTES_MAX);
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), format!("\"long\" \"{token}\"\n")).unwrap();
    let more = list.path().display().to_string();
    let response = |bytes: &[u8]| {
        let mut client = ClientHandshake::new(listed("plain", &more), TCP, ENTROPY);
        assert!(matches!(client.receive(&hello("long")), ClientStep::Read));
        client.receive(&password(bytes))
    };
    admitted(response(token.as_bytes()));
    assert_eq!(rejected(&response(&[b't'; 65_531])), Rejection::TooLong.to_string());
    // For a hash the limit is smaller.
    let mut client = ClientHandshake::new(listed("md5", &more), TCP, ENTROPY);
    client.receive(&hello("long"));
    assert_eq!(rejected(&client.receive(&password(&[b't'; 9000]))), Rejection::TooLong.to_string());
}

#[test]
fn unknown_database_is_reported_only_after_authentication() {
    let hello = packet(ProtocolVersion::V3_0, &[("user", "alice"), ("database", "other")]);
    let mut trusting = client("trust");
    trusting.receive(&hello);
    assert_eq!(sent(&mut trusting), ["FATAL: database \"other\" does not exist (SQLSTATE 3D000)"]);
    let (step, ..) = scram(client("scram-sha-256"), &hello, "wrong", ChannelBinding::Unsupported);
    assert!(rejected(&step).starts_with("password authentication failed"));
    // Without a database name, the user name is used.
    let hello = packet(ProtocolVersion::V3_0, &[("user", "shop")]);
    assert_eq!(admitted(client("any").receive(&hello)).database, "shop");
    // The console databases exist in addition to the configured ones.
    for console in CONSOLE_DATABASES {
        let hello = packet(ProtocolVersion::V3_0, &[("user", "alice"), ("database", console)]);
        assert_eq!(admitted(client("trust").receive(&hello)).database, console);
    }
}

#[test]
fn cancel_request_is_accepted_before_and_after_ssl_request() {
    let key = CancelKey::new(7, &[1; 32]).unwrap();
    let mut request = Vec::new();
    howdah_wire::startup::cancel_request(&mut request, &key);
    for asks_first in [false, true] {
        let mut client = client("scram-sha-256");
        if asks_first {
            client.receive(&SSL_REQUEST_PACKET);
        }
        let step = client.receive(&request);
        assert!(matches!(step, ClientStep::Cancel(found) if found == key));
    }
}

#[test]
fn malformed_bytes_end_the_handshake() {
    for length in [i32::MIN, -1, 0, 4, 7, 10_001, i32::MAX] {
        let mut client = client("trust");
        let step = client.receive(&[&length.to_be_bytes()[..], b"\0\x03\0\0"].concat());
        assert!(matches!(step, ClientStep::Close(Rejection::NotStartupPacket)), "{length}");
        assert!(client.take_output().is_empty(), "the peer may not speak the protocol");
    }
    let asked = || {
        let mut client = client("md5");
        client.receive(&hello("alice"));
        client
    };
    let refused = |bytes: &[u8]| rejected(&asked().receive(bytes));
    assert_eq!(refused(b"Q\x7f\xff\xff\xff"), "expected password response, got message type 81");
    assert_eq!(refused(b"p\x7f\xff\xff\xff"), "login message too long");
    assert!(refused(b"p\0\0\0\x03").starts_with("invalid password message"));
    assert!(refused(b"p\0\0\0\x05x").starts_with("invalid password message"));
    let mut sasl = client("scram-sha-256");
    sasl.receive(&hello("alice"));
    let step = sasl.receive(b"p\0\0\0\x0cOTHER\0\0\0");
    assert!(rejected(&step).contains("SCRAM") || rejected(&step).contains("SASL"));
    let mut late = asked();
    assert_eq!(
        rejected(&late.refuse(Rejection::Timeout)),
        "client_login_timeout: the login took too long"
    );
}

#[test]
fn debug_output_contains_no_secrets() {
    let mut client = client("scram-sha-256");
    client.receive(&hello("alice"));
    let debug_text = format!("{client:?}");
    for secret in ["sesame", "scram\"", "[9, 9", "[3, 3"] {
        assert!(!debug_text.contains(secret), "{debug_text}");
    }
}

//! Dialogues: what a client sends, and what it gets.

use std::path::Path;

use howdah_wire::{
    Secret,
    auth::{
        self,
        scram::{ChannelBinding, ClientFirst, ClientKeys, Verifier},
    },
    backend::{Authentication, Message},
    frontend::encode,
    startup::{GSS_ENC_REQUEST_PACKET, SSL_REQUEST_PACKET, startup},
};

use super::*;
use crate::config::Config;

const TCP: Origin = Origin::Tcp(Some(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)));
const UNIX: Origin = Origin::Unix { uid: Some(1000) };
const ENTROPY: Entropy = Entropy { nonce: [3; 18], salt: *b"salt" };

/// Rules of settings: `auth` is the method, `more` other lines of `[pool]`.
fn rules(method: &str, more: &str) -> Arc<ClientRules> {
    let verifier = Verifier::from_password(b"scram", b"stored salt", 2.try_into().unwrap());
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

/// What was sent to the client, as it reads in Debug.
fn said(client: &mut ClientHandshake) -> Vec<String> {
    let output = client.take_output();
    let mut rest = output.as_slice();
    let mut said = Vec::new();
    while let Some((frame, behind)) = Frame::split(rest, 1 << 20).unwrap() {
        said.push(match Message::parse(frame).unwrap() {
            Message::ErrorResponse(error) => error.to_string(),
            message => format!("{message:?}"),
        });
        rest = behind;
    }
    said
}

fn admitted(step: ClientStep) -> AuthenticatedClient {
    match step {
        ClientStep::Admitted(admitted) => *admitted,
        other => panic!("{other:?}"),
    }
}

fn rejected(step: &ClientStep) -> String {
    match step {
        ClientStep::Close(why) => why.to_string(),
        other => panic!("{other:?}"),
    }
}

/// A login by SCRAM with this password, the work being done at once.
fn scram(
    mut client: ClientHandshake,
    hello: &[u8],
    word: &str,
    binding: ChannelBinding,
) -> (ClientStep, ClientHandshake, Vec<String>) {
    let work = |client: &mut ClientHandshake, step| match step {
        ClientStep::Work(work) => client.work_done(work.run()),
        step => step,
    };
    let step = client.receive(hello);
    assert!(matches!(step, ClientStep::Read), "{step:?}");
    let mut heard = said(&mut client);
    let first = ClientFirst::new(Secret::from(word), binding, [1; 18]);
    let mut bytes = Vec::new();
    encode::sasl_initial_response(&mut bytes, first.mechanism(), Some(&first.message())).unwrap();
    let step = client.receive(&bytes);
    let step = work(&mut client, step);
    assert!(matches!(step, ClientStep::Read), "{step:?}");
    let output = client.take_output();
    let (frame, _) = Frame::split(&output, 1000).unwrap().unwrap();
    let Message::Authentication(Authentication::SaslContinue(server_first)) =
        Message::parse(frame).unwrap()
    else {
        panic!()
    };
    heard.push(String::from_utf8(server_first.to_vec()).unwrap());
    let end = first.receive(server_first).unwrap();
    bytes.clear();
    encode::sasl_response(&mut bytes, end.message()).unwrap();
    let step = client.receive(&bytes);
    heard.extend(said(&mut client));
    (step, client, heard)
}

#[test]
fn whoever_is_known_is_trusted() {
    let mut trusting = client("trust");
    let who = admitted(trusting.receive(&[hello("alice"), b"Q\0\0\0\x05\0".to_vec()].concat()));
    assert_eq!((who.user.as_str(), who.database.as_str()), ("alice", "shop"));
    assert_eq!(who.received, b"Q\0\0\0\x05\0", "what came behind is not lost");
    assert_eq!(trusting.take_output(), b"R\0\0\0\x08\0\0\0\0");

    let mut trusting = client("trust");
    rejected(&trusting.receive(&hello("nobody")));
    assert_eq!(said(&mut trusting), ["FATAL: role \"nobody\" does not exist (SQLSTATE 28000)"]);
    admitted(client("any").receive(&hello("nobody")));
}

#[test]
fn users_entry_without_a_secret_is_unknown_to_trust() {
    admitted(client("trust").receive(&hello("empty")));
    let mut trusting = client("trust");
    rejected(&trusting.receive(&hello("settings")));
    assert_eq!(said(&mut trusting), ["FATAL: role \"settings\" does not exist (SQLSTATE 28000)"]);
}

#[test]
fn every_cut_of_the_packet_waits_for_the_rest() {
    let hello = packet(ProtocolVersion::V3_2, &[("user", "alice"), ("database", "shop")]);
    for end in 0..hello.len() {
        let mut client = client("trust");
        assert!(matches!(client.receive(&hello[..end]), ClientStep::Read));
        assert!(client.take_output().is_empty());
        assert_eq!(admitted(client.receive(&hello[end..])).version, ProtocolVersion::V3_2);
    }
}

#[test]
fn scram_lets_in_who_knows_the_password_and_shows_the_keys() {
    for (user, word) in [("alice", "sesame"), ("stored", "scram")] {
        let none = ChannelBinding::Unsupported;
        let (step, ..) = scram(client("scram-sha-256"), &hello(user), word, none.clone());
        assert!(admitted(step).scram_keys.is_some());
        let (step, _, heard) = scram(client("scram-sha-256"), &hello(user), "wrong", none);
        assert_eq!(rejected(&step), format!("password authentication failed for user \"{user}\""));
        assert!(heard.last().unwrap().ends_with("(SQLSTATE 28P01)"), "{heard:?}");
    }
}

#[test]
fn one_login_computes_the_keys_for_all() {
    let rules = rules("scram-sha-256", "");
    let client = || ClientHandshake::new(rules.clone(), TCP, ENTROPY);
    scram(client(), &hello("alice"), "sesame", ChannelBinding::Unsupported);
    assert_eq!(rules.keys.len(), 1);
    let mut second = client();
    second.receive(&hello("alice"));
    let first = ClientFirst::new(Secret::from("x"), ChannelBinding::Unsupported, [1; 18]);
    let mut bytes = Vec::new();
    encode::sasl_initial_response(&mut bytes, first.mechanism(), Some(&first.message())).unwrap();
    assert!(matches!(second.receive(&bytes), ClientStep::Read), "no work is left");
}

#[test]
fn users_that_do_not_exist_get_the_exchange_of_those_who_do() {
    let none = || ChannelBinding::Unsupported;
    let login = |user: &str| {
        let (step, _, heard) = scram(client("scram-sha-256"), &hello(user), "wrong", none());
        assert!(rejected(&step).starts_with("password authentication failed"));
        let shape: Vec<_> = heard.iter().map(|it| it.replace(user, "USER").len()).collect();
        (shape, heard[1].clone())
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
fn md5_is_answered_by_password_or_hash() {
    let login = |user: &str, answer: &[u8]| {
        let mut client = client("md5");
        assert!(matches!(client.receive(&hello(user)), ClientStep::Read));
        assert_eq!(client.take_output(), b"R\0\0\0\x0c\0\0\0\x05salt");
        client.receive(&password(answer))
    };
    let answer = |user: &str, word: &str| auth::md5(user.as_bytes(), word.as_bytes(), *b"salt");
    admitted(login("alice", &answer("alice", "sesame")));
    admitted(login("hashed", &answer("hashed", "md5")));
    for (user, word) in [("alice", "md5"), ("hashed", "x"), ("nobody", ""), ("empty", "")] {
        let refused = format!("password authentication failed for user \"{user}\"");
        assert_eq!(rejected(&login(user, &answer(user, word))), refused);
    }
    // Somebody with a SCRAM secret is asked for SCRAM.
    let (step, ..) = scram(client("md5"), &hello("stored"), "scram", ChannelBinding::Unsupported);
    admitted(step);
}

#[test]
fn a_plain_password_is_compared_with_every_form_of_secret() {
    let login = |user: &str, word: &str| {
        let mut client = client("plain");
        assert!(matches!(client.receive(&hello(user)), ClientStep::Read));
        assert_eq!(client.take_output(), b"R\0\0\0\x08\0\0\0\x03");
        match client.receive(&password(word.as_bytes())) {
            ClientStep::Work(work) => client.work_done(work.run()),
            step => step,
        }
    };
    for (user, word) in [("alice", "sesame"), ("hashed", "md5"), ("stored", "scram")] {
        admitted(login(user, word));
        rejected(&login(user, "wrong"));
        rejected(&login(user, ""));
    }
    rejected(&login("empty", ""));
    rejected(&login("nobody", "x"));
}

#[test]
fn encryption_is_asked_for_once_and_before_anything_else() {
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
fn tls_begins_when_asked_for_or_at_once() {
    let tls = || ClientHandshake::new(rules("trust", TLS), TCP, ENTROPY);
    let postgresql = TlsFacts { alpn: Some(b"postgresql".to_vec()), ..TlsFacts::default() };
    let mut asked = tls();
    let step = asked.receive(&SSL_REQUEST_PACKET);
    assert!(matches!(step, ClientStep::StartTls { received } if received.is_empty()));
    assert_eq!(asked.take_output(), b"S");
    let mut early = tls();
    early.receive(&SSL_REQUEST_PACKET);
    early.take_output();
    assert_eq!(rejected(&early.receive(b"x")), "received unencrypted data after SSL request");
    assert!(early.take_output().is_empty(), "an error would be read as part of the handshake");
    assert!(matches!(asked.tls_started(TlsFacts::default()), ClientStep::Read));
    assert!(rejected(&asked.receive(&SSL_REQUEST_PACKET)).contains("1234.5679"), "TLS in TLS");

    let mut direct = tls();
    let step = direct.receive(b"\x16\x03\x01");
    assert!(matches!(step, ClientStep::StartTls { received } if received == b"\x16\x03\x01"));
    assert!(matches!(direct.tls_started(postgresql), ClientStep::Read));
    admitted(direct.receive(&hello("alice")));
    let mut http = tls();
    http.receive(b"\x16\x03\x01");
    rejected(&http.tls_started(TlsFacts::default()));
    assert!(http.take_output().is_empty());

    rejected(&client("trust").receive(b"\x16\x03\x01\x00\x00"));
    let mut unix = ClientHandshake::new(rules("trust", TLS), UNIX, ENTROPY);
    unix.receive(&SSL_REQUEST_PACKET);
    assert_eq!(unix.take_output(), b"N", "a unix socket needs none");
}

#[test]
fn who_must_have_tls_is_told() {
    let required = TLS.replace("allow", "require");
    let mut plain = ClientHandshake::new(rules("trust", &required), TCP, ENTROPY);
    plain.receive(&hello("alice"));
    assert_eq!(said(&mut plain), ["FATAL: SSL required (SQLSTATE 28000)"]);
    let mut unix = ClientHandshake::new(rules("trust", &required), UNIX, ENTROPY);
    admitted(unix.receive(&hello("alice")));
}

#[test]
fn a_certificate_speaks_for_its_common_name() {
    let verified = TLS.replace("allow", "verify-full");
    let login = |name: Option<&str>| {
        let mut client = ClientHandshake::new(rules("cert", &verified), TCP, ENTROPY);
        client.receive(&SSL_REQUEST_PACKET);
        let common_name = name.map(str::to_owned);
        client.tls_started(TlsFacts { common_name, ..TlsFacts::default() });
        client.receive(&hello("alice"))
    };
    admitted(login(Some("alice")));
    let refused = "certificate authentication failed for user \"alice\"";
    assert_eq!(rejected(&login(Some("bob"))), refused);
    assert_eq!(rejected(&login(None)), refused);
}

#[test]
fn scram_is_bound_to_the_connection() {
    let login = |ours: &[u8], binding: ChannelBinding| {
        let mut client = ClientHandshake::new(rules("scram-sha-256", TLS), TCP, ENTROPY);
        client.receive(&SSL_REQUEST_PACKET);
        client.take_output();
        let end_point_hash = Some(ours.to_vec());
        client.tls_started(TlsFacts { end_point_hash, ..TlsFacts::default() });
        scram(client, &hello("stored"), "scram", binding)
    };
    let bound = |hash: &[u8]| ChannelBinding::TlsServerEndPoint(hash.to_vec());
    let (step, _, heard) = login(b"hash", bound(b"hash"));
    admitted(step);
    assert!(heard[0].contains("SCRAM-SHA-256-PLUS") || heard[0].contains("80, 76, 85, 83"));
    let (step, _, heard) = login(b"hash", bound(b"another"));
    assert_eq!(rejected(&step), "SCRAM channel binding check failed");
    assert!(heard.last().unwrap().ends_with("(SQLSTATE 28000)"));
    admitted(login(b"hash", ChannelBinding::Unsupported).0);
}

#[test]
fn what_is_newer_is_negotiated_and_what_is_older_is_not() {
    let v = |major, minor| ProtocolVersion { major, minor };
    let login = |version, parameters: &[(&str, &str)]| {
        let own = [("user", "alice"), ("database", "shop")];
        let mut client = client("trust");
        let step = client.receive(&packet(version, &[&own[..], parameters].concat()));
        (step, said(&mut client))
    };
    for (asked, agreed) in [(v(3, 0), v(3, 0)), (v(3, 1), v(3, 0)), (v(3, 2), v(3, 2))] {
        let (step, heard) = login(asked, &[]);
        assert_eq!(admitted(step).version, agreed);
        assert_eq!(heard.len(), 1, "{heard:?}");
    }
    let (step, heard) = login(v(3, 9999), &[("_pq_.grease", "1")]);
    assert_eq!(admitted(step).version, v(3, 2));
    assert!(heard[0].starts_with("NegotiateProtocolVersion"), "{heard:?}");
    assert!(heard[0].contains("minor: 2"), "{heard:?}");
    let (_, heard) = login(v(2, 0), &[]);
    let refused = "FATAL: unsupported frontend protocol 2.0: server supports 3.0 to 3.2";
    assert_eq!(heard, [format!("{refused} (SQLSTATE 0A000)")]);
}

#[test]
fn settings_are_kept_passed_over_or_refused() {
    let ignoring = "ignored-startup-parameters = ['extra_float_digits']";
    let login = |more: &str, parameters: &[(&str, &str)]| {
        let own = [("user", "alice"), ("database", "shop")];
        let mut client = ClientHandshake::new(rules("trust", more), TCP, ENTROPY);
        let step = client.receive(&packet(ProtocolVersion::V3_0, &[&own[..], parameters].concat()));
        match step {
            ClientStep::Admitted(who) => {
                who.settings.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join(" ")
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
fn replication_is_a_boolean_or_a_word() {
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
    // Also where `replication` comes last.
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
    let whole = format!("options={options}");
    assert_eq!(settings, [whole.as_str(), "geqo=off", "application_name=sub"]);
    // What the settings pass over is not sent, and any other connection is refused.
    let passing =
        ClientHandshake::new(rules("trust", "ignored-startup-parameters = ['geqo']"), TCP, ENTROPY);
    let mut passing = passing;
    let it = admitted(passing.receive(&packet(ProtocolVersion::V3_0, &parameters)));
    assert_eq!(it.settings.len(), 2);
    let plain = packet(ProtocolVersion::V3_0, &parameters[..3]);
    let refused = rejected(&client("trust").receive(&plain));
    assert!(refused.contains("extra_float_digits"), "{refused}");
}

/// Rules of settings that have a user list.
fn listed(method: &str, list: &str) -> Arc<ClientRules> {
    let text = format!("[pool.auth]\ntype = '{method}'\nfile = '{list}'\n[pool.databases.shop]\n");
    let read = Config::read_str(&text, Path::new("test.toml")).unwrap();
    Arc::new(ClientRules::new(Arc::new(read.config), [9; 32], ClientKeys::default()))
}

#[test]
fn cleartext_password_of_65530_bytes_is_taken_and_a_longer_one_refused() {
    let token = "t".repeat(crate::config::SECRET_BYTES_MAX);
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(list.path(), format!("\"long\" \"{token}\"\n")).unwrap();
    let more = list.path().display().to_string();
    let answer = |bytes: &[u8]| {
        let mut client = ClientHandshake::new(listed("plain", &more), TCP, ENTROPY);
        assert!(matches!(client.receive(&hello("long")), ClientStep::Read));
        client.receive(&password(bytes))
    };
    admitted(answer(token.as_bytes()));
    assert_eq!(rejected(&answer(&[b't'; 65_531])), Rejection::TooLong.to_string());
    // Where a hash is asked for, the limit stays small.
    let mut client = ClientHandshake::new(listed("md5", &more), TCP, ENTROPY);
    client.receive(&hello("long"));
    assert_eq!(rejected(&client.receive(&password(&[b't'; 9000]))), Rejection::TooLong.to_string());
}

#[test]
fn a_database_is_unknown_only_to_who_has_proven_something() {
    let hello = packet(ProtocolVersion::V3_0, &[("user", "alice"), ("database", "other")]);
    let mut trusting = client("trust");
    trusting.receive(&hello);
    assert_eq!(said(&mut trusting), ["FATAL: database \"other\" does not exist (SQLSTATE 3D000)"]);
    let (step, ..) = scram(client("scram-sha-256"), &hello, "wrong", ChannelBinding::Unsupported);
    assert!(rejected(&step).starts_with("password authentication failed"));
    // Without a name it is the user's.
    let hello = packet(ProtocolVersion::V3_0, &[("user", "shop")]);
    assert_eq!(admitted(client("any").receive(&hello)).database, "shop");
    // The console is nobody's database, and is there beside any.
    for console in CONSOLE_DATABASES {
        let hello = packet(ProtocolVersion::V3_0, &[("user", "alice"), ("database", console)]);
        assert_eq!(admitted(client("trust").receive(&hello)).database, console);
    }
}

#[test]
fn requests_to_cancel_come_before_and_after_questions_of_encryption() {
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
fn hostile_bytes_end_it() {
    for length in [i32::MIN, -1, 0, 4, 7, 10_001, i32::MAX] {
        let mut client = client("trust");
        let step = client.receive(&[&length.to_be_bytes()[..], b"\0\x03\0\0"].concat());
        assert!(matches!(step, ClientStep::Close(Rejection::NoStartup)), "{length}");
        assert!(client.take_output().is_empty(), "nobody knows what it would understand");
    }
    let asked = || {
        let mut client = client("md5");
        client.receive(&hello("alice"));
        client
    };
    let refused = |bytes: &[u8]| rejected(&asked().receive(bytes));
    assert_eq!(refused(b"Q\x7f\xff\xff\xff"), "expected password response, got message type 81");
    assert_eq!(refused(b"p\x7f\xff\xff\xff"), "a message of the login is too long");
    assert!(refused(b"p\0\0\0\x03").starts_with("invalid startup packet layout"));
    assert!(refused(b"p\0\0\0\x05x").starts_with("invalid startup packet layout"));
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
fn nothing_secret_is_in_a_debug_text() {
    let mut client = client("scram-sha-256");
    client.receive(&hello("alice"));
    let shown = format!("{client:?}");
    for secret in ["sesame", "scram\"", "[9, 9", "[3, 3"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

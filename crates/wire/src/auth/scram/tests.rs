use std::num::NonZeroU32;

use super::*;
use crate::Secret;

const COST: NonZeroU32 = NonZeroU32::new(4096).unwrap();

/// Runs the whole exchange between `client` and a server that knows `verifier`.
fn exchange(
    client: ClientFirst,
    verifier: ScramVerifier,
    channel_binding: Option<&[u8]>,
) -> Result<(), ScramError> {
    let plus = client.mechanism() == SCRAM_SHA_256_PLUS;
    let server = ServerFirst::receive(verifier, &client.message(), channel_binding, plus, [9; 18])?;
    let client = client.receive(server.message())?;
    let last = server.verify(client.message())?;
    client.verify(&last)
}

fn client(password: &str, binding: ChannelBinding) -> ClientFirst {
    ClientFirst::new(Secret::from(password), binding, [1; 18])
}

fn verifier(password: &str) -> ScramVerifier {
    ScramVerifier::from_password(password.as_bytes(), b"0123456789abcdef", COST)
}

/// Test vectors of RFC 7677, section 3: user `user`, password `pencil`.
#[test]
fn proofs_match_rfc_vectors() {
    let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
    let auth_message = "n=user,r=rOprNGfwEbeRWgbNEkqO,\
        r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,\
        c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
    let salted = salted_password(b"pencil", &salt, COST);
    let client_key = hmac_sha256(&*salted, b"Client Key");
    let signature = hmac_sha256(&sha256(&client_key), auth_message.as_bytes());
    let proof = BASE64.encode(xor(client_key, &signature));
    assert_eq!(proof, "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
    let server_key = hmac_sha256(&*salted, b"Server Key");
    let server_signature = BASE64.encode(hmac_sha256(&server_key, auth_message.as_bytes()));
    assert_eq!(server_signature, "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
}

#[test]
fn both_sides_authenticate() {
    let none = ChannelBinding::Unsupported;
    assert_eq!(exchange(client("sesame", none), verifier("sesame"), None), Ok(()));
    // Both sides apply SASLprep.
    let none = ChannelBinding::Unsupported;
    assert_eq!(exchange(client("I\u{ad}X", none), verifier("\u{2168}"), None), Ok(()));
}

#[test]
fn wrong_password_is_detected() {
    let wrong = exchange(client("sesam", ChannelBinding::Unsupported), verifier("sesame"), None);
    assert_eq!(wrong, Err(ScramError::ClientUnproven));
}

#[test]
fn channel_binding_detects_man_in_the_middle() {
    let bound = |hash: &[u8]| ChannelBinding::TlsServerEndPoint(hash.to_vec());
    let result = |binding, offered| exchange(client("x", binding), verifier("x"), offered);
    assert_eq!(result(bound(b"certificate"), Some(b"certificate")), Ok(()));
    assert_eq!(result(bound(b"certificate"), Some(b"forged")), Err(ScramError::ChannelBinding));
    assert_eq!(result(bound(b"certificate"), None), Err(ScramError::ChannelBinding));
    assert_eq!(result(ChannelBinding::NotOffered, None), Ok(()));
    let offer_removed = result(ChannelBinding::NotOffered, Some(b"certificate"));
    assert_eq!(offer_removed, Err(ScramError::ChannelBinding));
    assert_eq!(result(ChannelBinding::Unsupported, Some(b"certificate")), Ok(()));
}

#[test]
fn server_without_password_is_detected() {
    let client = client("sesame", ChannelBinding::Unsupported);
    let nonce = BASE64.encode([1; 18]);
    let challenge = format!("r={nonce}xyz,s=c2FsdA==,i=1");
    let client = client.receive(challenge.as_bytes()).unwrap();
    let forged = format!("v={}", BASE64.encode([0; 32]));
    assert_eq!(client.verify(forged.as_bytes()), Err(ScramError::ServerUnproven));
}

#[test]
fn invalid_challenges_are_refused() {
    let nonce = BASE64.encode([1; 18]);
    let answer = |challenge: String| {
        client("x", ChannelBinding::Unsupported).receive(challenge.as_bytes()).map(drop)
    };
    let malformed = |attribute| Err(ScramError::Malformed { attribute });
    assert_eq!(answer(format!("r={nonce},s=c2FsdA==,i=1")), Err(ScramError::Nonce));
    assert_eq!(answer("r=other,s=c2FsdA==,i=1".into()), Err(ScramError::Nonce));
    assert_eq!(answer(format!("m=x,r={nonce}x,s=c2FsdA==,i=1")), malformed(b'r'));
    assert_eq!(answer(format!("r={nonce}x,s=*,i=1")), malformed(b's'));
    assert_eq!(answer(format!("r={nonce}x,s=c2FsdA==")), malformed(b'i'));
    assert_eq!(answer(format!("r={nonce}x,s=c2FsdA==,i=-1")), malformed(b'i'));
    for iterations in [0, ITERATIONS_MAX + 1, u32::MAX] {
        let refused = answer(format!("r={nonce}x,s=c2FsdA==,i={iterations}"));
        assert_eq!(refused, Err(ScramError::Iterations { iterations }));
    }
}

#[test]
fn server_error_is_reported() {
    let nonce = BASE64.encode([1; 18]);
    let challenge = format!("r={nonce}x,s=c2FsdA==,i=1");
    let client = client("x", ChannelBinding::Unsupported).receive(challenge.as_bytes()).unwrap();
    let refused = client.verify(b"e=invalid-proof");
    assert_eq!(refused, Err(ScramError::Refused("invalid-proof".into())));
}

#[test]
fn truncated_messages_are_errors() {
    let begin = || client("x", ChannelBinding::Unsupported);
    let first = begin().message();
    let start = |message: &[u8]| ServerFirst::receive(verifier("x"), message, None, false, [9; 18]);
    for end in 0..first.len() {
        // The client's nonce may have any length except zero.
        assert_eq!(start(&first[..end]).is_err(), end <= b"n,,n=,r=".len(), "{end}");
    }
    let challenge = start(&first).unwrap();
    // "i=4" is as valid as "i=4096".
    let first_digit = challenge.message().len() - b"4096".len();
    for end in 0..challenge.message().len() {
        let message = &challenge.message()[..end];
        assert_eq!(begin().receive(message).is_err(), end <= first_digit, "{end}");
    }
    let proof = begin().receive(challenge.message()).unwrap();
    for end in 0..proof.message().len() {
        assert!(start(&first).unwrap().verify(&proof.message()[..end]).is_err(), "{end}");
    }
    let last = challenge.verify(proof.message()).unwrap();
    for end in 0..last.len() {
        let proof = begin().receive(start(&first).unwrap().message()).unwrap();
        assert!(proof.verify(&last[..end]).is_err(), "{end}");
    }
}

/// The value that PostgreSQL 15 stored for `create role … password 'secret'`.
#[test]
fn postgresql_verifier_round_trips() {
    let text = "SCRAM-SHA-256$4096:0C0qv98orTOrEII2Qkzgqg==$7+/ldc/BJvIF8WLnNRszS1ZVqONGIoGTKv95oxmHiXk=:3wm6jxOZGQIo0FNZs9Jz5Jrl2xm3WbARK5dONb0Yeq4=";
    let verifier: ScramVerifier = text.parse().unwrap();
    assert_eq!(verifier.to_text(), text);
    let none = ChannelBinding::Unsupported;
    assert_eq!(exchange(client("secret", none), verifier.clone(), None), Ok(()));
    assert_eq!(format!("{verifier:?}"), "Verifier { iterations: 4096, .. }", "keys are not shown");
    for end in 0..text.len() {
        assert_eq!(text[..end].parse::<ScramVerifier>(), Err(ScramVerifierError));
    }
    assert_eq!(text.replace("4096", "0").parse::<ScramVerifier>(), Err(ScramVerifierError));
}

#[test]
fn recovered_keys_log_in_to_same_secret_only() {
    let cost = NonZeroU32::new(2).unwrap();
    let verifier = ScramVerifier::from_password(b"sesame", b"salt", cost);
    let login = |verifier: ScramVerifier, client: ClientFirst| {
        let message = client.message();
        let server = ServerFirst::receive(verifier, &message, None, false, [2; 18])?;
        let client = client.receive(server.message())?;
        let end = server.finish(client.message())?;
        client.verify(&end.message).map(|()| end.keys)
    };
    let of =
        |word: &str| ClientFirst::new(Secret::from(word), ChannelBinding::Unsupported, [1; 18]);
    let keys = login(verifier.clone(), of("sesame")).unwrap();
    assert_eq!(ScramVerifier::from_keys(&keys), verifier);
    assert_eq!(format!("{keys:?}"), "ScramKeys(…)");

    let with = |keys| ClientFirst::from_keys(keys, ChannelBinding::Unsupported, [3; 18]);
    assert!(login(verifier, with(keys.clone())).is_ok());
    let salted_anew = ScramVerifier::from_password(b"sesame", b"tlas", cost);
    assert_eq!(login(salted_anew, with(keys)).unwrap_err(), ScramError::KeyMismatch);

    let mock = ScramVerifier::mock(&[7; 32], b"nobody", cost);
    assert_eq!(mock, ScramVerifier::mock(&[7; 32], b"nobody", cost), "the same at each login");
    assert_ne!(ScramVerifier::mock_salt(&[7; 32], b"a"), ScramVerifier::mock_salt(&[7; 32], b"b"));
    assert_eq!(login(mock, of("sesame")).unwrap_err(), ScramError::ClientUnproven);
}

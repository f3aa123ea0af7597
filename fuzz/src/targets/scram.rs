//! SCRAM with an attacker who modifies a message in transit.
//!
//! The first byte of the input selects the message to modify; the others are pairs of a position
//! and the bits to flip. They are also fed unmodified wherever SCRAM takes a text.

use std::{mem::discriminant, num::NonZeroU32};

use howdah_wire::{
    Secret,
    auth::scram::{ChannelBinding, ClientFirst, ScramError, ScramVerifier, ServerFirst},
};

use super::Shape;

/// Attributes of messages, and a verifier.
pub const WORDS: &[&[u8]] = &[
    b"n,,n=,r=",
    b"y,,",
    b"p=tls-server-end-point,,",
    b",s=c2FsdA==,i=4096",
    b"c=biws,",
    b",p=",
    b"v=",
    b"e=other-error",
    b"SCRAM-SHA-256$4:c2FsdA==$",
    b"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=:",
];

const CLIENT_NONCE: [u8; 18] = [7; 18];
const SERVER_NONCE: [u8; 18] = [9; 18];
/// Low, to run a thousand exchanges per second.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4).expect("4 is not 0");

/// Feeds the input as a message, then modifies an exchange with it.
pub fn run(input: &[u8]) -> Shape {
    let (which, rest) = input.split_first().unwrap_or((&0, &[]));
    let raw = raw(rest);
    let mut changed = false;
    let outcome = exchange(|step, message| {
        if step == usize::from(which % 4) {
            for pair in rest.as_chunks::<2>().0 {
                let at = usize::from(pair[0]) % message.len();
                message[at] ^= pair[1];
            }
            changed = changed_from(step, message);
        }
    });
    assert_eq!(outcome.is_ok(), !changed, "{outcome:?}");
    Shape::of((which % 4, changed, outcome.err().map(|error| discriminant(&error)), raw))
}

/// Runs an exchange between a client and a server with the same password, passing each message to
/// `between` first. Succeeds only if both sides authenticate each other.
fn exchange(mut between: impl FnMut(usize, &mut Vec<u8>)) -> Result<(), ScramError> {
    let client = client();
    let mut message = client.message();
    between(0, &mut message);
    let server = ServerFirst::receive(verifier(), &message, None, false, SERVER_NONCE)?;
    let mut message = server.message().to_vec();
    between(1, &mut message);
    let client = client.receive(&message)?;
    let mut message = client.message().to_vec();
    between(2, &mut message);
    let mut message = server.verify(&message)?;
    between(3, &mut message);
    client.verify(&message)
}

/// Whether a message differs from the one in an unmodified exchange.
fn changed_from(step: usize, message: &[u8]) -> bool {
    let mut original = Vec::new();
    exchange(|at, honest| {
        if at == step {
            original.clone_from(honest);
        }
    })
    .expect("both know the password");
    original != message
}

fn client() -> ClientFirst {
    ClientFirst::new(Secret::from("pencil"), ChannelBinding::Unsupported, CLIENT_NONCE)
}

fn verifier() -> ScramVerifier {
    ScramVerifier::from_password(b"pencil", b"salt", ITERATIONS)
}

/// Feeds a text to every step of an exchange; none may authenticate by it.
fn raw(text: &[u8]) -> (bool, bool) {
    if let Ok(server) = ServerFirst::receive(verifier(), text, None, false, SERVER_NONCE) {
        assert!(server.message().ends_with(b",s=c2FsdA==,i=4"));
        assert!(server.verify(text).is_err());
    }
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse::<ScramVerifier>().ok());
    if let Some(verifier) = &parsed {
        assert_eq!(verifier.to_text().parse().as_ref(), Ok(verifier));
    }
    let received = client().receive(text);
    if let Ok(client) = &received {
        assert!(client.message().starts_with(b"c=biws,r="));
    }
    (parsed.is_some(), received.is_ok())
}

//! Logins on the pooler's client and server sides, with an untrusted peer.

use std::{path::Path, sync::Arc};

use howdah_pool::auth::{
    ClientHandshake, ClientRules, ClientStep, Entropy, ServerHandshake, ServerIntent,
    ServerProtection, ServerStep,
};
use howdah_pool_config::{Config, ServerIdentity, StoredSecret, hba::ClientOrigin};
use howdah_wire::{
    auth::scram::ClientKeys,
    startup::{self, ProtocolVersion},
};

use super::Shape;

/// Fragments of a client's login.
pub const CLIENT_WORDS: &[&[u8]] = &[
    b"user\0alice\0",
    b"database\0shop\0",
    b"options\0-c DateStyle=ISO\0",
    b"replication\0on\0",
    b"_pq_.x\0\x31\0",
    b"SCRAM-SHA-256\0\0\0\0\x08n,,n=,r=x",
    b"p\0\0\0\x08",
    b"\0\x03\0\0",
];

/// Checks that no client gets in without the password, however the input is split.
pub fn client(input: &[u8]) -> Shape {
    let whole = client_in_pieces(input, usize::MAX);
    // Bytes after an SSLRequest are allowed only once it has been answered, so splitting matters.
    if !whole.1.starts_with("received unencrypted") {
        assert_eq!(client_in_pieces(input, 1), whole);
        assert_eq!(client_in_pieces(input, 7), whole);
    }
    Shape::of(whole.1).and(whole.0.len())
}

fn client_in_pieces(input: &[u8], bytes: usize) -> (Vec<u8>, String) {
    let text = "[pool]\n[pool.auth]\nscram-iterations = 1\n[pool.databases.shop]\n\
                [pool.users.alice]\nsecret = 'sesame'\n";
    let config = Config::read_str(text, Path::new("p")).expect("the settings are right").config;
    let rules = Arc::new(ClientRules::new(Arc::new(config), [7; 32], ClientKeys::default()));
    let entropy = Entropy { nonce: [5; 18], salt: [6; 4] };
    let mut client = ClientHandshake::new(rules, ClientOrigin::Tcp(None), entropy);
    let mut sent = Vec::new();
    for piece in input.chunks(bytes.min(input.len().max(1))) {
        let mut step = client.receive(piece);
        if let ClientStep::DeriveKeys(work) = step {
            step = client.keys_derived(work.run());
        }
        sent.extend(client.take_output());
        match step {
            ClientStep::Read => {}
            ClientStep::Authenticated(_) => unreachable!("nobody has said the password"),
            ClientStep::Close(why) => return (sent, format!("{:.20}", why.to_string())),
            ClientStep::Cancel(key) => return (sent, format!("cancel {}", key.secret().len())),
            ClientStep::StartTls { .. }
            | ClientStep::DeriveKeys(_)
            | ClientStep::AuthQuery(_)
            | ClientStep::CheckPassword(_) => unreachable!("it asked for none of these"),
        }
    }
    (sent, String::new())
}

/// Login packets of clients.
pub fn client_seeds() -> Vec<Vec<u8>> {
    let mut hello = Vec::new();
    let parameters = [(&b"user"[..], &b"alice"[..]), (b"database", b"shop")];
    startup::startup(&mut hello, ProtocolVersion::V3_2, parameters).expect("no zero bytes");
    let mut first = hello.clone();
    first.extend_from_slice(b"p\0\0\0\x20SCRAM-SHA-256\0\0\0\0\x0an,,n=,r=ab");
    let mut cancel = startup::SSL_REQUEST_PACKET.to_vec();
    cancel.extend_from_slice(b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\x01\x02key!");
    vec![hello, first, cancel, startup::GSS_ENC_REQUEST_PACKET.to_vec()]
}

/// Checks that no server obtains the password in clear text, however the input is split.
pub fn server(input: &[u8]) -> Shape {
    let whole = server_in_pieces(input, usize::MAX);
    assert_eq!(server_in_pieces(input, 1), whole);
    assert!(!whole.0.windows(6).any(|bytes| bytes == b"sesame"));
    Shape::of(whole.1).and(whole.0.len())
}

fn server_in_pieces(input: &[u8], bytes: usize) -> (Vec<u8>, String) {
    let identity = ServerIdentity {
        user: "app".to_owned(),
        is_forced: true,
        database: "shop".to_owned(),
        secret: Some(StoredSecret::parse("sesame")),
        parameters: Vec::new(),
        connect_query: None,
    };
    let intent = ServerIntent {
        identity,
        parameters: Vec::new(),
        newest: ProtocolVersion::V3_2,
        client_keys: None,
        protection: ServerProtection::None,
    };
    let mut server = ServerHandshake::new(intent, ClientKeys::default(), [4; 18])
        .expect("the names have no zero byte");
    let mut sent = server.take_output();
    for piece in input.chunks(bytes.min(input.len().max(1))) {
        let mut step = server.receive(piece);
        if let Ok(ServerStep::DeriveKeys(work)) = step {
            step = server.keys_derived(work.run());
        }
        sent.extend(server.take_output());
        match step {
            Ok(ServerStep::Ready(ready)) => {
                return (sent, format!("ready {}", ready.login.parameters.len()));
            }
            Ok(_) => {}
            Err(error) => return (sent, format!("{:.20}", error.to_string())),
        }
    }
    (sent, String::new())
}

/// Login messages of servers.
pub fn server_seeds() -> Vec<Vec<u8>> {
    let ok = b"R\0\0\0\x08\0\0\0\0S\0\0\0\x09a\0bc\0K\0\0\0\x0c\0\0\0\x01key!Z\0\0\0\x05I";
    let sasl = b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0";
    let mut scram = sasl.to_vec();
    // The client's nonce is 18 bytes of 4, in base64.
    let first = b"r=BAQEBAQEBAQEBAQEBAQEBAQEBAQEx,s=c2FsdA==,i=1";
    scram.extend_from_slice(b"R\0\0\0");
    scram.push(8 + u8::try_from(first.len()).expect("it is short"));
    scram.extend_from_slice(b"\0\0\0\x0b");
    scram.extend_from_slice(first);
    vec![
        ok.to_vec(),
        sasl.to_vec(),
        scram,
        b"R\0\0\0\x0c\0\0\0\x05salt".to_vec(),
        b"R\0\0\0\x08\0\0\0\x03".to_vec(),
        b"v\0\0\0\x0c\0\x03\0\0\0\0\0\0".to_vec(),
        b"E\0\0\0\x0eC57P03\0Mx\0\0".to_vec(),
    ]
}

//! Our logins at real servers, by each method, over plain sockets.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{
    auth::{
        ClientHandshake, ClientRules, ClientStep, Entropy, ServerHandshake, ServerIntent,
        ServerLoginError, ServerProtection, ServerReady, ServerStep,
    },
    config::{Config, ServerIdentity, StoredSecret},
    hba::Origin,
};
use howdah_wire::{
    Frame, Secret,
    auth::scram::{ChannelBinding, ClientFirst, ClientKeys, ScramKeys},
    backend::{Authentication, Message},
    frontend::encode,
    startup::{self, ProtocolVersion},
};

const PASSWORD: &str = "it's % a secret";

/// The role's name says how it logs in.
const RULES: &str = "\
host all postgres 127.0.0.1/32 trust
host all scram    127.0.0.1/32 scram-sha-256
host all md5      127.0.0.1/32 md5
host all plain    127.0.0.1/32 password
";

const ROLES: [&str; 5] = [
    "create role scram login password 'it''s % a secret'",
    "set password_encryption = md5",
    "create role md5 login password 'it''s % a secret'",
    "reset password_encryption",
    "create role plain login password 'it''s % a secret'",
];

/// A server of this major where each role logs in by its own method.
fn cluster(major: u32, test: &str) -> Option<(Cluster, Client)> {
    let built = Cluster::builder().name("pool-login").major(major).start();
    let mut cluster = or_say_why_not(test, built)?;
    let rules = cluster.data_dir().join("pg_hba.conf");
    let owner = fs::metadata(cluster.data_dir()).unwrap();
    let mut client = connect(&cluster);
    ROLES.iter().for_each(|role| drop(client.query(role).unwrap()));
    fs::write(&rules, RULES).unwrap();
    fs::set_permissions(&rules, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&rules, Some(owner.uid()), Some(owner.gid())).unwrap();
    client.close();
    cluster.restart().unwrap();
    let client = connect(&cluster);
    Some((cluster, client))
}

fn connect(cluster: &Cluster) -> Client {
    let words = Words::from_conninfo(cluster.uri("postgres"));
    let target = Target::resolve(&words, &Environment::from_process()).unwrap();
    Client::connect(&target).unwrap()
}

fn intent(user: &str, secret: Option<StoredSecret>) -> ServerIntent {
    ServerIntent {
        identity: ServerIdentity {
            user: user.to_owned(),
            is_forced: true,
            database: "postgres".to_owned(),
            secret,
            parameters: vec![("application_name".to_owned(), "pooled".to_owned())],
            connect_query: None,
        },
        parameters: Vec::new(),
        newest: ProtocolVersion::V3_2,
        client_keys: None,
        protection: ServerProtection::None,
    }
}

/// Logs in, reading one byte at a time: whatever the cuts, nothing is lost.
fn login(
    cluster: &Cluster,
    intent: ServerIntent,
) -> Result<(ServerReady, TcpStream), ServerLoginError> {
    let mut socket = TcpStream::connect(("127.0.0.1", cluster.port())).unwrap();
    let mut server = ServerHandshake::new(intent, ClientKeys::default(), [42; 18])?;
    let mut byte = [0];
    loop {
        socket.write_all(&server.take_output()).unwrap();
        socket.read_exact(&mut byte).unwrap();
        let mut step = server.receive(&byte)?;
        if let ServerStep::Work(work) = step {
            step = server.work_done(work.run())?;
        }
        if let ServerStep::Ready(ready) = step {
            return Ok((*ready, socket));
        }
    }
}

fn messages(socket: &mut TcpStream, sql: &str) -> Vec<String> {
    let mut query = Vec::new();
    encode::query(&mut query, sql.as_bytes()).unwrap();
    socket.write_all(&query).unwrap();
    let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let read = socket.read(&mut chunk).unwrap();
        assert_ne!(read, 0, "the server closed");
        input.extend_from_slice(&chunk[..read]);
        let (mut rest, mut found) = (input.as_slice(), Vec::new());
        while let Some((frame, behind)) = Frame::split(rest, 1 << 20).unwrap() {
            rest = behind;
            match Message::parse(frame).unwrap() {
                Message::ReadyForQuery(_) => return found,
                Message::ErrorResponse(error) => found.push(error.to_string()),
                Message::DataRow(_) => found.push(String::from_utf8_lossy(frame.body).into_owned()),
                _ => {}
            }
        }
    }
}

/// Every method at a server of this major, and the long keys of those that have them.
fn every_method_at(major: u32) {
    let Some((cluster, _client)) = cluster(major, "every_method") else { return };
    let secret = || Some(StoredSecret::parse(PASSWORD));
    for user in ["postgres", "scram", "md5"] {
        let (ready, mut socket) = login(&cluster, intent(user, secret())).unwrap();
        let parameter = |name: &[u8]| {
            let found = ready.login.parameters.iter().find(|it| *it.name == *name);
            String::from_utf8(found.unwrap().value.to_vec()).unwrap()
        };
        assert_eq!(parameter(b"application_name"), "pooled");
        assert!(parameter(b"server_version").starts_with(&major.to_string()));
        assert!(messages(&mut socket, "select 'I am ' || current_user)")[0].contains("syntax"));
        let me = messages(&mut socket, "select 'I am ' || current_user");
        assert!(me[0].ends_with(&format!("I am {user}")), "{me:?}");

        let is_new = major >= 18;
        let version = if is_new { ProtocolVersion::V3_2 } else { ProtocolVersion::V3_0 };
        assert_eq!(ready.version, version);
        let key = ready.login.cancel_key.unwrap();
        assert_eq!(key.secret().len(), if is_new { 32 } else { 4 });
        // The key is the right one: what it cancels ends. It is sent until then, since it may come
        // before the query does.
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut request = Vec::new();
                startup::cancel_request(&mut request, &key);
                while !is_over.load(Ordering::Relaxed) {
                    let mut socket = TcpStream::connect(("127.0.0.1", cluster.port())).unwrap();
                    let _ = socket.write_all(&request);
                    let _ = socket.read(&mut [0]);
                }
            });
            let answer = messages(&mut socket, "select pg_sleep(600)");
            is_over.store(true, Ordering::Relaxed);
            assert!(answer[0].contains("57014"), "{answer:?}");
        });
    }
    let error = login(&cluster, intent("plain", secret())).unwrap_err();
    assert_eq!(error, ServerLoginError::PlainWithoutTls);
    // Pretending that nobody listens: the password itself is right.
    let protection = ServerProtection::Local;
    login(&cluster, ServerIntent { protection, ..intent("plain", secret()) }).unwrap();

    for user in ["scram", "md5"] {
        let error = login(&cluster, intent(user, Some(StoredSecret::parse("no")))).unwrap_err();
        let text = format!("password authentication failed for user \"{user}\"");
        assert_eq!((error.failure().sqlstate, error.to_string()), (*b"28P01", text));
    }
    let error = login(&cluster, intent("nobody", None)).unwrap_err();
    assert_eq!(&error.failure().sqlstate, b"28000", "{error}");
}

#[test]
fn every_method_lets_us_into_postgresql_15() {
    every_method_at(15);
}

#[test]
fn every_method_lets_us_into_postgresql_18() {
    every_method_at(18);
}

/// What a client's login with this password shows to us, who keep what the server keeps.
fn keys_shown_by_client(stored: &str) -> ScramKeys {
    let text = format!("[pool.databases.postgres]\n[pool.users.scram]\nsecret = '{stored}'\n");
    let read = Config::read_str(&text, "test.toml".as_ref()).unwrap();
    let rules = ClientRules::new(Arc::new(read.config), [1; 32], ClientKeys::default());
    let entropy = Entropy { nonce: [2; 18], salt: [3; 4] };
    let mut client = ClientHandshake::new(Arc::new(rules), Origin::Unix { uid: None }, entropy);
    let mut bytes = Vec::new();
    let parameters = [(&b"user"[..], &b"scram"[..]), (b"database", b"postgres")];
    startup::startup(&mut bytes, ProtocolVersion::V3_0, parameters).unwrap();
    client.receive(&bytes);
    client.take_output();
    let first = ClientFirst::new(Secret::from(PASSWORD), ChannelBinding::Unsupported, [4; 18]);
    bytes.clear();
    encode::sasl_initial_response(&mut bytes, first.mechanism(), Some(&first.message())).unwrap();
    client.receive(&bytes);
    let output = client.take_output();
    let (frame, _) = Frame::split(&output, 1000).unwrap().unwrap();
    let Message::Authentication(Authentication::SaslContinue(message)) =
        Message::parse(frame).unwrap()
    else {
        panic!()
    };
    bytes.clear();
    encode::sasl_response(&mut bytes, first.receive(message).unwrap().message()).unwrap();
    match client.receive(&bytes) {
        ClientStep::Admitted(admitted) => admitted.scram_keys.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_clients_own_proof_opens_the_server_without_its_password() {
    let Some((cluster, mut client)) = cluster(15, "a_clients_own_proof") else { return };
    let stored = client
        .one_value("select rolpassword from pg_authid where rolname = 'scram'")
        .unwrap()
        .unwrap();
    assert!(stored.starts_with("SCRAM-SHA-256$"));
    let client_keys = Some(keys_shown_by_client(&stored));
    let secret = Some(StoredSecret::parse(&stored));
    let with = ServerIntent { client_keys, ..intent("scram", secret.clone()) };
    let (_, mut socket) = login(&cluster, with).unwrap();
    assert!(messages(&mut socket, "select current_user")[0].ends_with("scram"));

    let error = login(&cluster, intent("scram", secret)).unwrap_err();
    assert_eq!(error, ServerLoginError::NoSecret { method: "scram-sha-256" });
}

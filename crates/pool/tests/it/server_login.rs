//! Logins of the pooler to real servers, by every authentication method.

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

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_pool::auth::{
    ClientHandshake, ClientRules, ClientStep, Entropy, ServerHandshake, ServerIntent,
    ServerLoginError, ServerProtection, ServerReady, ServerStep,
};
use howdah_pool_config::{Config, ServerIdentity, StoredSecret, hba::ClientOrigin};
use howdah_wire::{
    Frame, Secret,
    auth::scram::{ChannelBinding, ClientFirst, ClientKeys, ScramKeys},
    backend::{Authentication, BackendMessage},
    frontend::encode,
    startup::{self, ProtocolVersion},
};

const PASSWORD: &str = "it's % a secret";

/// Roles are named for their authentication method.
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

/// A server of this major with one role per authentication method.
fn start_cluster(major: u32, test: &str) -> Option<(Cluster, Client)> {
    let built = Cluster::builder().name("pool-login").major(major).start();
    let mut cluster = skip_without_postgres(test, built)?;
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
    let words = ConnParams::from_conninfo(cluster.uri("postgres"));
    let target = ConnectTarget::resolve(&words, &Environment::from_process()).unwrap();
    Client::connect(&target).unwrap()
}

fn server_intent(user: &str, secret: Option<StoredSecret>) -> ServerIntent {
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

/// Logs in, reading one byte at a time, so that messages are split everywhere.
fn log_in(
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
        if let ServerStep::DeriveKeys(work) = step {
            step = server.keys_derived(work.run())?;
        }
        if let ServerStep::Ready(ready) = step {
            return Ok((*ready, socket));
        }
    }
}

fn query_messages(socket: &mut TcpStream, sql: &str) -> Vec<String> {
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
            match BackendMessage::parse(frame).unwrap() {
                BackendMessage::ReadyForQuery(_) => return found,
                BackendMessage::ErrorResponse(error) => found.push(error.to_string()),
                BackendMessage::DataRow(_) => {
                    found.push(String::from_utf8_lossy(frame.body).into_owned());
                }
                _ => {}
            }
        }
    }
}

/// Every method at a server of this major, and the long keys of those that have them.
fn check_methods(major: u32) {
    let Some((cluster, _client)) = start_cluster(major, "every_method") else { return };
    let secret = || Some(StoredSecret::parse(PASSWORD));
    for user in ["postgres", "scram", "md5"] {
        let (ready, mut socket) = log_in(&cluster, server_intent(user, secret())).unwrap();
        let parameter = |name: &[u8]| {
            let found = ready.login.parameters.iter().find(|it| *it.name == *name);
            String::from_utf8(found.unwrap().value.to_vec()).unwrap()
        };
        assert_eq!(parameter(b"application_name"), "pooled");
        assert!(parameter(b"server_version").starts_with(&major.to_string()));
        assert!(
            query_messages(&mut socket, "select 'I am ' || current_user)")[0].contains("syntax")
        );
        let me = query_messages(&mut socket, "select 'I am ' || current_user");
        assert!(me[0].ends_with(&format!("I am {user}")), "{me:?}");

        let is_new = major >= 18;
        let version = if is_new { ProtocolVersion::V3_2 } else { ProtocolVersion::V3_0 };
        assert_eq!(ready.version, version);
        let key = ready.login.cancel_key.unwrap();
        assert_eq!(key.secret().len(), if is_new { 32 } else { 4 });
        // A cancel with the key ends the statement. It is repeated, since it may arrive before the
        // query.
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
            let answer = query_messages(&mut socket, "select pg_sleep(600)");
            is_over.store(true, Ordering::Relaxed);
            assert!(answer[0].contains("57014"), "{answer:?}");
        });
    }
    let error = log_in(&cluster, server_intent("plain", secret())).unwrap_err();
    assert_eq!(error, ServerLoginError::CleartextWithoutTls);
    // As if the connection were local: then the password is sent.
    let protection = ServerProtection::Local;
    log_in(&cluster, ServerIntent { protection, ..server_intent("plain", secret()) }).unwrap();

    for user in ["scram", "md5"] {
        let error =
            log_in(&cluster, server_intent(user, Some(StoredSecret::parse("no")))).unwrap_err();
        let text = format!("password authentication failed for user \"{user}\"");
        assert_eq!((error.failure().sqlstate, error.to_string()), (*b"28P01", text));
    }
    let error = log_in(&cluster, server_intent("nobody", None)).unwrap_err();
    assert_eq!(&error.failure().sqlstate, b"28000", "{error}");
}

#[test]
fn every_method_logs_in_to_postgresql_15() {
    check_methods(15);
}

#[test]
fn every_method_logs_in_to_postgresql_18() {
    check_methods(18);
}

/// The SCRAM keys recovered from a client's login, with the stored secret of the server.
fn scram_keys_from_login(stored: &str) -> ScramKeys {
    let text = format!("[pool.databases.postgres]\n[pool.users.scram]\nsecret = '{stored}'\n");
    let read = Config::read_str(&text, "test.toml".as_ref()).unwrap();
    let rules = ClientRules::new(Arc::new(read.config), [1; 32], ClientKeys::default());
    let entropy = Entropy { nonce: [2; 18], salt: [3; 4] };
    let mut client =
        ClientHandshake::new(Arc::new(rules), ClientOrigin::Unix { uid: None }, entropy);
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
    let BackendMessage::Authentication(Authentication::SaslContinue(message)) =
        BackendMessage::parse(frame).unwrap()
    else {
        panic!()
    };
    bytes.clear();
    encode::sasl_response(&mut bytes, first.receive(message).unwrap().message()).unwrap();
    match client.receive(&bytes) {
        ClientStep::Authenticated(admitted) => admitted.scram_keys.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn scram_keys_from_client_login_open_server() {
    let Some((cluster, mut client)) = start_cluster(15, "a_clients_own_proof") else { return };
    let stored = client
        .one_value("select rolpassword from pg_authid where rolname = 'scram'")
        .unwrap()
        .unwrap();
    assert!(stored.starts_with("SCRAM-SHA-256$"));
    let client_keys = Some(scram_keys_from_login(&stored));
    let secret = Some(StoredSecret::parse(&stored));
    let with = ServerIntent { client_keys, ..server_intent("scram", secret.clone()) };
    let (_, mut socket) = log_in(&cluster, with).unwrap();
    assert!(query_messages(&mut socket, "select current_user")[0].ends_with("scram"));

    let error = log_in(&cluster, server_intent("scram", secret)).unwrap_err();
    assert_eq!(error, ServerLoginError::NoSecret { method: "scram-sha-256" });
}

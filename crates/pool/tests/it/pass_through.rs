//! Pass-through authentication: the server checks the passwords of users that the pooler does not
//! know.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use howdah_connect::Client;
use howdah_lab::{Cluster, wait_until};
use howdah_pool::Pooler;

use crate::{
    auth_query::{AUTH_FUNCTION, start_cluster},
    certificates::Certificates,
    support::{RawClient, WAIT_TIMEOUT, connect, start_pooler_with},
};

/// Starts a pooler. `auth` are lines of `[pool.auth]`, `database` lines of the database, `more`
/// further sections.
fn start_pooler(server: &Cluster, auth: &str, database: &str, more: &str) -> Pooler {
    start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nadmin-users = ['alice']\nworkers = 2\n\
         [pool.users.listed]\nsecret = 'written down'\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n{database}\n\
         [pool.auth]\n{auth}\n{more}\n{}",
        server.port(),
        if more.contains("[pool.listen]") { "" } else { NO_UNIX_SOCKETS }
    ))
}

const NO_UNIX_SOCKETS: &str = "[pool.listen]\nport = 0\nunix-directories = []\n";

fn log_in_with(pooler: &Pooler, words: &str) -> Result<Client, String> {
    let port = pooler.addresses()[0].port();
    let words = format!("port={port} dbname=postgres sslmode=disable connect_timeout=60 {words}");
    connect(&words).map_err(|error| {
        let code = error.sqlstate().unwrap_or("-----").to_owned();
        format!("{code} {error}")
    })
}

fn log_in(pooler: &Pooler, user: &str, password: &str) -> Result<Client, String> {
    log_in_with(pooler, &format!("host=127.0.0.1 user={user} password='{password}'"))
}

/// The role at the server after a login, or the SQLSTATE of its error.
fn login_outcome(pooler: &Pooler, user: &str, password: &str) -> String {
    outcome(log_in(pooler, user, password))
}

fn outcome(login: Result<Client, String>) -> String {
    match login {
        Ok(mut client) => client.one_value("select current_user::text").unwrap().unwrap(),
        Err(error) => error[..5].to_owned(),
    }
}

const LOOPBACK: &str = "pass-through = 'loopback'";
/// The server is asked at each login.
const ALWAYS: &str = "pass-through = 'loopback'\npass-through-recheck = 0";

fn check_logins(major: u32) {
    let Some(server) = start_cluster("pass-through", major) else { return };
    for method in ["scram-sha-256", "md5", "plain"] {
        let pooler = start_pooler(&server, &format!("type = '{method}'\n{LOOPBACK}"), "", "");
        for (user, password, expected) in [
            ("alice", "sesame", "alice"),
            ("alice", "sesame", "alice"),
            ("alice", "wrong", "28P01"),
            ("hashed", "sesame", "hashed"),
            ("hashed", "wrong", "28P01"),
            ("open", "sesame", "open"),
            ("open", "wrong", "28P01"),
            ("lasting", "sesame", "lasting"),
            ("expired", "sesame", "28P01"),
            ("nologin", "sesame", "28P01"),
            ("bare", "sesame", "28P01"),
            ("nobody", "sesame", "28P01"),
            ("listed", "wrong", "28P01"),
            // The server trusts the pooler's address, so it would accept any password.
            ("postgres", "sesame", "28P01"),
        ] {
            assert_eq!(
                login_outcome(&pooler, user, password),
                expected,
                "{method} {user} {password}"
            );
        }
        assert!(
            log_in(&pooler, "listed", "written down").unwrap_err().starts_with("28"),
            "no role"
        );
    }
}

#[test]
fn postgresql_15_checks_passwords_of_unknown_users() {
    check_logins(15);
}

#[test]
fn postgresql_18_checks_passwords_of_unknown_users() {
    check_logins(18);
}

#[test]
fn password_is_requested_only_over_protected_connections() {
    let Some(certificates) = Certificates::new("pass-through tls") else { return };
    let Some(server) = start_cluster("pass-through tls", 18) else { return };
    certificates.self_signed("root", "howdah test root", &[]);
    certificates.signed("pooler", "unused", "root", "subjectAltName=DNS:localhost\n");
    let folder = tempfile::tempdir().unwrap();
    let listen = format!(
        "[pool.listen]\nport = 0\nunix-directories = ['{}']\n[pool.tls.client]\nmode = 'prefer'\n\
         certificate = '{certificate}'\nkey = '{key}'\n",
        folder.path().display(),
        certificate = certificates.path("pooler.crt").display(),
        key = certificates.path("pooler.key").display(),
    );
    let login = "user=alice password=sesame";
    let [tcp, unix] = ["127.0.0.1", folder.path().to_str().unwrap()];
    let encrypted = start_pooler(&server, "pass-through = 'encrypted'", "", &listen);
    let error = log_in_with(&encrypted, &format!("host={tcp} {login}")).unwrap_err();
    assert!(error.starts_with("28000") && error.contains("only accepted over SSL"), "{error}");
    assert_eq!(
        outcome(log_in_with(&encrypted, &format!("host={tcp} {login} sslmode=require"))),
        "alice"
    );
    assert_eq!(outcome(log_in_with(&encrypted, &format!("host={unix} {login}"))), "alice");
    let off = start_pooler(&server, "", "", &listen);
    let error = log_in_with(&off, &format!("host={tcp} {login} sslmode=require")).unwrap_err();
    assert!(error.starts_with("28P01"), "{error}");
    // A trusted proxy on this machine forwards a client of another one.
    let proxied = listen.replace("port = 0", "port = 0\nproxy-from = ['127.0.0.1/32']");
    let proxied = start_pooler(&server, LOOPBACK, "", &proxied);
    for (client, expected) in [("192.0.2.1", b'E'), ("127.0.0.1", b'R')] {
        let mut raw = RawClient::connect(proxied.addresses()[0]);
        let header = format!("PROXY TCP4 {client} 127.0.0.1 5000 6432\r\n");
        std::io::Write::write_all(&mut raw.0, header.as_bytes()).unwrap();
        raw.send_startup_for_user("alice", "postgres");
        assert_eq!(raw.read_message().unwrap().0, expected, "{client}");
    }
}

#[test]
fn rule_can_require_pass_through() {
    let Some(server) = start_cluster("pass-through hba", 18) else { return };
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("hba");
    fs::write(
        &rules,
        "local all alice,listed pass-through\nlocal all all scram-sha-256\nhost all all all pass-through\n",
    )
    .unwrap();
    let listen =
        format!("[pool.listen]\nport = 0\nunix-directories = ['{}']\n", folder.path().display());
    let auth = format!("type = 'hba'\nhba-file = '{}'", rules.display());
    let pooler = start_pooler(&server, &auth, "user = 'alice'\nsecret = 'sesame'", &listen);
    let at = |host: &Path, user: &str, password: &str| {
        let words = format!("host={} user={user} password='{password}'", host.display());
        outcome(log_in_with(&pooler, &words))
    };
    assert_eq!(at(folder.path(), "alice", "sesame"), "alice");
    assert_eq!(at(folder.path(), "listed", "written down"), "alice", "the forced user");
    assert_eq!(at(folder.path(), "hashed", "sesame"), "28P01", "another rule");
    assert_eq!(at(Path::new("127.0.0.1"), "alice", "sesame"), "28000", "not encrypted");
}

#[test]
fn forced_user_serves_clients_with_passwords_of_their_own() {
    let Some(server) = start_cluster("pass-through forced user", 18) else { return };
    let pooler = start_pooler(&server, LOOPBACK, "user = 'lasting'\nsecret = 'sesame'", "");
    assert_eq!(login_outcome(&pooler, "alice", "sesame"), "lasting");
    assert_eq!(login_outcome(&pooler, "alice", "wrong"), "28P01");
    assert_eq!(login_outcome(&pooler, "nobody", "sesame"), "28P01");
}

#[test]
fn known_secret_takes_precedence() {
    let Some(server) = start_cluster("pass-through auth_query", 18) else { return };
    let queries = format!("{LOOPBACK}\n{AUTH_FUNCTION}");
    let pooler = start_pooler(&server, &queries, "", "[pool.users.asker]\n");
    assert_eq!(login_outcome(&pooler, "alice", "sesame"), "alice");
    assert_eq!(login_outcome(&pooler, "hashed", "sesame"), "28P01", "no SCRAM with an md5 hash");
    assert_eq!(login_outcome(&pooler, "nobody", "sesame"), "28P01");
    // The query that finds nothing leaves the decision to the server.
    let nothing = format!("{LOOPBACK}\nuser = 'asker'\nquery = \"select $1::text, null::text\"");
    let pooler = start_pooler(&server, &nothing, "", "[pool.users.asker]\n");
    assert_eq!(login_outcome(&pooler, "hashed", "sesame"), "hashed");
    assert_eq!(login_outcome(&pooler, "hashed", "wrong"), "28P01");
    // The console has no server that could check a password.
    let error = log_in_with(&pooler, "host=127.0.0.1 user=alice password=sesame dbname=pgbouncer");
    assert!(error.unwrap_err().starts_with("28P01"));
}

#[test]
fn changed_password_takes_effect() {
    let Some(server) = start_cluster("pass-through changes", 18) else { return };
    let pooler = start_pooler(&server, ALWAYS, "", "");
    let mut admin = connect(&server.uri("postgres")).unwrap();
    let mut first = log_in(&pooler, "fleeting", "sesame").unwrap();
    assert_eq!(first.one_value("select '1'").unwrap().as_deref(), Some("1"));
    admin.query("alter role fleeting password 'changed'").unwrap();
    // The server connection that is open stays.
    assert_eq!(first.one_value("select '2'").unwrap().as_deref(), Some("2"));
    assert_eq!(login_outcome(&pooler, "fleeting", "sesame"), "28P01");
    assert_eq!(first.one_value("select '3'").unwrap().as_deref(), Some("3"));
    // The pool still has the old password, with which it cannot replace a lost connection.
    let backends =
        "select pg_terminate_backend(pid, 60000) from pg_stat_activity where usename = 'fleeting'";
    admin.query(backends).unwrap();
    wait_until("the pool's login to be refused", WAIT_TIMEOUT, || match first.query("select 1") {
        Ok(_) => false,
        Err(error) => error.sqlstate() == Some("28P01"),
    });
    // The new password makes it log in again at once.
    let mut second = log_in(&pooler, "fleeting", "changed").unwrap();
    assert_eq!(second.one_value("select '4'").unwrap().as_deref(), Some("4"));
    admin.query("alter role fleeting valid until '2001-01-01'").unwrap();
    assert_eq!(login_outcome(&pooler, "fleeting", "changed"), "28P01");
    assert_eq!(second.one_value("select '5'").unwrap().as_deref(), Some("5"));
    admin.query("alter role fleeting valid until 'infinity'").unwrap();
    assert_eq!(login_outcome(&pooler, "fleeting", "changed"), "fleeting");
    admin.query("alter role fleeting nologin").unwrap();
    assert_eq!(login_outcome(&pooler, "fleeting", "changed"), "28P01");
}

#[test]
fn clients_with_one_password_cause_one_check() {
    let Some(server) = start_cluster("pass-through storm", 18) else { return };
    let mut admin = connect(&server.uri("postgres")).unwrap();
    // One connection for the check and one for the pool.
    admin.query("alter role alice connection limit 2").unwrap();
    let pooler = start_pooler(&server, LOOPBACK, "pool-size = 1", "");
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| assert_eq!(login_outcome(&pooler, "alice", "sesame"), "alice"));
        }
    });
}

#[test]
fn repeated_wrong_passwords_are_not_sent_to_the_server() {
    let Some(server) = start_cluster("pass-through brute force", 18) else { return };
    let pooler = start_pooler(&server, LOOPBACK, "", "");
    assert_eq!(login_outcome(&pooler, "alice", "sesame"), "alice");
    let refused = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for attempt in 0..40 {
            let (pooler, refused) = (&pooler, &refused);
            scope.spawn(move || {
                let error = log_in(pooler, "alice", &format!("wrong {attempt}")).unwrap_err();
                refused.fetch_add(u32::from(error.starts_with("28P01")), Ordering::Relaxed);
                assert!(error.starts_with("28P01") || error.contains("too many failed"), "{error}");
            });
        }
    });
    let refusals = || {
        let log = fs::read_to_string(server.server_log()).unwrap();
        let text = "password authentication failed for user \"alice\"";
        u32::try_from(log.matches(text).count()).unwrap()
    };
    wait_until("the server to log refused logins", WAIT_TIMEOUT, || refusals() > 0);
    assert!(refusals() < 40, "{}", refusals());
    assert_eq!(refusals(), refused.load(Ordering::Relaxed), "each refusal is one of the server");
    // The right password is known, and not affected; nor is another user.
    assert_eq!(login_outcome(&pooler, "alice", "sesame"), "alice");
    assert_eq!(login_outcome(&pooler, "hashed", "sesame"), "hashed");
}

#[test]
fn empty_password_is_not_sent_to_the_server() {
    let Some(server) = start_cluster("pass-through empty", 18) else { return };
    let pooler = start_pooler(&server, LOOPBACK, "", "");
    let mut raw = RawClient::connect(pooler.addresses()[0]);
    raw.send_startup_for_user("alice", "postgres");
    assert_eq!(raw.read_message().unwrap(), (b'R', vec![0, 0, 0, 3]));
    raw.send(b'p', b"\0");
    let (tag, body) = raw.read_message().unwrap();
    assert!(tag == b'E' && body.windows(5).any(|code| code == b"28P01"), "{}", body.escape_ascii());
    assert!(!fs::read_to_string(server.server_log()).unwrap().contains("alice"));
}

/// While the server is away, its last answer counts.
#[test]
fn accepted_password_is_trusted_while_server_is_down() {
    let Some(mut server) = start_cluster("pass-through outage", 18) else { return };
    let pooler = start_pooler(&server, ALWAYS, "", "");
    assert_eq!(login_outcome(&pooler, "alice", "sesame"), "alice");
    server.stop().unwrap();
    assert!(log_in(&pooler, "alice", "sesame").is_ok(), "its statements would wait for the server");
    for (user, password) in [("alice", "wrong"), ("hashed", "sesame")] {
        let error = log_in(&pooler, user, password).unwrap_err();
        assert!(error.starts_with("08006"), "{user} {password}: {error}");
    }
    server.start().unwrap();
    wait_until("the pool to log in again", WAIT_TIMEOUT, || {
        login_outcome(&pooler, "alice", "sesame") == "alice"
    });
    assert_eq!(login_outcome(&pooler, "hashed", "sesame"), "hashed");
    assert_eq!(login_outcome(&pooler, "alice", "wrong"), "28P01");
}

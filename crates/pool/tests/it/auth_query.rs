//! Users whose secrets are queried from the server (`auth_query`).

use std::fs;

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::Pooler;
use howdah_pool_config::DEFAULT_AUTH_QUERY;

use crate::support::{WAIT_TIMEOUT, connect, start_pooler_with};

/// Roles are named for their authentication at the server.
const RULES: &str = "\
local all all trust
host all asker,helper 127.0.0.1/32 trust
host all postgres     127.0.0.1/32 trust
host all hashed       127.0.0.1/32 md5
host all open         127.0.0.1/32 password
host all all          127.0.0.1/32 scram-sha-256
";

const ROLES: [&str; 14] = [
    "create role asker login",
    "create role helper login",
    "create role alice login password 'sesame'",
    "create role expired login password 'sesame' valid until '2001-01-01'",
    "create role lasting login password 'sesame' valid until '2999-01-01'",
    "create role nologin password 'sesame'",
    "create role bare login",
    "create role fleeting login password 'sesame'",
    "create role open login password 'sesame'",
    "set password_encryption = md5",
    "create role hashed login password 'sesame'",
    "create schema pooler",
    // As recommended by PgBouncer's manual: `asker` is not a superuser.
    "create function pooler.look_up(name, out text, out text) security definer language sql as \
     $$ select rolname::text, rolpassword from pg_authid where rolname = $1 and rolcanlogin \
     and (rolvaliduntil is null or rolvaliduntil > now()) $$",
    "grant usage on schema pooler to asker",
];

pub(crate) fn start_cluster(test: &str, major: u32) -> Option<Cluster> {
    let built = Cluster::builder().name("pool-auth-query").major(major).start();
    let mut server = skip_without_postgres(test, built)?;
    let mut client = connect(&server.uri("postgres")).unwrap();
    ROLES.iter().for_each(|role| drop(client.query(role).unwrap()));
    client.close();
    let rules = server.data_dir().join("pg_hba.conf");
    let kept = fs::metadata(&rules).unwrap().permissions();
    // In place, so that the file keeps its owner.
    fs::write(&rules, RULES).unwrap();
    fs::set_permissions(&rules, kept).unwrap();
    server.restart().unwrap();
    Some(server)
}

/// Starts a pooler that queries secrets. `auth` are lines of `[pool.auth]`, `database` lines of the
/// database.
fn start_pooler(server: &Cluster, method: &str, auth: &str, database: &str) -> Pooler {
    start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nadmin-users = ['alice']\nworkers = 2\n\
         [pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.users.listed]\nsecret = 'written down'\n\
         [pool.users.asker]\n\
         [pool.databases.other]\nhosts = ['127.0.0.1:{port}']\ndbname = 'postgres'\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{port}']\n{database}\n\
         [pool.auth]\ntype = '{method}'\n{auth}\n",
        port = server.port()
    ))
}

pub(crate) const AUTH_FUNCTION: &str = "user = 'asker'\nquery = 'select * from pooler.look_up($1)'";

fn log_in(pooler: &Pooler, user: &str, password: &str, database: &str) -> Result<Client, String> {
    let port = pooler.addresses()[0].port();
    let words = format!(
        "host=127.0.0.1 port={port} user={user} password='{password}' dbname={database} \
         sslmode=disable connect_timeout=60"
    );
    connect(&words).map_err(|error| {
        let code = error.sqlstate().unwrap_or("-----").to_owned();
        format!("{code} {error}")
    })
}

/// The role at the server after a login, or the SQLSTATE of its error.
fn login_outcome(pooler: &Pooler, user: &str, password: &str) -> String {
    match log_in(pooler, user, password, "postgres") {
        Ok(mut client) => client.one_value("select current_user::text").unwrap().unwrap(),
        Err(error) => error[..5].to_owned(),
    }
}

fn check_logins(major: u32) {
    let Some(server) = start_cluster("auth_query", major) else { return };
    for method in ["scram-sha-256", "md5", "plain"] {
        let asking = start_pooler(&server, method, AUTH_FUNCTION, "");
        // SCRAM is not possible with an md5 hash.
        let hashed = if method == "scram-sha-256" { "28P01" } else { "hashed" };
        for (user, password, expected) in [
            ("alice", "sesame", "alice"),
            ("alice", "wrong", "28P01"),
            ("lasting", "sesame", "lasting"),
            ("hashed", "sesame", hashed),
            ("hashed", "wrong", "28P01"),
            ("expired", "sesame", "28P01"),
            ("nologin", "sesame", "28P01"),
            ("bare", "sesame", "28P01"),
            ("nobody", "sesame", "28P01"),
            ("listed", "wrong", "28P01"),
            ("asker", "sesame", "28P01"),
        ] {
            assert_eq!(
                login_outcome(&asking, user, password),
                expected,
                "{method} {user} {password}"
            );
        }
    }
}

#[test]
fn secrets_of_postgresql_15_authenticate_clients() {
    check_logins(15);
}

#[test]
fn secrets_of_postgresql_18_authenticate_clients() {
    check_logins(18);
}

#[test]
fn changed_secret_takes_effect_at_once() {
    let Some(server) = start_cluster("auth_query changes", 18) else { return };
    let asking = start_pooler(&server, "scram-sha-256", "user = 'postgres'", "");
    let mut admin = connect(&server.uri("postgres")).unwrap();
    assert_eq!(login_outcome(&asking, "fleeting", "sesame"), "fleeting");
    admin.query("alter role fleeting password 'changed'").unwrap();
    assert_eq!(login_outcome(&asking, "fleeting", "sesame"), "28P01");
    assert_eq!(login_outcome(&asking, "fleeting", "changed"), "fleeting");
    admin.query("alter role fleeting valid until '2001-01-01'").unwrap();
    assert_eq!(login_outcome(&asking, "fleeting", "changed"), "28P01");
    admin.query("alter role fleeting valid until 'infinity'").unwrap();
    assert_eq!(login_outcome(&asking, "fleeting", "changed"), "fleeting");
    admin.query("drop role fleeting").unwrap();
    assert_eq!(login_outcome(&asking, "fleeting", "changed"), "28P01");
}

/// If the query fails in any way, the client gets the same error as for a wrong password.
#[test]
fn failed_auth_query_looks_like_wrong_password() {
    let Some(server) = start_cluster("auth_query fails", 18) else { return };
    let login_error = |pooler: &Pooler, user: &str| {
        let error = log_in(pooler, user, "sesame", "postgres").unwrap_err();
        error.replace(user, "USER").replace(&pooler.addresses()[0].to_string(), "ADDRESS")
    };
    let good = start_pooler(&server, "scram-sha-256", AUTH_FUNCTION, "");
    let expected = login_error(&good, "nobody");
    assert!(expected.contains("password authentication failed"), "{expected}");
    assert_eq!(login_error(&good, "listed"), expected);
    for auth in [
        // `asker` may not read pg_authid.
        &format!("user = 'asker'\nquery = \"{DEFAULT_AUTH_QUERY}\""),
        "user = 'asker'\nquery = 'select'",
        "user = 'asker'\nquery = 'no sql'",
        "user = 'asker'\nquery = 'checkpoint'",
        "user = 'asker'\nquery = 'select rolname from pg_roles where rolname = $1'",
        "user = 'asker'\nquery = \"select rolname, 'sesame', 1 from pg_roles where rolname = $1\"",
        "user = 'asker'\nquery = \"select rolname, 'sesame' from pg_roles where $1 <> ''\"",
        "user = 'asker'\nquery = \"select 'postgres', 'sesame' where $1 <> ''\"",
        "user = 'asker'\nquery = \"select null, 'sesame' where $1 <> ''\"",
        "user = 'asker'\nquery = \"select $1::text, ''\"",
        "user = 'asker'\nquery = \"select $1::text, null\"",
        "user = 'no_such_role'",
    ] {
        let asking = start_pooler(&server, "scram-sha-256", auth, "");
        assert_eq!(login_error(&asking, "alice"), expected, "{auth}");
    }
}

#[test]
fn database_can_override_auth_query() {
    let Some(server) = start_cluster("auth_dbname", 18) else { return };
    let mut admin = connect(&server.uri("postgres")).unwrap();
    admin.query("create database elsewhere").unwrap();
    // The function exists only in postgres, which clients can also reach as other.
    let asking = start_pooler(
        &server,
        "scram-sha-256",
        &format!("{AUTH_FUNCTION}\ndbname = 'other'"),
        "dbname = 'elsewhere'",
    );
    assert_eq!(login_outcome(&asking, "alice", "sesame"), "alice");
    // The console has no server, but `dbname` has one to query.
    let mut console = log_in(&asking, "alice", "sesame", "pgbouncer").unwrap();
    console.query("show version").unwrap();
    let error = log_in(&asking, "alice", "sesame", "nowhere").unwrap_err();
    assert!(error.starts_with("3D000"), "{error}");
    let error = log_in(&asking, "alice", "wrong", "nowhere").unwrap_err();
    assert!(error.starts_with("28P01"), "{error}");

    let own = "auth-user = 'helper'\nauth-query = \"select $1::text, 'override'\"";
    let asking = start_pooler(&server, "scram-sha-256", AUTH_FUNCTION, own);
    assert_eq!(login_outcome(&asking, "helper", "wrong"), "28P01");
    assert_eq!(login_outcome(&asking, "helper", "override"), "helper");
    assert!(log_in(&asking, "alice", "sesame", "other").is_ok());
    let error = log_in(&asking, "helper", "override", "other").unwrap_err();
    assert!(error.starts_with("28P01"), "{error}");
}

/// The queries run as clients of an internal pool.
#[test]
fn auth_queries_share_one_server_connection() {
    let Some(server) = start_cluster("auth_query storm", 18) else { return };
    let asking = start_pooler(&server, "scram-sha-256", AUTH_FUNCTION, "pool-size = 1");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(login_outcome(&asking, "alice", "sesame"), "alice"));
        }
    });
    let mut admin = connect(&server.uri("postgres")).unwrap();
    let askers = "select count(*)::text from pg_stat_activity where usename = 'asker'";
    assert_eq!(admin.one_value(askers).unwrap().as_deref(), Some("1"));
    wait_until("the internal clients to disconnect", WAIT_TIMEOUT, || {
        let view = asking.control().snapshot(true);
        let at = view.pools.iter().position(|pool| pool.user == "asker").unwrap();
        assert_eq!(view.pools[at].tally.logins, 16);
        view.clients.iter().all(|client| client.pool != at)
    });
}

#[test]
fn disabled_database_runs_no_auth_query() {
    let Some(server) = start_cluster("auth_query disabled", 18) else { return };
    let auth = format!("{AUTH_FUNCTION}\ndbname = 'other'");
    let asking = start_pooler(&server, "scram-sha-256", &auth, "");
    let mut console = log_in(&asking, "alice", "sesame", "pgbouncer").unwrap();
    assert_eq!(login_outcome(&asking, "alice", "sesame"), "alice");
    console.query("disable other").unwrap();
    let error = log_in(&asking, "alice", "sesame", "postgres").err().unwrap();
    assert!(error.starts_with("57P03") && error.contains("\"other\" is disabled"), "{error}");
    console.query("enable other").unwrap();
    assert_eq!(login_outcome(&asking, "alice", "sesame"), "alice");
}

#[test]
fn listed_user_with_empty_secret_is_not_queried() {
    let Some(server) = start_cluster("auth_query empty", 18) else { return };
    let more =
        format!("{AUTH_FUNCTION}\npass-through = 'loopback'\n[pool.users.alice]\nsecret = ''");
    let asking = start_pooler(&server, "scram-sha-256", &more, "");
    assert_eq!(login_outcome(&asking, "alice", "sesame"), "28P01");
    assert_eq!(login_outcome(&asking, "lasting", "sesame"), "lasting");
}

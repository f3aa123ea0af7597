//! Users whose secrets are looked up at the server: who gets in, who does not, and what they see of it.

use std::fs;

use howdah_connect::Client;
use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{Pooler, config::DEFAULT_QUERY};

use crate::support::{connect, pooler_of};

/// The role's name says how the server itself lets it in.
const RULES: &str = "\
local all all trust
host all asker,helper 127.0.0.1/32 trust
host all postgres     127.0.0.1/32 trust
host all hashed       127.0.0.1/32 md5
host all all          127.0.0.1/32 scram-sha-256
";

const ROLES: [&str; 13] = [
    "create role asker login",
    "create role helper login",
    "create role alice login password 'sesame'",
    "create role expired login password 'sesame' valid until '2001-01-01'",
    "create role lasting login password 'sesame' valid until '2999-01-01'",
    "create role nologin password 'sesame'",
    "create role bare login",
    "create role fleeting login password 'sesame'",
    "set password_encryption = md5",
    "create role hashed login password 'sesame'",
    "create schema pooler",
    // As PgBouncer's manual advises: the asker is no superuser.
    "create function pooler.look_up(name, out text, out text) security definer language sql as \
     $$ select rolname::text, rolpassword from pg_authid where rolname = $1 and rolcanlogin \
     and (rolvaliduntil is null or rolvaliduntil > now()) $$",
    "grant usage on schema pooler to asker",
];

pub(crate) fn cluster(test: &str, major: u32) -> Option<Cluster> {
    let built = Cluster::builder().name("pool-auth-query").major(major).start();
    let mut server = or_say_why_not(test, built)?;
    let mut client = connect(&server.uri("postgres")).unwrap();
    ROLES.iter().for_each(|role| drop(client.query(role).unwrap()));
    client.close();
    let rules = server.data_dir().join("pg_hba.conf");
    let kept = fs::metadata(&rules).unwrap().permissions();
    // In place: the file stays its owner's.
    fs::write(&rules, RULES).unwrap();
    fs::set_permissions(&rules, kept).unwrap();
    server.restart().unwrap();
    Some(server)
}

/// A pooler that looks secrets up; `auth` are lines of `[pool.auth]`, `database` those of the database.
fn pooler(server: &Cluster, method: &str, auth: &str, database: &str) -> Pooler {
    pooler_of(&format!(
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

pub(crate) const FUNCTION: &str = "user = 'asker'\nquery = 'select * from pooler.look_up($1)'";

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

/// Who one is at the server, or the SQLSTATE of why one is not.
fn outcome(pooler: &Pooler, user: &str, password: &str) -> String {
    match log_in(pooler, user, password, "postgres") {
        Ok(mut client) => client.one_value("select current_user::text").unwrap().unwrap(),
        Err(error) => error[..5].to_owned(),
    }
}

fn who_gets_in_at(major: u32) {
    let Some(server) = cluster("auth_query", major) else { return };
    for method in ["scram-sha-256", "md5", "plain"] {
        let asking = pooler(&server, method, FUNCTION, "");
        // An md5 proves nothing to SCRAM.
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
            assert_eq!(outcome(&asking, user, password), expected, "{method} {user} {password}");
        }
    }
}

#[test]
fn who_gets_in_by_a_secret_of_postgresql_15() {
    who_gets_in_at(15);
}

#[test]
fn who_gets_in_by_a_secret_of_postgresql_18() {
    who_gets_in_at(18);
}

#[test]
fn what_changes_at_the_server_counts_at_once() {
    let Some(server) = cluster("auth_query changes", 18) else { return };
    let asking = pooler(&server, "scram-sha-256", "user = 'postgres'", "");
    let mut admin = connect(&server.uri("postgres")).unwrap();
    assert_eq!(outcome(&asking, "fleeting", "sesame"), "fleeting");
    admin.query("alter role fleeting password 'changed'").unwrap();
    assert_eq!(outcome(&asking, "fleeting", "sesame"), "28P01");
    assert_eq!(outcome(&asking, "fleeting", "changed"), "fleeting");
    admin.query("alter role fleeting valid until '2001-01-01'").unwrap();
    assert_eq!(outcome(&asking, "fleeting", "changed"), "28P01");
    admin.query("alter role fleeting valid until 'infinity'").unwrap();
    assert_eq!(outcome(&asking, "fleeting", "changed"), "fleeting");
    admin.query("drop role fleeting").unwrap();
    assert_eq!(outcome(&asking, "fleeting", "changed"), "28P01");
}

/// Whatever goes wrong with the question, the client sees what it sees of a wrong password.
#[test]
fn a_question_that_fails_lets_nobody_in_and_tells_nothing() {
    let Some(server) = cluster("auth_query fails", 18) else { return };
    let told = |pooler: &Pooler, user: &str| {
        let told = log_in(pooler, user, "sesame", "postgres").unwrap_err();
        told.replace(user, "USER").replace(&pooler.addresses()[0].to_string(), "PLACE")
    };
    let good = pooler(&server, "scram-sha-256", FUNCTION, "");
    let expected = told(&good, "nobody");
    assert!(expected.contains("password authentication failed"), "{expected}");
    assert_eq!(told(&good, "listed"), expected);
    for auth in [
        // The asker may not read pg_authid.
        &format!("user = 'asker'\nquery = \"{DEFAULT_QUERY}\""),
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
        let asking = pooler(&server, "scram-sha-256", auth, "");
        assert_eq!(told(&asking, "alice"), expected, "{auth}");
    }
}

#[test]
fn one_database_is_asked_for_all_and_one_in_its_own_way() {
    let Some(server) = cluster("auth_dbname", 18) else { return };
    let mut admin = connect(&server.uri("postgres")).unwrap();
    admin.query("create database elsewhere").unwrap();
    // The function is in postgres only, which clients know as other, too.
    let asking = pooler(
        &server,
        "scram-sha-256",
        &format!("{FUNCTION}\ndbname = 'other'"),
        "dbname = 'elsewhere'",
    );
    assert_eq!(outcome(&asking, "alice", "sesame"), "alice");
    // The console has no server of its own, and there is one to ask.
    let mut console = log_in(&asking, "alice", "sesame", "pgbouncer").unwrap();
    console.query("show version").unwrap();
    let error = log_in(&asking, "alice", "sesame", "nowhere").unwrap_err();
    assert!(error.starts_with("3D000"), "{error}");
    let error = log_in(&asking, "alice", "wrong", "nowhere").unwrap_err();
    assert!(error.starts_with("28P01"), "{error}");

    let own = "auth-user = 'helper'\nauth-query = \"select $1::text, 'told'\"";
    let asking = pooler(&server, "scram-sha-256", FUNCTION, own);
    assert_eq!(outcome(&asking, "helper", "wrong"), "28P01");
    assert_eq!(outcome(&asking, "helper", "told"), "helper");
    assert!(log_in(&asking, "alice", "sesame", "other").is_ok());
    let error = log_in(&asking, "helper", "told", "other").unwrap_err();
    assert!(error.starts_with("28P01"), "{error}");
}

/// What asks is a client of a pool of ours, and looks like one to who watches.
#[test]
fn look_ups_share_one_server_connection() {
    let Some(server) = cluster("auth_query storm", 18) else { return };
    let asking = pooler(&server, "scram-sha-256", FUNCTION, "pool-size = 1");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(outcome(&asking, "alice", "sesame"), "alice"));
        }
    });
    let mut admin = connect(&server.uri("postgres")).unwrap();
    let askers = "select count(*)::text from pg_stat_activity where usename = 'asker'";
    assert_eq!(admin.one_value(askers).unwrap().as_deref(), Some("1"));
    // Those who asked leave.
    loop {
        let view = asking.control().view(true);
        let at = view.pools.iter().position(|pool| pool.user == "asker").unwrap();
        assert_eq!(view.pools[at].tally.logins, 16);
        if view.clients.iter().all(|client| client.pool != at) {
            break;
        }
    }
}

//! Passwords for logins to servers from files and programs.

use std::fs;

use howdah_lab::{Cluster, client_tool, wait_until};
use howdah_pool::Pooler;

use crate::{
    auth_query::start_cluster,
    support::{WAIT_TIMEOUT, connect, start_pooler_with},
};

/// Starts a pooler whose clients log in as `app`; `user` are lines of the role at the server.
fn start_pooler(server: &Cluster, user: &str) -> Pooler {
    start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 2\n[pool.timeouts]\nserver-login-retry = '100ms'\nquery-wait = '1s'\n\
         [pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
         [pool.users.app]\nsecret = ''\n[pool.users.fleeting]\n{user}\n\
         [pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\nuser = 'fleeting'\n",
        server.port(),
    ))
}

fn role(pooler: &Pooler) -> Result<String, String> {
    let port = pooler.addresses()[0].port();
    let conninfo = format!("host=127.0.0.1 port={port} user=app dbname=postgres sslmode=disable");
    let mut client = connect(&conninfo).map_err(|error| error.to_string())?;
    let role = client.one_value("select current_user::text").map_err(|error| error.to_string())?;
    Ok(role.unwrap_or_default())
}

/// Ends the server connections of the pool, so that it must log in again.
fn end_connections(server: &Cluster) {
    let mut admin = connect(&server.uri("postgres")).unwrap();
    let backends = "select pg_terminate_backend(pid, 60000) from pg_stat_activity \
                    where usename = 'fleeting'";
    admin.query(backends).unwrap();
}

fn set_password(server: &Cluster, password: &str) {
    let mut admin = connect(&server.uri("postgres")).unwrap();
    admin.query(&format!("alter role fleeting password '{password}'")).unwrap();
}

fn wait_for_login(pooler: &Pooler) {
    wait_until("a login with the new password", WAIT_TIMEOUT, || {
        role(pooler).as_deref() == Ok("fleeting")
    });
}

/// A program that sets a new password at the server each time, and prints it, as token services do.
#[test]
fn program_provides_a_new_password_for_each_lifetime() {
    let Some(server) = start_cluster("secret-command", 18) else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("token");
    let own = server.binaries().program("psql");
    let psql = if own.is_file() { own } else { client_tool("psql").expect("psql is installed") };
    let text = format!(
        "token=token-$$\n'{}' -XAtq '{}' -c \"alter role fleeting password '$token'\" || exit 1\n\
         echo run >> '{}'\necho $token\necho \"$1\"\n",
        psql.display(),
        server.uri("postgres"),
        folder.path().join("runs").display(),
    );
    fs::write(&script, text).unwrap();
    let runs = || fs::read_to_string(folder.path().join("runs")).unwrap().lines().count();
    let start = |seconds: &str| {
        let command = format!("['/bin/sh', '{}', '{seconds}']", script.display());
        start_pooler(&server, &format!("secret-command = {command}"))
    };
    let lasting = start("3600");
    assert_eq!(role(&lasting).unwrap(), "fleeting");
    assert_eq!(runs(), 1);
    end_connections(&server);
    wait_for_login(&lasting);
    assert_eq!(runs(), 1, "the password is used until it ends");
    // Another session changes the password: the refused one is replaced at once.
    set_password(&server, "changed");
    end_connections(&server);
    wait_for_login(&lasting);
    assert_eq!(runs(), 2);
    drop(lasting);
    let short = start("0");
    for _ in 0..3 {
        let before = runs();
        end_connections(&server);
        wait_for_login(&short);
        assert!(runs() > before, "each login needs a new password");
    }
}

#[test]
fn replaced_file_takes_effect_at_the_next_login() {
    let Some(server) = start_cluster("secret-file", 18) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "sesame\n").unwrap();
    let pooler = start_pooler(&server, &format!("secret-file = '{}'", file.display()));
    assert_eq!(role(&pooler).unwrap(), "fleeting");
    set_password(&server, "changed");
    fs::write(&file, "changed\n").unwrap();
    end_connections(&server);
    wait_for_login(&pooler);
    fs::remove_file(&file).unwrap();
    end_connections(&server);
    let mut error = String::new();
    wait_until("an error that names the file", WAIT_TIMEOUT, || {
        error = role(&pooler).err().unwrap_or_default();
        error.contains("cannot read") && error.contains("password")
    });
    assert!(!error.contains("changed"), "{error}");
    fs::write(&file, "changed\n").unwrap();
    wait_for_login(&pooler);
}

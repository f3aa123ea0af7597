//! Who can connect to a cluster.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Stdio},
};

use howdah_connect::{Client, Environment, Target, Words};
use howdah_lab::{ACCOUNT_NAME, Builder, Cluster, Labs};

use crate::support::{open_tempdir, sql, start};

/// Runs psql as another user of the host, with the URI as it is printed.
fn psql_as(user: Option<u32>, uri: &str) -> Option<(bool, String)> {
    let psql = howdah_lab::client_tool("psql")?;
    let mut command = match user {
        Some(user) => {
            let user = user.to_string();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(psql);
            command
        }
        None => Command::new(psql),
    };
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"PG") {
            command.env_remove(name);
        }
    }
    command.args(["-X", "-A", "-t", "-w", "-c", "select current_user"]).arg(uri);
    command.current_dir("/").env("HOME", "/nonexistent").stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).trim().to_owned()))
}

fn can_connect(uri: &str) -> bool {
    let target = Target::resolve(&Words::from_conninfo(uri), &Environment::empty()).unwrap();
    Client::connect(&target).is_ok()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn on_tcp(port: u16) -> String {
    format!("postgresql://postgres@127.0.0.1:{port}/postgres")
}

/// Some other user of the host: neither root nor the account of the servers.
const STRANGER: u32 = 65_534;

#[test]
fn cluster_is_reached_by_its_private_socket_only() {
    let Some(cluster) = start("socket only", Builder::new()) else { return };
    let uri = cluster.uri("postgres");
    let host = cluster.socket_dir().display();
    let port = cluster.port();
    assert_eq!(uri, format!("postgresql:///postgres?host={host}&port={port}&user=postgres"));
    assert_eq!(sql(&uri, "SELECT current_user"), "postgres");
    assert_eq!(sql(&uri, "SHOW listen_addresses"), "");
    assert_eq!(mode(cluster.socket_dir()), 0o700);
    assert!(!can_connect(&on_tcp(port)));
    if let Some((is_connected, text)) = psql_as(None, &uri) {
        assert!(is_connected && text == "postgres", "{text}");
    }
    // TCP that is opened later lets nobody in: there is no password.
    sql(&uri, "ALTER SYSTEM SET listen_addresses = '127.0.0.1'");
    let mut cluster = cluster;
    cluster.restart().unwrap();
    assert_eq!(sql(&uri, "SHOW listen_addresses"), "127.0.0.1");
    assert!(!can_connect(&on_tcp(port)));
}

#[test]
fn tcp_asks_for_the_password_of_the_passfile() {
    let Some(mut cluster) = start("tcp", Builder::new().tcp()) else { return };
    let (uri, port) = (cluster.uri("postgres"), cluster.port());
    let passfile = cluster.passfile().unwrap();
    assert_eq!(uri, format!("{}?passfile={}", on_tcp(port), passfile.display()));
    assert_eq!(mode(&passfile), 0o600);
    assert_eq!(fs::metadata(&passfile).unwrap().uid(), rustix::process::geteuid().as_raw());
    assert_eq!(sql(&uri, "SELECT inet_server_addr()"), "127.0.0.1");
    assert!(!can_connect(&on_tcp(port)));
    assert!(can_connect(&cluster.socket_uri("postgres")), "the socket asks for none");
    if let Some((is_connected, text)) = psql_as(None, &uri) {
        assert!(is_connected && text == "postgres", "{text}");
    }
    let line = fs::read_to_string(&passfile).unwrap();
    let password = line.trim_end().rsplit(':').next().unwrap();
    let log = fs::read_to_string(cluster.server_log()).unwrap();
    assert!(!uri.contains(password) && !log.contains(password));
    cluster.restart().unwrap();
    assert_eq!(sql(&uri, "SELECT 1"), "1");

    let standby = Builder::new().tcp().standby_of(&cluster).start().unwrap();
    assert_eq!(sql(&standby.uri("postgres"), "SELECT pg_is_in_recovery()"), "t");
    assert!(!can_connect(&on_tcp(standby.port())));
}

#[test]
fn standby_on_tcp_gets_a_password_from_a_primary_on_its_socket() {
    let Some(primary) = start("tcp standby", Builder::new()) else { return };
    let standby = Builder::new().tcp().standby_of(&primary).start().unwrap();
    assert_eq!(sql(&standby.uri("postgres"), "SELECT pg_is_in_recovery()"), "t");
    assert!(!can_connect(&on_tcp(standby.port())) && !can_connect(&on_tcp(primary.port())));
}

#[test]
fn kept_cluster_that_trusted_tcp_trusts_no_longer() {
    let parent = open_tempdir();
    let dir = parent.path().join("kept");
    let trusting = Cluster::builder().dir(&dir).keep(true);
    let Some(cluster) = start("kept", trusting) else { return };
    assert!(can_connect(&on_tcp(cluster.port())));
    drop(cluster);
    let cluster = Builder::new().dir(&dir).start().unwrap();
    assert!(!can_connect(&on_tcp(cluster.port())));
    assert_eq!(sql(&cluster.uri("postgres"), "SELECT 1"), "1");
    drop(cluster);
    let cluster = Builder::new().dir(&dir).tcp().start().unwrap();
    assert!(!can_connect(&on_tcp(cluster.port())));
    assert_eq!(sql(&cluster.uri("postgres"), "SELECT 1"), "1");
}

#[test]
fn lab_on_tcp_keeps_its_password_over_a_restart() {
    let dir = open_tempdir();
    let labs = Labs::in_dir(dir.path().join("labs"));
    let builder = Builder::new().tcp();
    let Some(lab) = howdah_lab::or_say_why_not(
        "tcp lab",
        match labs.start(Some("one"), builder) {
            Ok(started) => Ok(started.leave_running()),
            Err(howdah_lab::LabsError::Cluster(error)) => Err(error),
            Err(error) => unreachable!("{error}"),
        },
    ) else {
        return;
    };
    let uri = lab.uri("postgres");
    assert!(uri.contains("?passfile=/"), "{uri}");
    let again = labs.restart("one", &[("listen_addresses", "localhost")]).unwrap();
    assert_eq!(again.uri("postgres"), uri);
    assert_eq!(sql(&uri, "SHOW listen_addresses"), "localhost");
    labs.stop("one").unwrap();
    assert!(!lab.passfile.unwrap().exists());
}

/// With trusted TCP, which tests may ask for, all of this succeeds for the stranger.
#[test]
fn other_users_of_the_host_cannot_connect_to_a_cluster_of_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped other users: only root can become another user");
        return;
    }
    for builder in [Builder::new(), Builder::new().tcp()] {
        let Some(cluster) = start("other users", builder) else { return };
        let (own, socket) = (cluster.uri("postgres"), cluster.socket_uri("postgres"));
        for uri in [&own, &socket, &on_tcp(cluster.port())] {
            let Some((is_connected, text)) = psql_as(Some(STRANGER), uri) else { return };
            assert!(!is_connected, "{uri}: {text}");
            assert!(text.contains("connection to server") || text.contains("could not"), "{text}");
        }
        for path in [cluster.dir(), cluster.socket_dir(), cluster.data_dir()] {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
    }
}

#[test]
fn servers_of_root_run_as_an_account_that_owns_nothing_else() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped the account of servers: the server runs as ourselves");
        return;
    }
    let Some(cluster) = start("account", Builder::new()) else { return };
    let uid = fs::metadata(format!("/proc/{}", cluster.pid().unwrap())).unwrap().uid();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()));
    let line = line.expect("the account has a line");
    assert_eq!(line.split(':').next(), Some(ACCOUNT_NAME));
    assert!(uid != 0 && uid != STRANGER, "{line}");
    // Nobody logs in with it.
    assert!(line.ends_with("nologin") || line.ends_with("false"), "{line}");
}

#[test]
fn kept_cluster_of_another_account_is_taken_over() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped taking over: only root gives files away");
        return;
    }
    let parent = open_tempdir();
    let dir = parent.path().join("kept");
    let Some(cluster) = start("taken over", Builder::new().dir(&dir).keep(true)) else { return };
    sql(&cluster.uri("postgres"), "CREATE TABLE t AS SELECT 42 AS x");
    drop(cluster);
    let given = Command::new("chown").args(["-R", "65534:65534"]).arg(&dir).status().unwrap();
    assert!(given.success());
    let cluster = Builder::new().dir(&dir).start().unwrap();
    assert_eq!(sql(&cluster.uri("postgres"), "SELECT x FROM t"), "42");
}

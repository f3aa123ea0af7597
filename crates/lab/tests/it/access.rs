//! Access control: which users can connect to a cluster, and how.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    process::{Command, Stdio},
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{ACCOUNT_NAME, Builder, Cluster, Labs};

use crate::support::{open_tempdir, sql, start};

/// Runs psql with a URI, as another user of the host. Returns success and output; `None` without
/// psql.
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
    let target =
        ConnectTarget::resolve(&ConnParams::from_conninfo(uri), &Environment::empty()).unwrap();
    Client::connect(&target).is_ok()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn on_tcp(port: u16) -> String {
    format!("postgresql://postgres@127.0.0.1:{port}/postgres")
}

/// The user id of another user of the host: neither root nor the servers' account.
const OTHER_UID: u32 = 65_534;

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
    // TCP enabled later refuses all connections, because the superuser has no password.
    sql(&uri, "ALTER SYSTEM SET listen_addresses = '127.0.0.1'");
    let mut cluster = cluster;
    cluster.restart().unwrap();
    assert_eq!(sql(&uri, "SHOW listen_addresses"), "127.0.0.1");
    assert!(!can_connect(&on_tcp(port)));
}

#[test]
fn tcp_requires_password_from_passfile() {
    let Some(mut cluster) = start("tcp", Builder::new().tcp()) else { return };
    let (uri, port) = (cluster.uri("postgres"), cluster.port());
    let passfile = cluster.passfile().unwrap();
    assert_eq!(uri, format!("{}?passfile={}", on_tcp(port), passfile.display()));
    assert_eq!(mode(&passfile), 0o600);
    assert_eq!(fs::metadata(&passfile).unwrap().uid(), rustix::process::geteuid().as_raw());
    assert_eq!(sql(&uri, "SELECT inet_server_addr()"), "127.0.0.1");
    assert!(!can_connect(&on_tcp(port)));
    assert!(can_connect(&cluster.socket_uri("postgres")), "the socket requires no password");
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
fn standby_on_tcp_sets_password_on_socket_only_primary() {
    let Some(primary) = start("tcp standby", Builder::new()) else { return };
    let standby = Builder::new().tcp().standby_of(&primary).start().unwrap();
    assert_eq!(sql(&standby.uri("postgres"), "SELECT pg_is_in_recovery()"), "t");
    assert!(!can_connect(&on_tcp(standby.port())) && !can_connect(&on_tcp(primary.port())));
}

#[test]
fn kept_cluster_no_longer_trusts_tcp() {
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
fn tcp_password_survives_lab_restart() {
    let dir = open_tempdir();
    let labs = Labs::in_dir(dir.path().join("labs"));
    let builder = Builder::new().tcp();
    let Some(lab) = howdah_lab::skip_without_postgres(
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

/// With [`Builder::trusted_tcp`] the other user could connect.
#[test]
fn other_users_cannot_connect_to_cluster_of_root() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED other users: only root can become another user");
        return;
    }
    for builder in [Builder::new(), Builder::new().tcp()] {
        let Some(cluster) = start("other users", builder) else { return };
        let (default, socket) = (cluster.uri("postgres"), cluster.socket_uri("postgres"));
        for uri in [&default, &socket, &on_tcp(cluster.port())] {
            let Some((is_connected, text)) = psql_as(Some(OTHER_UID), uri) else { return };
            assert!(!is_connected, "{uri}: {text}");
            assert!(text.contains("connection to server") || text.contains("could not"), "{text}");
        }
        for path in [cluster.dir(), cluster.socket_dir(), cluster.data_dir()] {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
    }
}

#[test]
fn servers_of_root_run_as_system_account() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED system account: the server runs as the current user");
        return;
    }
    let Some(cluster) = start("account", Builder::new()) else { return };
    let uid = fs::metadata(format!("/proc/{}", cluster.pid().unwrap())).unwrap().uid();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()));
    let line = line.expect("the account is missing in /etc/passwd");
    assert_eq!(line.split(':').next(), Some(ACCOUNT_NAME));
    assert!(uid != 0 && uid != OTHER_UID, "{line}");
    // The account has no login shell.
    assert!(line.ends_with("nologin") || line.ends_with("false"), "{line}");
}

#[test]
fn kept_cluster_of_another_account_changes_owner() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED changing the owner: only root can do that");
        return;
    }
    let parent = open_tempdir();
    let dir = parent.path().join("kept");
    let Some(cluster) = start("taken over", Builder::new().dir(&dir).keep(true)) else { return };
    sql(&cluster.uri("postgres"), "CREATE TABLE t AS SELECT 42 AS x");
    drop(cluster);
    let chown = Command::new("chown").args(["-R", "65534:65534"]).arg(&dir).status().unwrap();
    assert!(chown.success());
    let cluster = Builder::new().dir(&dir).start().unwrap();
    assert_eq!(sql(&cluster.uri("postgres"), "SELECT x FROM t"), "42");
}

//! Server connections by a unix socket instead of TCP, where both lead to the same server.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, symlink},
    path::Path,
    process::Stdio,
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::Pooler;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{PoolFixture, PoolerSettings, WAIT_TIMEOUT};

/// Starts a pooler whose database has a TCP host and this socket directory.
fn start(server: &Cluster, directory: &Path) -> Pooler {
    let database = &format!("local-socket = \"{}\"", directory.display());
    PoolerSettings { database, ..PoolerSettings::default() }.start(server)
}

/// Whether the pooler's server connections use TCP.
const USES_TCP: &str = "select inet_server_addr() is not null";

#[test]
fn socket_of_the_same_server_is_used_also_for_cancel_requests() {
    let test = "socket_of_the_same_server_is_used_also_for_cancel_requests";
    let Some(server) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let pooler = start(&server, server.socket_dir());
    let fixture = PoolFixture { server, pooler };
    assert_eq!(fixture.psql(&[USES_TCP]).trim(), "f");

    let sleep = "select pg_sleep(600)";
    let mut psql = fixture.command("psql");
    let psql = psql.args(["-XAtqc", sleep]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the statement runs", WAIT_TIMEOUT, || {
        let running = format!("select count(*) from pg_stat_activity where query = '{sleep}'");
        fixture.query_server(&running).trim() == "1"
    });
    kill_process(Pid::from_child(&psql), Signal::INT).unwrap();
    let output = psql.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("canceling statement due to user request"), "{error}");
}

#[test]
fn tcp_is_used_if_the_socket_leads_to_another_server() {
    let test = "tcp_is_used_if_the_socket_leads_to_another_server";
    let Some(server) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let Some(other) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let socket = |server: &Cluster| format!(".s.PGSQL.{}", server.port());
    let directory = server.dir().join("other");
    fs::create_dir(&directory).unwrap();
    symlink(other.socket_dir().join(socket(&other)), directory.join(socket(&server))).unwrap();
    let pooler = start(&server, &directory);
    let fixture = PoolFixture { server, pooler };
    assert_eq!(fixture.psql(&[USES_TCP]).trim(), "t");
    let port = fixture.server.port().to_string();
    assert_eq!(fixture.psql(&["show port"]).trim(), port);
}

#[test]
fn tcp_is_used_if_there_is_no_socket_or_it_refuses_the_user() {
    let test = "tcp_is_used_if_there_is_no_socket_or_it_refuses_the_user";
    let Some(mut server) = skip_without_postgres(test, Cluster::builder().start()) else { return };
    let pooler = start(&server, server.data_dir());
    let fixture = PoolFixture { server, pooler };
    assert_eq!(fixture.psql(&[USES_TCP]).trim(), "t");
    server = fixture.server;

    let rules = server.data_dir().join("pg_hba.conf");
    let owner = {
        use std::os::unix::fs::MetadataExt as _;
        let data = fs::metadata(server.data_dir()).unwrap();
        (Some(data.uid()), Some(data.gid()))
    };
    fs::write(&rules, "local all all reject\nhost all all 127.0.0.1/32 trust\n").unwrap();
    fs::set_permissions(&rules, fs::Permissions::from_mode(0o600)).unwrap();
    chown(&rules, owner.0, owner.1).unwrap();
    let pooler = start(&server, server.socket_dir());
    let fixture = PoolFixture { server, pooler };
    fixture.query_server("select pg_reload_conf()");
    wait_until("the rules apply", WAIT_TIMEOUT, || {
        fixture.query_server("select count(*) from pg_hba_file_rules").trim() == "2"
    });
    assert_eq!(fixture.psql(&[USES_TCP]).trim(), "t");
}

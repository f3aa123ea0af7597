//! The life cycle of a cluster, and copies of it.

use std::{fs, net::TcpListener, os::unix::fs::MetadataExt as _};

use howdah_lab::{BinariesSearch, Cluster, ClusterError, FindError};

use crate::support::{is_alive, names, open_tempdir, private_tempdir, sql, start};

#[test]
fn dropped_cluster_leaves_no_files_or_processes() {
    let Some(cluster) = start("answers", Cluster::builder().name("first")) else { return };
    for uri in [cluster.uri("postgres"), cluster.socket_uri("postgres")] {
        assert_eq!(sql(&uri, "SELECT current_user"), "postgres");
        assert_eq!(sql(&uri, "SHOW cluster_name"), "first");
    }
    let major: u32 =
        sql(&cluster.uri("postgres"), "SELECT current_setting('server_version_num')::int / 10000")
            .parse()
            .unwrap();
    assert_eq!(cluster.major(), major);
    assert_eq!(sql(&cluster.uri("postgres"), "SHOW server_encoding"), "UTF8");

    let (dir, pid) = (cluster.dir().to_owned(), cluster.pid().unwrap());
    assert!(dir.exists() && is_alive(pid));
    drop(cluster);
    assert!(!dir.exists() && !is_alive(pid));
}

#[test]
fn server_of_root_runs_as_another_user() {
    let Some(cluster) = start("root", Cluster::builder()) else { return };
    let process = fs::metadata(format!("/proc/{}", cluster.pid().unwrap())).unwrap();
    let data = fs::metadata(cluster.data_dir()).unwrap();
    assert_eq!(process.uid(), data.uid());
    let ours = rustix::process::geteuid().as_raw();
    assert_eq!(ours == 0, process.uid() != ours);
}

#[test]
fn settings_can_be_set_and_altered_later() {
    let builder = Cluster::builder()
        .setting("work_mem", "1MB")
        .setting("log_line_prefix", "it's %m \\ ")
        .setting("work_mem", "2MB");
    let Some(mut cluster) = start("settings", builder) else { return };
    let uri = cluster.uri("postgres");
    assert_eq!(sql(&uri, "SHOW work_mem"), "2MB");
    assert_eq!(sql(&uri, "SHOW log_line_prefix"), "it's %m \\ ");
    assert_eq!(sql(&uri, "SHOW fsync"), "off");
    sql(&uri, "ALTER SYSTEM SET work_mem = '3MB'");
    cluster.restart().unwrap();
    assert_eq!(sql(&uri, "SHOW work_mem"), "3MB");
}

#[test]
fn invalid_setting_is_reported_with_server_log() {
    let result = Cluster::builder().setting("work_mem", "plenty").start();
    match result {
        Err(ClusterError::ServerEnded { log, .. }) => {
            assert!(log.contains("\"work_mem\""), "{log}");
        }
        Err(error) if error.is_postgres_missing() => {
            start("refuses", Cluster::builder());
        }
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn committed_data_survives_immediate_shutdown() {
    let Some(mut cluster) = start("kill", Cluster::builder()) else { return };
    let (uri, port) = (cluster.uri("postgres"), cluster.port());
    sql(&uri, "CREATE TABLE t AS SELECT 42 AS x");
    cluster.kill().unwrap();
    assert!(!cluster.is_running() && cluster.pid().is_none());
    cluster.start().unwrap();
    assert!(cluster.is_running());
    assert_eq!(cluster.port(), port);
    assert_eq!(sql(&uri, "SELECT x FROM t"), "42");
    assert!(matches!(cluster.start(), Err(ClusterError::AlreadyRunning { .. })));
    cluster.stop().unwrap();
    cluster.stop().unwrap();
}

#[test]
fn copy_has_same_data_and_diverges() {
    let Some(mut original) = start("copy", Cluster::builder().setting("work_mem", "7MB")) else {
        return;
    };
    sql(&original.uri("postgres"), "CREATE TABLE t AS SELECT generate_series(1, 1000) AS x");
    let copy = original
        .clone_stopped(Cluster::builder().name("copy").setting("enable_indexscan", "off"))
        .unwrap();
    sql(&original.uri("postgres"), "INSERT INTO t VALUES (0)");
    let value = |cluster: &Cluster, query| sql(&cluster.uri("postgres"), query);
    assert_eq!(value(&original, "SELECT count(*) FROM t"), "1001");
    assert_eq!(value(&copy, "SELECT count(*) FROM t"), "1000");
    assert_eq!(value(&copy, "SHOW work_mem"), "7MB", "settings are copied");
    assert_eq!(value(&copy, "SHOW enable_indexscan"), "off");
    assert_eq!(value(&original, "SHOW enable_indexscan"), "on");
    assert_eq!(value(&copy, "SHOW cluster_name"), "copy");
}

#[test]
fn cluster_with_tablespaces_is_not_copied() {
    let Some(mut cluster) = start("tablespaces", Cluster::builder()) else { return };
    // The server creates the directory, so that its account owns it.
    let space = cluster.socket_dir().join("space");
    let uri = cluster.uri("postgres");
    sql(&uri, &format!("COPY (SELECT 1) TO PROGRAM 'mkdir {}'", space.display()));
    sql(&uri, &format!("CREATE TABLESPACE space LOCATION '{}'", space.display()));
    let error = cluster.clone_stopped(Cluster::builder()).unwrap_err();
    assert!(matches!(error, ClusterError::Tablespaces { .. }), "{error}");
    assert!(cluster.is_running(), "the original runs again");
}

#[test]
fn logs_are_collected_in_configured_formats() {
    let json = Cluster::builder().start().is_ok_and(|cluster| cluster.major() >= 15);
    let destinations = if json { "stderr,csvlog,jsonlog" } else { "stderr,csvlog" };
    let builder = Cluster::builder()
        .setting("logging_collector", "on")
        .setting("log_destination", destinations)
        .setting("log_statement", "all");
    let Some(mut cluster) = start("logs", builder) else { return };
    sql(&cluster.uri("postgres"), "SELECT 'findme'");
    cluster.stop().unwrap();
    for extension in destinations.split(',') {
        let extension = match extension {
            "stderr" => "log",
            "csvlog" => "csv",
            _ => "json",
        };
        let files = cluster.log_files(extension).unwrap();
        assert_eq!(files.len(), 1, "{extension}");
        assert!(fs::read_to_string(&files[0]).unwrap().contains("SELECT 'findme'"), "{extension}");
    }
}

#[test]
fn password_is_required_and_not_in_uri() {
    let Some(cluster) = start("password", Cluster::builder().password("s3cret")) else { return };
    assert!(!cluster.uri("postgres").contains("s3cret"));
    let with_password = cluster.uri("postgres").replace("postgres@", "postgres:s3cret@");
    assert_eq!(sql(&with_password, "SELECT 1"), "1");
    let hba = fs::read_to_string(cluster.data_dir().join("pg_hba.conf")).unwrap();
    let rules = hba.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    assert!(rules.clone().count() > 0);
    assert!(rules.into_iter().all(|rule| rule.ends_with("scram-sha-256")), "{hba}");
    assert_eq!(names(cluster.socket_dir()).len(), 2, "a socket and its lock, no password file");
}

#[test]
fn explicit_directory_is_removed_unless_kept() {
    let parent = open_tempdir();
    let dir = parent.path().join("mine");
    let Some(cluster) = start("directory", Cluster::builder().dir(&dir)) else { return };
    assert_eq!(cluster.dir(), dir);
    drop(cluster);
    assert!(!dir.exists());

    let kept = Cluster::builder().dir(&dir).keep(true).start().unwrap();
    sql(&kept.uri("postgres"), "CREATE TABLE t AS SELECT 42 AS x");
    let major = kept.major();
    drop(kept);
    assert_eq!(names(&dir), ["data", "server.log"]);

    // An existing cluster is kept even without `keep`.
    let again = Cluster::builder().dir(&dir).setting("work_mem", "9MB").start().unwrap();
    assert_eq!(sql(&again.uri("postgres"), "SELECT x FROM t"), "42");
    assert_eq!(sql(&again.uri("postgres"), "SHOW work_mem"), "9MB");
    drop(again);
    assert_eq!(names(&dir), ["data", "server.log"]);

    let other = if major == 17 { 16 } else { 17 };
    let error = Cluster::builder().dir(&dir).major(other).start().unwrap_err();
    assert!(matches!(error, ClusterError::OtherMajor { found, .. } if found == major), "{error}");
    let error = Cluster::builder().dir(parent.path()).start().unwrap_err();
    assert!(matches!(error, ClusterError::DirectoryNotEmpty { .. }), "{error}");
}

#[test]
fn existing_empty_directory_is_emptied_not_removed() {
    let dir = open_tempdir();
    let Some(cluster) = start("empty directory", Cluster::builder().dir(dir.path())) else {
        return;
    };
    assert_eq!(names(dir.path()), ["data", "server.log", "socket"]);
    drop(cluster);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn long_directory_name_has_working_socket() {
    let parent = open_tempdir();
    let dir = parent.path().join("long".repeat(30));
    let Some(cluster) = start("long directory", Cluster::builder().dir(&dir)) else { return };
    assert_eq!(sql(&cluster.socket_uri("postgres"), "SELECT 1"), "1");
    let socket_dir = cluster.socket_dir().to_owned();
    assert!(!socket_dir.starts_with(&dir));
    drop(cluster);
    assert!(!socket_dir.exists());
}

#[test]
fn directory_unreachable_for_server_account_is_an_error() {
    if !rustix::process::geteuid().is_root() {
        return; // the server runs as the current user
    }
    let private = private_tempdir();
    let result = Cluster::builder().dir(private.path().join("lab")).start();
    match result {
        Err(ClusterError::Unreachable { .. }) => {}
        Err(error) if error.is_postgres_missing() => {
            start("unreachable", Cluster::builder());
        }
        other => unreachable!("{other:?}"),
    }
    assert!(names(private.path()).is_empty());
}

#[test]
fn explicit_port_is_used_or_reported_as_in_use() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    match Cluster::builder().port(port).start() {
        Err(ClusterError::ServerEnded { log, .. }) => assert!(log.contains("in use"), "{log}"),
        Err(error) if error.is_postgres_missing() => {
            start("port", Cluster::builder());
            return;
        }
        other => unreachable!("{other:?}"),
    }
    drop(listener);
    assert_eq!(Cluster::builder().port(port).start().unwrap().port(), port);
}

#[test]
fn concurrently_started_clusters_have_distinct_ports() {
    let start_one = || Cluster::builder().start();
    let clusters: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(start_one)).collect();
        threads
            .into_iter()
            .filter_map(|thread| {
                howdah_lab::skip_without_postgres("at once", thread.join().unwrap())
            })
            .collect()
    });
    let mut ports: Vec<_> = clusters.iter().map(Cluster::port).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), clusters.len());
    for cluster in &clusters {
        assert_eq!(sql(&cluster.uri("postgres"), "SELECT 1"), "1");
    }
}

#[test]
fn failing_initdb_is_reported_with_its_output() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = open_tempdir();
    for (name, script) in [
        ("postgres", "#!/bin/sh\necho 'postgres (PostgreSQL) 17.1'\n"),
        ("initdb", "#!/bin/sh\necho 'initdb: error: no luck' >&2; exit 1\n"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let search = BinariesSearch::new().dir(dir.path()).cache_dir(dir.path().join("cache"));
    match Cluster::builder().search(search).start() {
        Err(ClusterError::Initdb { output, .. }) => assert_eq!(output, "initdb: error: no luck"),
        other => unreachable!("{other:?}"),
    }
    match Cluster::builder().bin_dir(dir.path().join("none")).start() {
        Err(ClusterError::Find(FindError::Given { .. })) => {}
        other => unreachable!("{other:?}"),
    }
}

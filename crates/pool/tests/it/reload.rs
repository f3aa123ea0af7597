//! Reloading the configuration while clients are connected.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::{ConfigOrigin, Pooler};
use howdah_pool_config::Config;

use crate::{
    certificates::Certificates,
    support::{PoolFixture, RawClient, WAIT_TIMEOUT, checked_stdout, connect},
};

/// A pooler with a configuration file.
struct ReloadFixture {
    pool: PoolFixture,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl ReloadFixture {
    /// `settings` start with keys of `[pool]`; PORT stands for the server's port.
    fn start(test: &str, settings: &str) -> Option<Self> {
        let server = Cluster::builder().setting("max_connections", "60").start();
        let server = skip_without_postgres(test, server)?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("howdah.toml");
        write(&file, &server, settings);
        let config = Config::read(&file).unwrap().config;
        let origin = ConfigOrigin { path: file.clone(), workers: None };
        let pooler = Pooler::start_from_source(config, Some(origin)).unwrap();
        Some(Self { pool: PoolFixture { server, pooler }, file, _folder: folder })
    }

    fn write(&self, settings: &str) {
        write(&self.file, &self.pool.server, settings);
    }

    /// Runs a console command, and returns its output with notices.
    fn console_command(&self, command: &str) -> String {
        let output = self.pool.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        checked_stdout(output) + &err
    }

    fn console_error(&self, command: &str) -> String {
        let output = self.pool.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(err.contains("ERROR"), "{command}: {err}");
        err
    }

    fn log_in(&self, database: &str) -> RawClient {
        let mut raw = RawClient::connect(self.pool.address());
        raw.send_startup(0, &format!("database\0{database}\0"));
        raw.read_until(b'Z');
        raw
    }

    /// The number of the server's connections from the pooler.
    fn server_connections(&self) -> usize {
        // Without those that run this query: a backend outlives its connection by a moment.
        let sql = "select count(*) from pg_stat_activity where backend_type = 'client backend' and \
                   query not like 'select count(*) from pg_stat_activity%'";
        self.pool.query_server(sql).parse().unwrap()
    }
}

fn write(file: &Path, server: &Cluster, settings: &str) {
    let settings = settings.replace("PORT", &server.port().to_string());
    let text = format!(
        "[pool]\nadmin-users = ['postgres']\nmode = 'transaction'\nworkers = 2\n{settings}\n\
         [pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
         [pool.users.postgres]\nsecret = ''\n"
    );
    fs::write(file, text).unwrap();
}

const POSTGRES: &str = "[pool.databases.postgres]\nhosts = ['127.0.0.1:PORT']\n";

#[test]
fn invalid_configuration_is_refused_as_a_whole() {
    let Some(fixture) = ReloadFixture::start("wrong settings", POSTGRES) else { return };
    let mut client = fixture.log_in("postgres");
    fixture.write(&format!("sizes = {{ pool = 1 }}\n[pool.limits]\nclints = 3\n{POSTGRES}"));
    let output = fixture.console_error("reload");
    assert!(
        output.contains("howdah.toml:7: limits.clints: unknown key (did you mean `clients`?)"),
        "{output}"
    );
    fixture.write(&format!(
        "[pool.tls.client]\nmode = 'require'\ncertificate = 'a'\nkey = 'b'\n{POSTGRES}"
    ));
    let output = fixture.console_error("reload");
    assert!(output.contains("cannot set up TLS for clients"), "{output}");
    assert!(fixture.console_command("show config").contains("default_pool_size|20|20|yes"));
    assert!(fixture.console_command("show config").contains("client_tls_cert_file||"));
    client.send_query("select 1");
    client.read_until(b'Z');
    fs::remove_file(&fixture.file).unwrap();
    let output = fixture.console_error("reload");
    assert!(output.contains("cannot read ") && output.contains("No such file"), "{output}");
}

#[test]
fn reload_reports_changes_and_needed_restart() {
    let Some(fixture) = ReloadFixture::start("told", POSTGRES) else { return };
    assert_eq!(fixture.console_command("reload"), "");
    let again =
        POSTGRES.replace("PORT'", "PORT']\npool-size = 3\nsecret = 'sesame'\nuser = 'postgres'#");
    fixture.write(&format!(
        "max-prepared-statements = 7\ntimeouts = {{ query = '2s' }}\n{again}\
         [pool.databases.other]\nhosts = ['127.0.0.1:PORT']\n"
    ));
    let text = fs::read_to_string(&fixture.file).unwrap().replace("workers = 2", "workers = 1");
    fs::write(&fixture.file, text).unwrap();
    fs::set_permissions(&fixture.file, fs::Permissions::from_mode(0o600)).unwrap();
    let received = fixture.console_command("reload");
    for line in [
        "workers: 2 -> 1 (needs a restart)",
        "timeouts.query: not set -> 2s",
        "max-prepared-statements: 200 -> 7",
        "databases.other: added",
        "databases.postgres.user: not set -> \"postgres\"",
        "databases.postgres.pool-size: not set -> 3",
        "databases.postgres.secret: not set -> a secret",
    ] {
        assert!(received.contains(line), "{line} in:\n{received}");
    }
    assert!(!received.contains("sesame"), "{received}");
    assert_eq!(received.lines().count(), 7, "{received}");
    assert!(
        fixture.console_command("reload").starts_with("NOTICE:  workers: 2 -> 1"),
        "it still needs a restart"
    );
    assert!(fixture.console_command("show databases").contains("other|"));
}

#[test]
fn set_changes_key_until_reload() {
    let Some(fixture) = ReloadFixture::start("set", POSTGRES) else { return };
    assert!(fixture.console_command("set default_pool_size = 2").contains("sizes.pool: 20 -> 2"));
    assert!(
        fixture
            .console_command("set timeouts.query-wait = '3s'")
            .contains("timeouts.query-wait: 120s -> 3s")
    );
    assert!(fixture.console_command("show config").contains("default_pool_size|2|20|yes"));
    for (command, why) in [
        ("set listen_port = 1", "cannot be changed without a restart"),
        ("set workers = 1", "cannot be changed without a restart"),
        ("set nonsense = 1", "unrecognized parameter \"nonsense\""),
        ("set pool_mode = 'sometimes'", "not one of session, transaction, adaptive, statement"),
    ] {
        let output = fixture.console_error(command);
        assert!(output.contains(why), "{output}");
    }
    // Session parameters set by drivers have no effect.
    assert_eq!(fixture.console_command("set client_encoding to 'utf8'"), "NOTICE:  SET ignored\n");
    assert!(fixture.console_command("reload").contains("sizes.pool: 2 -> 20"));
    // Every key marked changeable in SHOW CONFIG can be set to its own value; the others cannot.
    for row in fixture.console_command("show config").lines() {
        let cells: Vec<_> = row.split('|').collect();
        let [key, value, _, changeable] = cells[..] else { panic!("{row}") };
        let command = format!("set {key} = '{}'", value.replace('\'', "''"));
        match changeable {
            // An empty query and no query are shown the same.
            "yes" if key == "server_check_query" => {}
            "yes" => assert_eq!(fixture.console_command(&command), "", "{row}"),
            _ => assert!(fixture.console_error(&command).contains("without a restart"), "{row}"),
        }
    }
}

#[test]
fn pool_shrinks_as_connections_become_idle_and_grows_at_once() {
    let Some(fixture) = ReloadFixture::start("sizes", POSTGRES) else { return };
    let mut clients: Vec<_> = (0..6).map(|_| fixture.log_in("postgres")).collect();
    let begin = |client: &mut RawClient| {
        client.send_query("begin");
        client.read_until(b'Z');
    };
    let end = |client: &mut RawClient| {
        client.send_query("commit");
        client.read_until(b'Z');
    };
    clients.iter_mut().for_each(begin);
    assert_eq!(fixture.server_connections(), 6);
    fixture.console_command("set default_pool_size = 2");
    assert_eq!(fixture.server_connections(), 6, "they are in use");
    clients[..3].iter_mut().for_each(end);
    wait_until("three connections to close", WAIT_TIMEOUT, || fixture.server_connections() == 3);
    // The excess connections are not reused.
    clients[3..].iter_mut().for_each(end);
    wait_until("two remaining connections", WAIT_TIMEOUT, || fixture.server_connections() == 2);
    clients[0..2].iter_mut().for_each(begin);
    clients[2].send_query("begin");
    // Two clients have a connection, a third waits.
    wait_until("one waiting client", WAIT_TIMEOUT, || {
        fixture.console_command("show pools").contains("postgres|postgres|5|1|")
    });
    fixture.console_command("set default_pool_size = 3");
    clients[2].read_until(b'Z');
    assert_eq!(fixture.server_connections(), 3);
    // Excess idle connections are closed at once.
    clients[0..3].iter_mut().for_each(end);
    fixture.console_command("set default_pool_size = 1");
    wait_until("one remaining connection", WAIT_TIMEOUT, || fixture.server_connections() == 1);
}

#[test]
fn clients_of_removed_database_can_end_transaction() {
    let two = format!(
        "{POSTGRES}[pool.databases.gone]\ndbname = 'postgres'\nhosts = ['127.0.0.1:PORT']\n"
    );
    for mode in ["transaction", "session"] {
        let settings = |two: &str| format!("[pool.sizes]\nmin = 0\n{two}");
        let Some(fixture) = ReloadFixture::start("removed", &settings(&two)) else { return };
        let set_mode = || {
            let text = fs::read_to_string(&fixture.file).unwrap();
            fs::write(&fixture.file, text.replace("'transaction'", &format!("'{mode}'"))).unwrap();
            fixture.console_command("reload");
        };
        set_mode();
        let (mut idle, mut busy) = (fixture.log_in("gone"), fixture.log_in("gone"));
        idle.send_query("select 1");
        idle.read_until(b'Z');
        busy.send_query("create table if not exists kept (a int); begin");
        busy.read_until(b'Z');
        let mut other = fixture.log_in("postgres");
        fixture.write(&settings(POSTGRES));
        set_mode();
        let received = idle.read_until(b'E').pop().unwrap().1;
        assert!(
            memchr::memmem::find(&received, b"C57P01\0").is_some(),
            "{}",
            received.escape_ascii()
        );
        assert!(idle.is_disconnected());
        busy.send_query("insert into kept values (1)");
        busy.read_until(b'Z');
        busy.send_query("commit");
        busy.read_until(b'E');
        assert!(busy.is_disconnected());
        assert_eq!(fixture.pool.query_server("select count(*) from kept"), "1");
        let port = fixture.pool.address().port();
        let words = format!("host=127.0.0.1 port={port} dbname=gone user=postgres");
        assert_eq!(connect(&words).unwrap_err().sqlstate(), Some("3D000"));
        assert!(!fixture.console_command("show databases").contains("gone|"));
        other.send_query("select 1");
        other.read_until(b'Z');
        // The database can be added again.
        fixture.write(&settings(&two));
        set_mode();
        let mut back = connect(&words).unwrap();
        assert_eq!(back.one_value("select 'back'").unwrap().as_deref(), Some("back"));
    }
}

#[test]
fn new_servers_are_used_once_old_connections_are_idle() {
    let Some(fixture) = ReloadFixture::start("elsewhere", POSTGRES) else { return };
    let Some(other) = skip_without_postgres("elsewhere", Cluster::builder().start()) else {
        return;
    };
    let port = |client: &mut RawClient| {
        client.send_query("select inet_server_port()");
        let row = client.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        String::from_utf8_lossy(&row[6..]).into_owned()
    };
    let (here, there) = (fixture.pool.server.port().to_string(), other.port().to_string());
    let (mut idle, mut busy) = (fixture.log_in("postgres"), fixture.log_in("postgres"));
    assert_eq!(port(&mut idle), here);
    busy.send_query("begin");
    busy.read_until(b'Z');
    fixture.write(&POSTGRES.replace("PORT", &there));
    assert!(fixture.console_command("reload").contains("databases.postgres.hosts: 127.0.0.1:"));
    assert_eq!(port(&mut idle), there);
    assert_eq!(port(&mut busy), here, "its transaction started there");
    busy.send_query("commit");
    busy.read_until(b'Z');
    assert_eq!(port(&mut busy), there);
    wait_until("all connections to close", WAIT_TIMEOUT, || fixture.server_connections() == 0);
}

#[test]
fn connected_clients_keep_pool_mode() {
    let Some(fixture) = ReloadFixture::start("mode", POSTGRES) else { return };
    let pid = |client: &mut RawClient| {
        client.send_query("select pg_backend_pid()");
        client.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1
    };
    let mut early = fixture.log_in("postgres");
    // Prepared in transaction mode, in which the pooler renames statements.
    early.send(b'P', b"mine\0select 'prepared'\0\0\0");
    early.send(b'S', b"");
    early.read_until(b'Z');
    let pooled = pid(&mut early);
    fixture.console_command("set pool_mode = session");
    let mut late = fixture.log_in("postgres");
    let own = pid(&mut late);
    assert_eq!(pid(&mut late), own);
    assert_eq!(pid(&mut early), pooled, "a session's server is not shared");
    early.send(b'B', b"\0mine\0\0\0\0\0\0\0");
    early.send(b'E', b"\0\0\0\0\0");
    early.send(b'S', b"");
    let row = early.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    assert!(row.ends_with(b"prepared"));
    let pools = fixture.console_command("show pools");
    assert!(pools.contains("|session|") && pools.contains("|transaction|"), "{pools}");
    drop(early);
    wait_until("the removal of the old pool", WAIT_TIMEOUT, || {
        !fixture.console_command("show pools").contains("|transaction|")
    });
}

#[test]
fn reload_replaces_secrets_and_certificates() {
    let Some(certificates) = Certificates::new("secrets") else { return };
    for (root, own) in [("first", "one"), ("second", "two")] {
        certificates.self_signed(root, root, &[]);
        certificates.signed(own, "unused", root, "subjectAltName=DNS:localhost\n");
    }
    let tls = "[pool.tls.client]\nmode = 'allow'\ncertificate = 'own.crt'\nkey = 'own.key'\n";
    let Some(server) = skip_without_postgres("secrets", Cluster::builder().start()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let certify = |name: &str| {
        for suffix in ["crt", "key"] {
            let from = certificates.path(&format!("{name}.{suffix}"));
            fs::copy(from, folder.path().join(format!("own.{suffix}"))).unwrap();
        }
    };
    let users = |secret: &str| {
        fs::write(folder.path().join("users"), format!("\"postgres\" \"{secret}\"\n")).unwrap();
    };
    certify("one");
    users("one");
    let file = folder.path().join("howdah.toml");
    let text = format!(
        "[pool]\nworkers = 2\n{tls}[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\nfile = 'users'\n[pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        server.port()
    );
    fs::write(&file, text).unwrap();
    let origin = ConfigOrigin { path: file.clone(), workers: None };
    let pooler =
        Pooler::start_from_source(Config::read(&file).unwrap().config, Some(origin)).unwrap();
    let port = pooler.addresses()[0].port();
    let log_in = |password: &str, authority: &str| {
        let root = certificates.path(&format!("{authority}.crt")).display().to_string();
        connect(&format!(
            "host=localhost hostaddr=127.0.0.1 port={port} dbname=postgres user=postgres \
             password={password} sslmode=verify-full sslrootcert={root}"
        ))
    };
    let mut early = log_in("one", "first").unwrap();
    certify("two");
    users("two");
    let changes = pooler.control().reload().unwrap().changes;
    let changes: Vec<_> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(changes, ["users.postgres.secret: changed", "tls.client.certificate: changed"]);
    assert_eq!(log_in("one", "second").unwrap_err().sqlstate(), Some("28P01"));
    log_in("two", "first").unwrap_err();
    log_in("two", "second").unwrap();
    assert_eq!(early.one_value("select 'here'").unwrap().as_deref(), Some("here"));
}

/// Clients under load while other pools are added, removed and resized.
#[test]
fn reload_does_not_affect_clients_of_unchanged_pools() {
    let Some(fixture) = ReloadFixture::start("under load", POSTGRES) else { return };
    let settings = |round: usize| {
        let size = [3, 8, 1, 5][round % 4];
        let more: String = (0..round % 5)
            .map(|it| {
                format!(
                    "[pool.databases.other{it}]\ndbname = 'postgres'\npool-size = {size}\n\
                     hosts = ['127.0.0.1:PORT']\n"
                )
            })
            .collect();
        let bench = format!("[pool.databases.resized]\ndbname = 'postgres'\npool-size = {size}\n");
        let hosts = "hosts = ['127.0.0.1:PORT']\n";
        format!("limits = {{ clients = {} }}\n{POSTGRES}{bench}{hosts}{more}", 50 + round)
    };
    fixture.write(&settings(0));
    fixture.console_command("reload");
    checked_stdout(fixture.pool.run_program("pgbench", &["-i", "-q", "-s", "1"]));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut runs = Vec::new();
        for database in ["postgres", "resized"] {
            for protocol in ["simple", "prepared"] {
                let args = ["-n", "-S", "-c", "4", "-M", protocol, "-T", "4", database];
                let mut command = fixture.pool.command("pgbench");
                runs.push(
                    scope.spawn(move || checked_stdout(command.args(args).output().unwrap())),
                );
            }
        }
        let new_clients = scope.spawn(|| {
            // New clients of a database that is added and removed are served, or get its error.
            let port = fixture.pool.address().port();
            let words = format!("host=127.0.0.1 port={port} dbname=other1 user=postgres");
            let mut served = 0;
            while !over.load(Ordering::Relaxed) {
                match connect(&words).map(|mut client| client.query("select 1")) {
                    Ok(Ok(_)) => served += 1,
                    Ok(Err(error)) => assert_eq!(error.sqlstate(), Some("57P01"), "{error}"),
                    Err(error) => assert!(
                        matches!(error.sqlstate(), Some("3D000" | "57P01")),
                        "{error}: {:?}",
                        error.sqlstate()
                    ),
                }
            }
            served
        });
        let mut rounds = 0;
        while !runs.iter().all(thread::ScopedJoinHandle::is_finished) {
            rounds += 1;
            fixture.write(&settings(rounds));
            fixture.pool.pooler.control().reload().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        let mut done = 0_u64;
        for run in runs {
            let report = run.join().unwrap();
            let failed = "number of failed transactions: 0 (0.000%)";
            assert!(report.contains(failed) || !report.contains("failed transactions"), "{report}");
            let line = report.lines().find(|line| line.contains("actually processed")).unwrap();
            done += line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        }
        let served = new_clients.join().unwrap();
        println!("{rounds} reloads, {done} transactions, none failed; {served} new clients served");
        assert!(rounds >= 5 && done > 100);
    });
}

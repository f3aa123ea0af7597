//! Settings that change while clients are at work.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_lab::{Cluster, or_say_why_not};
use howdah_pool::{Origin, Pooler, config::Config};

use crate::{
    certificates::Certificates,
    support::{Raw, Stage, connect, said},
};

/// A pooler whose settings stand in a file.
struct Reloaded {
    stage: Stage,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

impl Reloaded {
    /// `settings` begin with keys of `[pool]`, and PORT in them is the server's.
    fn start(test: &str, settings: &str) -> Option<Self> {
        let server = Cluster::builder().setting("max_connections", "60").start();
        let server = or_say_why_not(test, server)?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("howdah.toml");
        write(&file, &server, settings);
        let config = Config::read(&file).unwrap().config;
        let origin = Origin { path: file.clone(), workers: None };
        let pooler = Pooler::start_from(config, Some(origin)).unwrap();
        Some(Self { stage: Stage { server, pooler }, file, _folder: folder })
    }

    fn write(&self, settings: &str) {
        write(&self.file, &self.stage.server, settings);
    }

    /// What the console says to a command, notices included.
    fn console(&self, command: &str) -> String {
        let output = self.stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        said(output) + &err
    }

    fn refused(&self, command: &str) -> String {
        let output = self.stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(err.contains("ERROR"), "{command}: {err}");
        err
    }

    fn log_in(&self, database: &str) -> Raw {
        let mut raw = Raw::connect(self.stage.address());
        raw.start(0, &format!("database\0{database}\0"));
        raw.until(b'Z');
        raw
    }

    /// How many connections the server has from us.
    fn servers(&self) -> usize {
        // Not whoever asks, nor who asked before: a session takes a moment to go.
        let sql = "select count(*) from pg_stat_activity where backend_type = 'client backend' and \
                   query not like 'select count(*) from pg_stat_activity%'";
        self.stage.direct(sql).parse().unwrap()
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

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
    }
}

const POSTGRES: &str = "[pool.databases.postgres]\nhosts = ['127.0.0.1:PORT']\n";

#[test]
fn wrong_settings_are_refused_as_a_whole() {
    let Some(pool) = Reloaded::start("wrong settings", POSTGRES) else { return };
    let mut client = pool.log_in("postgres");
    pool.write(&format!("sizes = {{ pool = 1 }}\n[pool.limits]\nclints = 3\n{POSTGRES}"));
    let said = pool.refused("reload");
    assert!(
        said.contains("howdah.toml:7: limits.clints: no such key (did you mean `clients`?)"),
        "{said}"
    );
    pool.write(&format!(
        "[pool.tls.client]\nmode = 'require'\ncertificate = 'a'\nkey = 'b'\n{POSTGRES}"
    ));
    let said = pool.refused("reload");
    assert!(said.contains("cannot set up TLS for clients"), "{said}");
    assert!(pool.console("show config").contains("default_pool_size|20|20|yes"));
    assert!(pool.console("show config").contains("client_tls_cert_file||"));
    client.query("select 1");
    client.until(b'Z');
    fs::remove_file(&pool.file).unwrap();
    let said = pool.refused("reload");
    assert!(said.contains("cannot read ") && said.contains("No such file"), "{said}");
}

#[test]
fn what_changed_is_told_and_what_needs_a_restart_stays() {
    let Some(pool) = Reloaded::start("told", POSTGRES) else { return };
    assert_eq!(pool.console("reload"), "");
    let again =
        POSTGRES.replace("PORT'", "PORT']\npool-size = 3\nsecret = 'sesame'\nuser = 'postgres'#");
    pool.write(&format!(
        "max-prepared-statements = 7\ntimeouts = {{ query = '2s' }}\n{again}\
         [pool.databases.other]\nhosts = ['127.0.0.1:PORT']\n"
    ));
    let text = fs::read_to_string(&pool.file).unwrap().replace("workers = 2", "workers = 1");
    fs::write(&pool.file, text).unwrap();
    let told = pool.console("reload");
    for line in [
        "workers: 2 -> 1 (needs a restart)",
        "timeouts.query: not set -> 2s",
        "max-prepared-statements: 200 -> 7",
        "databases.other: added",
        "databases.postgres.user: not set -> \"postgres\"",
        "databases.postgres.pool-size: not set -> 3",
        "databases.postgres.secret: not set -> a secret",
    ] {
        assert!(told.contains(line), "{line} in:\n{told}");
    }
    assert!(!told.contains("sesame"), "{told}");
    assert_eq!(told.lines().count(), 7, "{told}");
    assert!(pool.console("reload").starts_with("NOTICE:  workers: 2 -> 1"), "it still does");
    assert!(pool.console("show databases").contains("other|"));
}

#[test]
fn one_key_is_set_and_read_again() {
    let Some(pool) = Reloaded::start("set", POSTGRES) else { return };
    assert!(pool.console("set default_pool_size = 2").contains("sizes.pool: 20 -> 2"));
    assert!(
        pool.console("set timeouts.query-wait = '3s'").contains("timeouts.query-wait: 120s -> 3s")
    );
    assert!(pool.console("show config").contains("default_pool_size|2|20|yes"));
    for (command, why) in [
        ("set listen_port = 1", "cannot be changed without a restart"),
        ("set workers = 1", "cannot be changed without a restart"),
        ("set nonsense = 1", "unrecognized parameter \"nonsense\""),
        ("set pool_mode = 'sometimes'", "none of session, transaction, statement"),
    ] {
        let said = pool.refused(command);
        assert!(said.contains(why), "{said}");
    }
    // Settings of a driver's session are none of ours.
    assert_eq!(pool.console("set client_encoding to 'utf8'"), "");
    assert!(pool.console("reload").contains("sizes.pool: 2 -> 20"));
    // What SHOW CONFIG calls changeable is, by its own value; the rest is not.
    for row in pool.console("show config").lines() {
        let cells: Vec<_> = row.split('|').collect();
        let [key, value, _, changeable] = cells[..] else { panic!("{row}") };
        let command = format!("set {key} = '{}'", value.replace('\'', "''"));
        match changeable {
            // An empty query and none look the same.
            "yes" if key == "server_check_query" => {}
            "yes" => assert_eq!(pool.console(&command), "", "{row}"),
            _ => assert!(pool.refused(&command).contains("without a restart"), "{row}"),
        }
    }
}

#[test]
fn a_pool_shrinks_as_connections_become_free_and_grows_at_once() {
    let Some(pool) = Reloaded::start("sizes", POSTGRES) else { return };
    let mut clients: Vec<_> = (0..6).map(|_| pool.log_in("postgres")).collect();
    let begin = |client: &mut Raw| {
        client.query("begin");
        client.until(b'Z');
    };
    let end = |client: &mut Raw| {
        client.query("commit");
        client.until(b'Z');
    };
    clients.iter_mut().for_each(begin);
    assert_eq!(pool.servers(), 6);
    pool.console("set default_pool_size = 2");
    assert_eq!(pool.servers(), 6, "they are in use");
    clients[..3].iter_mut().for_each(end);
    until("three are closed", || pool.servers() == 3);
    // No client that comes gets one of those.
    clients[3..].iter_mut().for_each(end);
    until("two are left", || pool.servers() == 2);
    clients[0..2].iter_mut().for_each(begin);
    clients[2].query("begin");
    // Two of six have one, one waits.
    until("one waits", || pool.console("show pools").contains("postgres|postgres|5|1|"));
    pool.console("set default_pool_size = 3");
    clients[2].until(b'Z');
    assert_eq!(pool.servers(), 3);
    // Idle ones go without being asked for.
    clients[0..3].iter_mut().for_each(end);
    pool.console("set default_pool_size = 1");
    until("one is left", || pool.servers() == 1);
}

#[test]
fn clients_of_a_removed_database_may_end_their_transaction() {
    let two = format!(
        "{POSTGRES}[pool.databases.gone]\ndbname = 'postgres'\nhosts = ['127.0.0.1:PORT']\n"
    );
    for mode in ["transaction", "session"] {
        let settings = |two: &str| format!("[pool.sizes]\nmin = 0\n{two}");
        let Some(pool) = Reloaded::start("removed", &settings(&two)) else { return };
        let set_mode = || {
            let text = fs::read_to_string(&pool.file).unwrap();
            fs::write(&pool.file, text.replace("'transaction'", &format!("'{mode}'"))).unwrap();
            pool.console("reload");
        };
        set_mode();
        let (mut idle, mut busy) = (pool.log_in("gone"), pool.log_in("gone"));
        idle.query("select 1");
        idle.until(b'Z');
        busy.query("create table if not exists kept (a int); begin");
        busy.until(b'Z');
        let mut other = pool.log_in("postgres");
        pool.write(&settings(POSTGRES));
        set_mode();
        let told = idle.until(b'E').pop().unwrap().1;
        assert!(memchr::memmem::find(&told, b"C57P01\0").is_some(), "{}", told.escape_ascii());
        assert!(idle.is_hung_up_on());
        busy.query("insert into kept values (1)");
        busy.until(b'Z');
        busy.query("commit");
        busy.until(b'E');
        assert!(busy.is_hung_up_on());
        assert_eq!(pool.stage.direct("select count(*) from kept"), "1");
        let port = pool.stage.address().port();
        let words = format!("host=127.0.0.1 port={port} dbname=gone user=postgres");
        assert_eq!(connect(&words).unwrap_err().sqlstate(), Some("3D000"));
        assert!(!pool.console("show databases").contains("gone|"));
        other.query("select 1");
        other.until(b'Z');
        // It may come back.
        pool.write(&settings(&two));
        set_mode();
        let mut back = connect(&words).unwrap();
        assert_eq!(back.one_value("select 'back'").unwrap().as_deref(), Some("back"));
    }
}

#[test]
fn servers_elsewhere_are_used_as_soon_as_the_old_ones_are_free() {
    let Some(pool) = Reloaded::start("elsewhere", POSTGRES) else { return };
    let Some(other) = or_say_why_not("elsewhere", Cluster::builder().start()) else { return };
    let port = |client: &mut Raw| {
        client.query("select inet_server_port()");
        let row = client.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        String::from_utf8_lossy(&row[6..]).into_owned()
    };
    let (here, there) = (pool.stage.server.port().to_string(), other.port().to_string());
    let (mut idle, mut busy) = (pool.log_in("postgres"), pool.log_in("postgres"));
    assert_eq!(port(&mut idle), here);
    busy.query("begin");
    busy.until(b'Z');
    pool.write(&POSTGRES.replace("PORT", &there));
    assert!(pool.console("reload").contains("databases.postgres.hosts: 127.0.0.1:"));
    assert_eq!(port(&mut idle), there);
    assert_eq!(port(&mut busy), here, "its transaction began there");
    busy.query("commit");
    busy.until(b'Z');
    assert_eq!(port(&mut busy), there);
    until("none is left", || pool.servers() == 0);
}

#[test]
fn who_is_there_keeps_the_mode_that_it_came_with() {
    let Some(pool) = Reloaded::start("mode", POSTGRES) else { return };
    let pid = |client: &mut Raw| {
        client.query("select pg_backend_pid()");
        client.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1
    };
    let mut early = pool.log_in("postgres");
    // Prepared under transaction pooling, where names are ours.
    early.send(b'P', b"mine\0select 'prepared'\0\0\0");
    early.send(b'S', b"");
    early.until(b'Z');
    let pooled = pid(&mut early);
    pool.console("set pool_mode = session");
    let mut late = pool.log_in("postgres");
    let own = pid(&mut late);
    assert_eq!(pid(&mut late), own);
    assert_eq!(pid(&mut early), pooled, "a session's server is not shared");
    early.send(b'B', b"\0mine\0\0\0\0\0\0\0");
    early.send(b'E', b"\0\0\0\0\0");
    early.send(b'S', b"");
    let row = early.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
    assert!(row.ends_with(b"prepared"));
    let pools = pool.console("show pools");
    assert!(pools.contains("|session|") && pools.contains("|transaction|"), "{pools}");
    drop(early);
    until("the old pool is gone", || !pool.console("show pools").contains("|transaction|"));
}

#[test]
fn secrets_and_certificates_are_those_of_now() {
    let Some(certificates) = Certificates::new("secrets") else { return };
    for (root, own) in [("first", "one"), ("second", "two")] {
        certificates.self_signed(root, root, &[]);
        certificates.signed(own, "unused", root, "subjectAltName=DNS:localhost\n");
    }
    let leg = "[pool.tls.client]\nmode = 'allow'\ncertificate = 'own.crt'\nkey = 'own.key'\n";
    let Some(server) = or_say_why_not("secrets", Cluster::builder().start()) else { return };
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
        "[pool]\nworkers = 2\n{leg}[pool.listen]\nport = 0\nunix-directories = []\n\
         [pool.auth]\nfile = 'users'\n[pool.databases.postgres]\nhosts = ['127.0.0.1:{}']\n",
        server.port()
    );
    fs::write(&file, text).unwrap();
    let origin = Origin { path: file.clone(), workers: None };
    let pooler = Pooler::start_from(Config::read(&file).unwrap().config, Some(origin)).unwrap();
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
    let told = pooler.control().reload().unwrap().changes;
    let told: Vec<_> = told.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["users.postgres.secret: another one", "tls.client.certificate: another one"]);
    assert_eq!(log_in("one", "second").unwrap_err().sqlstate(), Some("28P01"));
    log_in("two", "first").unwrap_err();
    log_in("two", "second").unwrap();
    assert_eq!(early.one_value("select 'here'").unwrap().as_deref(), Some("here"));
}

/// Real clients at work while other pools come, go and change their size.
#[test]
fn clients_of_a_pool_that_stays_notice_nothing() {
    let Some(pool) = Reloaded::start("under load", POSTGRES) else { return };
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
    pool.write(&settings(0));
    pool.console("reload");
    said(pool.stage.run("pgbench", &["-i", "-q", "-s", "1"]));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut runs = Vec::new();
        for database in ["postgres", "resized"] {
            for protocol in ["simple", "prepared"] {
                let args = ["-n", "-S", "-c", "4", "-M", protocol, "-T", "4", database];
                let mut command = pool.stage.command("pgbench");
                runs.push(scope.spawn(move || said(command.args(args).output().unwrap())));
            }
        }
        let visitors = scope.spawn(|| {
            // Whoever comes to a pool that comes and goes is let in, or told that there is none.
            let port = pool.stage.address().port();
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
            pool.write(&settings(rounds));
            pool.stage.pooler.control().reload().unwrap();
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
        let served = visitors.join().unwrap();
        println!("{rounds} reloads, {done} transactions, none failed; {served} visitors served");
        assert!(rounds >= 5 && done > 100);
    });
}

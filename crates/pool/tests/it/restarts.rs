//! Restarts under load, with each authentication: the pooler is replaced by another process, the
//! server restarts, and a standby takes over from the primary. Clients see no error, except those
//! whose statement was running when the server stopped.
//!
//! `HOWDAH_RESTARTS_CLIENTS=200` sets the number of clients; the rows of the table in
//! docs/performance.md are written to stderr.

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::MetadataExt as _, fs::chown, net::UnixStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use howdah_connect::Client;
use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::Pooler;
use howdah_pool_config::Config;

use crate::{
    certificates::Certificates,
    support::{WAIT_TIMEOUT, connect},
};

/// The pooler's limit on connections to each server: as many statements can run at a time.
const POOL_SIZE: u64 = 20;

/// Number of clients without `HOWDAH_RESTARTS_CLIENTS`: more than [`POOL_SIZE`], so that some wait.
const CLIENTS: usize = 30;

/// Every so many clients, one opens a new connection for each statement.
const SHORT_LIVED: usize = 10;

/// Roles are named for their authentication at the server.
const RULES: &str = "\
local all         all        trust
local replication all        trust
host  replication all        127.0.0.1/32 trust
host  all         postgres   127.0.0.1/32 trust
host  all         asker      127.0.0.1/32 trust
host  all         trusted    127.0.0.1/32 trust
host  all         hashed     127.0.0.1/32 md5
host  all         all        127.0.0.1/32 scram-sha-256
";

const ROLES: [&str; 7] = [
    "create role asker login superuser",
    "create role trusted login",
    "create role alice login password 'sesame'",
    "set password_encryption = md5",
    "create role hashed login password 'sesame'",
    "reset password_encryption",
    "create role app login password 'sesame'",
];

/// An authentication of clients, and of the pooler at the server.
struct RestartScenario {
    name: &'static str,
    user: &'static str,
    /// Sections of the settings. `{SECRET}` stands for the user's stored secret, `{DIR}` for the
    /// folder of the certificates.
    settings: &'static str,
    /// Further parameters of the clients' connections, with `{DIR}`.
    client: &'static str,
}

const CLIENT_TLS: &str = "\
[pool.auth]
type = 'cert'
[pool.tls.client]
mode = 'verify-full'
certificate = '{DIR}/pooler.crt'
key = '{DIR}/pooler.key'
ca-file = '{DIR}/root.crt'
[pool.users.app]
secret = 'sesame'
";

type RestartEvent = fn(&mut RestartFixture);

fn check(scenario: &RestartScenario) {
    let Some(mut fixture) = RestartFixture::start(scenario) else { return };
    let clients = RestartClients::start(&fixture);
    clients.wait_for_progress();
    let events: [(&str, u64, RestartEvent); 3] = [
        ("pooler", 0, RestartFixture::replace_pooler),
        ("server", POOL_SIZE, RestartFixture::restart_server),
        ("failover", POOL_SIZE, RestartFixture::fail_over),
    ];
    for (event, in_flight, run) in events {
        let before = clients.counts();
        // Clients with TLS stay with the former pooler, which has a pool of its own.
        let has_clients = |pooler: &&Pooler| !pooler.control().snapshot(true).clients.is_empty();
        let poolers = fixture.poolers.iter().filter(has_clients).count() as u64;
        clients.longest_us.store(0, Ordering::Relaxed);
        run(&mut fixture);
        clients.wait_for_progress();
        let after = clients.counts();
        let [statements, errors, logins, refused] =
            [0, 1, 2, 3].map(|index| after[index] - before[index]);
        let longest = Duration::from_micros(clients.longest_us.load(Ordering::Relaxed));
        if std::env::var_os("HOWDAH_RESTARTS_CLIENTS").is_some() {
            // Written to stderr directly, because the test harness would capture it.
            let _ = writeln!(
                std::io::stderr(),
                "| {} | {event} | {statements} | {errors} | {logins} | {refused} | {longest:.1?} |",
                scenario.name
            );
        }
        let texts = std::mem::take(&mut *clients.texts.lock().unwrap());
        assert!(errors <= in_flight * poolers, "{}: {event}: {texts:?}", scenario.name);
        // A client that logs in while no server answers is refused, so that it can try another
        // host. Nothing else refuses a login.
        assert!(event != "pooler" || refused == 0, "{}: {texts:?}", scenario.name);
    }
    clients.stop();
}

/// A primary with a standby, and a pooler in front of them that is replaced.
struct RestartFixture {
    /// The primary first.
    servers: Vec<Cluster>,
    /// The pooler that accepts clients last. The others end when their clients with TLS disconnect.
    poolers: Vec<Pooler>,
    folder: tempfile::TempDir,
    /// The settings, with `{PORT}` for the pooler's port.
    settings: String,
    conninfo: String,
    _certificates: Certificates,
}

impl RestartFixture {
    fn start(scenario: &RestartScenario) -> Option<Self> {
        let certificates = Certificates::new("restarts")?;
        certificates.self_signed("root", "howdah test root", &[]);
        certificates.signed("pooler", "unused", "root", "subjectAltName=DNS:localhost\n");
        certificates.signed("app", "app", "root", "extendedKeyUsage=clientAuth\n");
        let builder = Cluster::builder()
            .setting("max_connections", "60")
            .setting("wal_level", "replica")
            .setting("hot_standby", "on");
        let primary = skip_without_postgres("restarts", builder.start())?;
        let mut admin = connect(&primary.uri("postgres")).unwrap();
        ROLES.iter().for_each(|role| drop(admin.query(role).unwrap()));
        let secret = format!(
            "select rolpassword from pg_authid where rolname = '{}' and rolpassword is not null",
            scenario.user
        );
        let secret = admin.one_value(&secret).unwrap().unwrap_or_default();
        let standby = Cluster::builder().name("standby").standby_of(&primary).start().unwrap();
        let servers = vec![primary, standby];
        servers.iter().for_each(write_rules);
        let replayed = "select count(*)::text from pg_roles where rolname = 'app'";
        wait_until("the roles on the standby", WAIT_TIMEOUT, || {
            let mut standby = connect(&servers[1].uri("postgres")).unwrap();
            standby.one_value(replayed).unwrap().as_deref() == Some("1")
        });
        let folder = tempfile::tempdir().unwrap();
        let own = scenario.settings.replace("{SECRET}", &secret);
        let directory = certificates.path("").display().to_string();
        let in_directory = |text: &str| text.replace("{DIR}", directory.trim_end_matches('/'));
        let ports = servers.iter().map(|it| format!("{{ host = '127.0.0.1:{}' }}", it.port()));
        let settings = format!(
            "[pool]\nmode = 'transaction'\nworkers = 2\n[pool.limits]\nclients = 1000\n\
             [pool.listen]\nport = {{PORT}}\nunix-directories = ['{folder}']\n\
             takeover = '{folder}/takeover'\n{}\n\
             [pool.databases.app]\ndbname = 'postgres'\nservers = [{}]\npool-size = {POOL_SIZE}\n\
             cluster = {{ role = 'primary', check-interval = '200ms', failover-timeout = '60s', \
             primary-rejoin-delay = '1s', check-user = 'postgres' }}\n[pool.users.postgres]\n",
            in_directory(&own),
            ports.collect::<Vec<_>>().join(", "),
            folder = folder.path().display(),
        );
        let pooler = Pooler::start(parse(&settings, 0)).unwrap();
        let port = pooler.addresses()[0].port();
        let conninfo = format!(
            "host=127.0.0.1 port={port} dbname=app user={} password=sesame connect_timeout=60 {}",
            scenario.user,
            in_directory(scenario.client)
        );
        let poolers = vec![pooler];
        let fixture =
            Self { servers, poolers, folder, settings, conninfo, _certificates: certificates };
        fixture.wait_until_reachable();
        Some(fixture)
    }

    /// Waits for the takeover socket, which is opened asynchronously.
    fn wait_until_reachable(&self) {
        wait_until("the takeover socket", WAIT_TIMEOUT, || {
            UnixStream::connect(self.folder.path().join("takeover")).is_ok()
        });
    }

    /// Starts another pooler, which takes over from the running one.
    fn replace_pooler(&mut self) {
        let port = self.poolers[0].addresses()[0].port();
        let new = Pooler::take_over(parse(&self.settings, port), None).unwrap();
        self.poolers.push(new);
        self.wait_until_reachable();
    }

    fn restart_server(&mut self) {
        self.servers[0].restart().unwrap();
    }

    fn fail_over(&mut self) {
        self.servers[0].kill().unwrap();
        let mut standby = connect(&self.servers[1].uri("postgres")).unwrap();
        standby.query("select pg_promote(false)").unwrap();
    }
}

fn parse(settings: &str, port: u16) -> Config {
    let text = settings.replace("{PORT}", &port.to_string());
    Config::read_str(&text, Path::new("test.toml")).unwrap().config
}

fn write_rules(server: &Cluster) {
    let rules = server.data_dir().join("pg_hba.conf");
    let owner = fs::metadata(server.data_dir()).unwrap();
    let permissions = fs::metadata(&rules).unwrap().permissions();
    fs::write(&rules, RULES).unwrap();
    fs::set_permissions(&rules, permissions).unwrap();
    chown(&rules, Some(owner.uid()), Some(owner.gid())).unwrap();
    let mut admin = connect(&server.uri("postgres")).unwrap();
    admin.query("select pg_reload_conf()").unwrap();
}

/// Clients that run statements all the time. A client that gets an error logs in again.
struct RestartClients {
    is_over: Arc<AtomicBool>,
    /// The number of statements of each client.
    done: Arc<Vec<AtomicU64>>,
    errors: Arc<AtomicU64>,
    logins: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    longest_us: Arc<AtomicU64>,
    /// The errors since the last event.
    texts: Arc<Mutex<Vec<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl RestartClients {
    fn start(fixture: &RestartFixture) -> Self {
        let number = std::env::var("HOWDAH_RESTARTS_CLIENTS");
        let number = number.map_or(CLIENTS, |text| text.parse().unwrap());
        let mut clients = Self {
            is_over: Arc::default(),
            done: (0..number).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().into(),
            errors: Arc::default(),
            logins: Arc::default(),
            refused: Arc::default(),
            longest_us: Arc::default(),
            texts: Arc::default(),
            threads: Vec::new(),
        };
        for index in 0..number {
            let (is_over, done) = (Arc::clone(&clients.is_over), Arc::clone(&clients.done));
            let (errors, logins) = (Arc::clone(&clients.errors), Arc::clone(&clients.logins));
            let (refused, longest) =
                (Arc::clone(&clients.refused), Arc::clone(&clients.longest_us));
            let texts = Arc::clone(&clients.texts);
            let conninfo = fixture.conninfo.clone();
            clients.threads.push(thread::spawn(move || {
                let mut client: Option<Client> = None;
                while !is_over.load(Ordering::Relaxed) {
                    let Some(mut open) = client.take().or_else(|| {
                        let login = connect(&conninfo);
                        let count = if login.is_ok() { &logins } else { &refused };
                        count.fetch_add(1, Ordering::Relaxed);
                        login.map_err(|error| texts.lock().unwrap().push(error.to_string())).ok()
                    }) else {
                        continue;
                    };
                    let started = Instant::now();
                    let sql = "select pg_is_in_recovery()::text from pg_sleep(0.02)";
                    match open.one_value(sql) {
                        Ok(value) => assert_eq!(value.as_deref(), Some("false")),
                        Err(error) => {
                            errors.fetch_add(1, Ordering::Relaxed);
                            texts.lock().unwrap().push(error.to_string());
                            continue;
                        }
                    }
                    let took = u64::try_from(started.elapsed().as_micros()).unwrap();
                    longest.fetch_max(took, Ordering::Relaxed);
                    done[index].fetch_add(1, Ordering::Relaxed);
                    if index % SHORT_LIVED != 0 {
                        client = Some(open);
                    }
                }
            }));
        }
        clients
    }

    /// Waits until each client has run ten more statements.
    fn wait_for_progress(&self) {
        let numbers =
            || -> Vec<_> { self.done.iter().map(|count| count.load(Ordering::Relaxed)).collect() };
        let before = numbers();
        wait_until("progress of all clients", WAIT_TIMEOUT, || {
            let has_failed = self.threads.iter().any(JoinHandle::is_finished);
            has_failed || numbers().iter().zip(&before).all(|(now, then)| now >= &(then + 10))
        });
    }

    /// The numbers of statements, errors, logins, and refused logins.
    fn counts(&self) -> [u64; 4] {
        let statements = self.done.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        let [errors, logins, refused] =
            [&self.errors, &self.logins, &self.refused].map(|it| it.load(Ordering::Relaxed));
        [statements, errors, logins, refused]
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|client| client.join().unwrap());
    }
}

#[test]
fn clients_with_trust_survive_restarts() {
    check(&RestartScenario {
        name: "trust",
        user: "trusted",
        settings: "[pool.auth]\ntype = 'trust'\n[pool.users.trusted]\nsecret = ''\n",
        client: "sslmode=disable",
    });
}

#[test]
fn clients_with_cleartext_passwords_survive_restarts() {
    check(&RestartScenario {
        name: "plain",
        user: "alice",
        settings: "[pool.auth]\ntype = 'plain'\n[pool.users.alice]\nsecret = 'sesame'\n",
        client: "sslmode=disable",
    });
}

#[test]
fn clients_with_md5_survive_restarts() {
    check(&RestartScenario {
        name: "md5",
        user: "hashed",
        settings: "[pool.auth]\ntype = 'md5'\n[pool.users.hashed]\nsecret = '{SECRET}'\n",
        client: "sslmode=disable",
    });
}

#[test]
fn clients_with_scram_survive_restarts() {
    check(&RestartScenario {
        name: "scram-sha-256",
        user: "alice",
        settings: "[pool.users.alice]\nsecret = '{SECRET}'\n",
        client: "sslmode=disable",
    });
}

#[test]
fn clients_with_certificates_survive_restarts() {
    check(&RestartScenario {
        name: "cert",
        user: "app",
        settings: CLIENT_TLS,
        client: "sslmode=require sslcert={DIR}/app.crt sslkey={DIR}/app.key",
    });
}

#[test]
fn clients_with_queried_md5_hashes_survive_restarts() {
    check(&RestartScenario {
        name: "auth_query, md5",
        user: "hashed",
        settings: "[pool.auth]\ntype = 'md5'\nuser = 'asker'\n",
        client: "sslmode=disable",
    });
}

#[test]
fn clients_with_queried_scram_secrets_survive_restarts() {
    check(&RestartScenario {
        name: "auth_query, scram-sha-256",
        user: "alice",
        settings: "[pool.auth]\nuser = 'asker'\n",
        client: "sslmode=disable",
    });
}

#[test]
fn clients_with_passed_through_passwords_survive_restarts() {
    check(&RestartScenario {
        name: "pass-through",
        user: "alice",
        settings: "[pool.auth]\npass-through = 'loopback'\n",
        client: "sslmode=disable",
    });
}

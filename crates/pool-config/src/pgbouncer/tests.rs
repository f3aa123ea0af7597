use std::{fs, num::NonZeroU32, time::Duration};

use howdah_connect::{SslMode, tls::TlsVersion};

use super::*;
use crate::{FileFormat, LoadBalanceHosts, ParsedConfig, PoolMode, StoredSecret};

fn ini(text: &str) -> ParsedConfig {
    Config::read_str(text, Path::new("p.ini")).unwrap()
}

fn errors(text: &str) -> Vec<String> {
    let errors = Config::read_str(text, Path::new("p.ini")).unwrap_err();
    errors.0.iter().map(ToString::to_string).collect()
}

#[test]
fn typical_file_is_parsed() {
    let read = ini(concat!(
        "; from the seventh year\n[databases]\n",
        "shard0 = host=localhost port=5432 user=sharding_user password=sharding_user\n",
        "shop = host=db1,10.0.0.2,/run/pg port=5433 dbname=store pool_size=3 reserve_pool=1 ",
        "min_pool_size=-1 max_db_connections=9 pool_mode=transaction connect_query='set a=''b''' ",
        "client_encoding=UTF8 load_balance_hosts=disable server_lifetime=60 query_wait_timeout=0\n",
        "* = host=fallback auth_user=who\n",
        "[users]\nbob = pool_mode=session max_user_connections=2 query_timeout=1.5\n",
        "[pgbouncer]\nlisten_addr = *\nlisten_port = 6000\nunix_socket_dir =\n",
        "pool_mode = transaction\nmax_client_conn = 1000\ndefault_pool_size = 0\n",
        "auth_type = trust\nignore_startup_parameters = extra_float_digits, options\n",
        "server_check_query =\nquery_wait_timeout = 0\nserver_lifetime=0\npkt_buf = 1\n",
        "unix_socket_mode = 0770\nclient_tls_protocols = tlsv1.3\n[peers]\n1 = host=/x\n",
    ));
    let config = &read.config;
    assert_eq!(read.format, FileFormat::PgBouncer);
    assert_eq!(config.listen.addresses, ["*"]);
    assert_eq!((config.listen.port, config.listen.unix_mode), (6000, 0o770));
    assert_eq!(config.listen.unix_directories, [""; 0].map(PathBuf::from));
    assert_eq!((config.mode, config.sizes.pool), (PoolMode::Transaction, None));
    assert_eq!(config.limits.clients, 1000);
    assert_eq!(config.ignored_startup_parameters, ["extra_float_digits", "options"]);
    assert_eq!(config.check_query, None);
    assert_eq!(config.timeouts.query_wait, None);
    assert_eq!(config.timeouts.server_lifetime, Duration::ZERO);
    assert_eq!(config.tls.client.min_version, TlsVersion::Tls13);

    let shard = &config.databases["shard0"];
    assert_eq!(shard.user.as_deref(), Some("sharding_user"));
    assert_eq!(shard.secret, Some(StoredSecret::parse("sharding_user")));
    let shop = &config.databases["shop"];
    assert_eq!(
        (shop.hosts.len(), shop.port, shop.load_balance_hosts),
        (3, 5433, LoadBalanceHosts::First)
    );
    assert_eq!((shop.pool_size, shop.min_size, shop.reserve_size), (Some(3), None, Some(1)));
    assert_eq!(shop.connect_query.as_deref(), Some("set a='b'"));
    assert_eq!(shop.parameters["client_encoding"], "UTF8");
    assert_eq!(shop.query_wait_timeout, Some(None));
    assert_eq!(config.users["bob"].query_timeout, Some(Some(Duration::from_millis(1500))));

    let warnings: Vec<_> = read.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(config.databases["*"].auth_user.as_deref(), Some("who"));
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with("p.ini:20: pkt_buf: a worker"), "{warnings:?}");
    assert!(warnings[1].starts_with("p.ini:24: [peers]: has no effect"), "{warnings:?}");
}

#[test]
fn own_entry_among_peers_is_ignored() {
    let read = |peers: &str, own: &str| {
        ini(&format!("[peers]\n{peers}[databases]\na =\n[pgbouncer]\npeer_id = {own}\n"))
    };
    let peers = "3 = host=/run/three port=7\n1 = host=one\n2 = host=::2 port=8 pool_size=5\n";
    let parsed = read(peers, "1");
    assert_eq!(parsed.config.peers.to_string(), "[::2]:8, /run/three:7");
    let warnings: Vec<_> = parsed.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("p.ini:4: 2: pool_size has no effect"), "{warnings:?}");
    // The own number need not be in the list.
    assert_eq!(read(peers, "9").config.peers.to_string(), "one:6432, [::2]:8, /run/three:7");
    let off = read(peers, "0");
    assert_eq!((off.config.peers.is_empty(), off.warnings.len()), (true, 2));
    let seventeen: String = (1..=17).map(|number| format!("{number} = host=h{number}\n")).collect();
    assert_eq!(read(&seventeen, "17").config.peers.others().count(), 16);
    let wrong = |line: &str| {
        errors(&format!("[databases]\na =\n[pgbouncer]\npeer_id = 99\n[peers]\n{line}\n"))
    };
    for (line, error) in [
        ("0 = host=x", "0: the number of a peer must be from 1 to 65535"),
        ("x = host=x", "x: the number of a peer must be from 1 to 65535"),
        ("1 = port=5", "1: host is missing"),
        ("1 = host=x port=0", "1: port: \"0\" is not a port from 1 to 65535"),
        ("1 = host=x pool_size=many", "1: pool_size: \"many\" is not a number"),
        ("1 = host=x hots=y", "1: hots: unknown key (did you mean `host`?)"),
        ("1 = host", "1: expected `key=value`"),
        (&seventeen, "peers: at most 16 peers are supported"),
    ] {
        let errors = wrong(line);
        assert!(errors.len() == 1 && errors[0].ends_with(error), "{errors:?} for {line}");
    }
    let errors = errors("[databases]\na =\n[pgbouncer]\npeer_id = 16384\n");
    assert!(errors[0].contains("from 0 to 16383"), "{errors:?}");
}

#[test]
fn defaults_are_those_of_pgbouncer() {
    let config = ini("[databases]\na =\n[pgbouncer]\n").config;
    assert_eq!(config.auth.method, AuthMethod::Md5);
    assert_eq!(config.listen.addresses, [""; 0]);
    assert_eq!(config.mode, PoolMode::Session);
    assert_eq!(config.sizes.pool, NonZeroU32::new(20));
    assert_eq!(config.limits.clients, 100);
    assert_eq!(config.tls.client_mode(), SslMode::Disable);
    assert_eq!(config.tls.server_mode(), SslMode::Prefer);
    assert_eq!(config.timeouts.query_wait, Some(Duration::from_secs(120)));
    let pool = config.pool("a", "me").unwrap();
    assert_eq!(pool.servers[0].to_string(), "/tmp/.s.PGSQL.5432");
    assert_eq!((pool.login.user.as_str(), pool.login.database.as_str()), ("me", "a"));
}

#[test]
fn invalid_lines_are_reported_with_file_and_line() {
    let lines = errors(concat!(
        "[databases]\na = hots=x\nb = host\nc = pool_mode=fast\npgbouncer = host=x\n",
        "[pgbouncer]\nmax_client_con = 5\nlisten_port = 70000\nauth_type = pam\n",
        "disable_pqexec = yes\nquery_timeout = soon\nbroken line\n[users]\nu = x=1\n[nope]\nk = v\n",
        "%include missing.ini\n",
    ));
    let expected = [
        "p.ini:2: a: hots: unknown key (did you mean `host`?)",
        "p.ini:3: b: expected `key=value`",
        "p.ini:4: c: pool_mode: \"fast\" is not one of session, transaction, adaptive, statement",
        "p.ini:7: max_client_con: unknown key (did you mean `max_client_conn`?)",
        "p.ini:8: listen_port: \"70000\" is not a port from 0 to 65535",
        "p.ini:9: auth_type: pam is not supported; use any, trust, plain, md5, scram-sha-256, cert or \
         hba",
        "p.ini:10: disable_pqexec: \"yes\" is not an integer from 0 to 4294967295",
        "p.ini:11: query_timeout: \"soon\" is not a number of seconds",
        "p.ini:12: this is not `key = value`",
        "p.ini:14: u: x: unknown key",
        "p.ini:15: nope: no such section (known: databases, pgbouncer, users, peers)",
        "p.ini:16: k: is not in a known section",
    ];
    assert_eq!(lines[..expected.len()], expected);
    assert!(lines[expected.len()].starts_with("p.ini:17: %include: cannot read missing.ini"));
}

#[test]
fn rule_violations_caused_by_invalid_keys_are_not_reported() {
    let lines = errors(concat!(
        "[databases]\na = host=x pool_mode=fast\nb = host=x password=p\n[pgbouncer]\n",
        "max_client_conn = 0\nauth_type = cert\nclient_tls_cert_fil = x\nclient_tls_key_file = y\n",
    ));
    let expected = [
        "p.ini:2: a: pool_mode: \"fast\" is not one of session, transaction, adaptive, statement",
        "p.ini:7: client_tls_cert_fil: unknown key (did you mean `client_tls_cert_file`?)",
        "p.ini:5: limits.clients: must be at least 1",
        "p.ini:6: auth.type: cert needs tls.client.mode to be verify-ca or verify-full",
        "p.ini:3: databases.b: a secret needs a user",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn password_is_in_no_error_or_debug_text() {
    let text = "[databases]\na = host=x user=u password=hunter2 oops\n[pgbouncer]\n";
    assert!(!errors(text).concat().contains("hunter2"));
    let read = ini("[databases]\na = host=x user=u password=hunter2\n");
    assert!(!format!("{read:?}").contains("hunter2"));
}

#[test]
fn included_file_is_read_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("more")).unwrap();
    fs::write(at("p.ini"), "[databases]\na = host=1\n%include more/b.ini\nc = host=3\n").unwrap();
    fs::write(at("more/b.ini"), "b = host=2\n%include c.ini\n").unwrap();
    let users = at("users").display().to_string();
    let more = format!("[users]\nu =\n[pgbouncer]\nauth_file = {users}\n[databases]\n");
    fs::write(at("more/c.ini"), more).unwrap();
    fs::write(at("users"), "\"u\" \"secret\"\n\"v\" \"\"\n").unwrap();
    let read = Config::read(&at("p.ini")).unwrap();
    assert_eq!(read.config.databases.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(read.config.users["u"].secret, Some(StoredSecret::parse("secret")));

    fs::write(at("more/c.ini"), "%include b.ini\n").unwrap();
    let error = Config::read(&at("p.ini")).unwrap_err().to_string();
    assert!(error.contains("c.ini:1: %include: includes are nested more than 10 deep"));
    fs::write(at("more/c.ini"), "x = host=1 host2=5\n").unwrap();
    let error = Config::read(&at("p.ini")).unwrap_err().to_string();
    assert!(
        error.contains("more/c.ini:1: x: host2: unknown key (did you mean `host`?)"),
        "{error}"
    );
}

#[test]
fn keys_are_ordered_by_name() {
    assert!(KEYS.windows(2).all(|two| two[0].name < two[1].name));
}

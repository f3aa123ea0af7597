use std::{fs, num::NonZeroU32, path::Path, time::Duration};

use howdah_connect::SslMode;

use super::*;

fn read(text: &str) -> Result<Config, String> {
    Config::read_str(text, Path::new("h.toml"))
        .map(|read| read.config)
        .map_err(|errors| errors.to_string())
}

const ONE: &str = "[pool.databases.shop]\nhosts = ['db1', 'db2:5433', '/run/pg']\n";

#[test]
fn missing_settings_have_defaults() {
    let mut config = read(ONE).unwrap();
    assert_eq!(config.databases.remove("shop").unwrap().hosts.len(), 3);
    assert_eq!(config, Config::default());
}

#[test]
fn all_tables_are_parsed() {
    let text = r#"
        log-level = "info"
        [pool]
        mode = "transaction"
        workers = 4
        os-user = "howdah"
        tracked-parameters = ["IntervalStyle", "search_path"]
        check-query = false
        [pool.listen]
        addresses = ["*", "10.0.0.1:6433"]
        unix-directories = ["/run/howdah", "@howdah"]
        unix-mode = 0o770
        [pool.sizes]
        pool = 0
        reserve = 5
        [pool.limits]
        clients = 10000
        servers-per-user = 7
        [pool.timeouts]
        query-wait = "2m"
        query = 1.5
        client-login = 0
        server-lifetime = 0
        [pool.auth]
        type = "md5"
        scram-iterations = 8192
        [pool.tls.client]
        mode = "require"
        certificate = "cert.pem"
        key = "/etc/key.pem"
        min-version = "TLSv1.3"
        [pool.databases.shop]
        hosts = ["db1"]
        user = "app"
        secret = "sesame"
        pool-size = 3
        query-wait-timeout = 0
        parameters = { application_name = "pooled" }
        [pool.databases."*"]
        [pool.users.app]
        mode = "session"
        pool-size = 2
        max-servers = 0
    "#;
    let config = read(text).unwrap();
    assert_eq!(config.check_query, None);
    assert_eq!(config.timeouts.query_wait, Some(Duration::from_secs(120)));
    assert_eq!(config.timeouts.query, Some(Duration::from_millis(1500)));
    assert_eq!(config.timeouts.client_login, None);
    assert_eq!(config.tls.client_mode(), SslMode::Require);
    assert_eq!(config.tls.client.certificate.as_deref(), Some(Path::new("cert.pem")));
    assert_eq!(config.tls.client.key.as_deref(), Some(Path::new("/etc/key.pem")));

    let pool = config.pool("shop", "guest").unwrap();
    assert!(pool.login.is_forced);
    assert_eq!(pool.login.user, "app");
    assert_eq!(pool.login.secret, Some(StoredSecret::parse("sesame")));
    assert_eq!(pool.login.parameters, [("application_name".to_owned(), "pooled".to_owned())]);
    assert_eq!(
        (pool.mode, pool.size),
        (PoolMode::Session, NonZeroU32::new(2)),
        "the user takes precedence"
    );
    assert_eq!(pool.user_servers, None, "0 for the user lifts the general limit");
    assert_eq!(pool.timeouts.query_wait, None, "0 for the database lifts the general timeout");
    assert_eq!(pool.reserve_size, 5);

    let pool = config.pool("other", "guest").unwrap();
    assert_eq!((pool.login.user.as_str(), pool.login.database.as_str()), ("guest", "other"));
    assert_eq!(pool.servers[0].to_string(), "/run/howdah/.s.PGSQL.5432");
    assert_eq!((pool.mode, pool.size), (PoolMode::Transaction, None));
    assert_eq!(pool.user_servers, NonZeroU32::new(7));
}

#[test]
fn invalid_key_is_reported_with_line_and_key() {
    let error = read("[pool]\nmode = 'session'\nmax-client-conn = 5\n").unwrap_err();
    assert!(error.starts_with("h.toml:3: max-client-conn: unknown key (`howdah"), "{error}");
    let error = read("[pool.listen]\nport = 70000\n").unwrap_err();
    assert!(error.starts_with("h.toml:2: listen.port: "), "{error}");
    let error = read("[pool.timeouts]\nquery-wait = 'soon'\n").unwrap_err();
    assert!(
        error.starts_with("h.toml:2: timeouts.query-wait: \"soon\" is not a duration"),
        "{error}"
    );
    let error = read("[pool.tls.server]\nmode = 'maybe'\n").unwrap_err();
    assert!(
        error.starts_with("h.toml:2: tls.server.mode: \"maybe\" is not one of: disable"),
        "{error}"
    );
    assert_eq!(read("[statsd]\n").unwrap_err(), "h.toml: there is no [pool] section");
}

#[test]
fn all_rule_violations_are_reported_together() {
    let text = "[pool]\n[pool.listen]\naddresses = []\nunix-directories = []\n[pool.limits]\n\
                clients = 0\n[pool.auth]\ntype = 'cert'\n[pool.tls.server]\nmode = 'verify-full'\n\
                key = 'k'\n[pool.databases.pgbouncer]\nsecret = 'x'\nhosts = ['a b']\n";
    let error = read(text).unwrap_err();
    for part in [
        "h.toml:2: listen: at least one",
        "limits.clients: must be at least 1",
        "auth.type: cert needs tls.client.mode",
        "tls.server.ca-file: is needed",
        "tls.server: certificate and key belong together",
        "databases.pgbouncer: the name is reserved",
        "databases.pgbouncer: a secret needs a user",
        "databases.pgbouncer.hosts: \"a b\" is not a host",
    ] {
        assert!(error.contains(part), "{part}\n{error}");
    }
}

#[test]
fn unusable_parameter_names_are_reported_by_name() {
    let error = read("[pool.databases.a]\nparameters = { options = 'x', '' = 'y' }\n").unwrap_err();
    assert!(error.contains("databases.a.parameters: the name \"options\" is reserved"), "{error}");
    assert!(error.contains("databases.a.parameters: a name is empty"), "{error}");
}

#[test]
fn error_never_contains_secret() {
    for text in [
        "[pool.users.a]\nsecret = 4711\n",
        "[pool.users]\na = { secret = 4711 }\n",
        "[pool.users.a]\nsecret = ['4711']\n",
        "[pool.users.a]\nsecret = '4711\n",
        "[pool.users.a]\nsecret = 4711 4711\n",
    ] {
        let error = read(text).unwrap_err();
        assert!(!error.contains("4711"), "{error}");
    }
}

#[test]
fn configured_secret_overrides_user_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("howdah.toml");
    let text = "[pool.auth]\nfile = 'users'\n[pool.users.a]\nsecret = 'mine'\n".to_owned() + ONE;
    fs::write(&path, text).unwrap();
    let error = Config::read(&path).unwrap_err().to_string();
    assert!(error.contains("cannot read the user list"), "{error}");
    fs::write(folder.path().join("users"), "\"a\" \"theirs\"\n\"b\" \"b\"\n").unwrap();
    let config = Config::read(&path).unwrap().config;
    assert_eq!(config.users["a"].secret, Some(StoredSecret::parse("mine")));
    assert_eq!(config.users["b"].secret, Some(StoredSecret::parse("b")));
    fs::write(folder.path().join("users"), "\"a\" theirs\n").unwrap();
    let error = Config::read(&path).unwrap_err().to_string();
    assert!(error.contains("users:1: expected a secret"), "{error}");
    assert!(!error.contains("theirs"), "{error}");
}

#[test]
fn file_format_is_detected_by_first_line() {
    for text in ["[databases]\n", "; x\n", "\n# x\n[pgbouncer]\n", "%include x", " [users] "] {
        assert_eq!(FileFormat::detect(text), FileFormat::PgBouncer, "{text}");
    }
    for text in ["", "[pool]\n", "# x\n[pool.databases.x]\n", "log-level = 1\n[databases]\n"] {
        assert_eq!(FileFormat::detect(text), FileFormat::Howdah, "{text}");
    }
}

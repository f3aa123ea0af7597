//! Tests the resolution of connection parameters, with a constructed environment for each case.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use proptest::prelude::*;

use super::*;

fn environment() -> Environment {
    Environment::empty().with_os_user("anna")
}

fn resolve(conninfo: &str) -> ConnectTarget {
    resolve_in(conninfo, &environment())
}

fn resolve_in(conninfo: &str, environment: &Environment) -> ConnectTarget {
    ConnectTarget::resolve(&ConnParams::from_conninfo(conninfo), environment)
        .unwrap_or_else(|error| panic!("{conninfo}: {error}"))
}

fn error(conninfo: &str) -> String {
    error_in(conninfo, &environment())
}

fn error_in(conninfo: &str, environment: &Environment) -> String {
    match ConnectTarget::resolve(&ConnParams::from_conninfo(conninfo), environment) {
        Ok(target) => panic!("{conninfo} was accepted as {target}"),
        Err(error) => {
            assert!(!format!("{error:?}{error}").contains("hunter2"), "{error:?}");
            error.to_string()
        }
    }
}

fn password(target: &ConnectTarget) -> Option<String> {
    let login = target.login(&target.endpoints()[0]);
    login.password.map(|password| String::from_utf8(password.expose().to_vec()).unwrap())
}

/// Creates a home directory with these files, each with mode 0600.
fn home(files: &[(&str, &str)]) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    home
}

#[test]
fn connection_strings_resolve_to_targets() {
    let table = [
        ("", "postgresql://anna@localhost:5432/anna"),
        ("shop", "postgresql://anna@localhost:5432/shop"),
        ("host=db1 port=5433 user=bob", "postgresql://bob@db1:5433/bob"),
        ("postgresql://bob@db1/shop", "postgresql://bob@db1:5432/shop"),
        ("postgresql://h1:1,h2:2/d", "postgresql://anna@h1:1,h2:2/d"),
        ("postgresql://h1,h2:2/d", "postgresql://anna@h1:5432,h2:2/d"),
        ("host=h1,h2 port=7", "postgresql://anna@h1:7,h2:7/anna"),
        ("host=h1,h2 port=7,", "postgresql://anna@h1:7,h2:5432/anna"),
        ("postgresql://[::1]:7/d", "postgresql://anna@[::1]:7/d"),
        ("host=db1 hostaddr=10.0.0.1", "postgresql://anna@db1:5432/anna?hostaddr=10.0.0.1"),
        ("hostaddr=::1", "postgresql://anna@[::1]:5432/anna?hostaddr=::1"),
        ("host=/srv/pg", "postgresql://anna@/anna?host=/srv/pg&port=5432"),
        ("postgresql://%2Fsrv%2Fpg:7/d", "postgresql://anna@/d?host=/srv/pg&port=7"),
        ("host=/a,b port=1,2", "postgresql://anna@/anna?host=/a,b&port=1,2"),
        ("postgresql://u%40x@h/a%2Fb", "postgresql://u%40x@h:5432/a%2Fb"),
        ("postgresql://h?ssl=true", "postgresql://anna@h:5432/anna?sslmode=require"),
        ("host=h options='-c a=b'", "postgresql://anna@h:5432/anna?options=-c%20a%3Db"),
        ("host=h application_name=x", "postgresql://anna@h:5432/anna?application_name=x"),
        ("host=h connect_timeout=5", "postgresql://anna@h:5432/anna?connect_timeout=5"),
        ("host=h connect_timeout=-1", "postgresql://anna@h:5432/anna"),
        (
            "host=h target_session_attrs=read-write load_balance_hosts=random",
            "postgresql://anna@h:5432/anna?target_session_attrs=read-write\
             &load_balance_hosts=random",
        ),
        (
            "host=h sslrootcert=system",
            "postgresql://anna@h:5432/anna?sslrootcert=system&sslmode=verify-full",
        ),
        (
            "host=h sslmode=verify-ca sslrootcert=/r.crt sslnegotiation=direct",
            "postgresql://anna@h:5432/anna?sslrootcert=/r.crt&sslmode=verify-ca\
             &sslnegotiation=direct",
        ),
        ("host=h requiressl=1", "postgresql://anna@h:5432/anna?sslmode=require"),
    ];
    for (text, expected) in table {
        assert_eq!(resolve(text).to_string(), expected, "{text}");
    }
}

#[test]
fn invalid_connection_strings_are_refused() {
    let table = [
        ("port=0", "port \"0\" (from the arguments) is not a port from 1 to 65535"),
        ("port=65536", "port \"65536\" (from the arguments) is not a port from 1 to 65535"),
        ("host=a,b port=1,2,3", "the number of ports (3) is neither 1 nor the number of hosts (2)"),
        (
            "host=a,b hostaddr=::1",
            "the number of addresses in hostaddr (1) is not the number of hosts (2)",
        ),
        ("hostaddr=db1", "hostaddr \"db1\" (from the arguments) is not an IP address"),
        (
            "sslmode=on",
            "sslmode \"on\" (from the arguments) is not one of: disable allow prefer require \
             verify-ca verify-full",
        ),
        (
            "sslrootcert=system sslmode=require",
            "sslmode require is too weak for sslrootcert=system: use verify-full",
        ),
        (
            "sslnegotiation=direct",
            "sslmode prefer is too weak for sslnegotiation=direct: use require, verify-ca or \
             verify-full",
        ),
        (
            "ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2",
            "ssl_max_protocol_version \"TLSv1.2\" (from the arguments) is not at least \
             ssl_min_protocol_version",
        ),
        ("gssencmode=require", "gssencmode \"require\" (from the arguments) is not supported"),
        (
            "host=/tmp requirepeer=postgres",
            "requirepeer \"postgres\" (from the arguments) is not supported",
        ),
        (
            "connect_timeout=soon",
            "connect_timeout \"soon\" (from the arguments) is not a whole number",
        ),
        ("service=none", "definition of service \"none\" not found"),
        ("servicefile=/nowhere/x service=a", "cannot read service file /nowhere/x"),
    ];
    for (text, expected) in table {
        assert_eq!(error(text), expected, "{text}");
    }
    assert_eq!(
        error_in("", &Environment::empty()),
        "no user given, and the operating system user has no name"
    );
    assert_eq!(
        error_in("", &environment().with_variable("PGPORT", "x")),
        "port \"x\" (from PGPORT) is not a port from 1 to 65535"
    );
}

#[test]
fn arguments_override_service_environment_and_defaults() {
    let home = home(&[(
        ".pg_service.conf",
        "[prod]\nhost=from-service\nuser=from-service\nport=1\npassword=hunter2\n",
    )]);
    let environment = environment()
        .with_home(home.path())
        .with_variable("PGSERVICE", "prod")
        .with_variable("PGHOST", "from-environment")
        .with_variable("PGDATABASE", "from-environment")
        .with_variable("PGAPPNAME", "app");
    let target = resolve_in("user=typed", &environment);
    assert_eq!(
        target.to_string(),
        "postgresql://typed@from-service:1/from-environment?application_name=app"
    );
    assert_eq!(password(&target).as_deref(), Some("hunter2"));
    // A keyword that is set to an empty value is set: the environment is not consulted.
    let target = resolve_in("host='' port=2", &environment);
    assert_eq!(
        target.to_string(),
        "postgresql://from-service@localhost:2/from-environment?application_name=app"
    );
}

#[test]
fn connection_string_overrides_single_options() {
    let params = ConnParams {
        conninfo: Some("postgresql://db1/from-conninfo".to_owned()),
        host: Some("from-option".to_owned()),
        port: Some("7".to_owned()),
        user: Some("from-option".to_owned()),
        database: Some("dbname=from-option application_name=x".to_owned()),
    };
    let target = ConnectTarget::resolve(&params, &environment()).unwrap();
    assert_eq!(
        target.to_string(),
        "postgresql://from-option@db1:7/from-conninfo?application_name=x"
    );
}

#[test]
fn user_service_file_precedes_system_file() {
    let own = home(&[(".pg_service.conf", "[a]\nhost=own\n")]);
    let system = home(&[("pg_service.conf", "[a]\nhost=system\n[b]\nhost=system\n[c]\nhosst=x\n")]);
    let other = home(&[("services", "[a]\nhost=other\n")]);
    let environment =
        environment().with_home(own.path()).with_variable("PGSYSCONFDIR", system.path());
    let host = |conninfo: &str, environment: &Environment| {
        resolve_in(conninfo, environment).endpoints()[0].host().into_owned()
    };
    assert_eq!(host("service=a", &environment), "own");
    assert_eq!(host("postgresql:///?service=b", &environment), "system");
    let environment = environment.with_variable("PGSERVICEFILE", other.path().join("services"));
    assert_eq!(host("service=a", &environment), "other");
    assert_eq!(host("service=b", &environment), "system");
    assert_eq!(error_in("service=d", &environment), "definition of service \"d\" not found");
    let expected = format!(
        "{}:6: unknown connection keyword \"hosst\", did you mean host?",
        system.path().join("pg_service.conf").display()
    );
    assert_eq!(error_in("service=c", &environment), expected);
}

#[test]
fn existing_socket_is_default_host() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let directories = vec![first.path().to_owned(), second.path().to_owned()];
    let environment = environment().with_socket_directories(directories);
    let tcp = Endpoint::Tcp { host: "localhost".to_owned(), hostaddr: None, port: 5432 };
    assert_eq!(resolve_in("", &environment).endpoints(), [tcp]);
    fs::write(second.path().join(".s.PGSQL.5432"), "").unwrap();
    let socket = Endpoint::Unix { path: second.path().join(".s.PGSQL.5432") };
    assert_eq!(resolve_in("", &environment).endpoints(), [socket]);
    let tcp = Endpoint::Tcp { host: "localhost".to_owned(), hostaddr: None, port: 5433 };
    assert_eq!(resolve_in("port=5433", &environment).endpoints(), [tcp]);
}

#[test]
fn password_depends_on_source_and_user() {
    let home = home(&[(".pgpass", "db1:*:*:anna:of-anna\ndb1:*:*:bob:of-bob\n")]);
    let environment = environment().with_home(home.path());
    let with_variable = environment.clone().with_variable("PGPASSWORD", "of-environment");

    let typed = resolve_in("postgresql://anna:typed@db1/", &with_variable);
    assert_eq!(password(&typed).as_deref(), Some("typed"));
    assert_eq!(password(&typed.with_user("bob")).as_deref(), Some("typed"));

    let given = resolve_in("postgresql://anna@db1/", &with_variable);
    assert_eq!(password(&given).as_deref(), Some("of-environment"));
    assert_eq!(password(&given.with_user("bob")).as_deref(), Some("of-bob"));
    assert_eq!(password(&given.with_user("carl")).as_deref(), Some("of-environment"));
    assert_eq!(
        password(&given.with_user("bob").with_user("anna")).as_deref(),
        Some("of-environment")
    );

    let filed = resolve_in("postgresql://anna@db1/", &environment);
    assert_eq!(password(&filed).as_deref(), Some("of-anna"));
    assert_eq!(password(&filed.with_user("bob")).as_deref(), Some("of-bob"));
    assert_eq!(password(&filed.with_user("carl")), None);
    assert_eq!(password(&resolve_in("postgresql://anna@db2/", &environment)), None);
}

#[test]
fn passfile_can_be_set() {
    let home = home(&[(".pgpass", "*:*:*:*:usual\n"), ("other", "*:*:*:*:other\n")]);
    let other = home.path().join("other").display().to_string();
    let environment = environment().with_home(home.path());
    assert_eq!(password(&resolve_in("", &environment)).as_deref(), Some("usual"));
    let by_keyword = resolve_in(&format!("passfile='{other}'"), &environment);
    assert_eq!(password(&by_keyword).as_deref(), Some("other"));
    let by_variable = environment.with_variable("PGPASSFILE", &other);
    assert_eq!(password(&resolve_in("", &by_variable)).as_deref(), Some("other"));
}

#[test]
fn ignored_settings_are_listed() {
    let home = home(&[(".pgpass", "*:*:*:*:x\n")]);
    let passfile = home.path().join(".pgpass");
    fs::set_permissions(&passfile, fs::Permissions::from_mode(0o644)).unwrap();
    let environment =
        environment().with_home(home.path()).with_variable("PGKRBSRVNAME", "postgres");
    let target = resolve_in("sslcompression=1 replication=''", &environment);
    let warnings: Vec<_> = target.warnings().iter().map(ToString::to_string).collect();
    let permissions = format!(
        "password file {} was ignored: mode 0644 lets others access it; it must be 0600",
        passfile.display()
    );
    assert_eq!(
        warnings,
        [
            "connection keyword krbsrvname (from PGKRBSRVNAME) is not supported and is ignored",
            "connection keyword sslcompression (from the arguments) is not supported and is ignored",
            &permissions,
        ]
    );
    assert_eq!(password(&target), None);
}

#[test]
fn login_contains_session_parameters() {
    let environment = environment()
        .with_variable("PGTZ", "UTC")
        .with_variable("PGDATESTYLE", "Default")
        .with_variable("PGOPTIONS", "-c geqo=off")
        .with_variable("PGCLIENTENCODING", "LATIN1");
    let target = resolve_in("host=h dbname=d fallback_application_name=f", &environment);
    let target = target.with_user("bob").with_database("shop");
    let login = target.login(&target.endpoints()[0]);
    assert_eq!((login.user.as_str(), login.database.as_str()), ("bob", "shop"));
    let parameters: Vec<_> =
        login.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        parameters,
        [
            ("application_name", "f"),
            ("client_encoding", "LATIN1"),
            ("options", "-c geqo=off"),
            ("timezone", "UTC"),
        ]
    );
    assert!(login.channel_binding.is_none());
    let named = target.with_application_name("replay 7");
    assert_eq!(named.application_name(), "replay 7");
}

#[test]
fn default_tls_files_are_used_if_present() {
    let with_files = home(&[(".postgresql/root.crt", ""), (".postgresql/postgresql.crt", "")]);
    let usual = |name: &str| with_files.path().join(".postgresql").join(name);
    let environment = environment().with_home(with_files.path());
    let tls = resolve_in("host=h", &environment).tls().clone();
    assert_eq!(tls.root_certificates, tls::RootCertificates::File(usual("root.crt")));
    assert_eq!(tls.certificate, Some(usual("postgresql.crt")));
    assert_eq!((tls.key, tls.revocations), (None, None));
    let target = resolve_in("host=h sslcertmode=disable sslcrldir=/crls", &environment);
    let shown = target.to_string();
    assert_eq!(shown, "postgresql://anna@h:5432/anna?sslcrldir=/crls&sslcertmode=disable");
    let tls = target.tls();
    assert_eq!(resolve_in(&shown, &environment).tls(), tls);
    assert_eq!(tls.certificate, None);
    assert_eq!(tls.revocation_directory.as_deref(), Some(Path::new("/crls")));
    assert_eq!(resolve("host=h").tls(), &TlsSettings::default());
}

#[test]
fn output_never_contains_password() {
    let home = home(&[(".pgpass", "*:*:*:*:hunter2\n")]);
    let conninfo = "postgresql://anna:hunter2@db1/?sslpassword=hunter2";
    let environment = environment().with_home(home.path()).with_variable("PGPASSWORD", "hunter2");
    let params = ConnParams {
        database: Some("password=hunter2".to_owned()),
        ..ConnParams::from_conninfo(conninfo)
    };
    let target = ConnectTarget::resolve(&params, &environment).unwrap();
    let login = target.login(&target.endpoints()[0]);
    let printed = format!("{params:?} {environment:?} {target:?} {target} {login:?}");
    assert!(!printed.contains("hunter2"), "{printed}");
    for warning in target.warnings() {
        assert!(!format!("{warning} {warning:?}").contains("hunter2"));
    }
}

/// Generates text for a connection string, with characters that need escapes.
fn text() -> impl Strategy<Value = String> {
    proptest::string::string_regex("[a-z%@:/?&=#',\\\\ü +\\[\\]]{1,12}").unwrap()
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9.-]{0,9}",
        Just("::1".to_owned()),
        Just("2001:db8::7".to_owned()),
        "/[a-z/%@ ]{1,9}",
    ]
}

/// Quotes a value.
fn quote(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

proptest! {
    #[test]
    fn displayed_uri_resolves_to_same_target(
        hosts in prop::collection::vec((host(), 1_u16..), 1..4),
        user in text(),
        database in text(),
        application in text(),
        options in text(),
        mode in prop::sample::select(vec!["disable", "prefer", "require", "verify-full"]),
    ) {
        let list = |part: fn(&(String, u16)) -> String| {
            hosts.iter().map(part).collect::<Vec<_>>().join(",")
        };
        let conninfo = format!(
            "host={} port={} user={} dbname={} application_name={} options={} sslmode={mode} \
             password=hunter2 connect_timeout=3",
            quote(&list(|(host, _)| host.clone())),
            list(|(_, port)| port.to_string()),
            quote(&user),
            quote(&database),
            quote(&application),
            quote(&options),
        );
        let target = resolve(&conninfo);
        let shown = target.to_string();
        prop_assert!(!shown.contains("hunter2"));
        let again = resolve(&shown);
        prop_assert_eq!(again.to_string(), shown);
        prop_assert_eq!(again.endpoints(), target.endpoints());
        prop_assert_eq!(again.user(), user);
        prop_assert_eq!(again.database(), database);
        prop_assert_eq!(again.application_name(), application);
        prop_assert_eq!(again.options(), Some(options.as_str()));
        prop_assert_eq!(again.connect_timeout(), target.connect_timeout());
        prop_assert_eq!(again.tls(), target.tls());
    }

    #[test]
    fn arbitrary_text_never_reveals_password(
        before in "[ -~]{0,20}",
        after in "[ -~]{0,20}",
    ) {
        for text in [
            format!("postgresql://user:hunter2@{after}"),
            format!("{before} password=hunter2 {after}"),
        ] {
            match ConnectTarget::resolve(&ConnParams::from_conninfo(text.as_str()), &environment()) {
                Ok(target) if password(&target).as_deref() == Some("hunter2") => {
                    prop_assert!(!format!("{target}{target:?}").contains("hunter2"), "{text}");
                }
                Ok(_) => {}
                Err(error) => {
                    prop_assert!(!format!("{error}{error:?}").contains("hunter2"), "{text}");
                }
            }
        }
    }
}

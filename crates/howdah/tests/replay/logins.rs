//! The role and the database of each session.

use howdah_lab::skip_without_postgres;

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, connect, replay},
};

/// A log of two sessions with different roles, each of which inserts its role and database.
fn log_of_two_roles(fixture: &ReplayFixture) -> String {
    let mut client = fixture.client();
    let columns = "who text default current_user, at text default current_database()";
    client.query(&format!("create table t ({columns})")).unwrap();
    client.query("grant insert on t to public").unwrap();
    let mut log = LogBuilder::new(&fixture.database);
    let insert = ["insert into t default values"];
    log.user("who_alice").session(1, &insert).user("who_bob").session(2, &insert);
    log.text
}

#[test]
fn sessions_log_in_as_captured_or_mapped_role() {
    let Some(fixture) = ReplayFixture::new("who") else { return };
    let mut client = fixture.client();
    for role in ["who_alice", "who_bob", "who_carol"] {
        client.query(&format!("create role {role} login")).unwrap();
    }
    let log = log_of_two_roles(&fixture);
    let cases: [(&[&str], &str); 4] = [
        (&[], "who_alice who_bob"),
        (&["--map-user", "who_bob=who_carol"], "who_alice who_carol"),
        (&["--map-user", "who_alice=who_bob,who_bob=who_alice"], "who_alice who_bob"),
        (&["--as-user", "who_carol", "--map-user", "who_alice=who_bob"], "who_carol who_carol"),
    ];
    for (words, expected) in cases {
        client.query("truncate t").unwrap();
        fixture.replay(&log, words).assert_all_done();
        let who = fixture.value("select string_agg(who, ' ' order by who) from t");
        assert_eq!(who, expected, "{words:?}");
    }
}

#[test]
fn denied_login_is_reported_before_sending() {
    let Some(fixture) = ReplayFixture::new("shut_out") else { return };
    let mut client = fixture.client();
    client.query("create table t (who text default current_user)").unwrap();
    client.query("create role no_login_here nologin").unwrap();
    let mut log = LogBuilder::new("shut_out");
    let insert = ["insert into t default values"];
    log.session(1, &insert).user("no_login_here").session(2, &insert);
    fixture.write("server.log", &log.text);
    let replay = |words: &[&str]| {
        let mut command = fixture.howdah();
        command.args(["replay", "server.log", "--target", &fixture.uri()]).args(words);
        command.assert()
    };
    // A captured role that cannot log in is a result; one given as an option is an error.
    let done = replay(&[]).success();
    let messages = crate::support::text(&done.get_output().stderr);
    let note = "note: role no_login_here cannot log in to database shut_out: ";
    assert!(
        messages.starts_with(note) && messages.contains("is not permitted to log in"),
        "{messages}"
    );
    assert!(
        messages.contains("\nhint: sessions of no_login_here will fail (1 seen so far)"),
        "{messages}"
    );
    assert_eq!(fixture.value("select count(*) from t"), "1");
    for words in
        [["--map-user", "postgres=no_such_role_at_all"], ["--as-user", "no_such_role_at_all"]]
    {
        let refused = replay(&words).code(1);
        let messages = crate::support::text(&refused.get_output().stderr);
        assert!(
            messages.contains("role no_such_role_at_all cannot log in to database shut_out: "),
            "{messages}"
        );
        assert!(
            messages.contains("\nhint: ") && messages.contains(" need it: see --map-user"),
            "{messages}"
        );
    }
    assert_eq!(fixture.value("select count(*) from t"), "1");
}

#[test]
fn sessions_connect_to_captured_or_mapped_database() {
    let Some(fixture) = ReplayFixture::new("where_to") else { return };
    let log =
        log_of_two_roles(&fixture).replace("who_alice", "postgres").replace("who_bob", "postgres");
    let other = log.replace("@where_to", "@captured_here").replace("=where_to", "=captured_here");
    assert_ne!(log, other);
    for words in [["--map-database", "captured_here=where_to"], ["--as-database", "where_to"]] {
        fixture.client().query("truncate t").unwrap();
        fixture.replay(&other, &words).assert_all_done();
        assert_eq!(fixture.value("select count(*) from t where at = 'where_to'"), "2", "{words:?}");
    }
    // The target's database is only for howdah's own connection, not for sessions.
    let uri = fixture.cluster.uri("postgres");
    replay(fixture.folder.path(), "server.log", &uri, &["--as-database", "where_to"])
        .assert_all_done();
    // A missing captured database is a result, unless no session can log in at all.
    let mut command = fixture.howdah();
    let lost = command.args(["replay", "server.log", "--target", &uri]).assert().code(1);
    let messages = crate::support::text(&lost.get_output().stderr);
    assert!(
        messages.contains("note: database captured_here does not exist on the target"),
        "{messages}"
    );
    assert!(messages.contains("--map-database captured_here=NAME"), "{messages}");
    assert!(messages.contains("no session could log in to the target: database"), "{messages}");
    let both = format!("{log}{}", other.replace("[1]", "[11]").replace("[2]", "[12]"));
    let some = fixture.replay(&both, &[]);
    assert_eq!(some.report["errors"], serde_json::json!({ "3D000": 4 }));
}

#[test]
fn missing_mapped_database_is_reported_before_sending() {
    let Some(fixture) = ReplayFixture::new("no_such_place") else { return };
    let mut client = fixture.client();
    client.query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("no_such_place");
    log.session(1, &["insert into t values (1)"]);
    fixture.write("server.log", &log.text);
    for (words, hint) in [
        (["--as-database", "nosuch"], "hint: --as-database nosuch sends all sessions there"),
        (["--map-database", "no_such_place=nosuch"], "hint: --map-database no_such_place=nosuch"),
        (["--map-database", "crm=nosuch"], "hint: --map-database crm=nosuch"),
    ] {
        let mut command = fixture.howdah();
        command.args(["replay", "server.log", "--target", &fixture.uri()]).args(words);
        let messages = crate::support::text(&command.assert().code(1).get_output().stderr);
        assert!(messages.contains("database nosuch does not exist on the target: "), "{messages}");
        assert!(messages.contains(hint) && !messages.contains("map-user"), "{messages}");
    }
    assert_eq!(fixture.value("select count(*) from t"), "0");
}

#[test]
fn sessions_authenticate_with_scram_and_tls() {
    let built = howdah_lab::Cluster::builder().name("scram").password("s3cret, really").start();
    let Some(mut cluster) = skip_without_postgres("scram", built) else { return };
    let encrypted = "create function encrypted() returns bool language sql \
                     as 'select ssl from pg_stat_ssl where pid = pg_backend_pid()'";
    let mut client = connect(&cluster, "postgres");
    client.query(encrypted).unwrap();
    client.query("create table t (a int, encrypted bool default encrypted())").unwrap();
    drop(client);
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogBuilder::new("postgres");
    for pid in 1..=5 {
        log.session(pid, &["insert into t values (1)"]);
    }
    std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    let target = format!("host=127.0.0.1 port={} dbname=postgres user=postgres", cluster.port());
    let password = "password='s3cret, really'";
    replay(folder.path(), "server.log", &format!("{target} {password}"), &[]).assert_all_done();

    let pass = format!("127.0.0.1:{}:*:postgres:s3cret, really\n", cluster.port());
    let file = folder.path().join(".pgpass");
    std::fs::write(&file, pass).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    replay(folder.path(), "server.log", &target, &[]).assert_all_done();
    let count = |cluster: &howdah_lab::Cluster| {
        let sql = "select count(*) filter (where not encrypted) || ' plain, ' \
                   || count(*) filter (where encrypted) || ' encrypted' from t";
        connect(cluster, "postgres").one_value(sql).unwrap().unwrap()
    };
    assert_eq!(count(&cluster), "10 plain, 0 encrypted");

    if !enable_tls(&mut cluster) {
        return;
    }
    let demanding = format!("{target} {password} sslmode=require channel_binding=require");
    replay(folder.path(), "server.log", &demanding, &[]).assert_all_done();
    assert_eq!(count(&cluster), "10 plain, 5 encrypted");
}

#[test]
fn sessions_respect_require_auth_and_channel_binding() {
    let built = howdah_lab::Cluster::builder().name("proofs").password("s3cret").start();
    let Some(mut cluster) = skip_without_postgres("proofs", built) else { return };
    connect(&cluster, "postgres").query("create role trusted login").unwrap();
    let rules = cluster.data_dir().join("pg_hba.conf");
    let strict = std::fs::read_to_string(&rules).unwrap();
    let trust = "host all trusted 127.0.0.1/32 trust\n";
    std::fs::write(&rules, format!("{trust}{strict}")).unwrap();
    cluster.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut log = LogBuilder::new("postgres");
    log.session(1, &["select 1"]).user("trusted").session(2, &["select 2"]);
    std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    let replay = |cluster: &howdah_lab::Cluster, more: &str| {
        let target =
            format!("host=127.0.0.1 port={} user=postgres dbname=postgres", cluster.port());
        replay(folder.path(), "server.log", &format!("{target} password=s3cret {more}"), &[])
    };
    replay(&cluster, "").assert_all_done();

    // The server admits the second role without authenticating itself, so it could be an impostor.
    let refused = |replayed: &crate::support::FinishedReplay| {
        assert_eq!(replayed.report["executions"]["done"], 1, "{}", replayed.report);
        assert_eq!(replayed.report["errors"], serde_json::json!({ "08001": 2 }));
        assert!(replayed.with_disposition("failed").all(|outcome| &*outcome.user == "trusted"));
    };
    refused(&replay(&cluster, "require_auth=scram-sha-256"));
    if enable_tls(&mut cluster) {
        refused(&replay(&cluster, "sslmode=require channel_binding=require"));
        replay(&cluster, "sslmode=require channel_binding=disable").assert_all_done();
    }
}

/// Enables TLS with a new certificate; false if the test is skipped because `openssl` is missing.
pub(crate) fn enable_tls(cluster: &mut howdah_lab::Cluster) -> bool {
    use std::{
        fs,
        io::Write as _,
        os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::Command,
    };
    let folder = tempfile::tempdir().unwrap();
    let words = "req -x509 -days 30 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 \
                 -subj /CN=localhost -keyout server.key -out server.crt";
    let made = Command::new("openssl")
        .args(words.split_ascii_whitespace())
        .current_dir(folder.path())
        .output();
    let Ok(made) = made else {
        let _ = writeln!(std::io::stderr(), "SKIPPED replay by TLS: no openssl program found");
        return false;
    };
    assert!(made.status.success(), "{made:?}");
    let data = cluster.data_dir().to_owned();
    let owner = fs::metadata(&data).unwrap();
    for name in ["server.key", "server.crt"] {
        let file = data.join(name);
        fs::copy(folder.path().join(name), &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    connect(cluster, "postgres").query("alter system set ssl = on").unwrap();
    cluster.restart().unwrap();
    true
}

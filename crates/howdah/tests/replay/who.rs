//! As whom sessions log in, and to which database.

use howdah_lab::or_say_why_not;

use crate::{
    logs::Log,
    support::{Stage, connect, replay},
};

/// Two sessions of two roles, which each write down who they are.
fn two_roles(stage: &Stage) -> String {
    let mut client = stage.client();
    let columns = "who text default current_user, at text default current_database()";
    client.query(&format!("create table t ({columns})")).unwrap();
    client.query("grant insert on t to public").unwrap();
    let mut log = Log::new(&stage.database);
    let insert = ["insert into t default values"];
    log.user("who_alice").session(1, &insert).user("who_bob").session(2, &insert);
    log.text
}

#[test]
fn sessions_log_in_as_whom_they_were_captured_or_mapped() {
    let Some(stage) = Stage::new("who") else { return };
    let mut client = stage.client();
    for role in ["who_alice", "who_bob", "who_carol"] {
        client.query(&format!("create role {role} login")).unwrap();
    }
    let log = two_roles(&stage);
    let cases: [(&[&str], &str); 4] = [
        (&[], "who_alice who_bob"),
        (&["--map-user", "who_bob=who_carol"], "who_alice who_carol"),
        (&["--map-user", "who_alice=who_bob,who_bob=who_alice"], "who_alice who_bob"),
        (&["--as-user", "who_carol", "--map-user", "who_alice=who_bob"], "who_carol who_carol"),
    ];
    for (words, expected) in cases {
        client.query("truncate t").unwrap();
        stage.replay(&log, words).assert_all_done();
        let who = stage.value("select string_agg(who, ' ' order by who) from t");
        assert_eq!(who, expected, "{words:?}");
    }
}

#[test]
fn a_role_that_cannot_log_in_is_named_before_anything_is_sent() {
    let Some(stage) = Stage::new("shut_out") else { return };
    let mut client = stage.client();
    client.query("create table t (who text default current_user)").unwrap();
    client.query("create role no_login_here nologin").unwrap();
    let mut log = Log::new("shut_out");
    let insert = ["insert into t default values"];
    log.session(1, &insert).user("no_login_here").session(2, &insert);
    stage.write("server.log", &log.text);
    let replay = |words: &[&str]| {
        let mut command = crate::support::howdah(stage.folder.path());
        command.args(["replay", "server.log", "--target", &stage.uri()]).args(words);
        command.assert()
    };
    // One that the capture has is a result; one that was named for the replay is a mistake.
    let done = replay(&[]).success();
    let said = crate::support::text(&done.get_output().stderr);
    let note = "note: role no_login_here cannot log in to database shut_out: ";
    assert!(said.starts_with(note) && said.contains("is not permitted to log in"), "{said}");
    assert!(said.contains("\nhint: sessions of no_login_here will fail (1 seen so far)"), "{said}");
    assert_eq!(stage.value("select count(*) from t"), "1");
    for words in [["--map-user", "postgres=nobody_at_all"], ["--as-user", "nobody_at_all"]] {
        let refused = replay(&words).code(1);
        let said = crate::support::text(&refused.get_output().stderr);
        assert!(said.contains("role nobody_at_all cannot log in to database shut_out: "), "{said}");
        assert!(said.contains("\nhint: ") && said.contains(" need it: see --map-user"), "{said}");
    }
    assert_eq!(stage.value("select count(*) from t"), "1");
}

#[test]
fn sessions_connect_to_the_database_they_were_captured_in_or_mapped_to() {
    let Some(stage) = Stage::new("where_to") else { return };
    let log = two_roles(&stage).replace("who_alice", "postgres").replace("who_bob", "postgres");
    let other = log.replace("@where_to", "@captured_here").replace("=where_to", "=captured_here");
    assert_ne!(log, other);
    for words in [["--map-database", "captured_here=where_to"], ["--as-database", "where_to"]] {
        stage.client().query("truncate t").unwrap();
        stage.replay(&other, &words).assert_all_done();
        assert_eq!(stage.value("select count(*) from t where at = 'where_to'"), "2", "{words:?}");
    }
    // The target's own words say where howdah itself looks first, not where sessions go.
    let uri = stage.cluster.uri("postgres");
    replay(stage.folder.path(), "server.log", &uri, &["--as-database", "where_to"])
        .assert_all_done();
    // A database of the capture that is not there is a result, unless nobody gets in at all.
    let mut command = crate::support::howdah(stage.folder.path());
    let lost = command.args(["replay", "server.log", "--target", &uri]).assert().code(1);
    let said = crate::support::text(&lost.get_output().stderr);
    assert!(said.contains("note: database captured_here does not exist on the target"), "{said}");
    assert!(said.contains("--map-database captured_here=NAME"), "{said}");
    assert!(said.contains("no session could log in to the target: database"), "{said}");
    let both = format!("{log}{}", other.replace("[1]", "[11]").replace("[2]", "[12]"));
    let some = stage.replay(&both, &[]);
    assert_eq!(some.report["errors"], serde_json::json!({ "3D000": 4 }));
}

#[test]
fn named_database_that_does_not_exist_ends_the_command_before_anything_is_sent() {
    let Some(stage) = Stage::new("no_such_place") else { return };
    let mut client = stage.client();
    client.query("create table t (a int)").unwrap();
    let mut log = Log::new("no_such_place");
    log.session(1, &["insert into t values (1)"]);
    stage.write("server.log", &log.text);
    for (words, hint) in [
        (["--as-database", "nosuch"], "hint: --as-database nosuch sends all sessions there"),
        (["--map-database", "no_such_place=nosuch"], "hint: --map-database no_such_place=nosuch"),
        (["--map-database", "crm=nosuch"], "hint: --map-database crm=nosuch"),
    ] {
        let mut command = crate::support::howdah(stage.folder.path());
        command.args(["replay", "server.log", "--target", &stage.uri()]).args(words);
        let said = crate::support::text(&command.assert().code(1).get_output().stderr);
        assert!(said.contains("database nosuch does not exist on the target: "), "{said}");
        assert!(said.contains(hint) && !said.contains("map-user"), "{said}");
    }
    assert_eq!(stage.value("select count(*) from t"), "0");
}

#[test]
fn sessions_give_the_password_of_the_target_by_scram_and_by_tls() {
    let built = howdah_lab::Cluster::builder().name("scram").password("s3cret, really").start();
    let Some(mut cluster) = or_say_why_not("scram", built) else { return };
    let encrypted = "create function encrypted() returns bool language sql \
                     as 'select ssl from pg_stat_ssl where pid = pg_backend_pid()'";
    let mut client = connect(&cluster, "postgres");
    client.query(encrypted).unwrap();
    client.query("create table t (a int, encrypted bool default encrypted())").unwrap();
    drop(client);
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new("postgres");
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

    if !with_tls(&mut cluster) {
        return;
    }
    let demanding = format!("{target} {password} sslmode=require channel_binding=require");
    replay(folder.path(), "server.log", &demanding, &[]).assert_all_done();
    assert_eq!(count(&cluster), "10 plain, 5 encrypted");
}

#[test]
fn sessions_keep_to_the_proofs_that_the_target_allows() {
    let built = howdah_lab::Cluster::builder().name("proofs").password("s3cret").start();
    let Some(mut cluster) = or_say_why_not("proofs", built) else { return };
    connect(&cluster, "postgres").query("create role trusted login").unwrap();
    let rules = cluster.data_dir().join("pg_hba.conf");
    let strict = std::fs::read_to_string(&rules).unwrap();
    let trust = "host all trusted 127.0.0.1/32 trust\n";
    std::fs::write(&rules, format!("{trust}{strict}")).unwrap();
    cluster.restart().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new("postgres");
    log.session(1, &["select 1"]).user("trusted").session(2, &["select 2"]);
    std::fs::write(folder.path().join("server.log"), log.text).unwrap();
    let replay = |cluster: &howdah_lab::Cluster, more: &str| {
        let target =
            format!("host=127.0.0.1 port={} user=postgres dbname=postgres", cluster.port());
        replay(folder.path(), "server.log", &format!("{target} password=s3cret {more}"), &[])
    };
    replay(&cluster, "").assert_all_done();

    // The server lets the second role in without any proof, so anybody could be that server.
    let refused = |replayed: &crate::support::Replayed| {
        assert_eq!(replayed.report["executions"]["done"], 1, "{}", replayed.report);
        assert_eq!(replayed.report["errors"], serde_json::json!({ "08001": 2 }));
        assert!(replayed.ended("failed").all(|outcome| &*outcome.user == "trusted"));
    };
    refused(&replay(&cluster, "require_auth=scram-sha-256"));
    if with_tls(&mut cluster) {
        refused(&replay(&cluster, "sslmode=require channel_binding=require"));
        replay(&cluster, "sslmode=require channel_binding=disable").assert_all_done();
    }
}

/// Gives the server a certificate; false, after saying so, where there is no `openssl`.
pub(crate) fn with_tls(cluster: &mut howdah_lab::Cluster) -> bool {
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

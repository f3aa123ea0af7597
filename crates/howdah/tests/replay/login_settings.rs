//! `--set`: session parameters given at login.

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, text},
};

#[test]
fn sessions_start_with_settings_of_set_option() {
    let Some(fixture) = ReplayFixture::new("login_settings") else { return };
    let mut client = fixture.client();
    let objects = "create role set_app login superuser; create role set_web login superuser;
        create schema s1; create schema s2; create table s1.t (who text); create table s2.t (who text)";
    client.query(objects).unwrap();
    let mut log = LogBuilder::new("login_settings");
    // RESET ALL restores the values given at login.
    let insert = ["set search_path = nowhere", "reset all", "insert into t values (current_user)"];
    log.user("set_app").session(1, &insert).user("set_web").session(2, &insert);
    let rows = "select (select string_agg(who, ',' order by who) from s1.t) || ' ' ||
                       (select string_agg(who, ',' order by who) from s2.t)";
    let words =
        ["--set", "search_path=s1, public", "--set", "set_web@login_settings:search_path=s2"];
    fixture.replay(&log.text, &words).assert_all_done();
    assert_eq!(fixture.value(rows), "set_app set_web");

    // From the configuration file, from the environment, and through `options`.
    fixture.write(
        "howdah.toml",
        "[replay]\nset = [\"search_path=s1\", \"set_web@:search_path=s2\"]\n",
    );
    fixture.replay(&log.text, &[]).assert_all_done();
    assert_eq!(fixture.value(rows), "set_app,set_app set_web,set_web");
    let mut command = fixture.howdah();
    command.env(
        "HOWDAH_REPLAY_SET",
        "@login_settings:options=-csearch_path=s2;set_app@:work_mem=64MB",
    );
    command.args(["replay", "server.log", "--target", &fixture.uri()]).assert().success();
    assert_eq!(fixture.value(rows), "set_app,set_app set_app,set_web,set_web,set_web");
}

#[test]
fn invalid_settings_are_refused_before_sending() {
    let Some(fixture) = ReplayFixture::new("bad_settings") else { return };
    fixture.client().query("create table t (a int)").unwrap();
    let mut log = LogBuilder::new("bad_settings");
    log.session(1, &["insert into t values (1)"]);
    fixture.write("server.log", &log.text);
    for (setting, code, expected) in [
        ("serch_path=x", 1, "the target does not accept --set serch_path=x: "),
        ("work_mem=lots", 1, "the target does not accept --set work_mem=lots: "),
        ("work mem=1MB", 2, "its name is not a valid setting name"),
        ("app:work_mem=1MB", 2, "the text before the colon must be USER@"),
        ("user=bob", 2, "user, database and replication are not settings"),
    ] {
        let mut command = fixture.howdah();
        command.args(["replay", "server.log", "--target", &fixture.uri(), "--set", setting]);
        let messages = text(&command.assert().code(code).get_output().stderr);
        assert!(messages.contains(expected), "{setting}: {messages}");
    }
    assert_eq!(fixture.value("select count(*) from t"), "0");
}

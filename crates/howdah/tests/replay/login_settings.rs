//! `--set`: settings that sessions begin with.

use crate::{
    logs::Log,
    support::{Stage, howdah, text},
};

#[test]
fn sessions_begin_with_the_settings_they_are_given() {
    let Some(stage) = Stage::new("login_settings") else { return };
    let mut client = stage.client();
    let objects = "create role set_app login superuser; create role set_web login superuser;
        create schema s1; create schema s2; create table s1.t (who text); create table s2.t (who text)";
    client.query(objects).unwrap();
    let mut log = Log::new("login_settings");
    // What a session sets goes back to what it began with.
    let insert = ["set search_path = nowhere", "reset all", "insert into t values (current_user)"];
    log.user("set_app").session(1, &insert).user("set_web").session(2, &insert);
    let rows = "select (select string_agg(who, ',' order by who) from s1.t) || ' ' ||
                       (select string_agg(who, ',' order by who) from s2.t)";
    let words =
        ["--set", "search_path=s1, public", "--set", "set_web@login_settings:search_path=s2"];
    stage.replay(&log.text, &words).assert_all_done();
    assert_eq!(stage.value(rows), "set_app set_web");

    // From the configuration file and from the environment, and by `options`.
    stage.write(
        "howdah.toml",
        "[replay]\nset = [\"search_path=s1\", \"set_web@:search_path=s2\"]\n",
    );
    stage.replay(&log.text, &[]).assert_all_done();
    assert_eq!(stage.value(rows), "set_app,set_app set_web,set_web");
    let mut command = howdah(stage.folder.path());
    command.env(
        "HOWDAH_REPLAY_SET",
        "@login_settings:options=-csearch_path=s2;set_app@:work_mem=64MB",
    );
    command.args(["replay", "server.log", "--target", &stage.uri()]).assert().success();
    assert_eq!(stage.value(rows), "set_app,set_app set_app,set_web,set_web,set_web");
}

#[test]
fn settings_that_cannot_be_used_end_the_command_before_anything_is_sent() {
    let Some(stage) = Stage::new("bad_settings") else { return };
    stage.client().query("create table t (a int)").unwrap();
    let mut log = Log::new("bad_settings");
    log.session(1, &["insert into t values (1)"]);
    stage.write("server.log", &log.text);
    for (setting, code, expected) in [
        ("serch_path=x", 1, "the target does not accept --set serch_path=x: "),
        ("work_mem=lots", 1, "the target does not accept --set work_mem=lots: "),
        ("work mem=1MB", 2, "its name is not that of a setting"),
        ("app:work_mem=1MB", 2, "before the colon stands USER@"),
        ("user=bob", 2, "user, database and replication are not settings"),
    ] {
        let mut command = howdah(stage.folder.path());
        command.args(["replay", "server.log", "--target", &stage.uri(), "--set", setting]);
        let said = text(&command.assert().code(code).get_output().stderr);
        assert!(said.contains(expected), "{setting}: {said}");
    }
    assert_eq!(stage.value("select count(*) from t"), "0");
}

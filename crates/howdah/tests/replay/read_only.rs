//! `--read-only`: the replay writes nothing, whatever the capture contains.

use crate::{
    logs::LogBuilder,
    support::{ReplayFixture, text},
};

const OBJECTS: &str = "
create table victim (id int);
insert into victim values (1), (2);
create sequence sq;
create function wipe() returns tsquery language plpgsql as
    $$ begin delete from victim; return 'a'::tsquery; end $$;
create function zap(victim) returns int language sql as 'delete from victim; select 1';
create function wipe_two(int, int) returns bool language plpgsql as
    $$ begin delete from victim; return true; end $$;
create operator === (leftarg = int, rightarg = int, function = wipe_two);
create view trap as select wipe();
create type box_of as (a int);
create function to_box(victim) returns box_of language plpgsql as
    $$ begin delete from victim; return row(1)::box_of; end $$;
create cast (victim as box_of) with function to_box(victim);
create function lift() returns int language plpgsql as $$ begin
    perform set_config('default_transaction_read_only', 'off', false); return 1; end $$";

/// Writes that look like reads in the grammar: only the server can refuse them.
const DISGUISED: [&str; 6] = [
    "select v.zap from victim v limit 1",
    "select (v).zap from victim v limit 1",
    "select 1 === 2",
    "select * from trap",
    "select v::box_of from victim v",
    "select xmlelement(name x, (select v.zap from victim v limit 1))",
];

/// Statements that would allow transactions to write.
const UNDOING: [&str; 14] = [
    "begin read write",
    "start transaction read write",
    "begin; set transaction read write",
    "set session characteristics as transaction read write",
    "set default_transaction_read_only = off",
    "set default_transaction_read_only to default",
    "set local transaction_read_only = off",
    "begin; reset transaction_read_only",
    "begin; set local transaction_read_only to default",
    "reset all",
    "discard all",
    "reset default_transaction_read_only",
    "select set_config('default_transaction_read_only', 'off', false)",
    "begin; select set_config('transaction_' || 'read_only', 'off', true)",
];

/// Writes that the grammar recognizes.
const PLAIN: [&str; 6] = [
    "delete from victim",
    "select ts_rewrite('a'::tsquery, 'select ''a''::tsquery, public.wipe()')",
    "select nextval('sq')",
    "do $$ begin delete from victim; end $$",
    "select lift()",
    "copy victim to program 'cat > /dev/null'",
];

#[test]
fn read_only_replay_writes_nothing() {
    let Some(fixture) = ReplayFixture::new("walls") else { return };
    fixture.client().query(OBJECTS).unwrap();
    let mut log = LogBuilder::new("walls");
    let mut pid = 1;
    for undoing in UNDOING {
        for disguised in DISGUISED {
            log.session(pid, &[undoing, disguised, "commit", disguised]);
            log.disconnect(100, pid);
            pid += 1;
        }
    }
    log.session(pid, &PLAIN);
    log.disconnect(100, pid);
    fixture.write("server.log", &log.text);
    let mut command = fixture.howdah();
    let words = ["replay", "server.log", "--read-only", "--rate", "max", "--format", "json"];
    let done = command.args(words).args(["--target", &fixture.uri()]).assert().success();
    let report: serde_json::Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let messages = text(&done.get_output().stderr);

    assert_eq!(fixture.value("select count(*) from victim"), "2");
    assert_eq!(fixture.value("select is_called from sq"), "f");
    // 25006 read_only_sql_transaction.
    let disguised = UNDOING.len() * DISGUISED.len() * 2;
    let refused = report["errors"]["25006"].as_u64().unwrap();
    assert!(refused >= disguised as u64 / 2, "{report}");
    assert_eq!(report["errors"].as_object().unwrap().keys().collect::<Vec<_>>(), ["25006"]);
    let undoing = "left out, not read-only: let transactions write, such as BEGIN READ WRITE: 60";
    assert!(messages.contains(undoing), "{messages}");
    assert!(
        messages.contains("left out, not read-only: change data, schema or server: 2"),
        "{messages}"
    );

    // Without the option the same log does write.
    let replayed = fixture.replay(&log.text, &["--rate", "max"]);
    assert!(replayed.report["errors"]["25006"].is_null());
    assert_eq!(fixture.value("select count(*) from victim"), "0");
}

#[test]
fn read_only_overrides_role_setting_and_set_option() {
    let Some(fixture) = ReplayFixture::new("walls_role") else { return };
    let mut client = fixture.client();
    client.query("create role walls_writer login superuser").unwrap();
    client.query("alter role walls_writer set default_transaction_read_only = off").unwrap();
    let mut log = LogBuilder::new("walls_role");
    log.user("walls_writer")
        .session(1, &["select 1 / (current_setting('transaction_read_only') = 'on')::int"]);
    fixture.replay(&log.text, &["--read-only"]).assert_all_done();
    let mut command = fixture.howdah();
    command.args(["replay", "server.log", "--read-only", "--target", &fixture.uri()]);
    let refused = command.args(["--set", "DEFAULT_transaction_read_only=off"]).assert().code(2);
    let messages = text(&refused.get_output().stderr);
    assert!(messages.contains("cannot be used with --read-only"), "{messages}");
}

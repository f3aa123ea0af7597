//! Tests of the effects of statements.

use super::{Effect::*, *};
use crate::{FUNCTIONS_MAX, SessionEffects, StateKinds, UndetectableState};

fn effect(sql: &str) -> Effect {
    let one = classify(sql.as_bytes());
    // The cached result must equal the computed one.
    let mut classifier = EffectClassifier::default();
    assert_eq!(*classifier.classify(sql.as_bytes()), one, "{sql}");
    assert_eq!(*classifier.classify(sql.as_bytes()), one, "{sql}");
    one.effect
}

#[test]
fn reading_statements_are_read_only() {
    for sql in [
        "",
        "-- nothing",
        "select 1",
        "select count(*), max(x) over (order by lower(y)) from t join u using (id) where a = $1",
        "table t",
        "values (1), (2)",
        "with c as materialized (select now()) select * from c union all select pg_catalog.now()",
        "select coalesce(a, current_user, extract(year from b)), xmlelement(name x), '{}'::jsonb -> 'a'",
        "select generate_series(1, 10), (select array_agg(x order by x) from t)",
        "select set_config('search_path', 'a', false)",
        "begin isolation level serializable",
        "start transaction read only",
        "commit",
        "end",
        "rollback to savepoint s",
        "savepoint s",
        "release s",
        "set search_path = a, b",
        "set local work_mem = '1GB'",
        "set role bob",
        "reset all",
        "show all",
        "discard all",
        "set constraints all deferred",
        "explain delete from t",
        "explain (analyze false, verbose) delete from t",
        "explain (analyze 0) delete from t",
        "explain (analyze 'off') delete from t",
        "explain analyze select 1",
        "copy t to stdout",
        "copy (select * from t) to stdout (format csv)",
        "lock table t in access share mode",
        "begin; select 1; commit",
        "select 'insert into t values (1)'",
        "select caf\u{fffd} from t",
    ] {
        assert_eq!(effect(sql), ReadOnly, "{sql}");
    }
}

#[test]
fn writing_statements_write() {
    for sql in [
        "insert into t values (1)",
        "update t set a = 1",
        "delete from t",
        "merge into t using u on t.id = u.id when matched then delete",
        "select * into u from t",
        "with d as (delete from t returning *) select * from d",
        "select * from (with i as (insert into t default values returning *) select * from i) x",
        "explain analyze insert into t values (1)",
        "explain (analyze) with d as (delete from t returning 1) select 1",
        "explain (analyze true, analyze false, analyze 1) delete from t",
        "explain analyze create table u as select 1",
        "copy t from stdin",
        "copy t to '/tmp/t'",
        "copy t to program 'cat'",
        "copy (delete from t returning *) to stdout",
        "create table u as select 1",
        "create temp table u (a int)",
        "truncate t",
        "vacuum t",
        "notify c",
        "listen c",
        "alter system set work_mem = '1GB'",
        "prepare transaction 'x'",
        "commit prepared 'x'",
        "begin; delete from t; commit",
        "select 1; drop table t",
        "drop function f(int)",
        "drop rule r on t",
        "prepare p as delete from t",
        "refresh materialized view v",
        "grant select on t to bob",
    ] {
        assert_eq!(effect(sql), Writes, "{sql}");
    }
}

#[test]
fn locking_unknown_and_unreadable_statements_are_classified() {
    for sql in [
        "select * from t for update",
        "select * from (select * from t for share skip locked) x",
        "lock table t",
        "declare c cursor for select * from t for no key update",
    ] {
        assert_eq!(effect(sql), Locks, "{sql}");
    }
    for sql in [
        "select f(1)",
        "select nextval('s')",
        "select pg_advisory_lock(1)",
        "select app.lower('A')",
        "select * from t where a = any (select dblink_exec('', ''))",
        "select * from t order by f(a)",
        "select count(*) filter (where f(a)) from t",
        "select sum(a) over (partition by f(b)) from t",
        "select * from f(1) with ordinality, rows from (now()) r",
        "select 1 limit f()",
        "select json_object('a': f())",
        "select (array[1])[f()]",
        "select case when f() then 1 end",
        "execute p(f())",
        "explain analyze select txid_current()",
        "select query_to_xml('delete from t', true, true, '')",
        "select table_to_xml('t', true, true, '')",
        "select cursor_to_xml('c', 1, true, true, '')",
        "select ts_rewrite('a'::tsquery, 'select ''a''::tsquery, public.wipe()')",
        "select * from ts_stat('select wipe()')",
        "select dblink_exec('delete from t')",
        "call p()",
        "do $$ begin end $$",
    ] {
        assert_eq!(effect(sql), UnknownFunction, "{sql}");
    }
    assert_eq!(effect("selekt 1"), Unreadable);
    assert_eq!(effect("select 'cut"), Unreadable);
    assert_eq!(effect("select 1\0"), Unreadable);
    assert_eq!(effect(&format!("select {}1{}", "(".repeat(99), ")".repeat(99))), ReadOnly);
    assert_eq!(effect(&format!("select {}1{}", "(".repeat(99999), ")".repeat(99999))), Unreadable);
    assert_eq!(effect(&format!("select {}true", "not ".repeat(300))), Unreadable);
}

#[test]
fn session_names_are_reported_in_order() {
    let statement = |text: &str| SessionObject { kind: NameKind::Statement, name: text.into() };
    let cursor = |text: &str| SessionObject { kind: NameKind::Cursor, name: text.into() };
    let text = b"prepare P as select 1; execute \"P\"; deallocate p; declare c cursor for select 1;
                 fetch 5 from c; close c; discard all; explain execute q";
    let expected = [
        NameUse::Creates(statement("p")),
        NameUse::Uses(statement("P")),
        NameUse::Drops(statement("p")),
        NameUse::Creates(cursor("c")),
        NameUse::Uses(cursor("c")),
        NameUse::Drops(cursor("c")),
        NameUse::DropsAll(NameKind::Statement),
        NameUse::DropsAll(NameKind::Cursor),
        NameUse::Uses(statement("q")),
    ];
    let judgement = classify(text);
    assert_eq!((judgement.effect, &judgement.names[..]), (ReadOnly, &expected[..]));
    assert_eq!(classify(b"deallocate all").names, [NameUse::DropsAll(NameKind::Statement)]);
}

#[test]
fn unterminated_text_is_not_confused_with_complete_text() {
    let mut classifier = EffectClassifier::default();
    for (whole, cut) in [
        ("select 1::text, 2", "select 1::text, $$"),
        ("select 'a'", "select 'a"),
        ("select 1", "select 1 /* and"),
        ("select \"a\"", "select \"a"),
    ] {
        assert_eq!(classifier.classify(whole.as_bytes()).effect, ReadOnly, "{whole}");
        assert_eq!(classifier.classify(cut.as_bytes()).effect, Unreadable, "{cut}");
        assert_eq!(classifier.classify(whole.as_bytes()).effect, ReadOnly, "{whole}");
    }
}

#[test]
fn text_rejected_by_scanner_is_unreadable() {
    let mut classifier = EffectClassifier::default();
    for (two, one) in [
        ("select 1 from t--", "select 1from t--"),
        ("select $1 from t", "select $1from t"),
        ("select 1 x'ff'", "select 1x'ff'"),
        ("select 1 from t--", "select 1 from t--\0"),
        ("select 1 \u{e9}", "select 1\u{e9}"),
    ] {
        for _ in 0..2 {
            assert_eq!(
                classifier.classify(two.as_bytes()),
                classify(two.as_bytes()).into(),
                "{two}"
            );
            assert_eq!(
                classifier.classify(one.as_bytes()),
                classify(one.as_bytes()).into(),
                "{one}"
            );
        }
    }
}

#[test]
fn explain_options_are_part_of_cache_key() {
    let mut classifier = EffectClassifier::default();
    assert_eq!(classifier.classify(b"explain (analyze 0) delete from t").effect, ReadOnly);
    assert_eq!(classifier.classify(b"explain (analyze 1) delete from t").effect, Writes);
}

#[test]
fn functions_requiring_primary_are_not_read_only() {
    for call in [
        "pg_current_wal_lsn()",
        "pg_current_wal_insert_lsn()",
        "pg_current_wal_flush_lsn()",
        "pg_walfile_name('0/1000000')",
        "pg_walfile_name_offset('0/1000000')",
        "pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')",
        "pg_catalog.pg_current_wal_lsn()",
        "currval('s')",
        "lastval()",
        "nextval('s')",
        "txid_current()",
        "pg_current_xact_id()",
        "pg_switch_wal()",
        "pg_create_restore_point('a')",
        "pg_export_snapshot()",
        "pg_advisory_lock(1)",
        "pg_replication_origin_oid('a')",
    ] {
        assert_ne!(effect(&format!("select {call}")), ReadOnly, "{call}");
    }
    for call in ["pg_last_wal_replay_lsn()", "pg_is_in_recovery()", "txid_current_if_assigned()"] {
        assert_eq!(effect(&format!("select {call}")), ReadOnly, "{call}");
    }
}

#[test]
fn statements_enabling_writes_are_detected() {
    for sql in [
        "begin read write",
        "start transaction isolation level serializable, read write",
        "set transaction read write",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "set local transaction_read_only = off",
        "set transaction_read_only to 'f'",
        "set session default_transaction_read_only = 0",
        "set \"DEFAULT_TRANSACTION_READ_ONLY\" = 'off'",
        "set u&\"default\\005ftransaction_read\\005fonly\" = 'off'",
        "reset transaction_read_only",
        "set transaction_read_only to default",
        "select set_config('transaction_read_only', 'off', true)",
        "select pg_catalog.set_config('Default_Transaction_Read_Only'::text, 'off', false)",
        "select set_config(new_value => 'off', setting_name => 'transaction_read_only', is_local => true)",
        "select set_config($1, 'off', false)",
        "select set_config('transaction_' || 'read_only', 'off', false)",
        "select u&\"set\\005fconfig\"('transaction_read_only', 'off', false)",
        "prepare p as select set_config($1, $2, false)",
        "select 1; begin; set transaction read/**/write",
        "with c as (select set_config('transaction_read_only', 'off', false)) select * from c",
    ] {
        assert!(classify(sql.as_bytes()).allows_writes, "{sql}");
    }
    for sql in [
        "begin",
        "begin read only",
        "set transaction read only",
        "set default_transaction_read_only = on",
        "set default_transaction_read_only to default",
        "reset default_transaction_read_only",
        "reset all",
        "discard all",
        "show transaction_read_only",
        "select read, write from t",
        "select set_config('search_path', $1, true)",
        "select current_setting('transaction_read_only')",
        "set role bob",
    ] {
        assert!(!classify(sql.as_bytes()).allows_writes, "{sql}");
    }
}

#[test]
fn read_only_setting_value_is_not_cached_by_shape() {
    let mut classifier = EffectClassifier::default();
    for (on, off) in [
        ("set default_transaction_read_only = 'on'", "set default_transaction_read_only = 'off'"),
        (
            "select set_config('a', 'b', false)",
            "select set_config('transaction_read_only', 'b', false)",
        ),
    ] {
        assert!(!classifier.classify(on.as_bytes()).allows_writes, "{on}");
        assert!(classifier.classify(off.as_bytes()).allows_writes, "{off}");
    }
}

/// Describes the effects of a text on its session, for comparison.
fn session(sql: &str) -> String {
    let effects = session_effects(sql.as_bytes());
    let kinds = |kinds: StateKinds| {
        let names = [
            (StateKinds::TEMPORARY, "temporary"),
            (StateKinds::LOCKS, "locks"),
            (StateKinds::CURSORS, "cursors"),
            (StateKinds::PREPARED, "prepared"),
            (StateKinds::CHANNELS, "channels"),
            (StateKinds::SETTINGS, "settings"),
            (StateKinds::AUTHORIZATION, "authorization"),
        ];
        let names = names.iter().filter(|(kind, _)| kinds.intersects(*kind));
        names.map(|(_, name)| (*name).to_owned()).collect::<Vec<_>>()
    };
    let mut parts = kinds(effects.leaves);
    parts.extend(kinds(effects.removes).iter().map(|kind| format!("-{kind}")));
    parts.extend(effects.settings.iter().map(|name| format!("set {name}")));
    parts.extend(effects.undetectable.iter().map(ToString::to_string));
    parts.extend(effects.functions.iter().map(|name| format!("{name}()")));
    parts.join(" ")
}

#[test]
fn session_effects_are_recognized() {
    for (sql, expected) in [
        ("select 1", ""),
        ("insert into t values (nextval('s'), now()) returning id", ""),
        ("begin; update t set a = 1; commit", ""),
        ("create temp table x (a int)", "temporary"),
        ("create local temporary table x on commit drop as select 1", "temporary"),
        ("select 1 as a into temp x", "temporary"),
        ("create temp view v as select app.f()", "temporary"),
        ("create temporary sequence s", "temporary"),
        ("create table pg_temp.x ()", "temporary"),
        ("create function pg_temp.f() returns int language sql as 'select 1'", "temporary"),
        ("drop table x", "-temporary"),
        ("discard temp", "-temporary"),
        ("select pg_advisory_lock(1)", "locks"),
        ("select * from t where pg_catalog.pg_try_advisory_lock_shared(id)", "locks"),
        ("with l as (select pg_try_advisory_lock(1)) insert into t select * from l", "locks"),
        ("select pg_advisory_xact_lock(1), pg_try_advisory_xact_lock(2)", ""),
        ("select pg_advisory_unlock(1)", "-locks"),
        ("declare c cursor with hold for select 1", "cursors"),
        ("declare c cursor for select 1", ""),
        ("declare c scroll cursor without hold for select 1", ""),
        ("close c", "-cursors"),
        ("prepare p as select f($1)", "prepared f()"),
        ("execute p(1)", "locks settings"),
        ("deallocate p", "-prepared"),
        ("listen c", "channels"),
        ("unlisten *", "-channels"),
        ("notify c", ""),
        ("set work_mem = '1MB'", "set work_mem"),
        ("set session Search_Path to a, b", "set search_path"),
        ("set local work_mem = '1MB'", ""),
        ("set time zone 'UTC'", "set timezone"),
        ("set names 'UTF8'", "set client_encoding"),
        ("set role bob", "set role"),
        ("set app.tenant = '5'", "set app.tenant"),
        ("set session authorization bob", "authorization"),
        ("reset session authorization", "-authorization"),
        ("set transaction read only", ""),
        (
            "set session characteristics as transaction isolation level serializable",
            "set default_transaction_isolation set default_transaction_read_only \
             set default_transaction_deferrable",
        ),
        ("reset work_mem", "-settings"),
        ("set work_mem to default", "-settings"),
        ("reset all", "-settings"),
        ("set seed to 0.5", "random seed"),
        ("select setseed(0.5)", "random seed"),
        ("select set_config('a.b', $1, false)", "set a.b"),
        ("select set_config('a.b', $1, true)", ""),
        ("select set_config('a.b', $1, $2)", "set a.b"),
        ("select set_config(setting_name => 'a.b', new_value => 'c', is_local => true)", ""),
        (
            "select set_config(is_local => false, setting_name => 'a.b', new_value => 'c')",
            "set a.b",
        ),
        ("select set_config($1, $2, false)", "settings set_config without a constant name"),
        ("select set_config($1, $2, true)", ""),
        ("load 'auto_explain'", "LOAD"),
        ("do $$begin end$$", "do()"),
        ("call app.p(now())", "app.p()"),
        ("select app.f(g(1)), lower('a'), count(*), app.f(2)", "app.f() g()"),
        ("create function f() returns int language sql as 'select g()'", ""),
        ("create table t (id uuid default f())", ""),
        ("alter table t add column a int default f()", "f()"),
        ("select uuid_generate_v4(), public.gen_salt('bf')", ""),
        ("select pg_backup_start('b')", "base backup"),
        ("select pg_create_physical_replication_slot('a', true, true)", "replication slot"),
        ("select pg_create_physical_replication_slot('a')", ""),
        ("select pg_replication_origin_session_setup('o')", "replication origin"),
        ("select query_to_xml('select f()', true, false, '')", "SQL in a value"),
        ("copy (select pg_advisory_lock(1)) to stdout", "locks"),
        ("explain analyze select pg_advisory_lock(1)", "locks"),
        ("set a.b = 1; create temp table x (); select f()", "temporary set a.b f()"),
        ("discard all", "-temporary -locks -cursors -prepared -channels -settings -authorization"),
        ("vacuum t", ""),
        ("savepoint s", ""),
    ] {
        assert_eq!(session(sql), expected, "{sql}");
    }
    assert_eq!(session_effects(b"selec 1"), SessionEffects::unknown());
    assert!(session_effects(b"select lastval()").reads_sequence_state);
    assert!(session_effects(b"select currval('s')").reads_sequence_state);
    let many: Vec<String> = (0..FUNCTIONS_MAX + 3).map(|n| format!("f{n}()")).collect();
    let effects = session_effects(format!("select {}", many.join(", ")).as_bytes());
    assert_eq!(effects.functions.len(), FUNCTIONS_MAX);
    assert_eq!(effects.undetectable, [UndetectableState::ManyFunctions]);
}

//! Tests of the effects of statements.

use super::{Effect::*, *};

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

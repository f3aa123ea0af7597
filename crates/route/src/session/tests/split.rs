//! Who may go to a replica.

use super::*;

#[test]
fn what_is_sure_to_only_read_may_go_to_a_replica() {
    let mut client = Client::new(auto());
    for sql in [
        "",
        ";",
        "select 1",
        "SELECT * FROM t WHERE id = 5 -- all",
        "(select 1) union all select 2",
        "table t",
        "values (1), (2)",
        "with c as (select now()) select * from c",
        "select count(*), max(x) from t group by y having max(x) > 1",
        "select lower(a), random() from t",
        "copy t to stdout",
        "copy (select 1) to stdout",
        "explain delete from t",
        "explain analyze select 1",
        "begin read only",
        "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        "begin read only; select 1",
        "select 1; select 2",
        "select 'delete from t', ';'",
    ] {
        assert_eq!(client.role(sql), Replica, "{sql}");
    }
}

#[test]
fn everything_else_goes_to_the_primary() {
    let mut client = Client::new(auto());
    for (sql, why) in [
        ("insert into t values (1)", Cause::Writes),
        ("update t set a = 1", Cause::Writes),
        ("delete from t", Cause::Writes),
        ("merge into t using u on t.id = u.id when matched then delete", Cause::Writes),
        ("select * into u from t", Cause::Writes),
        ("with d as (delete from t returning *) select * from d", Cause::Writes),
        ("explain analyze insert into t values (1)", Cause::Writes),
        ("explain (analyze 1) delete from t", Cause::Writes),
        ("copy t from stdin", Cause::Writes),
        ("create temp table u (a int)", Cause::Writes),
        ("truncate t", Cause::Writes),
        ("vacuum t", Cause::Writes),
        ("notify c", Cause::Writes),
        ("prepare transaction 'x'", Cause::Transaction),
        ("select 1; drop table t", Cause::Writes),
        ("select * from t for update", Cause::Locks),
        ("select * from (select * from t for share) x", Cause::Locks),
        ("lock table t in access share mode", Cause::Locks),
        ("select f(1)", Cause::Function),
        ("select nextval('s')", Cause::Function),
        ("select pg_advisory_lock(1)", Cause::Function),
        ("select app.lower('A')", Cause::Function),
        ("call p()", Cause::Function),
        ("do $$ begin end $$", Cause::Function),
        ("begin", Cause::Transaction),
        ("begin read write", Cause::Transaction),
        ("begin read only, read write", Cause::Transaction),
        ("begin isolation level serializable read only", Cause::Transaction),
        ("begin read only; commit; begin", Cause::Transaction),
        ("commit", Cause::Transaction),
        ("set search_path = a", Cause::Session),
        ("set local work_mem = '1MB'; select 1", Cause::Session),
        ("show transaction_read_only", Cause::Session),
        ("discard all", Cause::Session),
        ("prepare p as select 1", Cause::Session),
        ("execute p", Cause::Session),
        ("explain execute p", Cause::Session),
        ("declare c cursor for select 1", Cause::Session),
        ("listen c", Cause::Session),
        ("unlisten *", Cause::Session),
        ("select * from pg_temp.t", Cause::Temporary),
        ("select pg_temp.f()", Cause::Function),
        ("selekt 1", Cause::Unreadable),
        ("select 'a", Cause::Unreadable),
        ("select 1\0", Cause::Unreadable),
    ] {
        let route = client.route(sql).expect("there is one shard");
        assert_eq!((route.role, route.why), (Primary, Some(why)), "{sql}");
    }
    let long = format!("select '{}'", "x".repeat(70_000));
    assert_eq!(client.route(&long).expect("a route").why, Some(Cause::Unreadable));
}

#[test]
fn texts_of_one_skeleton_share_what_was_found_and_others_do_not() {
    let mut client = Client::new(auto());
    for (reads, writes) in [
        ("explain (analyze 0) delete from t", "explain (analyze 1) delete from t"),
        (
            "select 1; explain (analyze 0) delete from t",
            "select 1; explain (analyze 1) delete from t",
        ),
        ("select 'a' from t", "select 'a from t"),
        ("select \"a\"", "select \"a"),
        ("select 1 /* a */", "select 1 /* a"),
        ("select 1 from t", "select 1from t"),
    ] {
        for _ in 0..2 {
            assert_eq!(client.role(reads), Replica, "{reads}");
            assert_eq!(client.role(writes), Primary, "{writes}");
        }
    }
}

#[test]
fn functions_are_what_the_settings_say() {
    let reading = vec!["total".to_owned(), "app.price".to_owned()];
    let writing = vec!["random".to_owned(), "pg_catalog.lower".to_owned()];
    let mut client =
        Client::new(Settings { functions: crate::Functions { reading, writing }, ..auto() });
    for (sql, role) in [
        ("select total(1), any_schema.total(2)", Replica),
        ("select app.price(1)", Replica),
        ("select price(1)", Primary),
        ("select other.price(1)", Primary),
        ("select random()", Primary),
        ("select pg_catalog.lower('A')", Primary),
        ("select upper('a')", Replica),
    ] {
        assert_eq!(client.role(sql), role, "{sql}");
    }
}

#[test]
fn wishes_and_hints_come_before_what_a_statement_is() {
    let mut client = Client::new(Settings { hints: Some(HintNames::default()), ..auto() });
    let role = |client: &mut Client, sql: &str| client.role(sql);
    assert_eq!(role(&mut client, "/* role: primary */ select 1"), Primary);
    assert_eq!(role(&mut client, "delete from t /* role: replica */"), Replica);
    assert!(client.answer("SET PRIMARY READS TO 'on'").is_ok());
    assert_eq!(role(&mut client, "select 1"), Role::Any);
    assert!(client.answer("SET SERVER ROLE TO 'any'").is_ok());
    assert_eq!(role(&mut client, "delete from t"), Role::Any);
    assert_eq!(role(&mut client, "/* role: auto */ delete from t"), Primary);
    assert!(client.answer("SET SERVER ROLE TO 'replica'").is_ok());
    assert_eq!(role(&mut client, "delete from t"), Replica);
    let refusal = client.route("/* role: leader */ select 1").expect_err("there is none");
    assert_eq!(refusal.sqlstate(), *b"22023");
}

#[test]
fn temporary_tables_keep_reads_on_the_primary_until_they_are_discarded() {
    let mut client = Client::new(auto());
    assert_eq!(client.role("select * from t"), Replica);
    for (makes, forgets) in [
        ("create temp table t (a int)", "discard temp"),
        ("create temporary view v as select 1", "discard all"),
        ("select 1 as a into temp t", "discard all"),
        ("create temp table t as select 1", "discard temporary"),
    ] {
        client.role(makes);
        let route = client.route("select * from t").expect("one shard");
        assert_eq!((route.role, route.why), (Primary, Some(Cause::Temporary)), "{makes}");
        client.role(forgets);
        assert_eq!(client.role("select * from t"), Replica, "{makes}");
    }
}

#[test]
fn texts_that_the_server_reads_otherwise_write() {
    let mut client = Client::new(auto());
    assert_eq!(client.role("select '\\'"), Replica);
    client.session.parameter_status(b"standard_conforming_strings", b"off");
    // There it is `'\'; delete from t; --'`, one string.
    assert_eq!(client.role("select '\\'; delete from t; --'"), Primary);
    assert_eq!(client.role("select '\\''"), Primary);
    assert_eq!(client.role("select 1"), Replica);
}

//! Tests of read/write splitting: statements that may go to a replica.

use super::*;

#[test]
fn read_only_statements_go_to_replica() {
    let mut client = RoutedClient::new(auto());
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
fn other_statements_go_to_primary_with_reason() {
    let mut client = RoutedClient::new(auto());
    for (sql, why) in [
        ("insert into t values (1)", PrimaryReason::Writes),
        ("update t set a = 1", PrimaryReason::Writes),
        ("delete from t", PrimaryReason::Writes),
        ("merge into t using u on t.id = u.id when matched then delete", PrimaryReason::Writes),
        ("select * into u from t", PrimaryReason::Writes),
        ("with d as (delete from t returning *) select * from d", PrimaryReason::Writes),
        ("explain analyze insert into t values (1)", PrimaryReason::Writes),
        ("explain (analyze 1) delete from t", PrimaryReason::Writes),
        ("copy t from stdin", PrimaryReason::Writes),
        ("create temp table u (a int)", PrimaryReason::Writes),
        ("truncate t", PrimaryReason::Writes),
        ("vacuum t", PrimaryReason::Writes),
        ("notify c", PrimaryReason::Writes),
        ("prepare transaction 'x'", PrimaryReason::Transaction),
        ("select 1; drop table t", PrimaryReason::Writes),
        ("select * from t for update", PrimaryReason::Locks),
        ("select * from (select * from t for share) x", PrimaryReason::Locks),
        ("lock table t in access share mode", PrimaryReason::Locks),
        ("select f(1)", PrimaryReason::Function),
        ("select nextval('s')", PrimaryReason::Function),
        ("select pg_advisory_lock(1)", PrimaryReason::Function),
        ("select app.lower('A')", PrimaryReason::Function),
        ("call p()", PrimaryReason::Function),
        ("do $$ begin end $$", PrimaryReason::Function),
        ("begin", PrimaryReason::Transaction),
        ("begin read write", PrimaryReason::Transaction),
        ("begin read only, read write", PrimaryReason::Transaction),
        ("begin isolation level serializable read only", PrimaryReason::Transaction),
        ("begin read only; commit; begin", PrimaryReason::Transaction),
        ("commit", PrimaryReason::Transaction),
        ("set search_path = a", PrimaryReason::Session),
        ("set local work_mem = '1MB'; select 1", PrimaryReason::Session),
        ("show transaction_read_only", PrimaryReason::Session),
        ("discard all", PrimaryReason::Session),
        ("prepare p as select 1", PrimaryReason::Session),
        ("execute p", PrimaryReason::Session),
        ("explain execute p", PrimaryReason::Session),
        ("declare c cursor for select 1", PrimaryReason::Session),
        ("listen c", PrimaryReason::Session),
        ("unlisten *", PrimaryReason::Session),
        ("select * from pg_temp.t", PrimaryReason::Temporary),
        ("select pg_temp.f()", PrimaryReason::Function),
        ("selekt 1", PrimaryReason::Unreadable),
        ("select 'a", PrimaryReason::Unreadable),
        ("select 1\0", PrimaryReason::Unreadable),
    ] {
        let route = client.route(sql).expect("there is one shard");
        assert_eq!((route.role, route.primary_reason), (Primary, Some(why)), "{sql}");
    }
    let long = format!("select '{}'", "x".repeat(70_000));
    assert_eq!(
        client.route(&long).expect("a route").primary_reason,
        Some(PrimaryReason::Unreadable)
    );
}

#[test]
fn texts_differing_beyond_constants_do_not_share_plans() {
    let mut client = RoutedClient::new(auto());
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
fn function_lists_override_defaults() {
    let reading = vec!["total".to_owned(), "app.price".to_owned()];
    let writing = vec!["random".to_owned(), "pg_catalog.lower".to_owned()];
    let mut client = RoutedClient::new(RouteSettings {
        functions: crate::FunctionLists { read_only: reading, writing },
        ..auto()
    });
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
fn role_commands_and_hints_override_statement_analysis() {
    let mut client =
        RoutedClient::new(RouteSettings { hints: Some(HintNames::default()), ..auto() });
    let role = |client: &mut RoutedClient, sql: &str| client.role(sql);
    assert_eq!(role(&mut client, "/* role: primary */ select 1"), Primary);
    assert_eq!(role(&mut client, "delete from t /* role: replica */"), Replica);
    assert!(client.reply("SET PRIMARY READS TO 'on'").is_ok());
    assert_eq!(role(&mut client, "select 1"), RouteRole::Any);
    assert!(client.reply("SET SERVER ROLE TO 'any'").is_ok());
    assert_eq!(role(&mut client, "delete from t"), RouteRole::Any);
    assert_eq!(role(&mut client, "/* role: auto */ delete from t"), Primary);
    assert!(client.reply("SET SERVER ROLE TO 'replica'").is_ok());
    assert_eq!(role(&mut client, "delete from t"), Replica);
    let refusal = client.route("/* role: leader */ select 1").expect_err("there is none");
    assert_eq!(refusal.sqlstate(), *b"22023");
}

#[test]
fn temporary_tables_pin_reads_to_primary_until_discarded() {
    let mut client = RoutedClient::new(auto());
    assert_eq!(client.role("select * from t"), Replica);
    for (makes, forgets) in [
        ("create temp table t (a int)", "discard temp"),
        ("create temporary view v as select 1", "discard all"),
        ("select 1 as a into temp t", "discard all"),
        ("create temp table t as select 1", "discard temporary"),
    ] {
        client.role(makes);
        let route = client.route("select * from t").expect("one shard");
        assert_eq!(
            (route.role, route.primary_reason),
            (Primary, Some(PrimaryReason::Temporary)),
            "{makes}"
        );
        client.role(forgets);
        assert_eq!(client.role("select * from t"), Replica, "{makes}");
    }
}

#[test]
fn text_lexed_differently_by_server_counts_as_write() {
    let mut client = RoutedClient::new(auto());
    assert_eq!(client.role("select '\\'"), Replica);
    client.session.parameter_status(b"standard_conforming_strings", b"off");
    // With standard_conforming_strings off, everything after `select` is one string constant.
    assert_eq!(client.role("select '\\'; delete from t; --'"), Primary);
    assert_eq!(client.role("select '\\''"), Primary);
    assert_eq!(client.role("select 1"), Replica);
}

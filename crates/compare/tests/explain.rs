//! Explains plans of a real server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails, helpers included")]

use howdah_compare::{
    CompareSettings, Comparison, RunInfo, Samples, compare,
    explain::{Examples, ExplainError, explain},
};
use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_dataset::{Disposition, ReplayOutcome, StatementInfo};
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_traffic::{Kind, Parameter, Timestamp};

fn target(cluster: &Cluster, database: &str) -> ConnectTarget {
    let params = ConnParams::from_conninfo(cluster.uri(database));
    ConnectTarget::resolve(&params, &Environment::empty()).unwrap()
}

/// Two databases, `before` and `after`: the second lacks an index.
fn cluster() -> Option<Cluster> {
    let started = Cluster::builder().setting("autovacuum", "off").start();
    let cluster = skip_without_postgres("explain", started)?;
    let mut admin = Client::connect(&target(&cluster, "postgres")).unwrap();
    for (database, index) in
        [("before", "create index orders_customer_idx on orders (customer)"), ("after", "select 1")]
    {
        admin.query(&format!("create database {database}")).unwrap();
        let mut client = Client::connect(&target(&cluster, database)).unwrap();
        for sql in [
            "create table orders as select n as id, n % 5000 as customer, n as total \
             from generate_series(1, 50000) n",
            index,
            "analyze orders",
        ] {
            client.query(sql).unwrap();
        }
    }
    Some(cluster)
}

fn outcome(query: u64, number: i64, service_us: u64) -> ReplayOutcome {
    ReplayOutcome {
        time: Timestamp::from_micros(number),
        session: "a".into(),
        user: "app".into(),
        database: "shop".into(),
        kind: Kind::Execute,
        fingerprint: Some(query),
        due_us: number,
        sent_us: Some(number),
        service_us: Some(service_us + number.unsigned_abs()),
        schedule_error_us: Some(0),
        dependency_lag_us: None,
        input_late_us: None,
        rows: Some(1),
        disposition: Disposition::Done,
        captured_us: None,
        order_wait_us: None,
        captured_rows: None,
        check: None,
    }
}

/// A comparison in which the queries 1 to `queries` got ten times slower, and as many others did
/// not: if nearly all had, the machine could be the cause.
fn slower(queries: u64) -> Comparison {
    const OTHERS: u64 = 100;
    let samples = |service_us| {
        let mut samples = Samples::new(RunInfo::default());
        for query in 1..=queries {
            (0..50).for_each(|number| {
                samples.record(&outcome(query, number, service_us));
                samples.record(&outcome(OTHERS + query, number, 1_000));
            });
        }
        samples
    };
    let comparison = compare(&samples(1_000), &samples(10_000), None, &CompareSettings::default());
    assert_eq!(comparison.slower().count() as u64, queries);
    comparison
}

fn example(fingerprint: u64, sql: &str, parameters: Option<Vec<Parameter>>) -> StatementInfo {
    StatementInfo {
        fingerprint,
        query: String::new(),
        example_sql: sql.into(),
        example_parameters: parameters,
        user: "app".into(),
        // Neither target is connected to this database: sessions were mapped to theirs.
        database: "shop".into(),
    }
}

fn because(comparison: &Comparison, query: u64) -> &str {
    let mut queries = comparison.queries.iter();
    let found = queries.find(|found| found.fingerprint.0 == query).unwrap();
    found.plan_change.as_deref().unwrap_or_default()
}

#[test]
fn dropped_index_is_found_with_captured_values() {
    let Some(cluster) = cluster() else { return };
    let mut comparison = slower(4);
    let mut examples = Examples::default();
    let value = || Some(vec![Parameter::Value("42".into())]);
    examples.insert(example(1, "select * from orders where customer = $1", value()));
    examples.insert(example(2, "/* app */ delete from orders where customer = 42;", Some(vec![])));
    examples.insert(example(3, "select count(*) from orders", None));
    let (before, after) = (target(&cluster, "before"), target(&cluster, "after"));
    let failures = explain(&mut comparison, &examples, &before, &after).unwrap();
    for query in [1, 2] {
        let change = because(&comparison, query);
        assert!(
            change.contains("orders_customer_idx on orders became Seq Scan on orders"),
            "{change}"
        );
        assert!(change.ends_with("; index orders_customer_idx no longer exists"), "{change}");
    }
    assert_eq!(because(&comparison, 3), "", "its plan is the same");
    assert_eq!(failures.len(), 1);
    assert!(matches!(failures[0].1, ExplainError::NoExample));
    // Nothing was executed.
    let mut client = Client::connect(&before).unwrap();
    let count = client.one_value("select count(*) from orders").unwrap();
    assert_eq!(count.as_deref(), Some("50000"));
}

#[test]
fn unplannable_queries_are_reported_and_skipped() {
    let Some(cluster) = cluster() else { return };
    let mut comparison = slower(5);
    let mut examples = Examples::default();
    examples.insert(example(1, "commit", None));
    examples.insert(example(2, "delete from orders; select 1", None));
    examples.insert(example(3, "select * from nothing", None));
    examples.insert(example(4, "select * from orders where customer = 42", None));
    let cut = Some(vec![Parameter::Truncated("4".into())]);
    examples.insert(example(5, "select * from orders where customer = $1", cut));
    let (before, after) = (target(&cluster, "before"), target(&cluster, "after"));
    let failures = explain(&mut comparison, &examples, &before, &after).unwrap();
    let of = |query: u64| failures.iter().find(|(found, _)| found.0 == query).map(|found| &found.1);
    assert!(matches!(of(1), Some(ExplainError::NotExplainable)));
    assert!(matches!(of(2), Some(ExplainError::NotExplainable)));
    // The captured database is tried too, but does not exist.
    assert!(matches!(of(3), Some(ExplainError::Query { .. })), "{:?}", of(3));
    assert!(because(&comparison, 4).contains("Seq Scan on orders"));
    match cluster.major() {
        16.. => assert!(because(&comparison, 5).contains("Seq Scan on orders")),
        _ => assert!(matches!(of(5), Some(ExplainError::ValuesUnknown { .. }))),
    }
}

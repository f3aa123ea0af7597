//! Plans are returned and nothing is executed.

use howdah_collect::{BackendActivity, GenericPlanError, SqlText, explain_generic};
use howdah_connect::{Client, ConnectTarget};
use howdah_lab::Cluster;

use crate::support::{session, start, target};

fn running(text: &str) -> BackendActivity {
    BackendActivity {
        database: Some("shop".into()),
        query: Some(SqlText::new(text.as_bytes(), None, Some(1024))),
        ..BackendActivity::default()
    }
}

fn shop(cluster: &Cluster) -> (ConnectTarget, Client) {
    let postgres = target(cluster, "postgres");
    session(&postgres).query("CREATE DATABASE shop").unwrap();
    let shop = postgres.with_database("shop");
    let mut client = session(&shop);
    client.query("CREATE TABLE item (id int PRIMARY KEY, name text)").unwrap();
    client.query("CREATE TABLE ran (what text)").unwrap();
    (postgres, client)
}

#[test]
fn generic_plan_covers_parameters_on_every_major() {
    for major in [14, 15, 16, 18] {
        let how = Cluster::builder().major(major);
        let Some(cluster) = start("generic_plan_covers_parameters_on_every_major", how) else {
            continue;
        };
        let (target, mut client) = shop(&cluster);
        client
            .query("INSERT INTO item SELECT i, i FROM generate_series(1, 20000) i; ANALYZE")
            .unwrap();
        let plain = explain_generic(&target, &running("-- mine\nSELECT * FROM item WHERE id = 7;"))
            .unwrap();
        assert!(plain.lines[0].contains("Index Scan using item_pkey on item"), "{plain:?}");
        assert_eq!(plain.parameters, 0);
        let any =
            explain_generic(&target, &running("UPDATE item SET name = $2 WHERE id = $1")).unwrap();
        assert_eq!(any.parameters, 2);
        assert!(any.lines.iter().any(|line| line.contains("Index Cond: (id = $1)")), "{any:?}");
    }
}

/// Texts that try to get executed by the role that asks for the plan.
const HOSTILE: [&str; 16] = [
    "SELECT 1; INSERT INTO ran VALUES ('second')",
    "SELECT 1; COMMIT; INSERT INTO ran VALUES ('committed')",
    "SELECT 1;\n; INSERT INTO ran VALUES ('empty before')",
    "ANALYZE INSERT INTO ran VALUES ('analyze')",
    "EXPLAIN ANALYZE INSERT INTO ran VALUES ('explain analyze')",
    "EXPLAIN (ANALYZE) INSERT INTO ran VALUES ('explain (analyze)')",
    "(ANALYZE) INSERT INTO ran VALUES ('parentheses')",
    "SELECT 1 /* */; INSERT INTO ran VALUES ('comment') --",
    "SELECT 1 --\n; INSERT INTO ran VALUES ('line comment')",
    "SELECT 1 /* never closed; INSERT INTO ran VALUES ('open comment')",
    "DO $$ BEGIN INSERT INTO ran VALUES ('do'); END $$",
    "CREATE TABLE pwned AS SELECT 1",
    "COPY (SELECT 1) TO PROGRAM 'touch /tmp/howdah-pwned'",
    "SET default_transaction_read_only = off",
    "EXECUTE howdah_plan",
    "howdah_plan; INSERT INTO ran VALUES ('no verb')",
];

#[test]
fn hostile_text_is_never_executed() {
    let Some(cluster) = start("hostile_text_is_never_executed", Cluster::builder()) else { return };
    let (target, mut client) = shop(&cluster);
    for text in HOSTILE {
        match explain_generic(&target, &running(text)) {
            Err(GenericPlanError::Refused { sqlstate, .. }) => {
                assert_eq!(sqlstate, "42601", "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    // These can be planned, and are not executed either.
    for text in [
        "INSERT INTO ran VALUES ('insert')",
        "WITH gone AS (INSERT INTO ran VALUES ('cte') RETURNING what) SELECT * FROM gone",
        "DELETE FROM item",
        "SELECT nextval('counter')",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
        "SELECT set_config('default_transaction_read_only', 'off', false)",
    ] {
        client.query("CREATE SEQUENCE IF NOT EXISTS counter").unwrap();
        explain_generic(&target, &running(text)).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    let ran = client.query("SELECT * FROM ran").unwrap();
    assert!(ran[0].rows.is_empty(), "{ran:?}");
    assert_eq!(client.one_value("SELECT is_called FROM counter").unwrap().as_deref(), Some("f"));
    assert_eq!(client.one_value("SELECT to_regclass('pwned')").unwrap(), None);
}

/// Shows in the table `ran` that a function was run, and by whom.
const TELL: &str =
    "CREATE FUNCTION tell() RETURNS void LANGUAGE sql AS 'INSERT INTO ran VALUES (current_user)'";

/// A function that writes. The planner evaluates it, because it is declared immutable.
const EVIL: &str = "CREATE FUNCTION evil(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS \
    $$ BEGIN PERFORM tell(); RETURN 1; END $$";

#[test]
fn mislabelled_function_is_not_run_by_powerful_role() {
    let Some(cluster) =
        start("mislabelled_function_is_not_run_by_powerful_role", Cluster::builder())
    else {
        return;
    };
    let (target, mut client) = shop(&cluster);
    for sql in [
        "CREATE ROLE mallory LOGIN",
        "CREATE ROLE reader LOGIN",
        "GRANT ALL ON SCHEMA public TO mallory",
        "GRANT SELECT ON item TO reader",
        "GRANT ALL ON ran TO PUBLIC",
        "SET ROLE mallory",
        TELL,
        EVIL,
        "RESET ROLE",
    ] {
        client.query(sql).unwrap();
    }
    let text = running("SELECT * FROM item WHERE id = evil(1)");
    let error = explain_generic(&target, &text).unwrap_err();
    let GenericPlanError::ForeignCode { function, owner, .. } = &error else { panic!("{error:?}") };
    assert_eq!((function.as_str(), owner.as_str()), ("evil(integer)", "mallory"));
    assert!(error.to_string().contains("--plan-user"), "{error}");
    // For a read-only role the planner does call it, in a read-only transaction.
    let error = explain_generic(&target.with_user("reader"), &text).unwrap_err();
    let GenericPlanError::Refused { sqlstate, .. } = &error else { panic!("{error:?}") };
    assert_eq!(sqlstate, "25006", "{error}");
    assert!(client.query("SELECT * FROM ran").unwrap()[0].rows.is_empty());
    // Planning is limited to half a second.
    client
        .query(
            "CREATE FUNCTION slow() RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1 FROM pg_sleep(600)'; \
             ALTER FUNCTION evil(int) OWNER TO CURRENT_USER",
        )
        .unwrap();
    let error = explain_generic(&target, &running("SELECT slow()")).unwrap_err();
    let GenericPlanError::Refused { sqlstate, .. } = &error else { panic!("{error:?}") };
    assert_eq!(sqlstate, "57014", "{error}");
    // Planning does not wait long for locks either.
    client.query("BEGIN; LOCK item").unwrap();
    let error = explain_generic(&target, &running("SELECT * FROM item")).unwrap_err();
    let GenericPlanError::Refused { sqlstate, .. } = &error else { panic!("{error:?}") };
    assert!(["55P03", "57014"].contains(&sqlstate.as_str()), "{error}");
}

#[test]
fn planning_stays_read_only() {
    let Some(cluster) = start("planning_stays_read_only", Cluster::builder()) else { return };
    let (target, mut client) = shop(&cluster);
    for sql in [
        "CREATE ROLE mallory LOGIN",
        "CREATE ROLE writer LOGIN",
        "GRANT ALL ON SCHEMA public TO mallory",
        "GRANT ALL ON item, ran TO PUBLIC",
        "SET ROLE mallory",
        // The constraints are evaluated by PREPARE: the text contains array constants.
        "CREATE DOMAIN session_switch AS int \
         CHECK (set_config('default_transaction_read_only', 'off', false) = 'off')",
        "CREATE DOMAIN transaction_switch AS int \
         CHECK (set_config('transaction_read_only', 'off', true) = 'off')",
        "RESET ROLE",
    ] {
        client.query(sql).unwrap();
    }
    let error = explain_generic(&target, &running("SELECT '{1}'::session_switch[]")).unwrap_err();
    let GenericPlanError::ForeignCode { function, owner, .. } = &error else { panic!("{error:?}") };
    assert_eq!(
        (function.as_str(), owner.as_str()),
        ("the constraints of domain session_switch", "mallory")
    );
    for sql in ["SET ROLE mallory", TELL, EVIL, "RESET ROLE"] {
        client.query(sql).unwrap();
    }
    for (domain, expected) in [("session_switch", "25006"), ("transaction_switch", "25001")] {
        let text =
            format!("SELECT * FROM item WHERE id = evil(1) AND '{{1}}'::{domain}[] IS NOT NULL");
        let error = explain_generic(&target.with_user("writer"), &running(&text)).unwrap_err();
        let GenericPlanError::Refused { sqlstate, .. } = &error else { panic!("{error:?}") };
        assert_eq!(sqlstate, expected, "{error}");
    }
    assert!(client.query("SELECT * FROM ran").unwrap()[0].rows.is_empty());
}

#[test]
fn incomplete_text_is_not_sent() {
    let Some(cluster) = start("incomplete_text_is_not_sent", Cluster::builder()) else { return };
    let target = target(&cluster, "postgres");
    let cut = running(&format!("SELECT 1 /* {} */", "x".repeat(1100)));
    assert!(matches!(explain_generic(&target, &cut), Err(GenericPlanError::Truncated)));
    let steers = running("SELECT '\u{1b}[2J'");
    assert!(matches!(explain_generic(&target, &steers), Err(GenericPlanError::NotExact)));
    let none = BackendActivity { query: None, ..running("") };
    assert!(matches!(explain_generic(&target, &none), Err(GenericPlanError::NoText)));
    let nowhere = BackendActivity { database: None, ..running("SELECT 1") };
    assert!(matches!(explain_generic(&target, &nowhere), Err(GenericPlanError::NoDatabase)));
}

//! Adaptive mode: state of a client's session follows it, or pins it to its server.

mod changes;

use howdah_connect::Client;
use howdah_lab::wait_until;

use crate::support::{PoolFixture, WAIT_TIMEOUT, connect, start_pooler_in_mode};

/// How the pooler treats state that a client has left in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    /// There is none, or it follows the client to another server.
    Follows,
    /// The client stays on its server until the state is gone.
    Pins,
    /// The pooler does not see it.
    Unseen,
}
use Treatment::{Follows, Pins, Unseen};

/// Statements that may leave state, each in its own transaction; a statement that shows the state;
/// how the pooler treats it; a statement that removes it, or nothing if only the end of the session
/// does.
const STATES: &[(&[&str], &str, Treatment, &str)] = &[
    // Settings that servers report.
    (&["set timezone = 'Asia/Tokyo'"], "show timezone", Follows, ""),
    (&["set datestyle = 'German'"], "select date '2026-01-02'", Follows, ""),
    (&["set application_name = 'x'"], "show application_name", Follows, ""),
    (&["set client_encoding = 'LATIN1'"], "show client_encoding", Follows, ""),
    (&["set standard_conforming_strings = off"], "select 'a\\\\b'", Follows, ""),
    // Settings that they do not report.
    (&["set work_mem = '7MB'"], "show work_mem", Follows, ""),
    (&["set search_path = a, \"B c\""], "show search_path", Follows, ""),
    (&["set statement_timeout = '90s'"], "show statement_timeout", Follows, ""),
    (&["set app.tenant = 'it''s 5'"], "select current_setting('app.tenant', true)", Follows, ""),
    (
        &["select set_config('app.tenant', '6', false)"],
        "select current_setting('app.tenant', true)",
        Follows,
        "",
    ),
    (&["set role pg_monitor"], "select current_user", Follows, ""),
    (
        &["set session characteristics as transaction read only"],
        "show transaction_read_only",
        Follows,
        "",
    ),
    (
        &["set session characteristics as transaction isolation level serializable"],
        "show transaction_isolation",
        Follows,
        "",
    ),
    (&["set work_mem = '7MB'", "reset work_mem"], "show work_mem", Follows, ""),
    (
        &["set work_mem = '7MB'", "set enable_seqscan = off", "reset all"],
        "show work_mem",
        Follows,
        "",
    ),
    (&["set work_mem = '7MB'", "discard all"], "show work_mem", Follows, ""),
    (
        &["set app.tenant = '7'", "reset all"],
        "select current_setting('app.tenant', true)",
        Follows,
        "",
    ),
    (&["begin; set work_mem = '7MB'; rollback"], "show work_mem", Follows, ""),
    (&["begin; set local work_mem = '7MB'; commit"], "show work_mem", Follows, ""),
    (&["select set_config('work_mem', '7MB', true)"], "show work_mem", Follows, ""),
    (&["execute set_work_mem('8MB')"], "show work_mem", Follows, ""),
    // Channels.
    (&["listen news"], "select 1", Follows, ""),
    // State that was gone when the transaction was over.
    (&["begin; create temp table x (); rollback"], "select to_regclass('pg_temp.x')", Follows, ""),
    (
        &["begin; create temp table x () on commit drop; commit"],
        "select to_regclass('pg_temp.x')",
        Follows,
        "",
    ),
    (&["begin; select pg_advisory_xact_lock(8); commit"], "select 1", Follows, ""),
    (
        &["begin; select pg_advisory_lock(8); select pg_advisory_unlock(8); commit"],
        "select 1",
        Follows,
        "",
    ),
    (
        &["begin; declare c cursor for select 1; commit"],
        "select count(*) from pg_cursors",
        Follows,
        "",
    ),
    // Temporary objects.
    (&["create temp table x (a int)"], "select count(*) from x", Pins, "drop table x"),
    (&["select 1 as a into temp x"], "table x", Pins, "discard temp"),
    (&["create temp table x as select 5 as a"], "table x", Pins, "discard all"),
    (&["create temp view x as select 5 as a"], "table x", Pins, "drop view x"),
    (&["create temp sequence x"], "select last_value from x", Pins, "drop sequence x"),
    (
        &["create function pg_temp.x() returns int language sql as 'select 3'"],
        "select count(*) from pg_proc where pronamespace = pg_my_temp_schema()",
        Pins,
        "drop function pg_temp.x",
    ),
    (
        &["create type pg_temp.x as (a int)"],
        "select to_regtype('pg_temp.x') is null",
        Pins,
        "drop type pg_temp.x",
    ),
    // Locks.
    (
        &["select pg_advisory_lock(9)"],
        "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()",
        Pins,
        "select pg_advisory_unlock(9)",
    ),
    // Not 9: the server may still be ending the session that locked it.
    (
        &["begin; select pg_try_advisory_lock_shared(10); rollback"],
        "select pg_advisory_unlock_shared(10)",
        Pins,
        "select pg_advisory_unlock_all()",
    ),
    // Cursors and prepared statements.
    (&["declare c cursor with hold for values (1), (2)"], "fetch c", Pins, "close c"),
    (
        &["begin; declare c cursor with hold for values (1), (2); commit"],
        "fetch c",
        Pins,
        "close all",
    ),
    (&["prepare p as select 7"], "execute p", Pins, "deallocate p"),
    (&["prepare p (int) as select $1"], "execute p(3)", Pins, "deallocate all"),
    // The session's user.
    (
        &["set session authorization other"],
        "select session_user",
        Pins,
        "reset session authorization",
    ),
    // Code.
    (&["select app_touch()"], "select current_setting('app.touched', true)", Pins, "discard all"),
    (&["select app_constant()"], "select 1", Follows, ""),
    (&["call app_work()"], "select 1", Pins, "discard all"),
    (
        &["do $$begin perform set_config('app.touched', 'yes', false); end$$"],
        "select current_setting('app.touched', true)",
        Pins,
        "discard all",
    ),
    (&["select app_listed()"], "select 1", Follows, ""),
    (&["load 'auto_explain'"], "show auto_explain.log_nested_statements", Pins, ""),
    (&["select setseed(0.5)"], "select random()", Pins, ""),
    // State that the pooler does not see.
    (&["select nextval('numbers')"], "select lastval()", Unseen, ""),
    (
        &["insert into triggers values (1)"],
        "select current_setting('app.touched', true)",
        Unseen,
        "",
    ),
];

const SCHEMA: &str = "
    create sequence numbers;
    create function app_touch() returns text language sql as
        $$select set_config('app.touched', 'yes', false)$$;
    create function app_constant() returns int stable language sql as 'select 1';
    create function app_listed() returns int volatile language sql as 'select 1';
    create procedure app_work() language sql as 'select 1';
    create table triggers (a int);
    create function on_insert() returns trigger language plpgsql as
        $$begin perform set_config('app.touched', 'yes', false); return new; end$$;
    create trigger t before insert on triggers for each row execute function on_insert();
";

fn start(test: &str, major: u32, more: &str) -> Option<PoolFixture> {
    let mut fixture = PoolFixture::start_major(test, major, "")?;
    fixture.query_server(&format!("create role other; {SCHEMA}"));
    // Advisory locks belong to a database, so direct clients use another one.
    fixture.query_server("create database alone template postgres");
    let settings = format!(
        r#"
        sizes = {{ pool = 2 }}
        admin-users = ["postgres"]
        adaptive = {{ stateless-functions = ["app_listed"], {more} }}
        "#
    );
    fixture.pooler = start_pooler_in_mode(&fixture.server, "adaptive", &settings);
    Some(fixture)
}

fn client(fixture: &PoolFixture, database: &str) -> Client {
    let address = fixture.address();
    let words =
        format!("host={} port={} user=postgres dbname={database}", address.ip(), address.port());
    let mut client = connect(&words).unwrap();
    client.set_timeout(Some(WAIT_TIMEOUT));
    client
}

fn direct(fixture: &PoolFixture) -> Client {
    let words = format!("host=127.0.0.1 port={} user=postgres dbname=alone", fixture.server.port());
    let mut client = connect(&words).unwrap();
    client.set_timeout(Some(WAIT_TIMEOUT));
    client
}

/// All values that a query string returns, or its error.
fn run(client: &mut Client, sql: &str) -> String {
    match client.query(sql) {
        Ok(results) => {
            let rows = results.iter().flat_map(|result| &result.rows);
            rows.map(|row| {
                let cells = row.iter().map(|cell| String::from_utf8_lossy(cell.unwrap_or(b"null")));
                cells.collect::<Vec<_>>().join(",")
            })
            .collect::<Vec<_>>()
            .join(" ")
        }
        Err(error) => error.to_string(),
    }
}

fn pinned(console: &mut Client) -> String {
    run(console, "show pinned")
}

fn check_states(major: u32) {
    let Some(fixture) = start(&format!("states{major}"), major, "") else { return };
    let mut console = client(&fixture, "howdah");
    let mut wrong = Vec::new();
    for (statements, shows, treatment, removes) in STATES {
        let mut alone = direct(&fixture);
        let mut pooled = client(&fixture, "postgres");
        if statements[0].starts_with("execute") {
            run(
                &mut alone,
                "prepare set_work_mem (text) as select set_config('work_mem', $1, false)",
            );
            run(
                &mut pooled,
                "prepare set_work_mem (text) as select set_config('work_mem', $1, false)",
            );
        }
        for sql in *statements {
            assert_eq!(run(&mut pooled, sql), run(&mut alone, sql), "{sql}");
        }
        if statements[0].starts_with("execute") {
            run(&mut alone, "deallocate set_work_mem");
            run(&mut pooled, "deallocate set_work_mem");
        }
        // An unpinned client gets its server again unless another client uses it, as here.
        let mut other = client(&fixture, "postgres");
        run(&mut other, "begin");
        // Replies arrive in order: that to the pooler's question precedes this one.
        run(&mut pooled, "select 1");
        let list = wait_for_pins(&mut console, |list| list.is_empty() != (*treatment == Pins));
        let is_pinned = !list.is_empty();
        let (shown, expected) = (run(&mut pooled, shows), run(&mut alone, shows));
        assert!(!list.contains("could not be read"), "{statements:?}: {list}");
        if is_pinned != (*treatment == Pins) || (shown == expected) != (*treatment != Unseen) {
            wrong.push(format!(
                "{statements:?}: {treatment:?}, pinned {list:?}, {shown:?} instead of {expected:?}"
            ));
        }
        run(&mut other, "rollback");
        if !removes.is_empty() {
            run(&mut pooled, removes);
            let list = wait_for_pins(&mut console, str::is_empty);
            if !list.is_empty() {
                wrong.push(format!("{removes}: still pinned: {list}"));
            }
        }
        drop((pooled, other));
        wait_for_pins(&mut console, str::is_empty);
        // Nothing is left for the next client.
        let mut next = client(&fixture, "postgres");
        let mut fresh = direct(&fixture);
        run(&mut next, "begin");
        // After a reset, PostgreSQL shows an application's setting as empty.
        let is_left =
            run(&mut next, shows).replace("null", "") != run(&mut fresh, shows).replace("null", "");
        if *treatment != Unseen && !shows.contains("random") && is_left {
            wrong.push(format!("{statements:?}: visible to the next client"));
        }
        // Its server is idle before the next state, not some time later.
        run(&mut next, "rollback");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Waits until the console's list of pinned clients is as expected, and returns it.
fn wait_for_pins(console: &mut Client, is_expected: impl Fn(&str) -> bool) -> String {
    let mut list = String::new();
    wait_until("the expected list of pinned clients", WAIT_TIMEOUT, || {
        list = pinned(console);
        is_expected(&list)
    });
    list
}

#[test]
fn session_state_follows_or_pins_its_client() {
    check_states(15);
}

#[test]
fn session_state_follows_or_pins_its_client_on_postgresql_18() {
    check_states(18);
}

#[test]
fn limits_of_pinned_clients_disconnect_with_reason() {
    let Some(fixture) = start("pinlimits", 15, "pinned-max = 1") else { return };
    let mut first = client(&fixture, "postgres");
    run(&mut first, "create temp table x ()");
    let mut second = client(&fixture, "postgres");
    run(&mut second, "select pg_advisory_lock(1)");
    // The client may be faster than the answer to the question to its server.
    let mut refused = String::new();
    wait_until("the client beyond the limit is refused", WAIT_TIMEOUT, || {
        refused = run(&mut second, "select 1");
        refused != "1"
    });
    assert!(
        refused.contains("advisory locks: 1") && refused.contains("adaptive.pinned-max"),
        "{refused}"
    );
    assert_eq!(run(&mut first, "select count(*) from x"), "0");
}

#[test]
fn idle_pinned_client_is_disconnected_with_reason() {
    let Some(fixture) = start("pinidle", 15, "pinned-idle = \"200ms\"") else { return };
    let mut idle = client(&fixture, "postgres");
    run(&mut idle, "create temp table x ()");
    let mut console = client(&fixture, "howdah");
    assert!(!wait_for_pins(&mut console, |list| !list.is_empty()).is_empty());
    assert_eq!(wait_for_pins(&mut console, str::is_empty), "");
    let refused = run(&mut idle, "select 1");
    assert!(refused.contains("temporary: table x"), "{refused}");
}

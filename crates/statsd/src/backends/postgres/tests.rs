//! The backend against a temporary PostgreSQL cluster: reading rows back, creating and dropping
//! partitions, a server outage, an unanswered commit.

use howdah_lab::Cluster;

use super::*;
use crate::{
    backends::testing::{
        TIMESTAMP, snapshot, snapshot_at, snapshot_with_messages, snapshot_with_timed,
    },
    settings::{Partition, PostgresCopyFormat},
};

fn cluster(test: &str) -> Option<Cluster> {
    howdah_lab::skip_without_postgres(test, Cluster::builder().start())
}

fn settings(cluster: &Cluster) -> settings::PostgresSettings {
    settings::PostgresSettings {
        connection: cluster.uri("postgres"),
        table: "samples".to_owned(),
        partition: Partition::Day,
        retention: Duration::ZERO,
        format: PostgresCopyFormat::Binary,
        events_table: None,
        checks_table: None,
        spool_bytes: 1 << 20,
    }
}

fn backend(settings: settings::PostgresSettings) -> PostgresBackend {
    PostgresBackend::new(settings, &Environment::empty().with_os_user("nobody")).unwrap()
}

fn client(cluster: &Cluster) -> Client {
    let params = ConnParams::from_conninfo(cluster.uri("postgres"));
    let environment = Environment::empty().with_os_user("nobody");
    Client::connect(&ConnectTarget::resolve(&params, &environment).unwrap()).unwrap()
}

/// Rows per interval of the common test snapshot.
const VALUES: &str = "28";

fn value(client: &mut Client, sql: &str) -> String {
    client.one_value(sql).unwrap().unwrap_or_default()
}

#[test]
fn both_formats_insert_into_daily_partition() {
    let Some(cluster) = cluster("rows arrive in PostgreSQL") else { return };
    let mut client = client(&cluster);
    for (format, schema) in [(PostgresCopyFormat::Binary, "b"), (PostgresCopyFormat::Text, "t")] {
        client.query(&format!("create schema {schema}")).unwrap();
        let table = format!("{schema}.samples");
        let mut postgres = backend(settings::PostgresSettings {
            format,
            table: table.clone(),
            ..settings(&cluster)
        });
        postgres.flush(&snapshot()).unwrap();
        postgres.flush(&Arc::new(snapshot_at(TIMESTAMP + 86_400))).unwrap();
        let one = |client: &mut Client, what: &str, expected: &str| {
            let sql = format!("select {what} from {table} where time = '2026-03-01 10:00:00+00'");
            assert_eq!(value(client, &sql), expected, "{what} by {format:?}");
        };
        one(&mut client, "count(*)", VALUES);
        let which = "max(value) filter (where kind = 'counter' and name = 'api.hits' and ";
        one(&mut client, &format!("{which} tags = '{{}}' and field = 'count')"), "30");
        one(&mut client, &format!("{which} tags->>'code' = '500' and field = 'rate')"), "0.2");
        one(&mut client, "max(value) filter (where field = 'std')", "8.16496580927726");
        one(&mut client, "min(value) filter (where kind = 'gauge')", "-2.5");
        for (day, rows) in [("20260301", VALUES), ("20260302", VALUES), ("20260303", "0")] {
            assert_eq!(value(&mut client, &format!("select count(*) from {table}_p{day}")), rows);
        }
        assert!(postgres.status().get("flush_length").unwrap() > 0.0);
    }
}

#[test]
fn values_with_timestamps_are_inserted_into_earlier_partitions() {
    let Some(cluster) = cluster("values with timestamps arrive in PostgreSQL") else { return };
    let mut client = client(&cluster);
    let mut postgres = backend(settings(&cluster));
    postgres.flush(&snapshot()).unwrap();
    let mut late = snapshot_with_timed();
    late.timed[0].time -= 3 * 86_400;
    postgres.flush(&Arc::new(late.clone())).unwrap();
    let sql = "select string_agg(concat_ws(' ', time at time zone 'UTC', kind, name, tags, field, value), \
               E'\\n' order by time, field) from samples where name in ('jobs', 'load')";
    assert_eq!(
        value(&mut client, sql),
        "2026-02-26 09:00:00 counter jobs {\"q\": \"a/b\"} count 20\n\
         2026-02-26 09:00:00 counter jobs {\"q\": \"a/b\"} rate 2\n\
         2026-03-01 09:00:00 counter jobs {\"q\": \"a:b\"} count 5\n\
         2026-03-01 09:00:00 counter jobs {\"q\": \"a:b\"} rate 0.5\n\
         2026-03-01 09:59:00 gauge load {} value 1.5"
    );
    // The partition is created again if it was dropped meanwhile.
    client.query("drop table samples_p20260226").unwrap();
    postgres.flush(&Arc::new(late)).unwrap();
    assert_eq!(value(&mut client, "select count(*) from samples_p20260226"), "2");
    assert_eq!(postgres.status().get("lost_values"), Some(0.0));
}

#[test]
fn values_older_than_the_retention_do_not_block_others() {
    let Some(cluster) = cluster("expired values reach PostgreSQL") else { return };
    let mut client = client(&cluster);
    let retention = Duration::from_secs(86_400);
    let mut postgres = backend(settings::PostgresSettings { retention, ..settings(&cluster) });
    postgres.flush(&snapshot()).unwrap();
    for (flush, age) in [(1, 3), (2, 5)] {
        let mut late = snapshot_with_timed();
        late.timestamp += flush;
        late.timed[0].time -= age * 86_400;
        postgres.flush(&Arc::new(late)).unwrap();
    }
    let rows =
        "select count(*) from samples where name in ('jobs', 'load') and time >= '2026-03-01'";
    assert_eq!(value(&mut client, rows), "6");
    assert_eq!(postgres.status().get("lost_values"), Some(0.0));
    postgres.flush(&Arc::new(snapshot_at(TIMESTAMP + 86_400))).unwrap();
    let expired = "select count(*) from samples where time < '2026-02-28'";
    assert_eq!(value(&mut client, expired), "0", "dropped with the next partition");
}

#[test]
fn events_and_service_checks_are_inserted() {
    let Some(cluster) = cluster("events arrive in PostgreSQL") else { return };
    let mut client = client(&cluster);
    client.query("create schema s").unwrap();
    let days = |days: u64| Duration::from_secs(days * 86_400);
    let mut postgres = backend(settings::PostgresSettings {
        table: "s.samples".to_owned(),
        checks_table: Some("my \"checks\"".to_owned()),
        retention: days(30),
        ..settings(&cluster)
    });
    assert!(postgres.requirements().messages);
    postgres.flush(&snapshot()).unwrap();
    assert_eq!(value(&mut client, "select to_regclass('s.statsd_events')"), "", "no event yet");
    postgres.flush(&Arc::new(snapshot_with_messages())).unwrap();
    client.query("set timezone = 'UTC'").unwrap();
    assert_eq!(
        value(&mut client, "select to_jsonb(e) from s.statsd_events e"),
        "{\"host\": \"web1\", \"tags\": {\"env\": \"prod\", \"canary\": \"\"}, \
         \"text\": \"two\\nlines\u{fffd}\", \"time\": \"2026-03-01T09:59:00+00:00\", \
         \"title\": \"Deploy \\\"7\\\"\", \"priority\": \"low\", \
         \"received\": \"2026-03-01T09:59:55.25+00:00\", \"alert_type\": \"success\", \
         \"source_type\": null, \"aggregation_key\": \"deploys\"}"
    );
    let check = "select concat_ws(' ', time, host is null, name, status, message, tags) \
                 from \"my \"\"checks\"\"\"";
    assert_eq!(value(&mut client, check), "2026-03-01 09:59:57+00 t db.up critical no reply {}");
    // Dropped tables are created again, and expired rows deleted with the next partition.
    client.query("drop table s.statsd_events").unwrap();
    postgres.flush(&Arc::new(snapshot_with_messages())).unwrap();
    assert_eq!(value(&mut client, "select count(*) from s.statsd_events"), "1");
    assert_eq!(postgres.status().get("lost_values"), Some(0.0));
    let later = FlushSnapshot {
        messages: snapshot_with_messages().messages[1..].into(),
        ..snapshot_at(TIMESTAMP + 31 * 86_400)
    };
    postgres.flush(&Arc::new(later)).unwrap();
    assert_eq!(value(&mut client, "select count(*) from s.statsd_events"), "0");
    assert_eq!(value(&mut client, "select count(*) from \"my \"\"checks\"\"\""), "1");
}

#[test]
fn message_tables_can_be_turned_off() {
    let off = || Some(String::new());
    let settings = settings::PostgresSettings {
        connection: "postgresql://localhost/x".to_owned(),
        table: "t".to_owned(),
        partition: Partition::Day,
        retention: Duration::ZERO,
        format: PostgresCopyFormat::Text,
        events_table: off(),
        checks_table: off(),
        spool_bytes: 0,
    };
    assert!(!backend(settings).requirements().messages);
}

#[test]
fn expired_partitions_are_dropped() {
    let Some(cluster) = cluster("old partitions are dropped") else { return };
    let mut client = client(&cluster);
    let days = |days: u64| Duration::from_secs(days * 86_400);
    let mut postgres =
        backend(settings::PostgresSettings { retention: days(30), ..settings(&cluster) });
    postgres.flush(&snapshot()).unwrap();
    let archive = "create table archive partition of samples for values from ('2020-01-01') to ('2021-01-01')";
    client.query(archive).unwrap();
    // The partition of 1 March ends on 2 March: it expires on 1 April, when that of 2 April is
    // created.
    for (day, partitions) in [(30, "5"), (31, "5")] {
        postgres.flush(&Arc::new(snapshot_at(TIMESTAMP + day * 86_400))).unwrap();
        let sql = "select count(*) from pg_inherits where inhparent = 'samples'::regclass";
        assert_eq!(value(&mut client, sql), partitions, "after {day} days");
    }
    assert_eq!(value(&mut client, "select to_regclass('archive')"), "archive");
    assert_eq!(value(&mut client, "select to_regclass('samples_p20260301')"), "");
}

#[test]
fn rows_survive_outage_without_duplicates() {
    let Some(mut cluster) = cluster("rows wait for PostgreSQL") else { return };
    let mut postgres = backend(settings(&cluster));
    postgres.flush(&snapshot()).unwrap();
    cluster.kill().unwrap();
    for flush in 1..=2 {
        // The rows are spooled, which is not an error.
        postgres.flush(&Arc::new(snapshot_at(TIMESTAMP + flush))).unwrap();
    }
    assert!(postgres.status().get("spool_bytes").unwrap() > 0.0);
    cluster.start().unwrap();
    postgres.finish(Duration::from_secs(30)).unwrap();
    let mut client = client(&cluster);
    let sql =
        "select string_agg(n::text, ' ') from (select count(*) n from samples group by time) x";
    assert_eq!(value(&mut client, sql), [VALUES; 3].join(" "));
    assert_eq!(postgres.status().get("lost_values"), Some(0.0));
}

#[test]
fn rows_survive_outage_over_several_partitions() {
    let Some(mut cluster) = cluster("rows wait for days") else { return };
    let mut postgres = backend(settings(&cluster));
    postgres.flush(&snapshot()).unwrap();
    cluster.kill().unwrap();
    for day in [1, 3, 6] {
        postgres.flush(&Arc::new(snapshot_at(TIMESTAMP + day * 86_400))).unwrap();
    }
    cluster.start().unwrap();
    postgres.finish(Duration::from_secs(30)).unwrap();
    let mut client = client(&cluster);
    let sql = "select string_agg(date_part('day', time) || ': ' || n, ' ' order by time) \
               from (select time, count(*) n from samples group by time) x";
    assert_eq!(value(&mut client, sql), "1: 28 2: 28 4: 28 7: 28");
    assert_eq!(postgres.status().get("lost_values"), Some(0.0));
}

#[test]
fn rows_spooled_from_the_start_are_delivered_at_shutdown() {
    let Some(mut cluster) = cluster("rows wait for PostgreSQL from the start") else { return };
    let mut postgres = backend(settings(&cluster));
    cluster.kill().unwrap();
    postgres.flush(&Arc::new(snapshot_with_timed())).unwrap();
    cluster.start().unwrap();
    postgres.finish(Duration::from_secs(30)).unwrap();
    let mut client = client(&cluster);
    assert_eq!(value(&mut client, "select count(*) from samples where name = 'jobs'"), "4");
    assert_eq!(postgres.status().get("lost_values"), Some(0.0));
}

#[test]
fn unanswered_commit_is_neither_lost_nor_repeated() {
    let Some(cluster) = cluster("a commit in doubt") else { return };
    let mut client = client(&cluster);
    let mut postgres = backend(settings(&cluster));
    postgres.flush(&snapshot()).unwrap();
    let transaction = |client: &mut Client, end: &str| {
        client.query("begin").unwrap();
        let id = client.one_value("select pg_current_xact_id()").unwrap();
        client.query(end).unwrap();
        id
    };
    // Depending on the transaction's outcome, the batch is resent or not.
    for (end, rows) in [("commit", 28), ("rollback", 56)] {
        postgres.link.in_doubt = transaction(&mut client, end);
        postgres.flush(&snapshot()).unwrap();
        assert_eq!(value(&mut client, "select count(*) from samples"), rows.to_string(), "{end}");
    }
    // A transaction ID that this server has never assigned.
    postgres.link.in_doubt = Some("999999999".to_owned());
    postgres.flush(&Arc::new(snapshot_at(TIMESTAMP + 1))).unwrap();
    assert_eq!(value(&mut client, "select count(*) from samples"), "84");
}

#[test]
fn dropped_table_is_recreated_and_mismatch_reported() {
    let Some(cluster) = cluster("a table comes and goes") else { return };
    let mut client = client(&cluster);
    let mut postgres = backend(settings(&cluster));
    postgres.flush(&snapshot()).unwrap();
    client.query("drop table samples").unwrap();
    postgres.flush(&snapshot()).unwrap();
    assert_eq!(value(&mut client, "select count(*) from samples"), VALUES);

    client.query("drop table samples; create table samples (id int)").unwrap();
    let error = postgres.flush(&snapshot()).unwrap_err();
    let message = crate::backends::chain(&error);
    assert!(message.contains("sending failed: values dropped: 28: "), "{message}");
    assert!(!error.receiver.contains("password"), "{}", error.receiver);
    assert_eq!(postgres.status().get("lost_values"), Some(28.0));
}

#[test]
fn invalid_connection_and_table_errors_hide_secrets() {
    let error = |connection: &str, table: &str| {
        let settings = settings::PostgresSettings {
            connection: connection.to_owned(),
            table: table.to_owned(),
            partition: Partition::Day,
            retention: Duration::ZERO,
            format: PostgresCopyFormat::Text,
            events_table: Some("a.b.c".to_owned()),
            checks_table: None,
            spool_bytes: 0,
        };
        let error =
            PostgresBackend::new(settings, &Environment::empty().with_os_user("x")).unwrap_err();
        format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string))
    };
    assert!(error("postgresql://a/b", "x.y.z").contains("\"x.y.z\" is not a valid table name"));
    assert!(error("postgresql://a/b", "x").contains("\"a.b.c\" is not a valid table name"));
    let message = error("postgresql://me:secret@h:port/b", "t");
    assert!(!message.contains("secret"), "{message}");
}

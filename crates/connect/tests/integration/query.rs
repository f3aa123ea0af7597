//! Statements and their results.

use std::{
    io::{self, Read as _, Write as _},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use howdah_connect::{QueryError, ResultSet};
use howdah_lab::wait_until;

use crate::{cluster::shared, connect};

fn cells(result: &ResultSet) -> Vec<Vec<Option<String>>> {
    let text = |cell: Option<&[u8]>| cell.map(|cell| String::from_utf8(cell.to_vec()).unwrap());
    result.rows.iter().map(|row| row.iter().map(text).collect()).collect()
}

#[test]
fn each_statement_returns_a_result() {
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    let results = client
        .query(
            "create temp table t (id int, name text);
             insert into t values (1, 'ä'), (2, null), (3, '');
             select id, name as \"the name\" from t order by id;
             select from t",
        )
        .unwrap();
    let tags: Vec<_> = results.iter().map(|result| result.tag.as_str()).collect();
    assert_eq!(tags, ["CREATE TABLE", "INSERT 0 3", "SELECT 3", "SELECT 3"]);
    let counts: Vec<_> = results.iter().map(ResultSet::row_count).collect();
    assert_eq!(counts, [None, Some(3), Some(3), Some(3)]);
    assert_eq!(results[2].columns, ["id", "the name"]);
    assert_eq!(results[2].column("the name"), Some(1));
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        cells(&results[2]),
        [vec![some("1"), some("ä")], vec![some("2"), None], vec![some("3"), some("")]]
    );
    assert_eq!(results[2].rows[1].text(1), None);
    assert_eq!(results[2].rows[1].text(7), None);
    assert_eq!(results[3].rows.len(), 3);
    assert!(results[3].rows[0].is_empty());
    assert_eq!(client.query("").unwrap(), [ResultSet::default()]);
    assert_eq!(client.one_value("select null; select 1").unwrap(), None);
    assert_eq!(client.one_value("set geqo = off; select 1").unwrap().as_deref(), Some("1"));
}

#[test]
fn connection_is_usable_after_sql_error() {
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    let error = client.query("select 1; select 1/0; select 2").unwrap_err();
    assert_eq!(error.sqlstate(), Some("22012"));
    assert_eq!(error.to_string(), "division by zero (SQLSTATE 22012)");
    assert!(!error.is_fatal());
    let error = client.query_with("select $1::int + nope", &[Some("1")]).unwrap_err();
    let QueryError::Sql(error) = error else { panic!("{error}") };
    assert_eq!((error.sqlstate.as_str(), error.position), ("42703", Some(18)));
    assert_eq!(client.one_value("select 7").unwrap().as_deref(), Some("7"));
}

#[test]
fn values_are_bound() {
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    let result = client
        .query_with(
            "select $1::int + 1 as n, $2::text as t, $3::text as u",
            &[Some("41"), Some("it's"), None],
        )
        .unwrap();
    assert_eq!(result.columns, ["n", "t", "u"]);
    assert_eq!(cells(&result), [[Some("42".to_owned()), Some("it's".to_owned()), None]]);
    assert_eq!(result.tag, "SELECT 1");
    assert_eq!(client.query_with("", &[]).unwrap(), ResultSet::default());
    let error = client.query_with("select $1::int", &[Some("x")]).unwrap_err();
    assert_eq!(error.sqlstate(), Some("22P02"));
    let error = client.query_with("select $1::text", &[Some("a\0b")]).unwrap_err();
    assert_eq!(error.sqlstate(), Some("22021"));
    let error = client.query_with("select $1::text", &[Some("1"); 70_000]).unwrap_err();
    assert!(matches!(error, QueryError::Unsendable(_)), "{error}");
    let error = client.query("select 1\0").unwrap_err();
    assert!(matches!(error, QueryError::Unsendable(_)), "{error}");
    assert_eq!(client.one_value("select 7").unwrap().as_deref(), Some("7"));
}

#[test]
fn copy_out_returns_data_and_refuses_copy_in() {
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    let mut data = Vec::new();
    let sql = "copy (select i, null from generate_series(1, 100000) i) to stdout";
    assert_eq!(client.copy_out(sql, &mut data).unwrap(), 100_000);
    assert!(data.starts_with(b"1\t\\N\n2\t\\N\n"));
    assert_eq!(data.iter().filter(|byte| **byte == b'\n').count(), 100_000);

    client.query("create temp table t (id int)").unwrap();
    let no_data = "the statement is COPY FROM STDIN, but there is no data for it";
    let output = "the statement is COPY TO STDOUT, whose data cannot be read here";
    for (sql, message) in [
        ("copy t from stdin", no_data),
        ("copy t to stdout", output),
        ("copy (select 1) to stdout; select 1", output),
    ] {
        assert_eq!(client.query(sql).unwrap_err().to_string(), message, "{sql}");
    }
    for (sql, message) in [("copy t from stdin", no_data), ("copy t to stdout", output)] {
        assert_eq!(client.query_with(sql, &[]).unwrap_err().to_string(), message, "{sql}");
    }
    let error = client.copy_out("copy t from stdin", &mut data).unwrap_err();
    assert!(matches!(error, QueryError::NoCopyData), "{error}");
    assert!(matches!(client.copy_out("select 1", &mut data), Err(QueryError::NotCopy)));
    let error = client.copy_out("copy nope to stdout", &mut data).unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P01"));
    assert_eq!(client.one_value("select count(*) from t").unwrap().as_deref(), Some("0"));
}

#[test]
fn copy_in_sends_data() {
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    client.query("create temp table t (id int, note text)").unwrap();
    let mut data = Vec::new();
    for id in 0..100_000 {
        writeln!(data, "{id}\tnote {id}").unwrap();
    }
    assert_eq!(client.copy_in("copy t from stdin", &mut &data[..]).unwrap(), 100_000);
    let sum = "select count(*), sum(id), max(length(note)) from t";
    assert_eq!(client.query(sum).unwrap()[0].rows[0].text(1).as_deref(), Some("4999950000"));
    assert_eq!(client.copy_in("copy t from stdin", &mut io::empty()).unwrap(), 0);

    // The server rejects a row in the middle of much data: nothing was copied, the session
    // continues.
    let half = data.len() / 2;
    data.splice(half..half, *b"\nnonsense\n");
    let error = client.copy_in("copy t from stdin", &mut &data[..]).unwrap_err();
    assert_eq!(error.sqlstate(), Some("22P02"), "{error}");
    let error = client.copy_in("select 1", &mut &data[..]).unwrap_err();
    assert!(matches!(error, QueryError::NotCopyIn), "{error}");
    let error = client.copy_in("copy nope from stdin", &mut &data[..]).unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P01"));
    let error = client.copy_in("copy t to stdout", &mut &data[..]).unwrap_err();
    assert!(matches!(error, QueryError::CopyOutput), "{error}");
    assert_eq!(client.one_value("select count(*) from t").unwrap().as_deref(), Some("100000"));
}

#[test]
fn failed_reader_cancels_copy() {
    struct Broken;
    impl io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::InvalidData.into())
        }
    }
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    client.query("create temp table t (id int)").unwrap();
    let mut data = (&b"1\n2\n"[..]).chain(Broken);
    let error = client.copy_in("copy t from stdin", &mut data).unwrap_err();
    assert!(matches!(&error, QueryError::Reader(_)), "{error}");
    assert!(!error.is_fatal());
    assert_eq!(client.one_value("select count(*) from t").unwrap().as_deref(), Some("0"));
}

#[test]
fn failed_writer_closes_connection() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    let error = client.copy_out("copy (select 1) to stdout", &mut Full).unwrap_err();
    assert!(matches!(&error, QueryError::Writer(_)), "{error}");
    assert!(error.is_fatal());
    assert!(matches!(client.query("select 1"), Err(QueryError::Closed)));
}

#[test]
fn reported_parameters_are_available() {
    let Some(shared) = shared() else { return };
    let more = "application_name='a b' options='-c work_mem=123kB'";
    let mut client = connect(&shared.by_tcp("postgres", more)).unwrap();
    let number = client.one_value("show server_version_num").unwrap().unwrap();
    assert_eq!(client.server_version_num(), Some(number.parse().unwrap()));
    assert_eq!(client.parameter("client_encoding"), Some("UTF8"));
    assert_eq!(client.parameter("application_name"), Some("a b"));
    assert_eq!(client.parameter("nope"), None);
    assert_eq!(client.one_value("show work_mem").unwrap().as_deref(), Some("123kB"));
    let pid = client.one_value("select pg_backend_pid()").unwrap().unwrap();
    assert_eq!(client.process_id().map(|pid| pid.to_string()), Some(pid));
    assert!(client.parameter("server_version").is_some());
}

#[test]
fn statement_is_cancelled_from_another_thread() {
    let Some(shared) = shared() else { return };
    for more in ["sslmode=disable", "sslmode=require"] {
        let mut client = connect(&shared.by_tcp("postgres", more)).unwrap();
        let handle = client.cancel_handle().unwrap();
        let pid = client.process_id().unwrap();
        let sleeper = thread::spawn(move || {
            let error = client.query("select pg_sleep(600)").unwrap_err();
            (error.sqlstate().map(str::to_owned), client.one_value("select 7").unwrap())
        });
        let mut watcher = shared.client();
        let asleep =
            format!("select 1 from pg_stat_activity where pid = {pid} and wait_event = 'PgSleep'");
        wait_until("the statement to sleep", Duration::from_secs(60), || {
            watcher.one_value(&asleep).unwrap().is_some()
        });
        handle.cancel().unwrap();
        let outcome = sleeper.join().unwrap();
        assert_eq!(outcome, (Some("57014".to_owned()), Some("7".to_owned())));
    }
}

#[test]
fn timeout_closes_connection() {
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    client.set_timeout(Some(Duration::from_millis(20)));
    let error = client.query("select pg_sleep(600)").unwrap_err();
    assert!(matches!(error, QueryError::TimedOut { .. }), "{error}");
    assert!(error.is_fatal());
    assert!(matches!(client.query("select 1"), Err(QueryError::Closed)));
}

#[test]
fn terminated_session_reports_reason() {
    let Some(shared) = shared() else { return };
    let mut client = shared.client();
    let pid = client.process_id().unwrap();
    let mut other = shared.client();
    other.query(&format!("select pg_terminate_backend({pid})")).unwrap();
    let gone = format!("select 1 from pg_stat_activity where pid = {pid}");
    wait_until("the backend to exit", Duration::from_secs(60), || {
        other.one_value(&gone).unwrap().is_none()
    });
    let error = client.query("select 1").unwrap_err();
    assert_eq!(error.sqlstate(), Some("57P01"), "{error}");
    assert!(error.is_fatal());
    assert!(matches!(client.query("select 1"), Err(QueryError::Closed)));
}

#[test]
fn notices_are_logged() {
    let Some(shared) = shared() else { return };
    let log = LogCapture::default();
    let subscriber = log.clone();
    let mut client = shared.client();
    tracing::subscriber::with_default(subscriber, || {
        client.query("do $$ begin raise warning 'look out'; end $$").unwrap();
    });
    assert_eq!(*log.lines.lock().unwrap(), ["WARN look out"]);
}

/// Collects the messages of this crate's events.
#[derive(Clone, Default)]
struct LogCapture {
    lines: Arc<Mutex<Vec<String>>>,
}

impl tracing::Subscriber for LogCapture {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("howdah_connect")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct MessageVisitor(String);
        impl tracing::field::Visit for MessageVisitor {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = MessageVisitor(String::new());
        event.record(&mut message);
        self.lines.lock().unwrap().push(format!("{} {}", event.metadata().level(), message.0));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

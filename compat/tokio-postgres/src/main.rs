//! tokio-postgres through the pooler: each client is a task with a connection of its own.

use std::{
    env,
    error::Error,
    future::poll_fn,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::{SinkExt as _, TryStreamExt as _, future::try_join_all, pin_mut};
use tokio_postgres::{
    AsyncMessage, Client, Config, NoTls,
    binary_copy::{BinaryCopyInWriter, BinaryCopyOutStream},
    error::SqlState,
    types::{ToSql, Type},
};

/// Ends once the client is dropped.
type Connection = tokio::task::JoinHandle<Result<(), tokio_postgres::Error>>;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const ROUNDS: i32 = 20;

#[tokio::main]
async fn main() -> Outcome {
    let clients: i32 = env::var("CLIENTS").map_or(Ok(50), |text| text.parse())?;
    let (db, connection) = connect("tokio").await?;
    db.batch_execute("drop table if exists compat_tokio").await?;
    db.batch_execute("create table compat_tokio (client int, note text)").await?;
    db.batch_execute(
        "drop table if exists compat_tokio_copied; create table compat_tokio_copied (client int, note text);
         drop table if exists compat_tokio_untyped;
         create table compat_tokio_untyped (client int, result text);
         drop table if exists compat_tokio_typed;
         create table compat_tokio_typed (client int, n int, at timestamptz, result text)",
    )
    .await?;
    for me in 0..clients {
        db.batch_execute(&format!("drop table if exists compat_tokio_own_{me}")).await?;
    }
    db.batch_execute("drop table if exists compat_tokio_values").await?;
    db.batch_execute(
        "create table compat_tokio_values (client int, n int, i int8, f float8, t text, b bytea, j jsonb, \
         ints int[], texts text[], primary key (client, n))",
    )
    .await?;
    db.batch_execute(
        "drop table if exists compat_tokio_values_copied;
         create table compat_tokio_values_copied (client int, n int, b bytea)",
    )
    .await?;
    drop(db);
    connection.await??;
    let pause = env::var("PAUSE").map_or(Ok(0), |text| text.parse())?;
    tokio::time::sleep(Duration::from_secs(pause)).await;
    let tasks = (0..clients).map(|me| async move { tokio::spawn(client(me)).await? });
    try_join_all(tasks).await?;
    println!("tokio-postgres: {clients} clients ok");
    Ok(())
}

async fn connect(name: &str) -> Outcome<(Client, Connection)> {
    let (client, connection) = config(name)?.connect(NoTls).await?;
    Ok((client, tokio::spawn(connection)))
}

fn config(name: &str) -> Outcome<Config> {
    let mut config = Config::new();
    config
        .host(env::var("PGHOST")?)
        .port(env::var("PGPORT")?.parse()?)
        .user(env::var("PGUSER")?)
        .password(env::var("PGPASSWORD").unwrap_or_default())
        .dbname(env::var("PGDATABASE")?)
        .application_name(name);
    Ok(config)
}

async fn client(me: i32) -> Outcome {
    let name = format!("tokio-{me}");
    let (mut db, connection) = connect(&name).await?;
    let sum = db.prepare("select $1::int * 1000 + $2::int, $3::text").await?;
    for round in 0..ROUNDS {
        let shown: String = db.query_one("show application_name", &[]).await?.get(0);
        assert_eq!(shown, name);
        // Two on their way at once.
        let next = me + 1;
        let one: [&(dyn ToSql + Sync); 3] = [&me, &round, &name];
        let other: [&(dyn ToSql + Sync); 3] = [&next, &round, &name];
        let (first, second) =
            tokio::try_join!(db.query_one(&sum, &one), db.query_one(&sum, &other))?;
        assert_eq!((first.get::<_, i32>(0), first.get::<_, &str>(1)), (me * 1000 + round, &*name));
        assert_eq!(second.get::<_, i32>(0), (me + 1) * 1000 + round);
    }
    transactions(&mut db, me).await?;
    values(&db, me).await?;
    typed(&db, me).await?;
    prepared_again(&mut db, me).await?;
    errors(&db).await?;
    copy(&db, me).await?;
    notifications(me).await?;
    if me % 10 == 0 {
        cancellation(&db).await?;
    }
    drop(db);
    connection.await??;
    Ok(())
}

/// LISTEN is prepared in one batch and run in another.
async fn notifications(me: i32) -> Outcome {
    let (db, mut connection) = config("tokio-listen")?.connect(NoTls).await?;
    let (tell, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(it) = message {
                let _ = tell.send(format!("{} {}", it.channel(), it.payload()));
            }
        }
    });
    let channel = format!("compat_{me}");
    db.execute(&format!("listen {channel}"), &[]).await?;
    for n in 0..5 {
        db.execute("select pg_notify($1, $2)", &[&channel, &n.to_string()]).await?;
    }
    for n in 0..5 {
        assert_eq!(heard.recv().await, Some(format!("{channel} {n}")));
    }
    Ok(())
}

async fn transactions(db: &mut Client, me: i32) -> Outcome {
    let lost = db.transaction().await?;
    lost.execute("insert into compat_tokio values ($1, 'lost')", &[&me]).await?;
    lost.rollback().await?;
    let mut kept = db.transaction().await?;
    for n in 0..5 {
        let note = format!("kept {n}");
        kept.execute("insert into compat_tokio values ($1, $2)", &[&me, &note]).await?;
    }
    let savepoint = kept.transaction().await?;
    savepoint.execute("insert into compat_tokio values ($1, 'in a savepoint')", &[&me]).await?;
    savepoint.rollback().await?;
    // A portal, three rows at a time.
    let portal = kept.bind("select generate_series(1, 7)", &[]).await?;
    for rows in [3, 3, 1] {
        assert_eq!(kept.query_portal(&portal, 3).await?.len(), rows);
    }
    kept.commit().await?;
    let query = "select note from compat_tokio where client = $1 order by 1";
    let rows = db.query(query, &[&me]).await?;
    let notes: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(notes, (0..5).map(|n| format!("kept {n}")).collect::<Vec<_>>());
    Ok(())
}

/// All that the driver sends is binary.
async fn values(db: &Client, me: i32) -> Outcome {
    type Row = (
        Option<i64>,
        Option<f64>,
        Option<&'static str>,
        Option<Vec<u8>>,
        Option<&'static str>,
        Option<Vec<Option<i32>>>,
        Option<Vec<&'static str>>,
    );
    let rows: [Row; 3] = [
        (
            Some(i64::MIN + i64::from(me)),
            Some(0.1),
            Some("Ünï\tcode\n'\\"),
            Some((0..=255).collect()),
            Some(r#"{"a": [1, null]}"#),
            Some(vec![Some(1), None, Some(me)]),
            Some(vec!["", "NULL", "\"{}\\"]),
        ),
        (None, None, None, None, None, None, None),
        (Some(0), Some(f64::INFINITY), Some(""), Some(vec![]), Some("[]"), Some(vec![]), Some(vec![])),
    ];
    let insert = db
        .prepare(
            "insert into compat_tokio_values values ($1, $2, $3, $4, $5, $6, $7::text::jsonb, $8, $9)",
        )
        .await?;
    let select = "select i, f, t, b, j::text, ints, texts from compat_tokio_values \
                  where client = $1 and n = $2";
    for (n, (i, f, t, b, j, ints, texts)) in (0_i32..).zip(&rows) {
        db.execute(&insert, &[&me, &n, i, f, t, b, j, ints, texts]).await?;
        let row = db.query_one(select, &[&me, &n]).await?;
        assert_eq!((row.get(0), row.get(1), row.get(2)), (*i, *f, *t));
        assert_eq!((row.get(3), row.get(4)), (b.clone(), *j));
        assert_eq!((row.get(5), row.get(6)), (ints.clone(), texts.clone()));
    }
    // COPY in binary form, both ways.
    let sink = db.copy_in("copy compat_tokio_values_copied (client, n, b) from stdin binary").await?;
    let types = [Type::INT4, Type::INT4, Type::BYTEA];
    let writer = BinaryCopyInWriter::new(sink, &types);
    pin_mut!(writer);
    let bytes: Vec<u8> = (0..=255).rev().collect();
    writer.as_mut().write(&[&me, &10, &Some(&bytes)]).await?;
    writer.as_mut().write(&[&me, &11, &None::<Vec<u8>>]).await?;
    assert_eq!(writer.finish().await?, 2);
    let query = format!(
        "copy (select client, n, b from compat_tokio_values_copied where client = {me} order by n) \
         to stdout binary"
    );
    let stream = BinaryCopyOutStream::new(db.copy_out(&query).await?, &types);
    pin_mut!(stream);
    let copied: Vec<_> = stream.try_collect().await?;
    let copied: Vec<Option<Vec<u8>>> = copied.iter().map(|row| row.get(2)).collect();
    assert_eq!(copied, [Some(bytes), None]);
    Ok(())
}

/// Values of the types that the server infers, or the statement declares; always binary.
async fn typed(db: &Client, me: i32) -> Outcome {
    let at = UNIX_EPOCH + Duration::from_micros(1_795_158_015_123_456);
    let row = "insert into compat_tokio_typed (client, n, at) values ($1, $2, $3)";
    db.execute(row, &[&me, &1, &at]).await?;
    db.execute(row, &[&me, &2, &None::<SystemTime>]).await?;
    let expressions: [(&str, [(&(dyn ToSql + Sync), Type); 2]); 6] = [
        ("($3 + $4)::text", [(&40_000_i64, Type::INT8), (&1_i16, Type::INT2)]),
        ("($3 < $4)::text", [(&9, Type::INT4), (&10, Type::INT4)]),
        ("greatest($3, $4)::text", [(&9_i64, Type::INT8), (&10, Type::INT4)]),
        ("($3 - $4)::text", [(&at, Type::TIMESTAMPTZ), (&UNIX_EPOCH, Type::TIMESTAMPTZ)]),
        ("(unnest($3) * $4)::text", [(&vec![3, 1, me], Type::INT4_ARRAY), (&2, Type::INT4)]),
        ("concat($3, '|', $4)", [(&true, Type::BOOL), (&"ü\\'\n", Type::TEXT)]),
    ];
    for (n, (text, [(one, one_type), (other, other_type)])) in (0_i32..).zip(expressions) {
        let text = format!("insert into compat_tokio_typed (client, n, result) select $1, $2, {text}");
        let types = [Type::INT4, Type::INT4, one_type, other_type];
        let insert = db.prepare_typed(&text, &types).await?;
        for round in 1..3 {
            db.execute(&insert, &[&me, &(100 * round + n), one, other]).await?;
        }
    }
    // A text that a log, which has no types, shows as it would show a number.
    let text = "insert into compat_tokio_untyped select $1, jsonb_build_array($2, $3)::text";
    let insert = db.prepare_typed(text, &[Type::INT4, Type::INT4, Type::TEXT]).await?;
    db.execute(&insert, &[&me, &5, &"5"]).await?;
    Ok(())
}

/// A prepared statement whose result changes its type, and one that is prepared again.
async fn prepared_again(db: &mut Client, me: i32) -> Outcome {
    let table = format!("compat_tokio_own_{me}");
    db.batch_execute(&format!(
        "create table {table} (a int, b text); insert into {table} values (1, ''), (2, null)"
    ))
    .await?;
    // In a transaction, since a pooler may have prepared it on another server connection, too.
    let mut transaction = db.transaction().await?;
    let select = transaction.prepare(&format!("select * from {table} where a = $1")).await?;
    transaction.query(&select, &[&1]).await?;
    transaction.batch_execute(&format!("alter table {table} add c text default 'c'")).await?;
    let savepoint = transaction.transaction().await?;
    let error = savepoint.query(&select, &[&1]).await.expect_err("its result has another type");
    assert_eq!(error.code(), Some(&SqlState::FEATURE_NOT_SUPPORTED));
    savepoint.rollback().await?;
    drop(select);
    let select = transaction.prepare(&format!("select * from {table} where a = $1")).await?;
    assert_eq!(transaction.query(&select, &[&1]).await?.len(), 1);
    transaction.commit().await?;
    db.execute(&format!("update {table} set b = b || $1"), &[&"after"]).await?;
    Ok(())
}

async fn errors(db: &Client) -> Outcome {
    for _ in 0..3 {
        let error = db.query("select 1 / $1::int", &[&0]).await.expect_err("it divides by zero");
        assert_eq!(error.code(), Some(&SqlState::DIVISION_BY_ZERO));
        let error = db.prepare("select * from no_such_table").await.expect_err("it is not there");
        assert_eq!(error.code(), Some(&SqlState::UNDEFINED_TABLE));
    }
    Ok(())
}

async fn copy(db: &Client, me: i32) -> Outcome {
    let mut lines: Vec<String> = (0..1000).map(|n| format!("{me}\tcopied {n}\n")).collect();
    let sink = db.copy_in("copy compat_tokio_copied from stdin").await?;
    pin_mut!(sink);
    for line in &lines {
        sink.send(std::io::Cursor::new(line.clone().into_bytes())).await?;
    }
    assert_eq!(sink.finish().await?, 1000);
    let query = format!(
        "copy (select * from compat_tokio_copied where client = {me}) to stdout"
    );
    let chunks: Vec<_> = db.copy_out(&query).await?.try_collect().await?;
    let received = String::from_utf8(chunks.concat())?;
    let mut found: Vec<String> = received.split_inclusive('\n').map(str::to_owned).collect();
    found.sort();
    lines.sort();
    assert_eq!(found, lines);
    Ok(())
}

async fn cancellation(db: &Client) -> Outcome {
    let token = db.cancel_token();
    // Again and again: the first may come between the statement's Parse and its Bind, when there is
    // nothing to cancel.
    let cancel = async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            if let Err(error) = token.cancel_query(NoTls).await {
                return error;
            }
        }
    };
    let slept = tokio::select! {
        slept = db.query_one("select pg_sleep(60)", &[]) => slept,
        error = cancel => return Err(error.into()),
    };
    assert_eq!(slept.expect_err("it was cancelled").code(), Some(&SqlState::QUERY_CANCELED));
    Ok(())
}

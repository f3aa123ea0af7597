//! How many there may be, how long messages may be.

use std::io::Write as _;

use crate::support::{Raw, Stage, connect, pooler_of};

/// The SQLSTATE and the text with which a pooler turns a client away.
fn refusal(raw: &mut Raw) -> (String, String) {
    let (tag, body) = raw.message().unwrap();
    assert_eq!(tag, b'E', "{}", String::from_utf8_lossy(&body));
    let field = |kind: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let found = fields.find(|field| field.first() == Some(&kind)).unwrap();
        String::from_utf8_lossy(&found[1..]).into_owned()
    };
    (field(b'C'), field(b'M'))
}

#[test]
fn clients_are_counted_together_by_database_and_by_user() {
    let Some(mut stage) = Stage::set("client limits", "") else { return };
    let port = stage.server.port();
    stage.direct("create role other login");
    stage.pooler = pooler_of(&format!(
        r#"
        [pool]
        mode = "transaction"
        workers = 2
        [pool.limits]
        clients = 6
        clients-per-user = 4
        [pool.listen]
        port = 0
        unix-directories = []
        [pool.auth]
        type = "trust"
        [pool.users.postgres]
        secret = ""
        [pool.users.other]
        secret = ""
        max-clients = 0
        [pool.databases.postgres]
        hosts = ["127.0.0.1:{port}"]
        [pool.databases.small]
        hosts = ["127.0.0.1:{port}"]
        dbname = "postgres"
        max-clients = 2
        "#
    ));
    let pooler = stage.address().port();
    let log_in = |database: &str, user: &str| {
        connect(&format!("host=127.0.0.1 port={pooler} dbname={database} user={user}"))
    };
    let full = |database: &str, user: &str, limit: &str| {
        let error = log_in(database, user).unwrap_err();
        assert_eq!(error.sqlstate(), Some("53300"), "{error}");
        let text = format!("{error:?}");
        assert!(text.contains(limit), "{text}");
    };
    let mut inside = vec![log_in("small", "postgres").unwrap(), log_in("small", "other").unwrap()];
    full("small", "other", "max_db_client_connections");
    inside.extend((0..3).map(|_| log_in("postgres", "postgres").unwrap()));
    full("postgres", "postgres", "max_user_client_connections");
    inside.push(log_in("postgres", "other").unwrap());
    full("postgres", "other", "max_client_conn");
    // Who was turned away counts nowhere; who leaves makes room, as soon as that is noticed.
    inside.clear();
    while log_in("small", "postgres").is_err() {}
}

#[test]
fn servers_of_a_database_and_of_a_user_are_counted_over_their_pools() {
    let Some(mut stage) = Stage::set("server limits", "") else { return };
    let port = stage.server.port();
    for role in ["a", "b"] {
        stage.direct(&format!("create role {role} login"));
    }
    stage.pooler = pooler_of(&format!(
        r#"
        [pool]
        mode = "transaction"
        workers = 2
        [pool.listen]
        port = 0
        unix-directories = []
        [pool.auth]
        type = "trust"
        [pool.users.a]
        secret = ""
        max-servers = 2
        [pool.users.b]
        secret = ""
        [pool.databases.one]
        hosts = ["127.0.0.1:{port}"]
        dbname = "postgres"
        max-servers = 3
        [pool.databases.two]
        hosts = ["127.0.0.1:{port}"]
        dbname = "postgres"
        "#
    ));
    let pooler = stage.address().port();
    let places =
        [("one", "a"), ("two", "a"), ("one", "b"), ("one", "a"), ("two", "a"), ("one", "b")];
    let clients = places.map(|(database, user)| {
        let words = format!("host=127.0.0.1 port={pooler} dbname={database} user={user}");
        std::thread::spawn(move || {
            let mut client = connect(&words).unwrap();
            for _ in 0..100 {
                client.query("select 1").unwrap();
            }
        })
    });
    let most = "select coalesce(max(n), 0) <= 2 from (select count(*) n from pg_stat_activity \
                where usename = 'a') s";
    while !clients.iter().all(std::thread::JoinHandle::is_finished) {
        assert_eq!(stage.direct(most), "t");
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
    let count = |user: &str| {
        let of = format!("select count(*) from pg_stat_activity where usename = '{user}'");
        stage.direct(&of).parse::<u32>().unwrap()
    };
    assert!(count("a") <= 2 && count("a") + count("b") <= 4, "{} {}", count("a"), count("b"));
}

#[test]
fn messages_that_are_too_long_end_their_connection() {
    let more = "limits = { message-bytes = 5000 }";
    let Some(stage) = Stage::set("message bytes", more) else { return };
    assert_eq!(stage.psql(&["select length(repeat('x', 4000))"]), "4000");
    // A query, announced by its header alone.
    let mut raw = Raw::log_in(stage.address());
    raw.0.write_all(b"Q\0\0\x13\x88").unwrap();
    let (code, text) = refusal(&mut raw);
    assert_eq!(code, "08P01");
    assert!(text.contains("4996") && text.contains("4995"), "{text}");
    assert!(raw.is_hung_up_on());
    // A row.
    let mut raw = Raw::log_in(stage.address());
    raw.query("select repeat('x', 6000)");
    let answers = raw.until(b'E');
    assert!(answers.iter().all(|(tag, _)| *tag != b'D'));
    assert!(raw.is_hung_up_on());
    assert_eq!(stage.psql(&["select 1"]), "1");
}

#[test]
fn strangers_who_never_log_in_do_not_take_every_place() {
    let Some(stage) = Stage::set("flood", "limits = { clients = 3 }") else { return };
    let mut inside = Raw::log_in(stage.address());
    // As many as may be on their way in, and some more.
    let stranger = || {
        let mut raw = Raw::connect(stage.address());
        // Of one who says nothing at all the kernel does not even tell at first.
        raw.0.write_all(&[0, 0]).unwrap();
        raw
    };
    let mut flood: Vec<Raw> = (0..140).map(|_| stranger()).collect();
    // The oldest make room for those that come.
    let turned_away = flood.iter_mut().take(12).map(refusal).filter(|it| it.0 == "53300").count();
    assert_eq!(turned_away, 12);
    // Who is in does not notice.
    inside.query("select 1");
    inside.until(b'Z');
    drop(flood);
    let again = || stage.run("psql", &["-XAtqc", "select 1"]).status.success();
    while !again() {}
}

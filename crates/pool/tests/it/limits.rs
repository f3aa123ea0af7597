//! Limits on the number of clients and servers, and on the length of messages.

use std::io::Write as _;

use howdah_lab::wait_until;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT, connect, start_pooler_with};

/// Reads an ErrorResponse: SQLSTATE and message.
fn read_error(raw: &mut RawClient) -> (String, String) {
    let (tag, body) = raw.read_message().unwrap();
    assert_eq!(tag, b'E', "{}", String::from_utf8_lossy(&body));
    let field = |kind: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let found = fields.find(|field| field.first() == Some(&kind)).unwrap();
        String::from_utf8_lossy(&found[1..]).into_owned()
    };
    (field(b'C'), field(b'M'))
}

#[test]
fn client_limits_apply_per_database_and_user() {
    let Some(mut fixture) = PoolFixture::start("client limits", "") else { return };
    let port = fixture.server.port();
    fixture.query_server("create role other login");
    fixture.pooler = start_pooler_with(&format!(
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
    let pooler = fixture.address().port();
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
    // Refused clients are not counted, and disconnected ones no longer once that is noticed.
    inside.clear();
    wait_until("a successful login", WAIT_TIMEOUT, || log_in("small", "postgres").is_ok());
}

#[test]
fn server_limits_apply_across_pools() {
    let Some(mut fixture) = PoolFixture::start("server limits", "") else { return };
    let port = fixture.server.port();
    for role in ["a", "b"] {
        fixture.query_server(&format!("create role {role} login"));
    }
    fixture.pooler = start_pooler_with(&format!(
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
    let pooler = fixture.address().port();
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
        assert_eq!(fixture.query_server(most), "t");
    }
    clients.into_iter().for_each(|client| client.join().unwrap());
    let count = |user: &str| {
        let of = format!("select count(*) from pg_stat_activity where usename = '{user}'");
        fixture.query_server(&of).parse::<u32>().unwrap()
    };
    assert!(count("a") <= 2 && count("a") + count("b") <= 4, "{} {}", count("a"), count("b"));
}

#[test]
fn message_over_limit_closes_connection() {
    let more = "limits = { message-bytes = 5000 }";
    let Some(fixture) = PoolFixture::start("message bytes", more) else { return };
    assert_eq!(fixture.psql(&["select length(repeat('x', 4000))"]), "4000");
    // A query of which only the header is sent.
    let mut raw = RawClient::log_in(fixture.address());
    raw.0.write_all(b"Q\0\0\x13\x88").unwrap();
    let (code, text) = read_error(&mut raw);
    assert_eq!(code, "08P01");
    assert!(text.contains("4996") && text.contains("4995"), "{text}");
    assert!(raw.is_disconnected());
    // A row.
    let mut raw = RawClient::log_in(fixture.address());
    raw.send_query("select repeat('x', 6000)");
    let answers = raw.read_until(b'E');
    assert!(answers.iter().all(|(tag, _)| *tag != b'D'));
    assert!(raw.is_disconnected());
    assert_eq!(fixture.psql(&["select 1"]), "1");
}

#[test]
fn connections_without_login_do_not_block_others() {
    let Some(fixture) = PoolFixture::start("flood", "limits = { clients = 3 }") else { return };
    let mut inside = RawClient::log_in(fixture.address());
    // More connections than the limit on logins.
    let connect_only = || {
        let mut raw = RawClient::connect(fixture.address());
        // The kernel holds back connections that have sent nothing.
        raw.0.write_all(&[0, 0]).unwrap();
        raw
    };
    let mut flood: Vec<RawClient> = (0..140).map(|_| connect_only()).collect();
    // The oldest ones are closed for new ones.
    let refused = flood.iter_mut().take(12).map(read_error).filter(|it| it.0 == "53300").count();
    assert_eq!(refused, 12);
    // Established clients are not affected.
    inside.send_query("select 1");
    inside.read_until(b'Z');
    drop(flood);
    let succeeds = || fixture.run_program("psql", &["-XAtqc", "select 1"]).status.success();
    wait_until("a successful login", WAIT_TIMEOUT, succeeds);
}

//! LISTEN and NOTIFY over shared server connections.

use std::{io::Write as _, time::Instant};

use howdah_lab::wait_until;

use crate::support::{PoolFixture, RawClient, WAIT_TIMEOUT};

/// Runs a query string, and returns the tags of the replies.
fn run(raw: &mut RawClient, sql: &str) -> String {
    raw.send_query(sql);
    message_tags(&raw.read_until(b'Z'))
}

fn message_tags(messages: &[(u8, Vec<u8>)]) -> String {
    messages.iter().map(|(tag, _)| char::from(*tag)).collect()
}

/// The next notification as channel and payload. Skips other messages.
fn next_notification(raw: &mut RawClient) -> String {
    let messages = raw.read_until(b'A');
    let body = &messages.last().unwrap().1;
    let parts: Vec<_> = body[4..].split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    format!("{} {}", parts[0], parts[1])
}

/// Asserts that no notification is pending: earlier ones would arrive before this one.
fn assert_no_notification(raw: &mut RawClient, fixture: &PoolFixture) {
    run(raw, "listen the_end");
    fixture.query_server("notify the_end");
    assert_eq!(next_notification(raw), "the_end ");
    run(raw, "unlisten the_end");
}

/// Tags of the command completions.
fn command_tags(raw: &mut RawClient, sql: &str) -> Vec<String> {
    raw.send_query(sql);
    let done = raw.read_until(b'Z').into_iter().filter(|(tag, _)| *tag == b'C');
    done.map(|(_, body)| String::from_utf8_lossy(&body[..body.len() - 1]).into_owned()).collect()
}

#[test]
fn clients_of_shared_server_receive_their_channels() {
    for mode in ["transaction", "statement"] {
        let Some(mut fixture) = PoolFixture::start("receive", "sizes = { pool = 1 }") else {
            return;
        };
        fixture.pooler =
            crate::support::start_pooler_in_mode(&fixture.server, mode, "sizes = { pool = 1 }");
        let (mut one, mut two) =
            (RawClient::log_in(fixture.address()), RawClient::log_in(fixture.address()));
        assert_eq!(command_tags(&mut one, "listen news"), ["LISTEN"]);
        assert_eq!(command_tags(&mut two, "LISTEN \"Odd \"\"one\";"), ["LISTEN"]);
        fixture.query_server(
            "notify news, 'a'; notify \"Odd \"\"one\", 'b'; select pg_notify('news', 'c')",
        );
        assert_eq!(
            [next_notification(&mut one), next_notification(&mut one)],
            ["news a", "news c"]
        );
        assert_eq!(next_notification(&mut two), "Odd \"one b");
        // From one client to the other, and to itself; the latter may arrive before or after
        // ReadyForQuery.
        run(&mut two, "notify news, 'd'");
        assert_eq!(next_notification(&mut one), "news d");
        one.send_query("notify news, 'e'");
        assert_eq!(next_notification(&mut one), "news e");
        one.send_query("select 'there'");
        let is_answered = || one.read_until(b'Z').iter().any(|(_, body)| body.ends_with(b"there"));
        wait_until("the row", WAIT_TIMEOUT, is_answered);
        assert_eq!(command_tags(&mut one, "unlisten news"), ["UNLISTEN"]);
        fixture.query_server("notify news, 'f'");
        assert_no_notification(&mut one, &fixture);
        // The shared server connection itself listens to nothing.
        one.send_query("select count(*) from pg_listening_channels()");
        let row = one.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        assert!(row.ends_with(b"0"), "{}", row.escape_ascii());
    }
}

#[test]
fn listen_takes_effect_at_commit_only() {
    let Some(fixture) = PoolFixture::start("commit", "sizes = { pool = 1 }") else { return };
    let mut raw = RawClient::log_in(fixture.address());
    run(&mut raw, "listen kept");
    let mut other = RawClient::log_in(fixture.address());
    run(&mut other, "listen kept");
    for sql in [
        "begin",
        "listen a",
        "unlisten kept",
        "savepoint s",
        "listen b",
        "unlisten *",
        "rollback to s",
        "listen c",
        "unlisten a",
        "listen a",
    ] {
        assert_eq!(run(&mut raw, sql), "CZ", "{sql}");
    }
    fixture.query_server("notify a, 'too early'; notify kept, 'still'");
    assert_eq!(next_notification(&mut other), "kept still", "the notification has been delivered");
    assert_eq!(run(&mut raw, "select 1"), "TDCZ", "not in a transaction");
    assert_eq!(run(&mut raw, "commit"), "CAZ");
    fixture.query_server("notify kept, 'no'; notify b, 'no'; notify a, '1'; notify c, '2'");
    assert_eq!([next_notification(&mut raw), next_notification(&mut raw)], ["a 1", "c 2"]);
    // None of these take effect.
    run(&mut raw, "begin; listen x; unlisten a");
    run(&mut raw, "rollback");
    assert_eq!(run(&mut raw, "listen y; select 1/0"), "CEZ");
    assert_eq!(run(&mut raw, "begin; listen z; select 1/0"), "CCEZ");
    assert_eq!(run(&mut raw, "listen z"), "EZ");
    run(&mut raw, "rollback");
    fixture.query_server("notify x; notify y; notify z; notify a, '3'");
    assert_eq!(next_notification(&mut raw), "a 3");
    // Several statements in one string, and DISCARD ALL.
    assert_eq!(
        command_tags(&mut raw, "listen x; unlisten a; select 1; unlisten *; listen y;").len(),
        5
    );
    fixture.query_server("notify x; notify a; notify y, '4'");
    assert_eq!(next_notification(&mut raw), "y 4");
    assert_eq!(command_tags(&mut raw, "discard all"), ["DISCARD ALL"]);
    fixture.query_server("notify y, '5'");
    assert_no_notification(&mut raw, &fixture);
}

#[test]
fn listen_works_in_extended_protocol() {
    let Some(fixture) = PoolFixture::start("extended", "sizes = { pool = 1 }") else { return };
    let mut raw = RawClient::log_in(fixture.address());
    let message = |tag: u8, body: &[u8]| {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[tag][..], &length, body].concat()
    };
    let batch = |name: &str, sql: Option<&str>| {
        let parse = sql.map(|sql| message(b'P', format!("{name}\0{sql}\0\0\0").as_bytes()));
        let bind = message(b'B', format!("\0{name}\0\0\0\0\0\0\0").as_bytes());
        let run = [message(b'D', b"P\0"), message(b'E', b"\0\0\0\0\0"), message(b'S', b"")];
        [parse.unwrap_or_default(), bind, run.concat()].concat()
    };
    // One unnamed batch, as most drivers send it; then a named statement bound in a later batch.
    raw.0.write_all(&batch("", Some("listen one"))).unwrap();
    assert_eq!(message_tags(&raw.read_until(b'Z')), "12nCZ");
    raw.0.write_all(&message(b'P', b"l\0LISTEN two\0\0\0")).unwrap();
    raw.0.write_all(&message(b'S', b"")).unwrap();
    assert_eq!(message_tags(&raw.read_until(b'Z')), "1Z");
    raw.0.write_all(&batch("l", None)).unwrap();
    assert_eq!(message_tags(&raw.read_until(b'Z')), "2nCZ");
    fixture.query_server("notify one, '1'; notify two, '2'");
    assert_eq!([next_notification(&mut raw), next_notification(&mut raw)], ["one 1", "two 2"]);
    // Pipelined batches.
    let pipeline = [
        batch("", Some("begin")),
        batch("", Some("unlisten one")),
        batch("l3", Some("listen three")),
        batch("", Some("commit")),
        batch("", Some("select 1")),
    ];
    raw.0.write_all(&pipeline.concat()).unwrap();
    let output: String = (0..5).map(|_| message_tags(&raw.read_until(b'Z'))).collect();
    assert_eq!(output, "12nCZ12nCZ12nCZ12nCZ12TDCZ");
    // A batch of several statements of which the last fails.
    let failing = [
        message(b'P', b"\0listen four\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'P', b"\0select 1/0\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ];
    raw.0.write_all(&failing.concat()).unwrap();
    let output = message_tags(&raw.read_until(b'Z'));
    assert!(output.starts_with("12C") && output.ends_with("EZ"), "{output}");
    fixture.query_server("notify one; notify four; notify three, '3'");
    assert_eq!(next_notification(&mut raw), "three 3");
}

#[test]
fn notify_after_listen_is_never_missed() {
    let Some(fixture) = PoolFixture::start("race", "sizes = { pool = 2 }") else { return };
    let mut listener = RawClient::log_in(fixture.address());
    let mut notifier = RawClient::log_in(fixture.address());
    for round in 0..200 {
        // Once LISTEN is complete, every notification must arrive.
        run(&mut listener, &format!("listen channel_{round}"));
        run(&mut notifier, &format!("notify channel_{round}, '{round}'"));
        assert_eq!(next_notification(&mut listener), format!("channel_{round} {round}"));
        if round % 3 == 0 {
            run(&mut listener, "unlisten *");
        }
    }
}

#[test]
fn ten_thousand_channels_are_supported() {
    let Some(fixture) = PoolFixture::start("many_channels", "sizes = { pool = 2 }") else { return };
    let mut one = RawClient::log_in(fixture.address());
    let mut two = RawClient::log_in(fixture.address());
    let all: String = (0..10_000).map(|n| format!("listen \"c{n}\";")).collect();
    assert_eq!(command_tags(&mut one, &all).len(), 10_000);
    let some: String = (0..10_000).step_by(100).map(|n| format!("listen c{n};")).collect();
    assert_eq!(command_tags(&mut two, &some).len(), 100);
    fixture.query_server(
        "do $$ begin for n in 0..9999 loop perform pg_notify('c' || n, 'x'); end loop; end $$",
    );
    for n in 0..10_000 {
        assert_eq!(next_notification(&mut one), format!("c{n} x"));
    }
    for n in (0..10_000).step_by(100) {
        assert_eq!(next_notification(&mut two), format!("c{n} x"));
    }
    assert_eq!(command_tags(&mut one, "unlisten *"), ["UNLISTEN"]);
    fixture.query_server("notify c7; notify c100, 'y'");
    assert_eq!(next_notification(&mut two), "c100 y");
    assert_no_notification(&mut one, &fixture);
}

#[test]
fn slow_client_gets_warning_with_dropped_count() {
    let more = "sizes = { pool = 2 }\nnotifications = { client-bytes = 100000 }";
    let Some(fixture) = PoolFixture::start("lag", more) else { return };
    let mut slow = RawClient::log_in(fixture.address());
    let mut quick = RawClient::log_in(fixture.address());
    run(&mut slow, "listen flood");
    run(&mut quick, "listen flood");
    // Far more than socket buffers hold.
    let (rounds, each) = (60, 100);
    for round in 0..rounds {
        fixture.query_server(&format!(
            "select pg_notify('flood', {round} || ' ' || n || repeat('x', 7000)) \
             from generate_series(1, {each}) n"
        ));
        for n in 1..=each {
            assert!(next_notification(&mut quick).starts_with(&format!("flood {round} {n}x")));
        }
    }
    // The slow client receives the first ones in order, then the number of dropped ones; none is
    // counted twice.
    let (mut delivered, mut dropped, mut last) = (0, 0, 0);
    let began = Instant::now();
    while delivered + dropped < rounds * each {
        assert!(began.elapsed() < WAIT_TIMEOUT, "{delivered} delivered and {dropped} dropped");
        let (tag, body) = slow.read_message().unwrap();
        let text = String::from_utf8_lossy(&body[4.min(body.len())..]).into_owned();
        match tag {
            b'A' => {
                let mut words = text.trim_start_matches("flood\0").split([' ', 'x']);
                let mut number = || words.next().unwrap().parse::<usize>().unwrap();
                let position = number() * each + number();
                assert!(position > last, "{position} after {last}");
                (last, delivered) = (position, delivered + 1);
            }
            b'N' => {
                assert!(text.contains("WARNING") && text.contains("01N01"), "{text}");
                let message = text.split('\0').find_map(|field| field.strip_prefix('M')).unwrap();
                let count = message.rsplit(' ').nth(1).unwrap();
                dropped += count.parse::<usize>().unwrap();
            }
            _ => panic!("{tag}"),
        }
    }
    assert!(delivered > 0 && dropped > 0);
    fixture.query_server("notify flood, 'after'");
    assert_eq!(next_notification(&mut slow), "flood after");
}

#[test]
fn lost_connection_is_reopened_with_warning() {
    let Some(fixture) = PoolFixture::start("lost", "sizes = { pool = 1 }") else { return };
    let mut raw = RawClient::log_in(fixture.address());
    run(&mut raw, "listen a; listen b");
    fixture.query_server("notify a, '1'");
    assert_eq!(next_notification(&mut raw), "a 1");
    let killed = fixture.query_server(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity \
         where application_name = 'howdah: notifications'",
    );
    assert_eq!(killed, "1");
    let notice = raw.read_until(b'N').pop().unwrap().1;
    let text = String::from_utf8_lossy(&notice).into_owned();
    assert!(text.contains("WARNING") && text.contains("01N02"), "{text}");
    // After the warning no notification is missing.
    fixture.query_server("notify a, '2'; notify b, '3'");
    assert_eq!([next_notification(&mut raw), next_notification(&mut raw)], ["a 2", "b 3"]);
}

#[test]
fn failed_listen_does_not_end_session() {
    let Some(fixture) = PoolFixture::start("refused", "sizes = { pool = 1 }") else { return };
    let mut raw = RawClient::log_in(fixture.address());
    run(&mut raw, "select 1");
    fixture.query_server(
        "create role lonely login connection limit 0; alter role postgres valid until 'infinity'",
    );
    let mut wrong = RawClient::connect(fixture.address());
    wrong.send_startup(0, "client_encoding\0LATIN1\0");
    wrong.read_until(b'Z');
    wrong.send_query("select 1");
    wrong.read_until(b'Z');
    // A channel name that is invalid in the database's encoding.
    wrong.0.write_all(b"Q\0\0\0\x0elisten \xe4\xff\0").unwrap();
    let output = wrong.read_until(b'Z');
    let error = output.iter().find(|(tag, _)| *tag == b'E').unwrap();
    let text = String::from_utf8_lossy(&error.1).into_owned();
    assert!(text.contains("55000") && text.contains("cannot listen: "), "{text}");
    assert_eq!(run(&mut wrong, "select 1"), "TDCZ");
    // In a transaction it fails like any statement.
    run(&mut wrong, "begin");
    wrong.0.write_all(b"Q\0\0\0\x0elisten \xe4\xff\0").unwrap();
    let output = wrong.read_until(b'Z');
    assert_eq!(output.last().unwrap().1, b"E");
    run(&mut wrong, "rollback");
    // Other clients are not affected.
    run(&mut raw, "listen fine");
    fixture.query_server("notify fine, 'x'");
    assert_eq!(next_notification(&mut raw), "fine x");
}

#[test]
fn unrecognized_listen_causes_warning() {
    let Some(fixture) = PoolFixture::start("unfollowed", "sizes = { pool = 1 }") else { return };
    let mut raw = RawClient::log_in(fixture.address());
    raw.send_query("select $$;$$; listen a -- why; not");
    let output = raw.read_until(b'Z');
    let notice = output.iter().find(|(tag, _)| *tag == b'N').expect("a warning");
    assert!(String::from_utf8_lossy(&notice.1).contains("01N03"));
}

/// Reads up to the notification with this payload, and returns the SQLSTATEs of warnings before it.
fn warnings_until(raw: &mut RawClient, payload: &str) -> Vec<String> {
    let mut output = Vec::new();
    loop {
        let (tag, body) = raw.read_message().unwrap();
        let text = String::from_utf8_lossy(&body).into_owned();
        match tag {
            b'N' => output.push(text.split("\0C").nth(1).unwrap()[..5].to_owned()),
            b'A' if text.ends_with(&format!("\0{payload}\0")) => return output,
            _ => panic!("{tag}: {text}"),
        }
    }
}

#[test]
fn pause_closes_connection_and_resume_reopens_it() {
    let Some(fixture) = PoolFixture::start("pause", "admin-users = ['postgres']") else { return };
    let console = |command: &str| {
        crate::support::checked_stdout(
            fixture.run_program("psql", &["-XAtq", "-d", "howdah", "-c", command]),
        )
    };
    let mut raw = RawClient::log_in(fixture.address());
    run(&mut raw, "listen a");
    let listeners = "select count(*) from pg_stat_activity \
                     where application_name = 'howdah: notifications'";
    assert_eq!(fixture.query_server(listeners), "1");
    let shown = console("show listeners");
    assert!(shown.starts_with("postgres|postgres|") && shown.contains("|listening|"), "{shown}");
    console("pause");
    wait_until("the connection to close", WAIT_TIMEOUT, || fixture.query_server(listeners) == "0");
    console("resume");
    wait_until("the connection to return", WAIT_TIMEOUT, || fixture.query_server(listeners) == "1");
    wait_until("the connection to listen", WAIT_TIMEOUT, || {
        console("show listeners").contains("|1|1|0|0|0|1|")
    });
    fixture.query_server("notify a, '1'");
    assert_eq!(warnings_until(&mut raw, "1"), ["01N02"]);
    console("reconnect");
    let notice = raw.read_until(b'N').pop().unwrap().1;
    assert!(String::from_utf8_lossy(&notice).contains("01N02"));
    // The connection is closed when no client listens.
    drop(raw);
    wait_until("the unused connection to close", WAIT_TIMEOUT, || {
        fixture.query_server(listeners) == "0"
    });
    let mut again = RawClient::log_in(fixture.address());
    run(&mut again, "listen a");
    fixture.query_server("notify a, '2'");
    assert_eq!(warnings_until(&mut again, "2"), [""; 0]);
}

#[test]
fn listen_is_repeated_after_server_restart() {
    let Some(mut fixture) = PoolFixture::start("restarted", "") else { return };
    let mut raw = RawClient::log_in(fixture.address());
    run(&mut raw, "listen a");
    fixture.server.kill().unwrap();
    fixture.server.start().unwrap();
    let notice = raw.read_until(b'N').pop().unwrap().1;
    assert!(String::from_utf8_lossy(&notice).contains("01N02"));
    fixture.query_server("notify a, '1'");
    assert_eq!(warnings_until(&mut raw, "1"), [""; 0]);
}

#[test]
fn clients_of_all_workers_receive_notifications_in_order() {
    let Some(mut fixture) = PoolFixture::start("fan_out", "") else { return };
    fixture.pooler = crate::support::start_pooler_with(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 3\n[pool.limits]\nclients = 300\n\
         [pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
         [pool.users.postgres]\nsecret = ''\n[pool.databases.'*']\nhosts = ['127.0.0.1:{}']\n",
        fixture.server.port()
    ));
    let mut clients: Vec<_> = (0..150).map(|_| RawClient::log_in(fixture.address())).collect();
    for client in &mut clients {
        run(client, "listen all_of_you");
    }
    fixture.query_server("select pg_notify('all_of_you', n::text) from generate_series(1, 200) n");
    for client in &mut clients {
        for n in 1..=200 {
            assert_eq!(next_notification(client), format!("all_of_you {n}"));
        }
    }
}

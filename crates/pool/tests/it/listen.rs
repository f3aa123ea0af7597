//! LISTEN and NOTIFY where clients share servers.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use crate::support::{Raw, Stage};

/// For whatever has to happen.
const SOON: Duration = Duration::from_secs(60);

/// Runs a query string, and gives the kinds of messages that came.
fn run(raw: &mut Raw, sql: &str) -> String {
    raw.query(sql);
    kinds(&raw.until(b'Z'))
}

fn kinds(messages: &[(u8, Vec<u8>)]) -> String {
    messages.iter().map(|(tag, _)| char::from(*tag)).collect()
}

/// The next notification: channel and payload. What comes before it is passed over.
fn next(raw: &mut Raw) -> String {
    let messages = raw.until(b'A');
    let body = &messages.last().unwrap().1;
    let parts: Vec<_> = body[4..].split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    format!("{} {}", parts[0], parts[1])
}

/// Whether nothing is heard: what was notified before would have come before this.
fn hears_nothing(raw: &mut Raw, stage: &Stage) {
    run(raw, "listen the_end");
    stage.direct("notify the_end");
    assert_eq!(next(raw), "the_end ");
    run(raw, "unlisten the_end");
}

/// Tags of the command completions.
fn tags(raw: &mut Raw, sql: &str) -> Vec<String> {
    raw.query(sql);
    let done = raw.until(b'Z').into_iter().filter(|(tag, _)| *tag == b'C');
    done.map(|(_, body)| String::from_utf8_lossy(&body[..body.len() - 1]).into_owned()).collect()
}

#[test]
fn clients_of_a_shared_server_hear_what_they_listen_to() {
    for mode in ["transaction", "statement"] {
        let Some(mut stage) = Stage::set("hear", "sizes = { pool = 1 }") else { return };
        stage.pooler = crate::support::pooler_in(&stage.server, mode, "sizes = { pool = 1 }");
        let (mut one, mut two) = (Raw::log_in(stage.address()), Raw::log_in(stage.address()));
        assert_eq!(tags(&mut one, "listen news"), ["LISTEN"]);
        assert_eq!(tags(&mut two, "LISTEN \"Odd \"\"one\";"), ["LISTEN"]);
        stage
            .direct("notify news, 'a'; notify \"Odd \"\"one\", 'b'; select pg_notify('news', 'c')");
        assert_eq!([next(&mut one), next(&mut one)], ["news a", "news c"]);
        assert_eq!(next(&mut two), "Odd \"one b");
        // From one client to the other, and to itself; this may come before or behind ReadyForQuery.
        run(&mut two, "notify news, 'd'");
        assert_eq!(next(&mut one), "news d");
        one.query("notify news, 'e'");
        assert_eq!(next(&mut one), "news e");
        one.query("select 'there'");
        while !one.until(b'Z').iter().any(|(_, body)| body.ends_with(b"there")) {}
        assert_eq!(tags(&mut one, "unlisten news"), ["UNLISTEN"]);
        stage.direct("notify news, 'f'");
        hears_nothing(&mut one, &stage);
        // The server that they share listens to nothing.
        one.query("select count(*) from pg_listening_channels()");
        let row = one.until(b'Z').into_iter().find(|(tag, _)| *tag == b'D').unwrap().1;
        assert!(row.ends_with(b"0"), "{}", row.escape_ascii());
    }
}

#[test]
fn listen_takes_effect_at_commit_and_is_undone_by_rollback() {
    let Some(stage) = Stage::set("commit", "sizes = { pool = 1 }") else { return };
    let mut raw = Raw::log_in(stage.address());
    run(&mut raw, "listen kept");
    let mut other = Raw::log_in(stage.address());
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
    stage.direct("notify a, 'too early'; notify kept, 'still'");
    assert_eq!(next(&mut other), "kept still", "so it is there for the other, too");
    assert_eq!(run(&mut raw, "select 1"), "TDCZ", "not in a transaction");
    assert_eq!(run(&mut raw, "commit"), "CAZ");
    stage.direct("notify kept, 'no'; notify b, 'no'; notify a, '1'; notify c, '2'");
    assert_eq!([next(&mut raw), next(&mut raw)], ["a 1", "c 2"]);
    // Nothing of this counts.
    run(&mut raw, "begin; listen x; unlisten a");
    run(&mut raw, "rollback");
    assert_eq!(run(&mut raw, "listen y; select 1/0"), "CEZ");
    assert_eq!(run(&mut raw, "begin; listen z; select 1/0"), "CCEZ");
    assert_eq!(run(&mut raw, "listen z"), "EZ");
    run(&mut raw, "rollback");
    stage.direct("notify x; notify y; notify z; notify a, '3'");
    assert_eq!(next(&mut raw), "a 3");
    // Several in one string, and what ends all.
    assert_eq!(tags(&mut raw, "listen x; unlisten a; select 1; unlisten *; listen y;").len(), 5);
    stage.direct("notify x; notify a; notify y, '4'");
    assert_eq!(next(&mut raw), "y 4");
    assert_eq!(tags(&mut raw, "discard all"), ["DISCARD ALL"]);
    stage.direct("notify y, '5'");
    hears_nothing(&mut raw, &stage);
}

#[test]
fn listen_by_the_extended_protocol() {
    let Some(stage) = Stage::set("extended", "sizes = { pool = 1 }") else { return };
    let mut raw = Raw::log_in(stage.address());
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
    // All in one, unnamed, as most drivers do; then a name that is bound in a later batch.
    raw.0.write_all(&batch("", Some("listen one"))).unwrap();
    assert_eq!(kinds(&raw.until(b'Z')), "12nCZ");
    raw.0.write_all(&message(b'P', b"l\0LISTEN two\0\0\0")).unwrap();
    raw.0.write_all(&message(b'S', b"")).unwrap();
    assert_eq!(kinds(&raw.until(b'Z')), "1Z");
    raw.0.write_all(&batch("l", None)).unwrap();
    assert_eq!(kinds(&raw.until(b'Z')), "2nCZ");
    stage.direct("notify one, '1'; notify two, '2'");
    assert_eq!([next(&mut raw), next(&mut raw)], ["one 1", "two 2"]);
    // Batches that follow one another without waiting.
    let pipeline = [
        batch("", Some("begin")),
        batch("", Some("unlisten one")),
        batch("l3", Some("listen three")),
        batch("", Some("commit")),
        batch("", Some("select 1")),
    ];
    raw.0.write_all(&pipeline.concat()).unwrap();
    let said: String = (0..5).map(|_| kinds(&raw.until(b'Z'))).collect();
    assert_eq!(said, "12nCZ12nCZ12nCZ12nCZ12TDCZ");
    // One batch of several statements, of which the last fails.
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
    let said = kinds(&raw.until(b'Z'));
    assert!(said.starts_with("12C") && said.ends_with("EZ"), "{said}");
    stage.direct("notify one; notify four; notify three, '3'");
    assert_eq!(next(&mut raw), "three 3");
}

#[test]
fn nothing_is_lost_between_listen_and_notify() {
    let Some(stage) = Stage::set("race", "sizes = { pool = 2 }") else { return };
    let mut listener = Raw::log_in(stage.address());
    let mut notifier = Raw::log_in(stage.address());
    for round in 0..200 {
        // As soon as LISTEN is answered, whatever is notified has to come.
        run(&mut listener, &format!("listen channel_{round}"));
        run(&mut notifier, &format!("notify channel_{round}, '{round}'"));
        assert_eq!(next(&mut listener), format!("channel_{round} {round}"));
        if round % 3 == 0 {
            run(&mut listener, "unlisten *");
        }
    }
}

#[test]
fn ten_thousand_channels() {
    let Some(stage) = Stage::set("many_channels", "sizes = { pool = 2 }") else { return };
    let mut one = Raw::log_in(stage.address());
    let mut two = Raw::log_in(stage.address());
    let all: String = (0..10_000).map(|n| format!("listen \"c{n}\";")).collect();
    assert_eq!(tags(&mut one, &all).len(), 10_000);
    let some: String = (0..10_000).step_by(100).map(|n| format!("listen c{n};")).collect();
    assert_eq!(tags(&mut two, &some).len(), 100);
    stage.direct(
        "do $$ begin for n in 0..9999 loop perform pg_notify('c' || n, 'x'); end loop; end $$",
    );
    for n in 0..10_000 {
        assert_eq!(next(&mut one), format!("c{n} x"));
    }
    for n in (0..10_000).step_by(100) {
        assert_eq!(next(&mut two), format!("c{n} x"));
    }
    assert_eq!(tags(&mut one, "unlisten *"), ["UNLISTEN"]);
    stage.direct("notify c7; notify c100, 'y'");
    assert_eq!(next(&mut two), "c100 y");
    hears_nothing(&mut one, &stage);
}

#[test]
fn a_client_that_does_not_read_is_told_what_it_missed() {
    let more = "sizes = { pool = 2 }\nnotifications = { client-bytes = 100000 }";
    let Some(stage) = Stage::set("lag", more) else { return };
    let mut slow = Raw::log_in(stage.address());
    let mut quick = Raw::log_in(stage.address());
    run(&mut slow, "listen flood");
    run(&mut quick, "listen flood");
    // Far more than sockets hold.
    let (rounds, each) = (60, 100);
    for round in 0..rounds {
        stage.direct(&format!(
            "select pg_notify('flood', {round} || ' ' || n || repeat('x', 7000)) \
             from generate_series(1, {each}) n"
        ));
        for n in 1..=each {
            assert!(next(&mut quick).starts_with(&format!("flood {round} {n}x")));
        }
    }
    // The slow one finds the first in order, then how many are missing, and nothing is counted twice.
    let (mut heard, mut dropped, mut last) = (0, 0, 0);
    let began = Instant::now();
    while heard + dropped < rounds * each {
        assert!(began.elapsed() < SOON, "{heard} heard and {dropped} dropped");
        let (tag, body) = slow.message().unwrap();
        let text = String::from_utf8_lossy(&body[4.min(body.len())..]).into_owned();
        match tag {
            b'A' => {
                let mut words = text.trim_start_matches("flood\0").split([' ', 'x']);
                let mut number = || words.next().unwrap().parse::<usize>().unwrap();
                let place = number() * each + number();
                assert!(place > last, "{place} after {last}");
                (last, heard) = (place, heard + 1);
            }
            b'N' => {
                assert!(text.contains("WARNING") && text.contains("01N01"), "{text}");
                let count = text.split("dropped, ").nth(1).unwrap().split(' ').next().unwrap();
                dropped += count.parse::<usize>().unwrap();
            }
            _ => panic!("{tag}"),
        }
    }
    assert!(heard > 0 && dropped > 0);
    stage.direct("notify flood, 'after'");
    assert_eq!(next(&mut slow), "flood after");
}

#[test]
fn a_lost_connection_is_made_again_and_told_of() {
    let Some(stage) = Stage::set("lost", "sizes = { pool = 1 }") else { return };
    let mut raw = Raw::log_in(stage.address());
    run(&mut raw, "listen a; listen b");
    stage.direct("notify a, '1'");
    assert_eq!(next(&mut raw), "a 1");
    let killed = stage.direct(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity \
         where application_name = 'howdah: notifications'",
    );
    assert_eq!(killed, "1");
    let notice = raw.until(b'N').pop().unwrap().1;
    let text = String::from_utf8_lossy(&notice).into_owned();
    assert!(text.contains("WARNING") && text.contains("01N02"), "{text}");
    // From the notice on nothing is missing.
    stage.direct("notify a, '2'; notify b, '3'");
    assert_eq!([next(&mut raw), next(&mut raw)], ["a 2", "b 3"]);
}

#[test]
fn listen_fails_with_a_reason_and_the_session_goes_on() {
    let Some(stage) = Stage::set("refused", "sizes = { pool = 1 }") else { return };
    let mut raw = Raw::log_in(stage.address());
    run(&mut raw, "select 1");
    stage.direct(
        "create role lonely login connection limit 0; alter role postgres valid until 'infinity'",
    );
    let mut wrong = Raw::connect(stage.address());
    wrong.start(0, "client_encoding\0LATIN1\0");
    wrong.until(b'Z');
    wrong.query("select 1");
    wrong.until(b'Z');
    // A name that is none in the database's encoding.
    wrong.0.write_all(b"Q\0\0\0\x0elisten \xe4\xff\0").unwrap();
    let said = wrong.until(b'Z');
    let error = said.iter().find(|(tag, _)| *tag == b'E').unwrap();
    let text = String::from_utf8_lossy(&error.1).into_owned();
    assert!(text.contains("55000") && text.contains("cannot listen: "), "{text}");
    assert_eq!(run(&mut wrong, "select 1"), "TDCZ");
    // In a transaction it fails as any statement would.
    run(&mut wrong, "begin");
    wrong.0.write_all(b"Q\0\0\0\x0elisten \xe4\xff\0").unwrap();
    let said = wrong.until(b'Z');
    assert_eq!(said.last().unwrap().1, b"E");
    run(&mut wrong, "rollback");
    // Others are not concerned.
    run(&mut raw, "listen fine");
    stage.direct("notify fine, 'x'");
    assert_eq!(next(&mut raw), "fine x");
}

#[test]
fn a_listen_that_cannot_be_followed_is_told() {
    let Some(stage) = Stage::set("unfollowed", "sizes = { pool = 1 }") else { return };
    let mut raw = Raw::log_in(stage.address());
    raw.query("select $$;$$; listen a -- why; not");
    let said = raw.until(b'Z');
    let notice = said.iter().find(|(tag, _)| *tag == b'N').expect("a warning");
    assert!(String::from_utf8_lossy(&notice.1).contains("01N03"));
}

/// Warnings and notifications up to this payload.
fn up_to(raw: &mut Raw, payload: &str) -> Vec<String> {
    let mut said = Vec::new();
    loop {
        let (tag, body) = raw.message().unwrap();
        let text = String::from_utf8_lossy(&body).into_owned();
        match tag {
            b'N' => said.push(text.split("\0C").nth(1).unwrap()[..5].to_owned()),
            b'A' if text.ends_with(&format!("\0{payload}\0")) => return said,
            _ => panic!("{tag}: {text}"),
        }
    }
}

#[test]
fn a_pause_ends_the_connection_and_resume_makes_it_again() {
    let Some(stage) = Stage::set("pause", "admin-users = ['postgres']") else { return };
    let console = |command: &str| {
        crate::support::said(stage.run("psql", &["-XAtq", "-d", "howdah", "-c", command]))
    };
    let mut raw = Raw::log_in(stage.address());
    run(&mut raw, "listen a");
    let listeners = "select count(*) from pg_stat_activity \
                     where application_name = 'howdah: notifications'";
    assert_eq!(stage.direct(listeners), "1");
    let shown = console("show listeners");
    assert!(shown.starts_with("postgres|postgres|") && shown.contains("|listening|"), "{shown}");
    console("pause");
    until("it is gone", || stage.direct(listeners) == "0");
    console("resume");
    until("it is back", || stage.direct(listeners) == "1");
    until("it listens", || console("show listeners").contains("|1|1|0|0|0|1|"));
    stage.direct("notify a, '1'");
    assert_eq!(up_to(&mut raw, "1"), ["01N02"]);
    console("reconnect");
    let notice = raw.until(b'N').pop().unwrap().1;
    assert!(String::from_utf8_lossy(&notice).contains("01N02"));
    // Nobody listens any more: the connection is let go.
    drop(raw);
    until("it is not needed", || stage.direct(listeners) == "0");
    let mut again = Raw::log_in(stage.address());
    run(&mut again, "listen a");
    stage.direct("notify a, '2'");
    assert_eq!(up_to(&mut again, "2"), [""; 0]);
}

#[test]
fn a_server_that_is_started_anew_is_listened_to_again() {
    let Some(mut stage) = Stage::set("restarted", "") else { return };
    let mut raw = Raw::log_in(stage.address());
    run(&mut raw, "listen a");
    stage.server.kill().unwrap();
    stage.server.start().unwrap();
    let notice = raw.until(b'N').pop().unwrap().1;
    assert!(String::from_utf8_lossy(&notice).contains("01N02"));
    stage.direct("notify a, '1'");
    assert_eq!(up_to(&mut raw, "1"), [""; 0]);
}

#[test]
fn many_clients_of_several_workers_hear_the_same_in_order() {
    let Some(mut stage) = Stage::set("fan_out", "") else { return };
    stage.pooler = crate::support::pooler_of(&format!(
        "[pool]\nmode = 'transaction'\nworkers = 3\n[pool.limits]\nclients = 300\n\
         [pool.listen]\nport = 0\nunix-directories = []\n[pool.auth]\ntype = 'trust'\n\
         [pool.users.postgres]\nsecret = ''\n[pool.databases.'*']\nhosts = ['127.0.0.1:{}']\n",
        stage.server.port()
    ));
    let mut clients: Vec<_> = (0..150).map(|_| Raw::log_in(stage.address())).collect();
    for client in &mut clients {
        run(client, "listen all_of_you");
    }
    stage.direct("select pg_notify('all_of_you', n::text) from generate_series(1, 200) n");
    for client in &mut clients {
        for n in 1..=200 {
            assert_eq!(next(client), format!("all_of_you {n}"));
        }
    }
}

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
    }
}

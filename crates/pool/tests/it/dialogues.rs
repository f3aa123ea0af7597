//! The same dialogues directly with a server and through the pooler: the replies must be equal.
//!
//! Messages are written as text: `P s select 1` is a Parse of `s`, `B s p` a Bind of it to the
//! portal `p`, and so on, see [`messages`]; `-` is the empty name. `QS`, `FS` and `SS` get no
//! reply: they belong to a failed batch, or arrive during COPY. The messages of one step are sent
//! at once.

use std::net::SocketAddr;

use crate::support::{PoolFixture, RawClient};

/// A client's startup parameters, and the messages that it sends step by step.
struct Dialogue {
    startup: &'static [(&'static str, &'static str)],
    steps: &'static [&'static str],
}

const fn dialogue(steps: &'static [&'static str]) -> Dialogue {
    Dialogue { startup: &[], steps }
}

const ZONED: &[(&str, &str)] = &[("TimeZone", "CET"), ("DateStyle", "German")];

const fn zoned(steps: &'static [&'static str]) -> Dialogue {
    Dialogue { startup: ZONED, steps }
}

const DIALOGUES: &[Dialogue] = &[
    // Errors and the messages after them.
    dialogue(&["P s wrong | B s | E | S | P s select 1 | B s | E | S"]),
    dialogue(&["P s select 1 | S", "P s select 2 | S", "B s | E | S", "P s wrong | S"]),
    dialogue(&["B no | E | S", "DS no | S", "CS no | S", "E no | S", "DP no | S"]),
    dialogue(&["P - select 1 | S", "Q select 2", "B - | E | S"]),
    dialogue(&["P - select 1 | S", "P - wrong | S", "B - | E | S"]),
    dialogue(&["P - select 1 | S", "B no | P - select 2 | S", "B - | DP | E | S"]),
    dialogue(&["P - select 1 | B - | E | P - select 1/0 | B - | E | P - select 3 | B - | E | S"]),
    dialogue(&["Q select 1; select 1/0; select 2", "Q ", "Q ;"]),
    dialogue(&["P s select 1 | Q select 2 | S", "P t wrong | QS select 3 | S", "DS s | DS t | S"]),
    // Transactions.
    dialogue(&["Q begin", "Q select 1/0", "P s select 1 | S", "B s | S", "Q rollback", "B s | S"]),
    dialogue(&[
        "Q begin | Q select 1/0 | P s select 1 | S | Q rollback | P s select 2 | B s | E | S",
    ]),
    dialogue(&[
        "P s select 1 | S",
        "Q begin | Q select 1/0 | P s select 2 | S | Q commit | P s wrong | S",
    ]),
    dialogue(&[
        "Q begin",
        "P - select generate_series(1, 5) | B - p | DP p | S",
        "E p 2 | S",
        "E p 2 | S",
        "E p 2 | S",
        "CP p | E p 2 | S",
        "Q commit",
    ]),
    dialogue(&["P - select 1 | B - p | S", "E p | S"]),
    dialogue(&["P - select 1 | B - | E | H4", "S", "P - wrong | H1", "B - | E | S"]),
    // Statements that are deallocated.
    dialogue(&["P s select 1 | S", "Q deallocate s", "B s | E | S", "Q deallocate s"]),
    dialogue(&["P s select 1 | S", "P - deallocate s | B - | E | S", "B s | E | S"]),
    dialogue(&["P s select 1 | S", "P - deallocate s | B - | E | B s | E | S", "DS s | S"]),
    dialogue(&["P s select 1 | S", "Q deallocate all", "B s | S", "P s select 2 | B s | E | S"]),
    dialogue(&["P s select 1 | S", "Q discard all", "B s | S", "P s select 2 | B s | E | S"]),
    dialogue(&["P s select 1 | S", "Q deallocate all | B s | E | S", "P s select 3 | B s | E | S"]),
    dialogue(&[
        "P s select 1 | B s | CS s | E | S",
        "B s | S",
        "CS s | P s select 2 | S",
        "DS s | S",
    ]),
    dialogue(&["P s select 1 | S", "B no | CS s | S | P s select 2 | S", "B s | E | S"]),
    dialogue(&["Q begin", "Q discard all", "Q rollback"]),
    // Settings.
    zoned(&[
        "Q show timezone",
        "Q set timezone to 'Asia/Tokyo'",
        "Q show timezone",
        "Q reset timezone",
    ]),
    zoned(&[
        "Q set timezone to 'Asia/Tokyo'",
        "Q reset all",
        "Q show timezone",
        "Q show datestyle",
    ]),
    zoned(&["Q set timezone to 'Asia/Tokyo' | Q reset all | Q show timezone | Q show datestyle"]),
    zoned(&[
        "Q set timezone to 'Asia/Tokyo'",
        "Q discard all",
        "Q show timezone",
        "Q show datestyle",
    ]),
    zoned(&["P - reset all | B - | E | S", "P - show timezone | B - | E | S", "Q show datestyle"]),
    zoned(&["Q set timezone to 'Asia/Tokyo'; set timezone to default", "Q show timezone"]),
    zoned(&["Q set time zone 'Asia/Tokyo'", "Q set time zone local", "Q show timezone"]),
    zoned(&["Q reset all; set timezone to 'Asia/Tokyo'", "Q show timezone", "Q show datestyle"]),
    zoned(&["Q begin", "Q reset all", "Q show timezone", "Q rollback", "Q show timezone"]),
    zoned(&["Q reset timezone; show timezone", "Q reset all; show datestyle; show timezone"]),
    zoned(&[
        "Q set timezone to 'Asia/Tokyo'; reset all; show timezone; show datestyle; select 1/0",
        "Q show timezone",
        "Q reset timezone; select 7 as seven; reset datestyle; show timezone",
    ]),
    zoned(&["Q reset timezone; select 1; boom", "Q show timezone"]),
    zoned(&["P - reset timezone | B - | E | P - show timezone | B - | E | S", "Q show datestyle"]),
    zoned(&[
        "P - reset all | B - p | P - show timezone | B - | E | E p | B - | E | E p | S",
        "Q show datestyle",
    ]),
    zoned(&["P s reset all | S", "B s | E | P - select 1/0 | B - | E | S", "Q show timezone"]),
    zoned(&[
        "Q begin",
        "Q set local timezone to default",
        "Q show timezone",
        "P - set local timezone to default | B - | E | P - show timezone | B - | E | S",
        "Q set local timezone to default; show timezone",
        "Q commit",
        "Q show timezone",
    ]),
    zoned(&[
        "Q begin",
        "Q set timezone to 'Asia/Tokyo'",
        "Q select 1/0",
        "Q rollback",
        "Q show timezone",
    ]),
    zoned(&[
        "Q begin",
        "Q set local timezone to 'Asia/Tokyo'",
        "Q show timezone",
        "Q commit",
        "Q show timezone",
    ]),
    zoned(&["Q select 1; set timezone to 'Asia/Tokyo'; show timezone", "Q show timezone"]),
    zoned(&["Q set timezone to 'Asia/Tokyo'; select 1/0", "Q show timezone"]),
    zoned(&[
        "Q set client_encoding to latin1",
        "Q select 'a'",
        "Q reset client_encoding",
        "Q show client_encoding",
    ]),
    // COPY in both directions, and COPY messages outside COPY.
    dialogue(&["Q copy numbers from stdin | d 1\n | d 2\n | c", "Q copy numbers to stdout"]),
    dialogue(&["Q copy numbers from stdin | d bad\n | d 2\n | c | Q select 7", "Q select 8"]),
    dialogue(&["Q copy numbers from stdin | d 5\n | f no more", "Q select 9"]),
    dialogue(&["P - copy numbers from stdin | B - | E | SS | d 3\n | c | S", "Q select 10"]),
    dialogue(&[
        "P - copy numbers from stdin | B - | E | SS | d bad\n | d 4\n | c | S",
        "Q select 11",
    ]),
    dialogue(&["Q begin", "Q copy numbers from stdin | d bad\n | c", "Q rollback"]),
    dialogue(&["d 1\n", "c", "Q select 12"]),
    // Function calls: 177 adds two integers.
    dialogue(&["F 177 2 3", "F 177 2 x", "F 1 2 3", "Q begin | F 177 4 5 | Q rollback"]),
    dialogue(&["P s wrong | FS 177 2 3 | S", "F 177 2 3 | P s select 1 | B s | E | S"]),
];

#[test]
fn replies_match_postgresql_15() {
    check_dialogues(15);
}

#[test]
fn replies_match_postgresql_18() {
    check_dialogues(18);
}

fn check_dialogues(major: u32) {
    let more = "sizes = { pool = 2 }\nmax-prepared-statements = 2";
    let Some(fixture) = PoolFixture::start_major("dialogues", major, more) else { return };
    let direct = SocketAddr::from(([127, 0, 0, 1], fixture.server.port()));
    let mut noise = RawClient::log_in(fixture.address());
    let mut mismatches = Vec::new();
    // In the second round other clients have prepared all statements before.
    for round in 0..2 {
        for dialogue in DIALOGUES {
            fixture.query_server("drop table if exists numbers; create table numbers (n int)");
            let expected = run_dialogue(dialogue, direct, || {});
            fixture.query_server("truncate numbers");
            let received = run_dialogue(dialogue, fixture.address(), || {
                exchange(
                    &mut noise,
                    "P - select 99 | B - | E | P n select 98 | B n | E | CS n | S",
                );
            });
            if received != expected {
                let steps = dialogue.steps;
                mismatches.push(format!("{round} {steps:?}\n  {received:?}\n  {expected:?}"));
            }
        }
    }
    assert!(mismatches.is_empty(), "{}", mismatches.join("\n"));
}

/// Runs a dialogue, and returns the replies; calls `between` after each step.
fn run_dialogue(dialogue: &Dialogue, to: SocketAddr, mut between: impl FnMut()) -> Vec<String> {
    let mut raw = RawClient::log_in_with(to, dialogue.startup);
    let mut received = Vec::new();
    for step in dialogue.steps {
        received.extend(exchange(&mut raw, step));
        between();
    }
    received
}

/// Sends the messages of a step, and returns the replies as text.
fn exchange(raw: &mut RawClient, step: &str) -> Vec<String> {
    let (bytes, mut ready, mut flushed) = messages(step);
    std::io::Write::write_all(&mut raw.0, &bytes).unwrap();
    let mut received = Vec::new();
    while ready > 0 || flushed > 0 {
        let message = raw.read_message();
        let (tag, body) =
            message.unwrap_or_else(|error| panic!("{step}: {error} after {received:?}"));
        if matches!(tag, b'S' | b'N') {
            continue;
        }
        ready -= usize::from(tag == b'Z');
        flushed = flushed.saturating_sub(1);
        received.push(describe_message(tag, &body));
    }
    received
}

fn describe_message(tag: u8, body: &[u8]) -> String {
    let text = if tag == b'E' {
        let field = |kind: u8| {
            let field = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&kind));
            String::from_utf8_lossy(field.unwrap_or(b"-").split_at(1).1).into_owned()
        };
        format!("{} {} {}", field(b'C'), field(b'M'), field(b'P'))
    } else {
        body.escape_ascii().to_string()
    };
    format!("{} {text}", char::from(tag))
}

/// The bytes of a step, and the expected replies: the number of ReadyForQuery and, for a step that
/// ends in Flush, the number of messages.
fn messages(step: &str) -> (Vec<u8>, usize, usize) {
    let (mut bytes, mut ready, mut flushed) = (Vec::new(), 0, 0);
    for message in step.split(" | ") {
        let (kind, rest) = message.split_once(' ').unwrap_or((message, ""));
        let name = |at: usize| rest.split(' ').nth(at).filter(|name| *name != "-").unwrap_or("");
        let rest_of = |at: usize| rest.splitn(at + 1, ' ').nth(at).unwrap_or("");
        ready += usize::from(matches!(kind, "Q" | "S" | "F"));
        let (tag, body) = match kind {
            "Q" | "QS" => (b'Q', format!("{rest}\0").into_bytes()),
            "P" => (b'P', format!("{}\0{}\0\0\0", name(0), rest_of(1)).into_bytes()),
            "B" => (b'B', format!("{}\0{}\0\0\0\0\0\0\0", name(1), name(0)).into_bytes()),
            "E" => {
                let rows: u32 = name(1).parse().unwrap_or(0);
                (b'E', [name(0).as_bytes(), b"\0", &rows.to_be_bytes()].concat())
            }
            "DS" | "DP" | "CS" | "CP" => {
                (kind.as_bytes()[0], format!("{}{}\0", &kind[1..], name(0)).into_bytes())
            }
            "S" | "SS" | "c" => (kind.as_bytes()[0], Vec::new()),
            "d" => (b'd', rest.as_bytes().to_vec()),
            "f" => (b'f', format!("{rest}\0").into_bytes()),
            "F" | "FS" => (b'F', function_call(name(0).parse().unwrap(), &[name(1), name(2)])),
            flush => {
                flushed = flush.strip_prefix('H').unwrap().parse().unwrap();
                (b'H', Vec::new())
            }
        };
        bytes.push(tag);
        bytes.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend_from_slice(&body);
    }
    (bytes, ready, flushed)
}

/// The body of a FunctionCall with arguments as text.
fn function_call(function: u32, arguments: &[&str]) -> Vec<u8> {
    let mut body = [&function.to_be_bytes()[..], &[0, 0, 0, arguments.len() as u8]].concat();
    for argument in arguments {
        body.extend_from_slice(&u32::try_from(argument.len()).unwrap().to_be_bytes());
        body.extend_from_slice(argument.as_bytes());
    }
    body.extend_from_slice(&[0, 0]);
    body
}

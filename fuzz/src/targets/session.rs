//! The client side of a session, fed by a server that sends arbitrary bytes.
//!
//! The first byte of the input selects the client's requests; the rest is the server's bytes.

use std::mem::discriminant;

use howdah_session::{ClientSession, Login, Request, Secret, SessionError, SessionEvent};

use super::{Shape, wire};

/// Replies of a correct server to each script.
pub fn seeds() -> Vec<Vec<u8>> {
    let login =
        b"R\0\0\0\x08\0\0\0\0S\0\0\0\x11TimeZone\0UTC\0K\0\0\0\x0c\0\0\x01\x02key!Z\0\0\0\x05I";
    let row = b"D\0\0\0\x0b\0\x01\0\0\0\x017C\0\0\0\x0dSELECT 1\0";
    let fields = b"T\0\0\0\x1b\0\x01id\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\0";
    let error = b"E\0\0\0\x1eSERROR\0VERROR\0C22012\0Mno\0\0";
    let ready = b"Z\0\0\0\x05I";
    let copy_in = b"G\0\0\0\x07\0\0\0";
    let answers: [(u8, Vec<u8>); 8] = [
        (0, [&fields[..], row, ready].concat()),
        (1, [b"1\0\0\0\x042\0\0\0\x04", &fields[..], row, ready].concat()),
        (1, [b"1\0\0\0\x04", &error[..], ready].concat()),
        (2, [&row[..], ready, error, ready].concat()),
        (3, [&copy_in[..], b"C\0\0\0\x0bCOPY 1\0", ready].concat()),
        (4, [&copy_in[..], b"C\0\0\0\x0bCOPY 1\0", ready].concat()),
        (5, [&b"V\0\0\0\x09\0\0\0\x017"[..], ready].concat()),
        (
            6,
            [b"1\0\0\0\x042\0\0\0\x04s\0\0\0\x04", &row[..], ready, b"3\0\0\0\x04", ready].concat(),
        ),
    ];
    let whole = |(script, answer): (u8, Vec<u8>)| [&[script][..], login, &answer].concat();
    let mut seeds: Vec<_> = answers.into_iter().map(whole).collect();
    seeds.push([&[0x40][..], b"R\0\0\0\x0c\0\0\0\x05saltR\0\0\0\x08\0\0\0\0", ready].concat());
    seeds.push([&[0x40][..], b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0"].concat());
    seeds.push([&[0x80][..], wire::BACKEND_WORDS.concat().as_slice()].concat());
    seeds
}

/// Checks that the server's bytes have the same effect whole and in pieces.
pub fn run(input: &[u8]) -> Shape {
    let (script, bytes) = input.split_first().unwrap_or((&0, &[]));
    let whole = drive(*script, bytes, bytes.len());
    let piece_bytes = 1 + bytes.len() % 13;
    let pieces = drive(*script, bytes, piece_bytes);
    assert_eq!(whole.said, pieces.said, "in pieces of {piece_bytes}");
    assert_eq!(whole.error, pieces.error, "in pieces of {piece_bytes}");
    assert_eq!(whole.sent, pieces.sent, "in pieces of {piece_bytes}");
    let error = whole.error.map(|error| discriminant(&error));
    Shape::each(whole.kinds.windows(2).map(|pair| (script & 7, pair))).and((script, error))
}

/// The result of a session.
#[derive(Debug, Default)]
struct SessionTrace {
    said: Vec<String>,
    /// The first word of each event.
    kinds: Vec<String>,
    sent: Vec<u8>,
    error: Option<SessionError>,
}

fn drive(script: u8, bytes: &[u8], piece_bytes: usize) -> SessionTrace {
    let mut client = ClientSession::new(login(script), [7; 18]);
    client.discard_rows(script & 0x80 != 0);
    ask(&mut client, script);
    let mut trace = SessionTrace::default();
    for piece in bytes.chunks(piece_bytes.max(1)) {
        client.handle_input(piece);
        while poll(&mut client, &mut trace) {}
        trace.sent.extend_from_slice(client.transmit());
        client.transmitted(client.transmit().len());
    }
    let end = client.handle_eof();
    assert!(client.is_closed());
    assert_eq!(end.is_ok(), matches!(client.poll_event(), Ok(None)), "{end:?}");
    trace
}

fn login(script: u8) -> Login {
    Login {
        user: "al".to_owned(),
        database: "shop".to_owned(),
        password: (script & 0x40 != 0).then(|| Secret::from("pencil")),
        parameters: Vec::new(),
        channel_binding: None,
    }
}

fn ask(client: &mut ClientSession, script: u8) {
    let asked = match script & 7 {
        0 => client.query(b"select 7"),
        1 => extended(client).map(|()| client.sync()),
        2 => client.query(b"select 7").and_then(|_| client.query(b"select 1/0")),
        3 => client.query(b"copy t from stdin"),
        4 => extended(client).map(|()| client.sync()).map(|_| client.sync()),
        5 => client.call_function(1598, [Some(&b"7"[..])]),
        6 => extended(client).and_then(|()| {
            client.flush();
            client.execute(b"", 0)?;
            client.sync();
            client.close_statement(b"s")?;
            Ok(client.sync())
        }),
        _ => extended(client).and_then(|()| client.query(b"select 7")),
    };
    asked.expect("requests of ours have no zero bytes");
}

fn extended(client: &mut ClientSession) -> Result<(), howdah_session::EncodeError> {
    client.parse(b"s", b"select $1", &[])?;
    client.bind(b"", b"s", [Some(&b"7"[..]), None])?;
    client.describe_portal(b"")?;
    client.execute(b"", 1).map(drop)
}

/// Polls one event; false if there was none.
fn poll(client: &mut ClientSession, trace: &mut SessionTrace) -> bool {
    let event = match client.poll_event() {
        Ok(Some(event)) => event,
        Ok(None) => return false,
        Err(error) => {
            assert_eq!(client.poll_event().map(drop), Err(error.clone()), "an error stays");
            assert!(client.is_closed());
            trace.error = Some(error);
            return false;
        }
    };
    let copies = matches!(event, SessionEvent::CopyIn);
    let answers = !matches!(
        event,
        SessionEvent::LoggedIn
            | SessionEvent::Error(_)
            | SessionEvent::Notice(_)
            | SessionEvent::Notification(_)
            | SessionEvent::ParameterStatus { .. }
    );
    let said = format!("{event:?}");
    trace.kinds.extend(said.split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned));
    trace.said.push(said);
    let answered = client.answered();
    assert!(!answers || answered.is_some(), "{:?} answers nothing", trace.said.last());
    trace.said.push(format!("{answered:?} {:?}", client.transaction_status()));
    holds(client);
    if copies {
        client.copy_data(b"1\n").expect("data may hold anything");
        client.copy_done();
        client.sync();
        holds(client);
    }
    true
}

/// Checks that outstanding requests are in order, and that those ending in ReadyForQuery are
/// counted.
fn holds(client: &ClientSession) {
    let owed: Vec<_> = client.outstanding().collect();
    assert!(owed.is_sorted_by_key(|(id, _)| *id), "{owed:?}");
    let ready = |request: &Request| {
        matches!(request, Request::Sync | Request::Query | Request::FunctionCall)
    };
    let count = owed.iter().filter(|(_, request)| ready(request)).count();
    assert_eq!(client.pending_ready_count(), count, "{owed:?}");
    assert!(!client.is_ready() || owed.is_empty(), "{owed:?}");
}

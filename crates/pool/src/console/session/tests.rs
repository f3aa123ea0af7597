//! Dialogues with a console whose operator only notes what it is told.

use howdah_wire::{frontend::encode, startup::CancelKey};

use super::*;

#[derive(Default)]
struct Notes(Vec<Command>);

impl Operator for Notes {
    fn show(&mut self, show: Show) -> Result<Vec<Vec<Value>>, Failure> {
        match show {
            Show::Lists => Ok(vec![vec!["databases".into(), 300_000_007_u64.into()]]),
            Show::Totals => Ok(vec![vec!["total_sent".into(), 123_450_000_u64.into()]]),
            _ => Err(Failure::new(*b"55000", "not now")),
        }
    }

    fn order(&mut self, command: &Command) -> Result<Vec<String>, Failure> {
        self.0.push(command.clone());
        Ok(Vec::new())
    }
}

/// The answers to a message, by their tags, and all their bytes.
fn answers(session: &mut Session, notes: &mut Notes, said: &[u8]) -> (String, Vec<u8>) {
    let mut out = Vec::new();
    // Whatever way it is cut, the answer is one.
    for byte in said {
        session.receive(&[*byte], notes, &mut out).unwrap();
    }
    let (mut tags, mut rest) = (String::new(), &out[..]);
    while let Some((frame, later)) = Frame::split(rest, 1 << 20).unwrap() {
        tags.push(char::from(frame.tag.0));
        rest = later;
    }
    (tags, out)
}

fn query(sql: &str) -> Vec<u8> {
    let mut buf = Vec::new();
    encode::query(&mut buf, sql.as_bytes()).unwrap();
    buf
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(bytes, part).is_some()
}

#[test]
fn a_query_is_answered_by_a_table() {
    let (mut session, mut notes) = (Session::new(false), Notes::default());
    let (tags, bytes) = answers(&mut session, &mut notes, &query("show lists;"));
    assert_eq!(tags, "TDCZ");
    assert!(holds(&bytes, b"300000007") && holds(&bytes, b"SHOW\0"));
    assert_eq!(answers(&mut session, &mut notes, &query(" ")).0, "IZ");
    assert_eq!(answers(&mut session, &mut notes, &query("show help")).0, "NCZ");
    assert_eq!(answers(&mut session, &mut notes, &query("set client_encoding to 'utf8'")).0, "CZ");
    let (tags, bytes) = answers(&mut session, &mut notes, &query("show pools"));
    assert_eq!(tags, "EZ");
    assert!(holds(&bytes, b"not now"));
    assert_eq!(answers(&mut session, &mut notes, &query("drop table x")).0, "EZ");
}

#[test]
fn who_may_only_look_changes_nothing() {
    let mut notes = Notes::default();
    let (tags, bytes) = answers(&mut Session::new(false), &mut notes, &query("pause"));
    assert_eq!(tags, "EZ");
    assert!(holds(&bytes, b"C42501\0"));
    let (tags, bytes) = answers(&mut Session::new(true), &mut notes, &query("pause"));
    assert_eq!(tags, "CZ");
    assert!(holds(&bytes, b"PAUSE\0"));
    assert_eq!(notes.0.len(), 1);
}

#[test]
fn the_extended_protocol_is_spoken_in_text_and_binary() {
    let (mut session, mut notes) = (Session::new(false), Notes::default());
    let batch = |sql: &str, format: Format| {
        let mut buf = Vec::new();
        encode::parse(&mut buf, b"s", sql.as_bytes(), &[]).unwrap();
        encode::describe(&mut buf, Target::Statement(b"s")).unwrap();
        encode::bind(&mut buf, b"", b"s", &[], [], &[format]).unwrap();
        encode::describe(&mut buf, Target::Portal(b"")).unwrap();
        encode::execute(&mut buf, b"", 0).unwrap();
        encode::close(&mut buf, Target::Statement(b"s")).unwrap();
        encode::sync(&mut buf);
        buf
    };
    let (tags, bytes) = answers(&mut session, &mut notes, &batch("show lists", Format::Text));
    assert_eq!(tags, "1tT2TDC3Z");
    assert!(holds(&bytes, b"300000007"));
    let (_, bytes) = answers(&mut session, &mut notes, &batch("show lists", Format::Binary));
    assert!(holds(&bytes, &[0, 0, 0, 4, 0x11, 0xe1, 0xa3, 0x07]));
    // 1 2345 0000 in groups of four digits.
    let (_, bytes) = answers(&mut session, &mut notes, &batch("show totals", Format::Binary));
    let numeric = [0, 0, 0, 14, 0, 3, 0, 2, 0, 0, 0, 0, 0, 1, 0x09, 0x29, 0, 0];
    assert!(holds(&bytes, &numeric), "{}", bytes.escape_ascii());
    // What follows an error is passed over up to Sync.
    let (tags, _) = answers(&mut session, &mut notes, &batch("nonsense", Format::Text));
    assert_eq!(tags, "EZ");
    assert_eq!(answers(&mut session, &mut notes, &batch("pause", Format::Text)).0, "1tn2nEZ");
    let mut buf = Vec::new();
    encode::bind(&mut buf, b"", b"none", &[], [], &[]).unwrap();
    encode::sync(&mut buf);
    assert_eq!(answers(&mut session, &mut notes, &buf).0, "EZ");
}

#[test]
fn what_is_no_message_ends_the_session() {
    let mut out = Vec::new();
    Session::greet(&mut out, &CancelKey::new(0, &[0; 4]).unwrap());
    assert!(out.ends_with(b"Z\0\0\0\x05I"));
    for wrong in
        [&b"?\0\0\0\x04"[..], b"Q\0\0\0\x03", b"Q\x7f\0\0\0", b"Q\0\0\0\x05a", b"F\0\0\0\x04"]
    {
        let ended = Session::new(true).receive(wrong, &mut Notes::default(), &mut out);
        assert_eq!(ended, Err(Disconnect), "{}", wrong.escape_ascii());
    }
    let mut bye = Vec::new();
    encode::terminate(&mut bye);
    assert_eq!(Session::new(true).receive(&bye, &mut Notes::default(), &mut out), Err(Disconnect));
}

//! Dialogues with a console whose backend only records commands.

use howdah_wire::{frontend::encode, startup::CancelKey};

use super::*;

#[derive(Default)]
struct CommandRecorder(Vec<ConsoleCommand>);

impl ConsoleBackend for CommandRecorder {
    fn setting(&mut self, name: &str) -> Option<String> {
        Some(format!("value of {name}"))
    }

    fn show(&mut self, show: Show) -> Result<Vec<Vec<CellValue>>, ConsoleError> {
        match show {
            Show::Lists => Ok(vec![vec!["databases".into(), 300_000_007_u64.into()]]),
            Show::Totals => Ok(vec![vec!["total_sent".into(), 123_450_000_u64.into()]]),
            _ => Err(ConsoleError::new(*b"55000", "not now")),
        }
    }

    fn execute_command(&mut self, command: &ConsoleCommand) -> Result<Vec<String>, ConsoleError> {
        self.0.push(command.clone());
        Ok(Vec::new())
    }
}

/// Sends bytes, and returns the tags and the bytes of the replies.
fn exchange(
    session: &mut ConsoleSession,
    backend: &mut CommandRecorder,
    sent: &[u8],
) -> (String, Vec<u8>) {
    let mut out = Vec::new();
    // Byte by byte: the replies do not depend on how the input is split.
    for byte in sent {
        session.receive(&[*byte], backend, &mut out).unwrap();
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

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(bytes, part).is_some()
}

#[test]
fn query_returns_table() {
    let (mut session, mut backend) = (ConsoleSession::new(false), CommandRecorder::default());
    let (tags, bytes) = exchange(&mut session, &mut backend, &query("show lists;"));
    assert_eq!(tags, "TDCZ");
    assert!(contains(&bytes, b"300000007") && contains(&bytes, b"SHOW\0"));
    assert_eq!(exchange(&mut session, &mut backend, &query(" ")).0, "IZ");
    assert_eq!(exchange(&mut session, &mut backend, &query("show help")).0, "NCZ");
    assert_eq!(
        exchange(&mut session, &mut backend, &query("set client_encoding to 'utf8'")).0,
        "NCZ"
    );
    let (tags, bytes) = exchange(&mut session, &mut backend, &query("show pools"));
    assert_eq!(tags, "EZ");
    assert!(contains(&bytes, b"not now"));
    assert_eq!(exchange(&mut session, &mut backend, &query("drop table x")).0, "EZ");
}

#[test]
fn read_only_user_cannot_change_anything() {
    let mut backend = CommandRecorder::default();
    let (tags, bytes) = exchange(&mut ConsoleSession::new(false), &mut backend, &query("pause"));
    assert_eq!(tags, "EZ");
    assert!(contains(&bytes, b"C42501\0"));
    let (tags, bytes) = exchange(&mut ConsoleSession::new(true), &mut backend, &query("pause"));
    assert_eq!(tags, "CZ");
    assert!(contains(&bytes, b"PAUSE\0"));
    assert_eq!(backend.0.len(), 1);
}

#[test]
fn extended_protocol_supports_text_and_binary() {
    let (mut session, mut backend) = (ConsoleSession::new(false), CommandRecorder::default());
    let batch = |sql: &str, format: ValueFormat| {
        let mut buf = Vec::new();
        encode::parse(&mut buf, b"s", sql.as_bytes(), &[]).unwrap();
        encode::describe(&mut buf, DescribeTarget::Statement(b"s")).unwrap();
        encode::bind(&mut buf, b"", b"s", &[], [], &[format]).unwrap();
        encode::describe(&mut buf, DescribeTarget::Portal(b"")).unwrap();
        encode::execute(&mut buf, b"", 0).unwrap();
        encode::close(&mut buf, DescribeTarget::Statement(b"s")).unwrap();
        encode::sync(&mut buf);
        buf
    };
    let (tags, bytes) =
        exchange(&mut session, &mut backend, &batch("show lists", ValueFormat::Text));
    assert_eq!(tags, "1tT2TDC3Z");
    assert!(contains(&bytes, b"300000007"));
    let (_, bytes) =
        exchange(&mut session, &mut backend, &batch("show lists", ValueFormat::Binary));
    assert!(contains(&bytes, &[0, 0, 0, 4, 0x11, 0xe1, 0xa3, 0x07]));
    // 1 2345 0000 in groups of four digits.
    let (_, bytes) =
        exchange(&mut session, &mut backend, &batch("show totals", ValueFormat::Binary));
    let numeric = [0, 0, 0, 14, 0, 3, 0, 2, 0, 0, 0, 0, 0, 1, 0x09, 0x29, 0, 0];
    assert!(contains(&bytes, &numeric), "{}", bytes.escape_ascii());
    // Messages after an error are skipped until Sync.
    let (tags, _) = exchange(&mut session, &mut backend, &batch("nonsense", ValueFormat::Text));
    assert_eq!(tags, "EZ");
    assert_eq!(
        exchange(&mut session, &mut backend, &batch("pause", ValueFormat::Text)).0,
        "1tn2nEZ"
    );
}

#[test]
fn errors_about_statements_and_portals_give_the_name() {
    let (mut session, mut backend) = (ConsoleSession::new(false), CommandRecorder::default());
    let mut error = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut buf = Vec::new();
        write(&mut buf);
        encode::sync(&mut buf);
        let (tags, bytes) = exchange(&mut session, &mut backend, &buf);
        assert!(tags.ends_with("EZ"), "{tags}");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let no_statement =
        error(&|buf| encode::bind(buf, b"", b"none", &[], [], &[]).expect("a short message"));
    assert!(no_statement.contains("prepared statement \"none\" does not exist"), "{no_statement}");
    let unnamed =
        error(&|buf| encode::describe(buf, DescribeTarget::Statement(b"")).expect("a short name"));
    assert!(unnamed.contains("unnamed prepared statement does not exist"), "{unnamed}");
    let no_portal = error(&|buf| encode::execute(buf, b"p", 0).expect("a short name"));
    assert!(no_portal.contains("portal \"p\" does not exist"), "{no_portal}");
    let twice = error(&|buf| {
        for _ in 0..2 {
            encode::parse(buf, b"s", b"show lists", &[]).expect("a short message");
        }
    });
    assert!(twice.contains("prepared statement \"s\" already exists"), "{twice}");
}

#[test]
fn invalid_message_ends_session() {
    let mut out = Vec::new();
    ConsoleSession::write_welcome(&mut out, &CancelKey::new(0, &[0; 4]).unwrap());
    assert!(out.ends_with(b"Z\0\0\0\x05I"));
    for wrong in
        [&b"?\0\0\0\x04"[..], b"Q\0\0\0\x03", b"Q\x7f\0\0\0", b"Q\0\0\0\x05a", b"F\0\0\0\x04"]
    {
        let ended =
            ConsoleSession::new(true).receive(wrong, &mut CommandRecorder::default(), &mut out);
        assert_eq!(ended, Err(Disconnect), "{}", wrong.escape_ascii());
    }
    let mut terminate = Vec::new();
    encode::terminate(&mut terminate);
    assert_eq!(
        ConsoleSession::new(true).receive(&terminate, &mut CommandRecorder::default(), &mut out),
        Err(Disconnect)
    );
}

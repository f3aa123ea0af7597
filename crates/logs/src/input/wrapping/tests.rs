use super::*;

fn settings() -> Settings {
    Settings { record_bytes_max: 100_000, calendar: Calendar::at(std::time::UNIX_EPOCH) }
}

fn unwrap(text: &[u8], piece: usize) -> (Vec<u8>, Vec<Envelope>) {
    let mut chain = Chain::new();
    let mut found = Found::default();
    text.chunks(piece).for_each(|bytes| chain.feed(bytes, Closing::Open, &settings(), &mut found));
    chain.feed(b"", Closing::End, &settings(), &mut found);
    (found.inside, chain.wrappings().to_vec())
}

const LOG: &str = "2026-11-20 12:00:00.000 UTC [7] LOG:  statement: select 1\n\t, 2\n";

#[test]
fn plain_logs_pass_as_they_are() {
    for text in [LOG, "{\"timestamp\":\"x\",\"error_severity\":\"LOG\"}\n", "", "\n", "no newline"]
    {
        for piece in 1..=text.len().max(1) {
            assert_eq!(unwrap(text.as_bytes(), piece), (text.as_bytes().to_vec(), vec![]));
        }
    }
}

#[test]
fn wrappings_nest() {
    let line = "{\"level\":\"info\",\"logger\":\"postgres\",\"msg\":\"record\",\"record\":{\"log_time\":\"x\",\"error_severity\":\"LOG\"}}";
    let mut quoted = Vec::new();
    super::super::json::push_string(line.as_bytes(), &mut quoted);
    let quoted = String::from_utf8(quoted).expect("text");
    let cri = format!("2026-11-20T12:43:19.577Z stderr F {line}\n").repeat(3);
    let docker = format!("{{\"log\":{quoted},\"stream\":\"stderr\",\"time\":\"x\"}}\n").repeat(3);
    let inside = "{\"log_time\":\"x\",\"error_severity\":\"LOG\"}\n".repeat(3);
    for (text, wrappings) in [
        (&cri, vec![Envelope::Cri, Envelope::Json]),
        (&docker, vec![Envelope::Json, Envelope::Json]),
    ] {
        for piece in [1, 7, 100, text.len()] {
            let got = unwrap(text.as_bytes(), piece);
            assert_eq!(got, (inside.clone().into_bytes(), wrappings.clone()), "{piece}");
        }
    }
}

#[test]
fn a_silent_pipe_is_told_by_what_there_is() {
    let mut chain = Chain::new();
    let mut found = Found::default();
    let text = b"2026-11-20T12:43:19.577Z stderr F LOG:  x\n";
    chain.feed(text, Closing::Open, &settings(), &mut found);
    assert!(found.inside.is_empty());
    chain.feed(b"", Closing::Idle, &settings(), &mut found);
    assert_eq!(found.inside, b"LOG:  x\n");
    chain.feed(text, Closing::Open, &settings(), &mut found);
    assert_eq!(found.inside, b"LOG:  x\nLOG:  x\n");
}

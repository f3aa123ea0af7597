use super::*;

fn settings() -> EnvelopeOptions {
    EnvelopeOptions {
        record_bytes_max: 100_000,
        calendar: Calendar::from_system_time(std::time::UNIX_EPOCH),
    }
}

fn unwrap(text: &[u8], chunk: usize) -> (Vec<u8>, Vec<Envelope>) {
    let mut chain = LayerChain::new();
    let mut output = LayerOutput::default();
    text.chunks(chunk)
        .for_each(|bytes| chain.feed(bytes, InputState::Open, &settings(), &mut output));
    chain.feed(b"", InputState::End, &settings(), &mut output);
    (output.log, chain.envelopes().to_vec())
}

const LOG: &str = "2026-11-20 12:00:00.000 UTC [7] LOG:  statement: select 1\n\t, 2\n";

#[test]
fn plain_logs_are_unchanged() {
    for text in [LOG, "{\"timestamp\":\"x\",\"error_severity\":\"LOG\"}\n", "", "\n", "no newline"]
    {
        for chunk in 1..=text.len().max(1) {
            assert_eq!(unwrap(text.as_bytes(), chunk), (text.as_bytes().to_vec(), vec![]));
        }
    }
}

#[test]
fn nested_envelopes_are_removed() {
    let line = "{\"level\":\"info\",\"logger\":\"postgres\",\"msg\":\"record\",\"record\":{\"log_time\":\"x\",\"error_severity\":\"LOG\"}}";
    let mut quoted = Vec::new();
    crate::json::push_string(line.as_bytes(), &mut quoted);
    let quoted = String::from_utf8(quoted).expect("text");
    let cri = format!("2026-11-20T12:43:19.577Z stderr F {line}\n").repeat(3);
    let docker = format!("{{\"log\":{quoted},\"stream\":\"stderr\",\"time\":\"x\"}}\n").repeat(3);
    let contents = "{\"log_time\":\"x\",\"error_severity\":\"LOG\"}\n".repeat(3);
    for (text, envelopes) in [
        (&cri, vec![Envelope::Cri, Envelope::Json]),
        (&docker, vec![Envelope::Json, Envelope::Json]),
    ] {
        for chunk in [1, 7, 100, text.len()] {
            let got = unwrap(text.as_bytes(), chunk);
            assert_eq!(got, (contents.clone().into_bytes(), envelopes.clone()), "{chunk}");
        }
    }
}

#[test]
fn envelope_of_silent_pipe_is_detected_from_available_data() {
    let mut chain = LayerChain::new();
    let mut output = LayerOutput::default();
    let text = b"2026-11-20T12:43:19.577Z stderr F LOG:  x\n";
    chain.feed(text, InputState::Open, &settings(), &mut output);
    assert!(output.log.is_empty());
    chain.feed(b"", InputState::Idle, &settings(), &mut output);
    assert_eq!(output.log, b"LOG:  x\n");
    chain.feed(text, InputState::Open, &settings(), &mut output);
    assert_eq!(output.log, b"LOG:  x\nLOG:  x\n");
}

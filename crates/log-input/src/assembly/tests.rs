use super::*;

fn assemble(fragments: &[(&str, &str)]) -> (String, Vec<InputProblem>) {
    let mut assembly = Assembly::new(100_000);
    let mut output = LayerOutput::default();
    for (line, (pid, text)) in (1..).zip(fragments) {
        let fragment = SyslogFragment {
            time: "2026-11-20 12:00:00.000 UTC",
            host: b"db",
            program: b"postgres",
            pid: pid.as_bytes(),
            text: text.as_bytes(),
            may_be_server: true,
            line,
        };
        assembly.push_fragment(&fragment, &mut output);
    }
    assembly.flush(&mut output);
    let reasons = output.problems.iter().map(|problem| problem.reason).collect();
    (String::from_utf8_lossy(&output.log).into_owned(), reasons)
}

const TIME: &str = "2026-11-20 12:00:00.000 UTC";

#[test]
fn fragments_of_processes_may_be_interleaved() {
    let (log, reasons) = assemble(&[
        ("7", "[3-1] al@shop LOG:  statement: select 1"),
        ("8", "[9-1] al@shop LOG:  statement: select 2"),
        ("7", "[3-2] #011, 3"),
        ("8", "[9-2] al@shop DETAIL:  x"),
        ("7", "[4-1] al@shop LOG:  duration: 1.0 ms"),
    ]);
    let expected = format!(
        "{TIME} [7] al@shop LOG:  statement: select 1\n\t, 3\n\
         {TIME} [8] al@shop LOG:  statement: select 2\n{TIME} [8] al@shop DETAIL:  x\n\
         {TIME} [7] al@shop LOG:  duration: 1.0 ms\n"
    );
    assert_eq!((log, reasons), (expected, vec![]));
}

#[test]
fn lines_cut_by_the_server_are_joined() {
    let first = format!("{TIME} [7] LOG:  {}", "x".repeat(860));
    let second = format!(" {} y", "z".repeat(40));
    let (log, _) = assemble(&[("7", &format!("[1-1] {first}")), ("7", &format!("[1-2] {second}"))]);
    assert_eq!(log, format!("{first}{second}\n"));
    // Without white space the line is cut at the limit.
    let first = format!("{:x<900}", format!("{TIME} [7] LOG:  "));
    let (log, _) = assemble(&[("7", &format!("[1-1] {first}")), ("7", "[1-2] yyy")]);
    assert_eq!(log, format!("{first}yyy\n"));
    // Another line of the same message is recognized by its prefix, however long the previous one
    // is.
    let detail = format!("{TIME} [7] DETAIL:  x");
    let (log, _) = assemble(&[("7", &format!("[1-1] {first}")), ("7", &format!("[1-2] {detail}"))]);
    assert_eq!(log, format!("{first}\n{detail}\n"));
}

#[test]
fn fragments_may_be_unnumbered() {
    let (log, reasons) = assemble(&[
        ("7", "LOG:  execute a: select $1"),
        ("8", "LOG:  statement: select 2"),
        ("7", "DETAIL:  Parameters: $1 = '1'"),
        ("7", "LOG:  duration: 1.0 ms"),
    ]);
    let expected = format!(
        "{TIME} [7] LOG:  execute a: select $1\n{TIME} [7] DETAIL:  Parameters: $1 = '1'\n\
         {TIME} [8] LOG:  statement: select 2\n{TIME} [7] LOG:  duration: 1.0 ms\n"
    );
    assert_eq!((log, reasons), (expected, vec![]));
}

#[test]
fn message_with_missing_fragment_is_reported_and_skipped() {
    let (log, reasons) = assemble(&[
        ("7", "[2-2] #011the end of something"),
        ("7", "[3-1] LOG:  statement: delete from t"),
        ("7", "[3-3] #011and b"),
        ("7", "[4-1] LOG:  statement: select 1"),
    ]);
    assert_eq!(log, format!("{TIME} [7] LOG:  statement: select 1\n"));
    assert_eq!(reasons, [InputProblem::LostParts, InputProblem::LostParts]);
}

#[test]
fn escapes_are_decoded_unless_control_characters_are_raw() {
    let (log, _) = assemble(&[("7", "[1] LOG:  a#011b#033#999#01#")]);
    assert_eq!(log, format!("{TIME} [7] LOG:  a\tb\x1b#999#01#\n"));
    let (log, _) = assemble(&[("7", "[1-1] LOG:  a"), ("7", "[1-2] \tb#011")]);
    assert_eq!(log, format!("{TIME} [7] LOG:  a\n\tb#011\n"));
}

#[test]
fn messages_of_other_programs_are_reported() {
    let mut assembly = Assembly::new(1000);
    let mut output = LayerOutput::default();
    for (program, host, text) in [
        ("sshd", "db", "Accepted publickey"),
        ("app", "db", "ERROR:  division by zero"),
        ("mypg", "db", "LOG:  statement: select 1"),
        ("mypg", "db", "anything"),
        ("mypg", "db2", "LOG:  statement: select 2"),
    ] {
        let (program, host, text) = (program.as_bytes(), host.as_bytes(), text.as_bytes());
        assembly.push_fragment(
            &SyslogFragment {
                time: TIME,
                host,
                program,
                pid: b"7",
                text,
                may_be_server: program != b"app",
                line: 1,
            },
            &mut output,
        );
    }
    let reasons: Vec<_> = output.problems.iter().map(|problem| problem.reason).collect();
    let (other, several) = (InputProblem::OtherProgram, InputProblem::SeveralServers);
    assert_eq!(reasons, [other, other, several]);
}

use super::*;

fn assemble(pieces: &[(&str, &str)]) -> (String, Vec<Reason>) {
    let mut assembly = Assembly::new(100_000);
    let mut found = Found::default();
    for (line, (pid, text)) in (1..).zip(pieces) {
        let entry = Entry {
            time: "2026-11-20 12:00:00.000 UTC",
            host: b"db",
            program: b"postgres",
            pid: pid.as_bytes(),
            text: text.as_bytes(),
            line,
        };
        assembly.take(&entry, &mut found);
    }
    assembly.flush(&mut found);
    let reasons = found.problems.iter().map(|met| met.reason).collect();
    (String::from_utf8_lossy(&found.inside).into_owned(), reasons)
}

const TIME: &str = "2026-11-20 12:00:00.000 UTC";

#[test]
fn pieces_of_processes_may_come_mixed() {
    let (inside, reasons) = assemble(&[
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
    assert_eq!((inside, reasons), (expected, vec![]));
}

#[test]
fn lines_are_joined_where_the_server_cut_them() {
    let first = format!("{TIME} [7] LOG:  {}", "x".repeat(860));
    let second = format!(" {} y", "z".repeat(40));
    let (inside, _) =
        assemble(&[("7", &format!("[1-1] {first}")), ("7", &format!("[1-2] {second}"))]);
    assert_eq!(inside, format!("{first}{second}\n"));
    // Without white space the cut is hard.
    let first = format!("{:x<900}", format!("{TIME} [7] LOG:  "));
    let (inside, _) = assemble(&[("7", &format!("[1-1] {first}")), ("7", "[1-2] yyy")]);
    assert_eq!(inside, format!("{first}yyy\n"));
    // Another line of the same message is told by its prefix, however long the one before is.
    let detail = format!("{TIME} [7] DETAIL:  x");
    let (inside, _) =
        assemble(&[("7", &format!("[1-1] {first}")), ("7", &format!("[1-2] {detail}"))]);
    assert_eq!(inside, format!("{first}\n{detail}\n"));
}

#[test]
fn numbers_may_be_missing() {
    let (inside, reasons) = assemble(&[
        ("7", "LOG:  execute a: select $1"),
        ("8", "LOG:  statement: select 2"),
        ("7", "DETAIL:  Parameters: $1 = '1'"),
        ("7", "LOG:  duration: 1.0 ms"),
    ]);
    let expected = format!(
        "{TIME} [7] LOG:  execute a: select $1\n{TIME} [7] DETAIL:  Parameters: $1 = '1'\n\
         {TIME} [8] LOG:  statement: select 2\n{TIME} [7] LOG:  duration: 1.0 ms\n"
    );
    assert_eq!((inside, reasons), (expected, vec![]));
}

#[test]
fn a_message_with_a_part_missing_is_told_and_left_out() {
    let (inside, reasons) = assemble(&[
        ("7", "[2-2] #011the end of something"),
        ("7", "[3-1] LOG:  statement: delete from t"),
        ("7", "[3-3] #011and b"),
        ("7", "[4-1] LOG:  statement: select 1"),
    ]);
    assert_eq!(inside, format!("{TIME} [7] LOG:  statement: select 1\n"));
    assert_eq!(reasons, [Reason::LostParts, Reason::LostParts]);
}

#[test]
fn escapes_are_undone_unless_control_characters_are_raw() {
    let (inside, _) = assemble(&[("7", "[1] LOG:  a#011b#033#999#01#")]);
    assert_eq!(inside, format!("{TIME} [7] LOG:  a\tb\x1b#999#01#\n"));
    let (inside, _) = assemble(&[("7", "[1-1] LOG:  a"), ("7", "[1-2] \tb#011")]);
    assert_eq!(inside, format!("{TIME} [7] LOG:  a\n\tb#011\n"));
}

#[test]
fn only_what_a_server_wrote_counts() {
    let mut assembly = Assembly::new(1000);
    let mut found = Found::default();
    for (program, host, text) in [
        ("sshd", "db", "Accepted publickey"),
        ("mypg", "db", "LOG:  statement: select 1"),
        ("mypg", "db", "anything"),
        ("mypg", "db2", "LOG:  statement: select 2"),
    ] {
        let (program, host, text) = (program.as_bytes(), host.as_bytes(), text.as_bytes());
        assembly.take(&Entry { time: TIME, host, program, pid: b"7", text, line: 1 }, &mut found);
    }
    let reasons: Vec<_> = found.problems.iter().map(|met| met.reason).collect();
    assert_eq!(reasons, [Reason::OtherProgram, Reason::SeveralServers]);
}

use super::*;

/// Builds a replay file like `file_consumer` in `replayfile.c`.
fn file(items: &[(u8, &[Nullable<'_>])]) -> Vec<u8> {
    let mut file = Vec::new();
    for (kind, strings) in items {
        file.extend_from_slice(&848_493_799_u32.to_be_bytes());
        file.extend_from_slice(&577_123_u32.to_be_bytes());
        file.extend_from_slice(&0x6b00_4067_0000_0007_u64.to_be_bytes());
        file.push(*kind);
        for (number, string) in strings.iter().enumerate() {
            if *kind == 4 && number == 1 {
                file.extend_from_slice(
                    &u16::try_from(strings.len() - 1).expect("few").to_be_bytes(),
                );
            }
            push(*string, &mut file);
        }
        if *kind == 4 && strings.len() == 1 {
            file.extend_from_slice(&[0, 0]);
        }
        file.push(b'\n');
    }
    file
}

fn push(string: Nullable<'_>, file: &mut Vec<u8>) {
    match string {
        None => file.extend_from_slice(&NULL.to_be_bytes()),
        Some(string) => {
            file.extend_from_slice(&u32::try_from(string.len()).expect("short").to_be_bytes());
            file.extend_from_slice(string);
        }
    }
}

fn read(file: &[u8], chunk: usize) -> (Vec<String>, Vec<InputProblem>) {
    let mut layer = Pgreplay::new(10_000);
    let mut output = LayerOutput::default();
    file.chunks(chunk).for_each(|bytes| layer.feed(bytes, &mut output));
    layer.finish(&mut output);
    let text = String::from_utf8_lossy(&output.log).into_owned();
    let reasons = output.problems.iter().map(|problem| problem.reason).collect();
    (text.lines().map(str::to_owned).collect(), reasons)
}

fn complete_file() -> Vec<u8> {
    file(&[
        (0, &[Some(b"al"), Some(b"shop")]),
        (2, &[Some(b"select 1")]),
        (3, &[Some(b"select $1, $2"), Some(b"s")]),
        (4, &[Some(b"s"), Some(b"it's"), None]),
        (4, &[Some(b"t")]),
        (5, &[]),
        (1, &[]),
    ])
}

#[test]
fn items_are_read_in_any_chunks() {
    let file = complete_file();
    let (lines, reasons) = read(&file, file.len());
    assert_eq!(lines.len(), 5, "{lines:?}");
    let head = "{\"timestamp\":\"2026-11-20 12:43:19.577123 LOCAL\",\"user\":\"al\",\
                \"dbname\":\"shop\",\"session_id\":\"6b004067.7\",\"error_severity\":";
    assert!(lines.iter().all(|line| line.starts_with(head)), "{lines:?}");
    assert!(
        lines[2].contains(
            "execute s: select $1, $2\",\"detail\":\"Parameters: $1 = 'it''s', $2 = NULL\""
        )
    );
    assert!(lines[3].contains("57014"));
    assert_eq!(reasons, [InputProblem::BadEnvelope], "a statement that was never prepared");
    for chunk in 1..file.len() {
        assert_eq!(read(&file, chunk), (lines.clone(), reasons.clone()), "{chunk}");
    }
}

#[test]
fn file_cut_at_any_byte_is_read_up_to_the_cut() {
    let file = complete_file();
    let (all, _) = read(&file, file.len());
    for end in 0..file.len() {
        let (lines, _) = read(&file[..end], end.max(1));
        assert_eq!(lines, all[..lines.len()], "{end}");
    }
}

#[test]
fn invalid_byte_ends_the_file() {
    let mut file = complete_file();
    let first = file.iter().position(|byte| *byte == b'\n').expect("a newline") + 1;
    file[first + 16] = 115;
    assert_eq!(read(&file, 10).1, [InputProblem::Damaged]);
    assert_eq!(read(&file, 10).0.len(), 1);
}

#[test]
fn logs_are_not_replay_files() {
    assert!(is_replay_file(&complete_file()));
    for text in
        [&b"2026-11-20 12:43:19.577 UTC [7] LOG:  statement: select 1\n"[..], b"", b"\n\n\n"]
    {
        assert!(!is_replay_file(text));
    }
}

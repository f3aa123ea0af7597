use crate::prefix::{CompiledPrefix, PrefixField, SessionNames, guess_prefix};

/// The head of a session's line or of a checkpointer's, as the server prints it for a prefix.
fn head(prefix: &str, number: usize, is_session: bool) -> String {
    let (user, database, application) = [
        ("[unknown]", "[unknown]", "[unknown]"),
        ("al", "shop", "psql"),
        ("bo", "stock", "web_app"),
        ("al", "stock", "cron"),
    ][number % 4];
    let mut out = String::new();
    let mut escapes = prefix.chars();
    while let Some(c) = escapes.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let in_session = |text: &str| if is_session { text.to_owned() } else { String::new() };
        let process = if is_session { 18146 + number % 4 } else { 70 };
        out += &match escapes.next() {
            Some('m') => format!("2026-11-20 12:43:19.{number:03} UTC"),
            Some('t') => format!("2026-11-20 12:43:{:02} UTC", number % 60),
            Some('n') => format!("1795178599.{number:03}"),
            Some('s') => "2026-11-20 12:40:00 UTC".to_owned(),
            Some('c') => format!("6b004067.{process:x}"),
            Some('p') => process.to_string(),
            Some('l') => (number / 4 + 1).to_string(),
            Some('e') => "00000".to_owned(),
            Some('x') => "0".to_owned(),
            Some('u') => in_session(user),
            Some('d') => in_session(database),
            Some('a') => in_session(application),
            Some('r') => in_session(&format!("10.0.0.{number}(5043{number})")),
            Some('h') => in_session(&format!("10.0.0.{number}")),
            Some('v') => in_session(&format!("3/{number}")),
            Some('q') if is_session => String::new(),
            Some('q') => break,
            other => panic!("%{other:?} is not printed here"),
        };
    }
    out
}

fn log(prefix: &str) -> Vec<String> {
    let line = |number: usize| {
        if number % 10 == 9 {
            return head(prefix, number, false) + "LOG:  checkpoint starting: time\n";
        }
        let message = match number % 4 {
            0 => "connection received: host=10.0.0.1 port=5043".to_owned(),
            1 if number < 4 => {
                "connection authorized: user=al database=shop application_name=psql".to_owned()
            }
            2 if number < 4 => {
                "connection authorized: user=bo database=stock application_name=web_app".to_owned()
            }
            _ => format!("statement: select {number}"),
        };
        head(prefix, number, true) + &format!("LOG:  {message}\n")
    };
    (0..50).map(line).collect()
}

#[test]
fn unusual_prefixes_are_deduced() {
    for prefix in [
        "%m;%c;%u;%d;%a;%h; ",
        "<%m|%p|%l> %q(%d/%u) ",
        "%t %q[%r] db:%d usr:%u ",
        "srv1 %m {%p} %q%u>%d ",
        "%n/%p/%u/%d/",
        "PG15 %m %e %x %p %quser=%u database=%d ",
        "%c %l %s %m %q%d.%u ",
        "%m pid=%p sess=%c app=%a u=%u d=%d h=%h ",
    ] {
        let log = log(prefix);
        let guessed = guess_prefix(log.iter().map(String::as_bytes)).expect(prefix);
        let confidence = guessed.confidence().expect("a guess");
        assert_eq!(confidence.lines, 50, "{prefix}: {}", guessed.source());
        let right = CompiledPrefix::compile(prefix).expect("a prefix");
        for line in &log {
            let line = line.as_bytes();
            let read = |prefix: &CompiledPrefix| {
                let found = prefix.matches(line, SessionNames::default()).expect("a record");
                [PrefixField::User, PrefixField::Database, PrefixField::Pid, PrefixField::SessionId]
                    .map(|field| String::from_utf8_lossy(found.field(line, field)).into_owned())
            };
            assert_eq!(read(&guessed), read(&right), "{prefix} as {}", guessed.source());
        }
    }
}

#[test]
fn ambiguous_prefix_has_a_rival() {
    // Without a message that names user and database, the two cannot be distinguished.
    let line = |number: u32| {
        format!("2026-11-20 12:43:19.{number:03} UTC shop al [7] LOG:  statement: select 1\n")
    };
    let log: Vec<_> = (0..9).map(line).collect();
    let guessed = guess_prefix(log.iter().map(String::as_bytes)).expect("a prefix");
    let rival = guessed.confidence().and_then(|confidence| confidence.rival.clone());
    assert!(rival.is_some(), "{}", guessed.source());
    // With such a message they can.
    let clear = "2026-11-20 12:43:19.000 UTC shop al [7] LOG:  connection authorized: user=al database=shop\n";
    let guessed =
        guess_prefix(log.iter().map(String::as_bytes).chain([clear.as_bytes()])).expect("a prefix");
    assert_eq!(guessed.confidence().and_then(|confidence| confidence.rival.as_deref()), None);
    assert_eq!(guessed.source(), "%m %d %u [%p] ");
}

#[test]
fn several_padded_fields_are_deduced() {
    let rows = [
        ["al", "shop", "71", "10.0.0.7"],
        ["hypatia", "crm", "4711", "10.0.0.123"],
        ["bo", "warehouse", "815", "10.0.0.8"],
        ["an_uncommonly_long_name", "shop", "12345", "192.168.100.200"],
    ];
    let guessed = |line: &dyn Fn([&str; 4]) -> String| {
        let lines: Vec<_> = rows.iter().cycle().take(12).map(|row| line(*row)).collect();
        let bytes: Vec<_> = lines.iter().map(String::as_bytes).collect();
        let prefix = guess_prefix(bytes.into_iter()).expect("a prefix");
        for (line, [user, database, pid, host]) in lines.iter().zip(rows.iter().cycle()) {
            let found = prefix.matches(line.as_bytes(), SessionNames::default());
            let found = found.unwrap_or_else(|| panic!("{} for {line}", prefix.source()));
            let field = |field| String::from_utf8_lossy(found.field(line.as_bytes(), field));
            assert_eq!(field(PrefixField::User), *user, "{} for {line}", prefix.source());
            assert_eq!(field(PrefixField::Database), *database, "{} for {line}", prefix.source());
            assert_eq!(field(PrefixField::Pid), *pid, "{} for {line}", prefix.source());
            assert_eq!(field(PrefixField::Host), *host, "{} for {line}", prefix.source());
        }
        prefix.source().to_owned()
    };
    let time = "2026-11-20 12:43:19.577 UTC";
    guessed(&|[user, database, pid, host]| {
        format!(
            "{time} {pid:>8} user={user:<12} db={database:<10} client={host:<15} LOG:  statement: select 1"
        )
    });
    guessed(&|[user, database, pid, host]| {
        format!("{time} [{pid:>6}] {user:>25}@{database:<12}| {host:>16} LOG:  statement: select 1")
    });
    let source = guessed(&|[user, database, pid, host]| {
        format!(
            "{time} user={user:<24} db={database:<10} {pid:>8} {host} LOG:  statement: select 1"
        )
    });
    assert!(source.contains("%-"), "{source}");
}

#[test]
fn guess_is_deterministic() {
    let lines: [&[u8]; 4] = [
        b"2026-11-20 12:00:00.0 UT [7] al@shop LOG:  execute e\n",
        b"2026-11-20 12:00:01.0 C 7 l l@s LOG:  i,\n",
        b"2026-11-20 12:00:03.1 U[] a@spDTILp'\n",
        b"2026-11-20 12:00:04.0 U [10] al@shop s LOG:  f",
    ];
    let source = || guess_prefix(lines.into_iter()).map(|prefix| prefix.source().to_owned());
    let first = source();
    assert!((0..40).all(|_| source() == first));
}

/// Asserts that the guess reads the same user, database, process and session from each line as
/// `prefix`.
fn assert_reads_as(prefix: &str, log: &[String]) {
    let guessed = guess_prefix(log.iter().map(String::as_bytes)).expect(prefix);
    let right = CompiledPrefix::compile(prefix).expect("a prefix");
    for line in log {
        let line = line.as_bytes();
        let read = |prefix: &CompiledPrefix| {
            let found = prefix.matches(line, SessionNames::default()).expect("a record");
            [
                PrefixField::User,
                PrefixField::Database,
                PrefixField::Pid,
                PrefixField::SessionId,
                PrefixField::QueryId,
            ]
            .map(|field| String::from_utf8_lossy(found.field(line, field)).into_owned())
        };
        assert_eq!(read(&guessed), read(&right), "{prefix} as {}", guessed.source());
    }
    assert!(guessed.fits_all(), "{prefix} as {}", guessed.source());
}

#[test]
fn query_ids_are_not_mistaken_for_addresses() {
    let ids = [1_147_616_880_456_321_454_i64, -7_330_112_645_012_345_678, 0, 42];
    let time = "2026-11-23 07:00:00.000 UTC";
    for (prefix, before, after) in [
        ("%m [%p] [queryid=%Q] %q%u@%d ", "[queryid=", "] "),
        ("%m [%p] %q[queryid=%Q] %u@%d ", "[queryid=", "] "),
        ("%m [%p] qid=%Q %q%u@%d ", "qid=", " "),
        ("%m [%p] {query_id:%Q} %q%u@%d ", "{query_id:", "} "),
    ] {
        let line = |number: usize| {
            let (id, pid) = (ids[number % 4], 700 + number % 2);
            let id = format!("{before}{id}{after}");
            match number % 10 {
                9 if prefix.contains("%q[") => format!("{time} [70] LOG:  checkpoint\n"),
                9 => format!("{time} [70] {before}0{after}LOG:  checkpoint\n"),
                _ => format!(
                    "{time} [{pid}] {id}postgres@shop LOG:  duration: 0.114 ms  statement: select 0;\n"
                ),
            }
        };
        let log: Vec<String> = (0..40).map(line).collect();
        assert_reads_as(prefix, &log);
    }
}

#[test]
fn padding_is_deduced_or_leaves_misfits() {
    // The spaces between the two fields may belong to either.
    let time = "2026-11-23 07:00:00.000 UTC";
    let names = [
        ("[unknown]", "[unknown]"),
        ("al", "shop"),
        ("an_uncommonly_long_name", "crm"),
        ("bo", "warehouse_of_all"),
    ];
    for with_background in [false, true] {
        let line = |number: usize| match number % 10 {
            9 if with_background => {
                format!("{time} [    70] {:<10} {:>12} LOG:  checkpoint\n", "", "")
            }
            _ => {
                let ((user, database), pid) = (names[number % 4], [700, 71, 12345][number % 3]);
                format!("{time} [{pid:>6}] {user:<10} {database:>12} LOG:  statement: select 1\n")
            }
        };
        let log: Vec<String> = (0..40).map(line).collect();
        let guessed = guess_prefix(log.iter().map(String::as_bytes)).expect("a prefix");
        if guessed.fits_all() {
            assert_reads_as("%m [%6p] %-10u %12d ", &log);
        }
    }
}

#[test]
fn implausible_addresses_are_rejected() {
    // `%r` or `%h` print none of these.
    for text in ["[queryid=7]", "[7]", "a(b)", "(5432)", "17"] {
        let line = format!("2026-11-23 07:00:00.000 UTC [7] {text} al@shop LOG:  x\n");
        let guessed = guess_prefix([line.as_bytes()].into_iter());
        let source = guessed.as_ref().map_or("", CompiledPrefix::source);
        assert!(!source.contains("%r") && !source.contains("%h"), "{text}: {source}");
    }
}

/// The text that the server prints for a prefix with padded escapes, from these values.
fn padded_head(prefix: &str, value: &dyn Fn(char) -> String, is_session: bool) -> String {
    let mut out = String::new();
    let mut chars = prefix.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let is_left = chars.next_if_eq(&'-').is_some();
        let mut width = 0;
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            width = width * 10 + digit.to_digit(10).expect("a digit") as usize;
        }
        match chars.next().expect("an escape") {
            'q' if !is_session => break,
            'q' => {}
            letter if is_left => out += &format!("{:<width$}", value(letter)),
            letter => out += &format!("{:>width$}", value(letter)),
        }
    }
    out
}

#[test]
fn padded_prefixes_are_guessed_or_refused() {
    let names = [
        ("[unknown]", "[unknown]", "[unknown]"),
        ("al", "shop", "psql"),
        ("an_uncommonly_long_name", "crm", "web app"),
        ("bo", "warehouse_of_all", "cron"),
    ];
    let mut refused = Vec::new();
    let prefixes = [
        "%m [%8p] ",
        "%m [%-8p] %q%u@%d ",
        "%m %8p %-12u ",
        "%m [%p] %-12u ",
        "%m [%p] %-12u %-12d ",
        "%m [%p] %12u@%-12d ",
        "%m [%6p] %q%-10u %12d ",
        "%m %-10u %8p %-12d ",
        "%m|%-12u|%-12d|%8p|%c|",
        "%t [%6p]: [%4l-1] user=%-12u,db=%-10d,app=%-10a,client=%-15h ",
        "%m [%p] %-8e %-15h %q%u@%d ",
        "%m %-20c %-10u %-10d ",
        "%m [%p] %-16r %q%u@%d ",
        "%m %8p %-10a %q%u@%d ",
        "%n %-12u %8p %c ",
        "%m [%8p] %q[%-10u@%10d] ",
        "%t:%-22r:%u@%d:[%6p]:",
        "%m [%6p]: [%6l] %qdb=%-12d,user=%-12u ",
    ];
    for prefix in prefixes {
        for with_background in [false, true] {
            let line = |number: usize| {
                let is_session = !(with_background && number % 10 == 9);
                let (user, database, application) =
                    if is_session { names[number % 4] } else { ("", "", "") };
                let process = if is_session { [700, 71, 12345][number % 3] } else { 70 };
                let value = |letter: char| match letter {
                    'm' => format!("2026-11-20 12:43:19.{number:03} UTC"),
                    't' => format!("2026-11-20 12:43:{:02} UTC", number % 60),
                    'n' => format!("1795178599.{number:03}"),
                    'u' => user.to_owned(),
                    'd' => database.to_owned(),
                    'a' => application.to_owned(),
                    'p' => process.to_string(),
                    'c' => format!("6b004067.{process:x}"),
                    'l' => (number / 4 + 1).to_string(),
                    'e' => "00000".to_owned(),
                    'h' if is_session => format!("10.0.0.{}", number * 3),
                    'r' if is_session => format!("10.0.0.{}(5043{number})", number * 3),
                    'h' | 'r' => String::new(),
                    other => panic!("%{other} is not printed here"),
                };
                let message = match number % 4 {
                    _ if !is_session => "checkpoint starting: time".to_owned(),
                    0 => "connection received: host=10.0.0.1 port=5043".to_owned(),
                    _ if number < 4 => format!(
                        "connection authorized: user={user} database={database} application_name={application}"
                    ),
                    _ => format!("statement: select {number}"),
                };
                format!("{}LOG:  {message}\n", padded_head(prefix, &value, is_session))
            };
            let log: Vec<String> = (0..60).map(line).collect();
            let guessed = guess_prefix(log.iter().map(String::as_bytes)).expect(prefix);
            if guessed.fits_all() && guessed.confidence().is_none_or(|it| it.rival.is_none()) {
                assert_reads_as(prefix, &log);
            } else {
                refused.push((prefix, with_background, guessed.source().to_owned()));
            }
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
}

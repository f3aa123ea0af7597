use super::*;
use howdah_log_input::LogSeverity;

fn fields(prefix: &str, line: &str, expected_fields: &[PrefixField]) -> Option<Vec<String>> {
    named(prefix, line, expected_fields, SessionNames::default())
}

fn named(
    prefix: &str,
    line: &str,
    expected_fields: &[PrefixField],
    names: SessionNames<'_>,
) -> Option<Vec<String>> {
    let prefix = CompiledPrefix::compile(prefix).expect("a prefix");
    let found = prefix.matches(line.as_bytes(), names)?;
    let mut all: Vec<String> = expected_fields
        .iter()
        .map(|field| String::from_utf8_lossy(found.field(line.as_bytes(), *field)).into_owned())
        .collect();
    all.push(line[found.text..].to_owned());
    Some(all)
}

const NAMES: [PrefixField; 3] =
    [PrefixField::User, PrefixField::Database, PrefixField::Application];

fn strings(words: &[&str]) -> Option<Vec<String>> {
    Some(words.iter().map(|word| (*word).to_owned()).collect())
}

#[test]
fn default_prefix_is_matched() {
    let line = "2026-11-20 12:43:20.896 UTC [18211] LOG:  hello LOG:  there";
    let read = fields("%m [%p] ", line, &[PrefixField::Millis, PrefixField::Pid]);
    assert_eq!(read, strings(&["2026-11-20 12:43:20.896 UTC", "18211", "hello LOG:  there"]));
}

#[test]
fn quit_ends_prefix_without_session() {
    let prefix = "%m [%p] %q%u@%d/%a ";
    let line = "2026-11-20 12:43:20.896 UTC [1] LOG:  user a@b/c LOG:  x";
    assert_eq!(fields(prefix, line, &NAMES), strings(&["", "", "", "user a@b/c LOG:  x"]));
    let line = "2026-11-20 12:43:20.896 UTC [1] al@pg/we\"ird | app LOG:  x";
    assert_eq!(fields(prefix, line, &NAMES), strings(&["al", "pg", "we\"ird | app", "x"]));
}

#[test]
fn known_names_take_precedence_over_shortest_reading() {
    let prefix = "%m [%p] %q%u@%d/%a ";
    let line = "2026-11-20 12:43:20.896 UTC [1] a@corp@pg/x LOG:  y LOG:  z";
    let names = SessionNames { user: b"a@corp", database: b"pg", application: b"x LOG:  y" };
    assert_eq!(named(prefix, line, &NAMES, names), strings(&["a@corp", "pg", "x LOG:  y", "z"]));
    assert_eq!(fields(prefix, line, &NAMES), strings(&["a", "corp@pg", "x", "y LOG:  z"]));
}

#[test]
fn padded_and_empty_fields_are_matched() {
    let prefix = "%n %-12u %8p %l %e %i %s %v %x %r %h %b %P %Q %% |%c| ";
    let expected_fields = [
        PrefixField::User,
        PrefixField::Pid,
        PrefixField::Tag,
        PrefixField::Vxid,
        PrefixField::Remote,
        PrefixField::QueryId,
    ];
    let line = "1795178602.360 [unknown]       18279 1 00000  2026-11-20 12:43:22 UTC  0 [local] \
                [local] not initialized  0 % |6b00406a.4767| LOG:  00000: connection received";
    let read = fields(prefix, line, &expected_fields);
    assert_eq!(
        read,
        strings(&["[unknown]", "18279", "", "", "[local]", "0", "00000: connection received"])
    );
    let line = "1795178602.248                 18268 4 00000  2026-11-20 12:43:22 UTC  0   \
                postmaster  0 % |6b00406a.475c| LOG:  00000: up";
    assert_eq!(
        fields(prefix, line, &expected_fields),
        strings(&["", "18268", "", "", "", "0", "00000: up"])
    );
    let line = "1795178602.862 averylongusername    18279 16 00000 idle in transaction 2026-11-20 \
                12:43:22 UTC 0/2 0 1.2.3.4(5) 1.2.3.4 client backend  -91 % |6b00406a.4767| LOG:  00000: x";
    let read = fields(prefix, line, &expected_fields);
    let expected = [
        "averylongusername",
        "18279",
        "idle in transaction",
        "0/2",
        "1.2.3.4(5)",
        "-91",
        "00000: x",
    ];
    assert_eq!(read, strings(&expected));
}

#[test]
fn amazon_rds_prefix_is_matched() {
    let prefix = "%t:%r:%u@%d:[%p]:";
    let expected_fields =
        [PrefixField::Remote, PrefixField::User, PrefixField::Database, PrefixField::Pid];
    let line = "2026-11-20 12:43:22 UTC:10.0.0.7(53472):app@shop:[912]:LOG:  statement: select 1";
    let read = fields(prefix, line, &expected_fields);
    assert_eq!(read, strings(&["10.0.0.7(53472)", "app", "shop", "912", "statement: select 1"]));
    let line = "2026-11-20 12:43:22 UTC::@:[912]:LOG:  checkpoint";
    assert_eq!(fields(prefix, line, &expected_fields), strings(&["", "", "", "912", "checkpoint"]));
    let line = "2026-11-20 12:43:22 UTC:db-7.example.org(53):app@shop:[912]:LOG:  x";
    let read = fields(prefix, line, &expected_fields);
    assert_eq!(read, strings(&["db-7.example.org(53)", "app", "shop", "912", "x"]));
}

#[test]
fn host_name_ends_at_next_literal() {
    let line = "2026-11-20 12:43:22 UTC [7]: user=u,db=d,app=a,client=db7.example.org LOG:  x";
    let read = fields("%t [%p]: user=%u,db=%d,app=%a,client=%h ", line, &[PrefixField::Host]);
    assert_eq!(read, strings(&["db7.example.org", "x"]));
}

#[test]
fn unknown_escapes_are_empty_and_time_is_required() {
    assert!(CompiledPrefix::compile("%m %Z[%p] ").is_ok());
    assert!(matches!(
        CompiledPrefix::compile("[%p] "),
        Err(OptionsError::PrefixWithoutTime { .. })
    ));
    assert!(matches!(CompiledPrefix::compile("%m %"), Err(OptionsError::PrefixCutShort { .. })));
    assert!(matches!(CompiledPrefix::compile("%m %-5"), Err(OptionsError::PrefixCutShort { .. })));
}

#[test]
fn labels_are_recognized() {
    let prefix = CompiledPrefix::compile("%m ").expect("a prefix");
    let read = |text: &str| {
        let line = format!("2026-11-20 12:43:20.896 UTC {text}");
        prefix.matches(line.as_bytes(), SessionNames::default()).map(|found| found.label)
    };
    assert_eq!(read("FATAL:  x"), Some(LineLabel::Main(LogSeverity::Fatal)));
    assert_eq!(
        read("STATEMENT:  x"),
        Some(LineLabel::Field(howdah_log_input::MessageField::Statement))
    );
    assert_eq!(read("FEHLER:  x"), None);
}

#[test]
fn hostile_line_stops_at_step_limit() {
    let prefix = CompiledPrefix::compile("%m %u %d %a %i %b ").expect("a prefix");
    let line = format!("2026-11-20 12:43:20.896 UTC {}", "a ".repeat(5000));
    assert_eq!(prefix.matches(line.as_bytes(), SessionNames::default()), None);
}

#[test]
fn common_prefixes_are_guessed_from_few_lines() {
    let cases: &[(&str, &[&str])] = &[
        ("%m [%p] ", &["2026-11-20 12:43:20.896 UTC [1] LOG:  x"]),
        (
            "%m [%p] %q%u@%d ",
            &[
                "2026-11-20 12:43:20.896 UTC [1] LOG:  x",
                "2026-11-20 12:43:20.896 UTC [1] a@b LOG:  x",
            ],
        ),
        (
            "%t [%p]: [%l-1] %quser=%u,db=%d ",
            &["2026-11-20 12:43:20 CET [1]: [3-1] user=a,db=b LOG:  x"],
        ),
        ("%t:%r:%u@%d:[%p]:", &["2026-11-20 12:43:20 UTC:10.1.2.3(5):a@b:[1]:LOG:  x"]),
        ("%m|%u|%d|%c|", &["2026-11-20 12:43:20.896 UTC|a|b|6b004067.46e2|LOG:  x"]),
        (
            "%t [%p]: %quser=%u,db=%d,app=%a,client=%h ",
            &["2026-11-20 12:43:20 UTC [1]: user=a,db=b,app=c d,client=[local] LOG:  x"],
        ),
        (
            "%t [%p]: %quser=%u,db=%d,app=%a,client=%r ",
            &["2026-11-20 12:43:20 UTC [1]: user=a,db=b,app=c d,client=10.0.0.1(53) LOG:  x"],
        ),
    ];
    for (expected, lines) in cases {
        let guessed = guess_prefix(lines.iter().map(|line| line.as_bytes()));
        assert_eq!(guessed.expect("a guess").source(), *expected);
    }
    assert!(guess_prefix([&b"nothing to see"[..]].into_iter()).is_none());
}

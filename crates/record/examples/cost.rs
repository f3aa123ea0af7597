//! What recording costs: so many transactions of `pgbench -S` by one protocol, from the tape to the files.
//!
//!     cargo build --release -p howdah-record --example cost
//!     valgrind --tool=callgrind target/release/examples/cost extended 60000
//!
//! Two runs with different counts, subtracted, give the cost of a transaction without what comes once. The
//! files are those of a capture, and how large they are is printed.

use std::{
    env,
    io::{self, Write as _},
    time::Duration,
};

use howdah_record::{CopyRows, Entry, Mark, Recorder, Settings};
use howdah_traffic::Timestamp;
use howdah_wire::{
    Backend, Format,
    backend::encode as say,
    frontend::{Target, encode as ask},
};

const SQL: &[u8] = b"SELECT abalance FROM pgbench_accounts WHERE aid = ";
const CLIENTS: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = env::args().skip(1);
    let protocol = words.next().unwrap_or_else(|| "extended".to_owned());
    let count: u64 = words.next().map_or(Ok(60_000), |count| count.parse())?;
    let folder = tempfile::tempdir()?;
    let settings = Settings {
        path: folder.path().join("it"),
        copy: CopyRows::Full { bytes_max: 1 << 20 },
        redaction: None,
        buffer_bytes: 1 << 30,
        file_bytes: 64 << 20,
        file_time: Duration::from_secs(3600),
        workers: 1,
        number: 1,
        zero: Timestamp::from_micros(1_700_000_000_000_000),
        origin: "cost".to_owned(),
    };
    let who_is = |_| Some(("postgres".into(), "postgres".into()));
    let (recorder, tapes) = Recorder::begin(settings, Box::new(who_is))?;
    let prepared = [SQL, b"$1;\0\0\0"].concat();
    let mut marks = vec![Mark::default(); CLIENTS];
    for mut tape in tapes {
        for mark in &mut marks {
            let entry = Entry {
                is_new: true,
                pool: 1,
                settings: [(&b"application_name"[..], &b"pgbench"[..])].into_iter(),
                statements: [(&b"P0_1"[..], 1, &prepared[..])].into_iter(),
                unnamed: b"",
            };
            tape.enter(mark, entry, 0);
        }
        let mut bytes = Vec::new();
        for number in 0..count {
            let mark = &mut marks[number as usize % CLIENTS];
            // No numbers at random, but none near the one before either.
            let value = (number * 7919 % 1_000_000).to_string();
            let now = 1_000_000_000 + number * 50_000;
            bytes.clear();
            requests(&mut bytes, &protocol, value.as_bytes())?;
            tape.said(mark, &bytes, now);
            for kind in replies(&protocol) {
                bytes.clear();
                match kind {
                    Backend::CommandComplete => say::command_complete(&mut bytes, b"SELECT 1")?,
                    Backend::ReadyForQuery => bytes.extend(b"Z\0\0\0\x05I"),
                    _ => {}
                }
                tape.heard(mark, *kind, bytes.get(5..).unwrap_or_default(), now + 45_000);
            }
        }
        for mark in &marks {
            tape.left(mark, 2_000_000_000 + count * 50_000);
        }
        tape.end();
    }
    let status = recorder.end();
    let bytes: u64 = std::fs::read_dir(&status.path)?
        .map(|file| file.and_then(|file| file.metadata()).map_or(0, |it| it.len()))
        .sum();
    writeln!(io::stdout(), "{} events, {bytes} bytes", status.tally.events)?;
    Ok(())
}

fn requests(
    out: &mut Vec<u8>,
    protocol: &str,
    value: &[u8],
) -> Result<(), Box<dyn std::error::Error>> {
    if protocol == "simple" {
        ask::query(out, &[SQL, value, b";"].concat())?;
        return Ok(());
    }
    let statement: &[u8] = if protocol == "prepared" { b"P0_1" } else { b"" };
    if protocol == "extended" {
        ask::parse(out, statement, &[SQL, b"$1;"].concat(), &[])?;
    }
    ask::bind(out, b"", statement, &[] as &[Format], [Some(value)], &[Format::Text])?;
    ask::describe(out, Target::Portal(b""))?;
    ask::execute(out, b"", 0)?;
    ask::sync(out);
    Ok(())
}

fn replies(protocol: &str) -> &'static [Backend] {
    use Backend::{
        BindComplete, CommandComplete, DataRow, ParseComplete, ReadyForQuery, RowDescription,
    };
    match protocol {
        "simple" => &[RowDescription, DataRow, CommandComplete, ReadyForQuery],
        "prepared" => &[BindComplete, RowDescription, DataRow, CommandComplete, ReadyForQuery],
        _ => {
            &[ParseComplete, BindComplete, RowDescription, DataRow, CommandComplete, ReadyForQuery]
        }
    }
}

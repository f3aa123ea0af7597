//! Measures the cost of recording: a number of `pgbench -S` transactions by one protocol, from the
//! capture buffer to the files.
//!
//!     cargo build --release -p howdah-pool --example capture_cost
//!     valgrind --tool=callgrind target/release/examples/capture_cost extended 60000
//!
//! The difference between two runs with different counts is the cost of the transactions without
//! the start-up. The files are a regular capture; their size is printed.

use std::{
    env,
    io::{self, Write as _},
    time::Duration,
};

use howdah_capture::live::{ClientMark, CopyRows, SessionStart};
use howdah_pool::{CaptureRecorder, RecorderSettings};
use howdah_traffic::Timestamp;
use howdah_wire::{
    Backend, ValueFormat,
    backend::encode as backend,
    frontend::{DescribeTarget, encode as frontend},
};

const SQL: &[u8] = b"SELECT abalance FROM pgbench_accounts WHERE aid = ";
const CLIENTS: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let protocol = args.next().unwrap_or_else(|| "extended".to_owned());
    let count: u64 = args.next().map_or(Ok(60_000), |count| count.parse())?;
    let folder = tempfile::tempdir()?;
    let settings = RecorderSettings {
        path: folder.path().join("it"),
        copy: CopyRows::Full { bytes_max: 1 << 20 },
        results: false,
        redaction: None,
        buffer_bytes: 1 << 30,
        file_bytes: 64 << 20,
        file_time: Duration::from_secs(3600),
        workers: 1,
        capture_number: 1,
        clock_origin: Timestamp::from_micros(1_700_000_000_000_000),
        origin: "cost".to_owned(),
    };
    let who_is = |_| Some(("postgres".into(), "postgres".into()));
    let (recorder, buffers) = CaptureRecorder::start(settings, Box::new(who_is))?;
    let prepared = [SQL, b"$1;\0\0\0"].concat();
    let mut clients = vec![ClientMark::default(); CLIENTS];
    for mut buffer in buffers {
        for client in &mut clients {
            let start = SessionStart {
                is_new: true,
                pool: 1,
                settings: [(&b"application_name"[..], &b"pgbench"[..])].into_iter(),
                statements: [(&b"P0_1"[..], 1, &prepared[..])].into_iter(),
                unnamed: b"",
            };
            buffer.start_session(client, start, 0);
        }
        let mut bytes = Vec::new();
        for number in 0..count {
            let client = &mut clients[number as usize % CLIENTS];
            // Not random, but never close to the previous number.
            let value = (number * 7919 % 1_000_000).to_string();
            let now = 1_000_000_000 + number * 50_000;
            bytes.clear();
            requests(&mut bytes, &protocol, value.as_bytes())?;
            buffer.record_frontend(client, &bytes, now);
            for kind in replies(&protocol) {
                bytes.clear();
                match kind {
                    Backend::CommandComplete => backend::command_complete(&mut bytes, b"SELECT 1")?,
                    Backend::ReadyForQuery => bytes.extend(b"Z\0\0\0\x05I"),
                    _ => {}
                }
                buffer.record_backend(
                    client,
                    *kind,
                    bytes.get(5..).unwrap_or_default(),
                    now + 45_000,
                );
            }
        }
        for client in &clients {
            buffer.record_disconnect(client, 2_000_000_000 + count * 50_000);
        }
        buffer.finish();
    }
    let status = recorder.stop();
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
        frontend::query(out, &[SQL, value, b";"].concat())?;
        return Ok(());
    }
    let statement: &[u8] = if protocol == "prepared" { b"P0_1" } else { b"" };
    if protocol == "extended" {
        frontend::parse(out, statement, &[SQL, b"$1;"].concat(), &[])?;
    }
    frontend::bind(
        out,
        b"",
        statement,
        &[] as &[ValueFormat],
        [Some(value)],
        &[ValueFormat::Text],
    )?;
    frontend::describe(out, DescribeTarget::Portal(b""))?;
    frontend::execute(out, b"", 0)?;
    frontend::sync(out);
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

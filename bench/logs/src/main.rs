//! Generates the logs that `bench/logs/run` measures, and reads them without writing anything.
//!
//! This is not part of the product, which is `howdah capture import`. The benchmark measures only
//! the library, so that a profile shows nothing else.

mod formats;
mod workload;

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    ops::ControlFlow,
    path::PathBuf,
};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use howdah_logs::{ImportOptions, visit_files};
use howdah_traffic::EventHash;

use crate::workload::{StatementLength, Workload};

/// The arguments of the command line.
#[derive(Debug, Parser)]
enum LogBenchCommand {
    /// Write a log of about this many bytes; the same arguments give the same log
    Generate {
        /// Format of the log
        #[arg(value_enum)]
        format: GeneratedFormat,
        /// Size, in millions of bytes
        megabytes: u64,
        /// The file to write
        output: PathBuf,
        /// Length of the statements
        #[arg(long, value_enum, default_value = "mixed")]
        shape: StatementLength,
    },
    /// Read a log into events, drop them, and print their number
    Parse {
        /// Path of a file in one of the three formats
        log: PathBuf,
    },
}

/// The formats of a server's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GeneratedFormat {
    /// Lines with the prefix `%m|%u|%d|%c|`
    Stderr,
    /// Rows of 26 columns
    Csv,
    /// One object per line
    Json,
}

fn main() -> anyhow::Result<()> {
    match LogBenchCommand::parse() {
        LogBenchCommand::Generate { format, megabytes, output, shape } => {
            let file = File::create(&output)
                .with_context(|| format!("cannot create {}", output.display()))?;
            generate(format, megabytes * 1_000_000, shape, &mut BufWriter::new(file))
                .with_context(|| format!("cannot write {}", output.display()))
        }
        LogBenchCommand::Parse { log } => parse(log),
    }
}

fn generate(
    format: GeneratedFormat,
    bytes_min: u64,
    shape: StatementLength,
    out: &mut impl std::io::Write,
) -> std::io::Result<()> {
    let mut workload = Workload::new(shape);
    let mut text = Vec::new();
    let mut written = 0;
    while written < bytes_min {
        text.clear();
        workload.step(&mut |record| formats::write_record(format, record, &mut text));
        written += text.len() as u64;
        out.write_all(&text)?;
    }
    out.flush()
}

fn parse(log: PathBuf) -> anyhow::Result<()> {
    let mut hash = EventHash::default();
    let summary = visit_files(
        &[log],
        ImportOptions::default(),
        |_| ControlFlow::Continue(()),
        |event| {
            hash.add_ref(event);
            Ok::<(), std::convert::Infallible>(())
        },
    )?;
    writeln!(
        std::io::stdout(),
        "{} bytes, {} records, {} events, {} rejected, hash {hash}",
        summary.bytes,
        summary.records,
        hash.events(),
        summary.rejected()
    )?;
    Ok(())
}

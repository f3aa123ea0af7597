//! Makes the logs that `bench/logs/run` measures with, and reads them without writing anything.
//!
//! This is no part of the product: `howdah capture import` is. What is measured here is the library
//! alone, so that a profile shows nothing else.

mod render;
mod workload;

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    ops::ControlFlow,
    path::PathBuf,
};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use howdah_logs::{Options, visit_files};
use howdah_traffic::EventHash;

use crate::workload::{Shape, Workload};

/// What the words of the command line ask for.
#[derive(Debug, Parser)]
enum Command {
    /// Write a log of about this many bytes; the same arguments give the same log
    Generate {
        /// Format of the log
        #[arg(value_enum)]
        format: LogFormat,
        /// Size, in millions of bytes
        megabytes: u64,
        /// The file to write
        output: PathBuf,
        /// Length of the statements
        #[arg(long, value_enum, default_value = "mixed")]
        shape: Shape,
    },
    /// Read a log into events, drop them, and say how many there were
    Parse {
        /// The log
        log: PathBuf,
    },
}

/// The formats that a server writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines with the prefix `%m|%u|%d|%c|`
    Stderr,
    /// Rows of 26 columns
    Csv,
    /// Objects, one in each line
    Json,
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Generate { format, megabytes, output, shape } => {
            let file = File::create(&output)
                .with_context(|| format!("cannot create {}", output.display()))?;
            generate(format, megabytes * 1_000_000, shape, &mut BufWriter::new(file))
                .with_context(|| format!("cannot write {}", output.display()))
        }
        Command::Parse { log } => parse(log),
    }
}

fn generate(
    format: LogFormat,
    bytes_min: u64,
    shape: Shape,
    out: &mut impl std::io::Write,
) -> std::io::Result<()> {
    let mut workload = Workload::new(shape);
    let mut text = Vec::new();
    let mut written = 0;
    while written < bytes_min {
        text.clear();
        workload.step(&mut |record| render::record(format, record, &mut text));
        written += text.len() as u64;
        out.write_all(&text)?;
    }
    out.flush()
}

fn parse(log: PathBuf) -> anyhow::Result<()> {
    let mut hash = EventHash::default();
    let summary = visit_files(
        &[log],
        Options::default(),
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

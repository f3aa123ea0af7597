//! Measures the statsd server beside others; `bench/statsd/run` is the one command that builds and
//! runs it all.
//!
//! This is no part of the product.

mod bare;
mod mix;
mod parse;
mod process;
mod run;
mod sender;
mod servers;
mod sink;
mod tables;

use clap::Parser;

/// What the words of the command line ask for.
#[derive(Debug, Parser)]
enum Command {
    /// Run everything, and write the tables
    Run(run::Args),
    /// Parse and aggregate, without sockets
    Parse(parse::Args),
    /// Receive packets, count them, and do nothing else
    Bare {
        /// Where, on the loopback
        port: u16,
        /// The receive buffer asked for
        buffer_bytes: usize,
    },
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Run(args) => run::run(&args),
        Command::Parse(args) => parse::run(args),
        Command::Bare { port, buffer_bytes } => bare::run(port, buffer_bytes),
    }
}

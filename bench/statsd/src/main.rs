//! Benchmarks the statsd server against other servers. `bench/statsd/run` builds and runs
//! everything.
//!
//! Not part of the product.

mod bare_receiver;
mod parse;
mod process;
mod rules;
mod run;
mod sender;
mod servers;
mod sink;
mod tables;
mod workload;

use clap::Parser;

/// Subcommands of the benchmark.
#[derive(Debug, Parser)]
enum BenchCommand {
    /// Run all benchmarks and write the tables
    Run(run::Args),
    /// Parse and aggregate without sockets
    Parse(parse::Args),
    /// Aggregate and flush with and without rules, without sockets
    Rules(rules::Args),
    /// Receive and count packets, nothing else
    Bare {
        /// Port on the loopback interface
        port: u16,
        /// Receive buffer to request, in bytes
        buffer_bytes: usize,
    },
}

fn main() -> anyhow::Result<()> {
    match BenchCommand::parse() {
        BenchCommand::Run(args) => run::run(&args),
        BenchCommand::Parse(args) => parse::run(args),
        BenchCommand::Rules(args) => rules::run(args),
        BenchCommand::Bare { port, buffer_bytes } => bare_receiver::run(port, buffer_bytes),
    }
}

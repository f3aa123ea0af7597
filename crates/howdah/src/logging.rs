//! Logs, by `tracing`, to stderr: text for a person, JSON for a collector.

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::{cli::Global, context::Context};

/// How much to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Nothing.
    Off,
    /// What made a part of the work fail.
    Error,
    /// And what a person should look at.
    #[default]
    Warn,
    /// And what happens, one line per event of the command's life.
    Info,
    /// And why.
    Debug,
    /// And every step.
    Trace,
}

/// The shape of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging for the process. Call once.
pub(crate) fn start(global: &Global, ctx: &Context) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(filter(global.log_level))
        .with_span_events(FmtSpan::NONE)
        .with_ansi(ctx.terminal().color_stderr)
        .with_writer(ctx.bars().clone());
    let json = match global.log_format {
        Format::Auto => !ctx.terminal().stderr,
        Format::Text => false,
        Format::Json => true,
    };
    match json {
        true => builder.json().flatten_event(true).init(),
        false => builder.init(),
    }
}

fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}

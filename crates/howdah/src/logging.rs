//! Logs, by `tracing`, to stderr: text for a person, JSON for a collector. A command whose own settings
//! say so moves them to syslog ([`adjust`]).

mod fields;
mod syslog;

use std::{io, sync::OnceLock};

use clap::ValueEnum;
use tracing::{Metadata, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer as _, Registry, fmt,
    fmt::{MakeWriter, format::FmtSpan},
    layer::SubscriberExt as _,
    reload,
    util::SubscriberInitExt as _,
};

use self::{fields::EscapedFields, syslog::Syslog};
use crate::{
    cli::Global,
    context::Context,
    progress::{AboveBars, Bars},
};

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

/// The level that somebody asked for, and how to change it later. There is one log in a process.
static LEVEL: OnceLock<(Option<Level>, reload::Handle<LevelFilter, Registry>)> = OnceLock::new();
/// Where lines go once somebody said so.
static SYSLOG: OnceLock<Syslog> = OnceLock::new();

/// Starts logging for the process. Call once.
pub(crate) fn start(global: &Global, ctx: &Context) {
    let (level, handle) = reload::Layer::new(filter(global.log_level.unwrap_or_default()));
    let _ = LEVEL.set((global.log_level, handle));
    let json = match global.log_format {
        Format::Auto => !ctx.terminal().stderr,
        Format::Text => false,
        Format::Json => true,
    };
    let lines = fmt::layer()
        .with_span_events(FmtSpan::NONE)
        .with_ansi(ctx.terminal().color_stderr)
        .with_writer(Lines(ctx.bars().clone()));
    let lines = match json {
        true => lines.json().flatten_event(true).boxed(),
        false => lines.fmt_fields(EscapedFields).boxed(),
    };
    tracing_subscriber::registry().with(level).with(lines).init();
}

/// What a command's own settings say about the log: a level, unless somebody asked for one by
/// `--log-level`, and the name to log to syslog under.
///
/// # Errors
///
/// There is no syslog; the log stays where it is.
pub(crate) fn adjust(level: Option<Level>, syslog: Option<&str>) -> io::Result<()> {
    if let (Some(level), Some((asked, handle))) = (level, LEVEL.get())
        && asked.is_none()
    {
        // Fails only if the log is gone.
        let _ = handle.reload(filter(level));
    }
    if let Some(application) = syslog
        && SYSLOG.get().is_none()
    {
        let _ = SYSLOG.set(Syslog::open(syslog::PATH.as_ref(), application)?);
    }
    Ok(())
}

/// Changes the level of the log, whatever it was before.
pub(crate) fn change(level: LevelFilter) {
    if let Some((_, handle)) = LEVEL.get() {
        // Fails only if the log is gone.
        let _ = handle.reload(level);
    }
}

/// Logs nothing any more to a terminal that has a picture on it, which lines would go through. A log that goes
/// to a file or to syslog goes on.
pub(crate) fn spare_the_screen(ctx: &Context) {
    if let Some((_, handle)) =
        LEVEL.get().filter(|_| ctx.terminal().stderr && SYSLOG.get().is_none())
    {
        // Fails only if the log is gone.
        let _ = handle.reload(filter(Level::Off));
    }
}

/// Makes the writer of each line.
struct Lines(Bars);

/// Where one line goes.
enum Line<'a> {
    Syslog(syslog::Line<'a>),
    Stderr(AboveBars<'a>),
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line::Stderr(self.0.make_writer())
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Line<'a> {
        match SYSLOG.get() {
            Some(syslog) => Line::Syslog(syslog.line(*about.level())),
            None => self.make_writer(),
        }
    }
}

impl io::Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Syslog(line) => line.write(bytes),
            Self::Stderr(line) => line.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Syslog(line) => line.flush(),
            Self::Stderr(line) => line.flush(),
        }
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

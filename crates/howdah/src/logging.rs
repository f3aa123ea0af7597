//! Logging with `tracing` to stderr: text for people, JSON for collectors. A command's own settings
//! may redirect it to syslog ([`adjust`]), or copy it to a file ([`copy_to_file`]).

mod fields;
mod file;
mod json_lines;
mod syslog;

use std::{io, path::Path, sync::OnceLock};

use clap::ValueEnum;
use tracing::{Metadata, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer as _, Registry, fmt,
    fmt::{MakeWriter, format::FmtSpan},
    layer::SubscriberExt as _,
    reload,
    util::SubscriberInitExt as _,
};

pub(crate) use self::syslog::SyslogName;
use self::{fields::EscapedFields, file::AppendedLog, json_lines::JsonLines, syslog::Syslog};
use crate::{
    progress::{AboveBars, Bars},
    terminal::Terminal,
};

/// Value of `--log-level`: which events are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Nothing.
    Off,
    /// Failures of a part of the work.
    Error,
    /// Also conditions that need attention.
    #[default]
    Warn,
    /// Also events in the command's life, one line each.
    Info,
    /// Also details.
    Debug,
    /// Also every step.
    Trace,
}

/// Value of `--log-format`: the format of log lines on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLineFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Text, for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The level given with `--log-level`, and a handle to change it later. A process has one log.
static LEVEL: OnceLock<(Option<Level>, reload::Handle<LevelFilter, Registry>)> = OnceLock::new();
/// The connection to syslog, once a command has redirected the log to it.
static SYSLOG: OnceLock<Syslog> = OnceLock::new();

/// The file to which the log is copied, and whether stderr gets it, too.
static FILE: OnceLock<(AppendedLog, bool)> = OnceLock::new();

/// Starts logging for the process. Call once. `given` is the level on the command line.
pub(crate) fn start(
    (given, format): (Option<Level>, LogLineFormat),
    terminal: Terminal,
    bars: &Bars,
) {
    let (level, handle) = reload::Layer::new(filter(given.unwrap_or_default()));
    let _ = LEVEL.set((given, handle));
    let json = match format {
        LogLineFormat::Auto => !terminal.stderr,
        LogLineFormat::Text => false,
        LogLineFormat::Json => true,
    };
    let lines = fmt::layer()
        .with_span_events(FmtSpan::NONE)
        .with_ansi(terminal.color_stderr)
        .with_writer(LogWriters(bars.clone()));
    let lines = if json {
        lines.event_format(JsonLines).boxed()
    } else {
        lines.fmt_fields(EscapedFields).boxed()
    };
    tracing_subscriber::registry().with(level).with(lines).init();
}

/// Applies a command's own log settings: a level, unless `--log-level` was given, and the name
/// under which to log to syslog.
///
/// # Errors
///
/// Syslog is not available; the log stays on stderr.
pub(crate) fn adjust(level: Option<Level>, syslog: Option<SyslogName<'_>>) -> io::Result<()> {
    if let (Some(level), Some((given, handle))) = (level, LEVEL.get())
        && given.is_none()
    {
        // Fails only if the log is gone.
        let _ = handle.reload(filter(level));
    }
    if let Some(name) = syslog
        && SYSLOG.get().is_none()
    {
        let _ = SYSLOG.set(Syslog::open(syslog::PATH.as_ref(), name)?);
    }
    Ok(())
}

/// Appends each log line to a file, too; without `to_stderr`, only to the file.
///
/// # Errors
///
/// The file cannot be opened.
pub(crate) fn copy_to_file(path: &Path, to_stderr: bool) -> io::Result<()> {
    let file = AppendedLog::open(path)?;
    let _ = FILE.set((file, to_stderr));
    Ok(())
}

/// Opens the log file again, if there is one, because it may have been renamed.
///
/// # Errors
///
/// The file cannot be opened; the log still goes to the old one.
pub(crate) fn reopen_file() -> io::Result<()> {
    FILE.get().map_or(Ok(()), |(file, _)| file.reopen())
}

/// Sets the log level, even if `--log-level` was given.
pub(crate) fn set_level(level: LevelFilter) {
    if let Some((_, handle)) = LEVEL.get() {
        // Fails only if the log is gone.
        let _ = handle.reload(level);
    }
}

/// Turns off logging to a terminal, where lines would damage a full-screen display. A log to a file
/// or to syslog is not affected.
pub(crate) fn silence_on_terminal(terminal: Terminal) {
    if let Some((_, handle)) = LEVEL.get().filter(|_| terminal.stderr && SYSLOG.get().is_none()) {
        // Fails only if the log is gone.
        let _ = handle.reload(filter(Level::Off));
    }
}

/// The destination of the log: stderr, or syslog once a command has redirected the log to it.
struct LogWriters(Bars);

/// Destinations of one log line: the file, if any, and one of the two others.
struct LogLineWriter<'a> {
    file: Option<&'a AppendedLog>,
    line: Option<LineOutput<'a>>,
}

enum LineOutput<'a> {
    Syslog(syslog::SyslogLine<'a>),
    Stderr(AboveBars<'a>),
}

impl<'a> MakeWriter<'a> for LogWriters {
    type Writer = LogLineWriter<'a>;

    fn make_writer(&'a self) -> LogLineWriter<'a> {
        let file = FILE.get();
        let stderr = file.is_none_or(|(_, to_stderr)| *to_stderr);
        LogLineWriter {
            file: file.map(|(file, _)| file),
            line: stderr.then(|| LineOutput::Stderr(self.0.make_writer())),
        }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LogLineWriter<'a> {
        match SYSLOG.get() {
            Some(syslog) => LogLineWriter {
                file: FILE.get().map(|(file, _)| file),
                line: Some(LineOutput::Syslog(syslog.line(*metadata.level()))),
            },
            None => self.make_writer(),
        }
    }
}

impl io::Write for LogLineWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(file) = self.file {
            // A full disk must not keep the line from the other destination.
            let _ = file.write_line(bytes);
        }
        match &mut self.line {
            Some(LineOutput::Syslog(line)) => line.write(bytes),
            Some(LineOutput::Stderr(line)) => line.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.line {
            Some(LineOutput::Syslog(line)) => line.flush(),
            Some(LineOutput::Stderr(line)) => line.flush(),
            None => Ok(()),
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

//! [`CommandContext`]: output streams, signals and metrics for a command.

use std::{
    borrow::Cow,
    fmt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use howdah_stats::Registry;
use indicatif::ProgressBar;

use crate::{
    global::Global,
    interrupt::Interrupt,
    printable,
    progress::{Bars, Total},
    terminal::{Stdout, StdoutLock, StdoutWriter, Terminal},
};

/// The environment of a command: output streams, signals and metrics, set up according to the
/// global options.
#[derive(Debug)]
pub(crate) struct CommandContext {
    terminal: Terminal,
    stdout: Stdout,
    bars: Bars,
    interrupt: Interrupt,
    registry: Registry,
    quiet: bool,
    logs_json: bool,
    config: Option<PathBuf>,
    command_tree: fn() -> clap::Command,
}

impl CommandContext {
    /// Creates the context of this process. `command_tree` builds the tree of all commands.
    pub(crate) fn new(global: &Global, command_tree: fn() -> clap::Command) -> Self {
        let terminal = Terminal::detect(global.color);
        Self {
            terminal,
            stdout: Stdout::new(terminal),
            bars: Bars::new(terminal.stderr && !global.quiet),
            interrupt: Interrupt::default(),
            registry: Registry::new(),
            quiet: global.quiet,
            logs_json: global.log_format == crate::logging::LogLineFormat::Json,
            config: global.config.clone(),
            command_tree,
        }
    }

    /// Locks stdout, for data. Hold the lock while writing much output, and release it before
    /// waiting.
    pub(crate) fn stdout(&self) -> StdoutLock<'_> {
        self.stdout.lock()
    }

    /// Returns a writer to stdout that locks it only while writing, for output over a long time.
    pub(crate) fn output(&self) -> StdoutWriter<'_> {
        self.stdout.output()
    }

    /// Whether `--quiet` was given.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints one line to stderr, unless `--quiet`.
    pub(crate) fn report(&self, line: impl fmt::Display) {
        self.messages().report(line);
    }

    /// Reports where a server listens. Prints nothing if the log is JSON and has level info:
    /// collectors expect only JSON on stderr, and the caller logs the address, too.
    pub(crate) fn announce(&self, line: impl fmt::Display) {
        if !(self.logs_json && tracing::enabled!(tracing::Level::INFO)) {
            self.report(line);
        }
    }

    /// Returns a handle for reporting from other threads.
    pub(crate) fn messages(&self) -> Messages {
        Messages { bars: self.bars.clone(), quiet: self.quiet }
    }

    /// Adds a progress bar, visible only if stderr is a terminal and `--quiet` is not given. Finish
    /// it with [`ProgressBar::finish_and_clear`].
    pub(crate) fn progress(
        &self,
        total: Total,
        label: impl Into<Cow<'static, str>>,
    ) -> ProgressBar {
        self.bars.add(total, label)
    }

    /// Returns the flag that Ctrl-C and SIGTERM set. A command that calls this must check the flag
    /// and finish cleanly; a second signal ends the process immediately.
    pub(crate) fn interrupted(&self) -> Arc<AtomicBool> {
        self.interrupt.flag()
    }

    /// Returns the properties of the output streams.
    pub(crate) fn terminal(&self) -> Terminal {
        self.terminal
    }

    /// Returns the metrics registry, which [`crate::metrics`] serves.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the configuration file that the user named, if any. Its values are already in the
    /// options.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        self.config.clone()
    }

    /// Returns the tree of all commands, for commands that describe or check the command line.
    pub(crate) fn command_tree(&self) -> clap::Command {
        (self.command_tree)()
    }

    /// Returns the progress bars, for writers that print above them.
    pub(crate) fn bars(&self) -> &Bars {
        &self.bars
    }
}

/// A handle for printing messages to stderr from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Messages {
    bars: Bars,
    quiet: bool,
}

impl Messages {
    /// See [`CommandContext::report`].
    pub(crate) fn report(&self, line: impl fmt::Display) {
        if !self.quiet {
            // If stderr is closed, the failure cannot be reported anywhere.
            let line = format!("{line}\n");
            let _ = self.bars.write_above(printable::escape_lines(&line).as_bytes());
        }
    }
}

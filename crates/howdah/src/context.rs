//! [`Context`]: what the process offers to a command.

use std::{
    borrow::Cow,
    fmt,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use howdah_stats::Registry;
use indicatif::ProgressBar;

use crate::{
    cli::Global,
    interrupt::Interrupt,
    printable,
    progress::{Bars, Total},
    terminal::{Stdout, StdoutLock, Terminal},
};

/// Output streams, signals and metrics, as the global options want them.
#[derive(Debug)]
pub(crate) struct Context {
    terminal: Terminal,
    stdout: Stdout,
    bars: Bars,
    interrupt: Interrupt,
    registry: Registry,
    quiet: bool,
    logs_json: bool,
    config: Option<PathBuf>,
}

impl Context {
    /// The context of this process.
    pub(crate) fn new(global: &Global) -> Self {
        let terminal = Terminal::detect(global.color);
        Self {
            terminal,
            stdout: Stdout::new(terminal),
            bars: Bars::new(terminal.stderr && !global.quiet),
            interrupt: Interrupt::default(),
            registry: Registry::new(),
            quiet: global.quiet,
            logs_json: global.log_format == crate::logging::Format::Json,
            config: global.config.clone(),
        }
    }

    /// Where data goes. Keep the lock while writing much, give it back before waiting for anything.
    pub(crate) fn stdout(&self) -> StdoutLock<'_> {
        self.stdout.lock()
    }

    /// Says one line on stderr, unless `--quiet`.
    pub(crate) fn say(&self, line: impl fmt::Display) {
        self.talk().say(line);
    }

    /// Says where a server listens. A log of JSON lines that has it already, at level info, is left alone:
    /// collectors expect nothing but JSON there.
    pub(crate) fn announce(&self, line: impl fmt::Display) {
        if !(self.logs_json && tracing::enabled!(tracing::Level::INFO)) {
            self.say(line);
        }
    }

    /// The same for other threads.
    pub(crate) fn talk(&self) -> Talk {
        Talk { bars: self.bars.clone(), quiet: self.quiet }
    }

    /// A progress bar, visible only when a person watches stderr. Finish it by
    /// [`ProgressBar::finish_and_clear`].
    pub(crate) fn progress(
        &self,
        total: Total,
        label: impl Into<Cow<'static, str>>,
    ) -> ProgressBar {
        self.bars.add(total, label)
    }

    /// The flag that Ctrl-C and SIGTERM set. A command that asks for it promises to look at it and
    /// to end well; a second signal does not wait.
    pub(crate) fn interrupted(&self) -> Arc<AtomicBool> {
        self.interrupt.flag()
    }

    /// What the output streams are.
    pub(crate) fn terminal(&self) -> Terminal {
        self.terminal
    }

    /// Where metrics are registered; [`crate::metrics`] serves it.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The configuration file the user named. Its values are in the options already.
    pub(crate) fn config(&self) -> Option<PathBuf> {
        self.config.clone()
    }

    /// The bars, for those who write beside them.
    pub(crate) fn bars(&self) -> &Bars {
        &self.bars
    }
}

/// What is said to a person on stderr, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    bars: Bars,
    quiet: bool,
}

impl Talk {
    /// See [`Context::say`].
    pub(crate) fn say(&self, line: impl fmt::Display) {
        if !self.quiet {
            // Nobody is left to be told that stderr is closed.
            let line = format!("{line}\n");
            let _ = self.bars.write_above(printable::lines(&line).as_bytes());
        }
    }
}

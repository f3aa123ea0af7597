//! A real terminal for tests: tmux, which answers the queries that programs send to terminals.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use howdah_lab::wait_for;

use crate::text;

/// Maximum time for a change of the screen.
const SCREEN_TIMEOUT: Duration = Duration::from_secs(60);

/// A terminal that runs the binary. Dropping the value ends both.
pub(crate) struct Tmux {
    socket: String,
}

impl Tmux {
    /// Runs `howdah ARGS` in a terminal of this size, with these environment variables. Without
    /// tmux, prints on stderr that the test is skipped and returns `None`.
    pub(crate) fn start(
        test: &str,
        folder: &Path,
        (width, height): (u16, u16),
        variables: &[(&str, &str)],
        args: &[&str],
    ) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            let required =
                std::env::var_os("HOWDAH_LAB_REQUIRED").is_some_and(|value| value == "1");
            assert!(!required, "tmux is not installed: run scripts/setup");
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: no tmux");
            return None;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = format!("howdah-test-{}-{number}", std::process::id());
        let tmux = Self { socket };
        // The line printed afterwards and `cat` show whether the terminal was restored.
        let quoted: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
        let program = quoted_path(env!("CARGO_BIN_EXE_howdah"));
        let line = format!("{program} {}; echo \"ended $? \"; exec cat", quoted.join(" "));
        let (width, height) = (width.to_string(), height.to_string());
        let mut command = Command::new("env");
        command.args(["-i", "TERM=xterm-256color", "LANG=C.UTF-8", "TZ=UTC"]);
        command.arg(format!("PATH={}", std::env::var("PATH").unwrap_or_default()));
        command.arg(format!("HOME={}", folder.display()));
        command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
        command.args(["tmux", "-f", "/dev/null", "-L", &tmux.socket, "new-session", "-d"]);
        command.args(["-x", &width, "-y", &height, "sh", "-c", &line]);
        let output = command.current_dir(folder).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        Some(tmux)
    }

    fn tmux(&self, args: &[&str]) -> Output {
        Command::new("tmux").args(["-L", &self.socket]).args(args).output().unwrap()
    }

    /// Presses keys, by tmux's names.
    pub(crate) fn press(&self, keys: &[&str]) {
        let output = self.tmux(&[&["send-keys"], keys].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// Types a text.
    pub(crate) fn type_text(&self, typed: &str) {
        self.press(&["-l", typed]);
    }

    /// The current text of the screen.
    pub(crate) fn screen(&self) -> String {
        text(&self.tmux(&["capture-pane", "-p"]).stdout)
    }

    /// The current screen with its escape sequences.
    pub(crate) fn colored_screen(&self) -> String {
        text(&self.tmux(&["capture-pane", "-p", "-e"]).stdout)
    }

    /// Sets a server option of tmux.
    pub(crate) fn set_option(&self, name: &str, value: &str) {
        assert!(self.tmux(&["set-option", "-s", name, value]).status.success());
    }

    /// The newest paste buffer.
    pub(crate) fn clipboard(&self) -> String {
        text(&self.tmux(&["show-buffer"]).stdout)
    }

    /// Resizes the terminal.
    pub(crate) fn resize(&self, (width, height): (u16, u16)) {
        let (width, height) = (width.to_string(), height.to_string());
        let output = self.tmux(&["resize-window", "-x", &width, "-y", &height]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// A variable of tmux's formats, such as `alternate_on`.
    pub(crate) fn pane_variable(&self, name: &str) -> String {
        let format = format!("#{{{name}}}");
        text(&self.tmux(&["display-message", "-p", &format]).stdout).trim().to_owned()
    }

    /// The binary's process id.
    pub(crate) fn pid(&self) -> u32 {
        let shell = self.pane_variable("pane_pid");
        let path = format!("/proc/{shell}/task/{shell}/children");
        let children = std::fs::read_to_string(path).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Waits until the condition holds for the screen, and returns the screen.
    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        // The screen at the deadline is part of the panic message.
        let deadline = Instant::now() + SCREEN_TIMEOUT;
        wait_for(what, SCREEN_TIMEOUT * 2, || {
            let screen = self.screen();
            if condition(&screen) {
                return Some(screen);
            }
            assert!(Instant::now() < deadline, "waited {SCREEN_TIMEOUT:?} for {what}\n{screen}");
            None
        })
    }

    /// Waits until the screen contains a text, and returns the screen.
    pub(crate) fn wait_for_text(&self, part: &str) -> String {
        self.wait_for(part, |screen| screen.contains(part))
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.socket, "kill-server"]).output();
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn quoted_path(path: &str) -> String {
    quoted(path)
}

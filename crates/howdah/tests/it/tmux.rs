//! A terminal that a person could sit at: tmux, which answers what programs ask of terminals.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use crate::text;

/// Longest that anything on a screen is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal with the binary in it. Dropping it ends both.
pub(crate) struct Tmux {
    socket: String,
}

impl Tmux {
    /// Runs `howdah ARGS` in a terminal of that size, with these variables. `None`, said on stderr, where
    /// there is no tmux.
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
            assert!(!required, "tmux is not installed: scripts/setup does it");
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: no tmux");
            return None;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = format!("howdah-test-{}-{number}", std::process::id());
        let tmux = Self { socket };
        // What is written when it has ended shows whether the terminal is as it was.
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

    /// Presses keys, by tmux' names of them.
    pub(crate) fn press(&self, keys: &[&str]) {
        let output = self.tmux(&[&["send-keys"], keys].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// Types a text.
    pub(crate) fn type_in(&self, typed: &str) {
        self.press(&["-l", typed]);
    }

    /// The screen as it is now.
    pub(crate) fn screen(&self) -> String {
        text(&self.tmux(&["capture-pane", "-p"]).stdout)
    }

    /// The screen with its colours.
    pub(crate) fn coloured(&self) -> String {
        text(&self.tmux(&["capture-pane", "-p", "-e"]).stdout)
    }

    /// Sets an option of this tmux.
    pub(crate) fn tmux_set(&self, name: &str, value: &str) {
        assert!(self.tmux(&["set-option", "-s", name, value]).status.success());
    }

    /// What a program in it copied last.
    pub(crate) fn buffer(&self) -> String {
        text(&self.tmux(&["show-buffer"]).stdout)
    }

    /// Another size.
    pub(crate) fn resize(&self, (width, height): (u16, u16)) {
        let (width, height) = (width.to_string(), height.to_string());
        let output = self.tmux(&["resize-window", "-x", &width, "-y", &height]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// What tmux says of the pane, by its name for it.
    pub(crate) fn fact(&self, name: &str) -> String {
        let format = format!("#{{{name}}}");
        text(&self.tmux(&["display-message", "-p", &format]).stdout).trim().to_owned()
    }

    /// The process of the binary.
    pub(crate) fn pid(&self) -> u32 {
        let shell = self.fact("pane_pid");
        let path = format!("/proc/{shell}/task/{shell}/children");
        let children = std::fs::read_to_string(path).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Waits until the screen is as wanted, and gives it.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(Instant::now() < end, "never seen: {what}\n{screen}");
            // A terminal has no bell for that.
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until the screen has a text.
    pub(crate) fn until_has(&self, part: &str) -> String {
        self.until(part, |screen| screen.contains(part))
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

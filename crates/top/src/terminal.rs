//! Takes over the terminal at the start and restores it at the end, even after a panic.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor,
        event::{DisableMouseCapture, EnableMouseCapture},
        execute, queue,
        style::Print,
        terminal::{
            BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen,
            LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
        },
    },
};

/// The terminal in use. Dropping it restores the terminal.
#[derive(Debug)]
pub(crate) struct TerminalScreen {
    terminal: Terminal<CrosstermBackend<io::Stdout>>,
    has_mouse: bool,
}

impl TerminalScreen {
    /// Takes over the terminal. A panic on any thread restores it before printing its message.
    pub(crate) fn acquire(has_mouse: bool) -> io::Result<Self> {
        let taken =
            enter(has_mouse).and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        let terminal = taken.inspect_err(|_| restore())?;
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        Ok(Self { terminal, has_mouse })
    }

    /// Draws a frame, which the terminal shows atomically if it can. After a resize the old frame
    /// is cleared in the same update, so that the screen does not flicker.
    pub(crate) fn draw(&mut self, picture: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        queue!(io::stdout(), BeginSynchronizedUpdate)?;
        let drawn = self.terminal.draw(picture).map(drop);
        execute!(io::stdout(), EndSynchronizedUpdate)?;
        drawn
    }

    /// Sets whether mouse events are sent to us or select text in the terminal.
    pub(crate) fn set_mouse(&mut self, has_mouse: bool) -> io::Result<()> {
        self.has_mouse = has_mouse;
        if has_mouse {
            execute!(io::stdout(), EnableMouseCapture)
        } else {
            execute!(io::stdout(), DisableMouseCapture)
        }
    }

    /// Restores the terminal, suspends the program as Ctrl-Z does, and takes over the terminal
    /// again when it continues.
    pub(crate) fn suspend(&mut self) -> io::Result<()> {
        restore();
        rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
        enter(self.has_mouse)?;
        self.terminal.clear()
    }

    /// Copies a text to the clipboard of the user's machine, through any terminals in between (OSC
    /// 52, xterm's control sequences).
    pub(crate) fn copy(&mut self, text: &str) -> io::Result<()> {
        execute!(io::stdout(), Print(clipboard(text)))
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        restore();
    }
}

/// Returns the escape sequence that copies a text. The text is in Base64, which cannot end the
/// sequence early.
fn clipboard(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", BASE64_STANDARD.encode(text))
}

fn enter(has_mouse: bool) -> io::Result<()> {
    enable_raw_mode()?;
    IS_ENTERED.store(true, Relaxed);
    execute!(io::stdout(), EnterAlternateScreen)?;
    if has_mouse { execute!(io::stdout(), EnableMouseCapture) } else { Ok(()) }
}

/// Whether the terminal must be restored.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Restores the terminal, but only once: after a panic, the hook and the destructor both call this
/// function, and restoring a second time would move the cursor back over the panic message. Errors
/// are ignored, because they mean that the terminal is gone.
fn restore() {
    if !IS_ENTERED.swap(false, Relaxed) {
        return;
    }
    let mut stdout = io::stdout();
    let _ = execute!(
        stdout,
        EndSynchronizedUpdate,
        DisableMouseCapture,
        LeaveAlternateScreen,
        cursor::Show
    );
    let _ = disable_raw_mode();
    let _ = stdout.flush();
}

#[cfg(test)]
mod tests {
    use std::{process::Command, time::Duration};

    use super::*;

    #[test]
    fn copied_text_is_encoded() {
        assert_eq!(clipboard("select 1"), "\x1b]52;c;c2VsZWN0IDE=\x07");
        let hostile = clipboard("\x07\x1b]52;c;");
        assert_eq!(hostile.matches(['\x07', '\x1b']).count(), 2);
    }

    #[test]
    #[ignore = "panics: run by the next test in its own terminal"]
    fn panics_while_drawing() {
        let mut screen = TerminalScreen::acquire(true).unwrap();
        screen.draw(|_| panic!("while drawing")).unwrap();
    }

    #[test]
    fn panic_restores_terminal_before_message() {
        if Command::new("tmux").arg("-V").output().is_err() {
            return;
        }
        let socket = format!("howdah-panic-{}", std::process::id());
        let tmux = |args: &[&str]| {
            let output = Command::new("tmux").args(["-L", &socket]).args(args).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let test = "terminal::tests::panics_while_drawing";
        let program = std::env::current_exe().unwrap();
        // A backtrace would scroll the expected message out of the window.
        let line = format!(
            "RUST_BACKTRACE=0 '{}' --ignored --exact {test} --nocapture; exec cat",
            program.display()
        );
        tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "sh", "-c", &line]);
        let screen = howdah_lab::wait_for("the failed test", Duration::from_secs(60), || {
            let screen = tmux(&["capture-pane", "-p"]);
            screen.contains("test result: FAILED").then_some(screen)
        });
        let flags =
            tmux(&["display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}"]);
        tmux(&["kill-server"]);
        assert!(screen.contains("while drawing"), "{screen}");
        assert_eq!(flags.trim(), "0 0 1");
    }
}

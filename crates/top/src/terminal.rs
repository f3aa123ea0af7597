//! The terminal: taken over at the beginning, given back at the end, whatever the end is.

use std::io::{self, Write};

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

/// The terminal while it is ours. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<io::Stdout>>,
    has_mouse: bool,
}

impl Screen {
    /// Takes the terminal over. A panic on any thread gives it back before it speaks.
    pub(crate) fn take(has_mouse: bool) -> io::Result<Self> {
        let taken =
            take(has_mouse).and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        let terminal = taken.inspect_err(|_| give_back())?;
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        Ok(Self { terminal, has_mouse })
    }

    /// Draws a picture, which the terminal shows at once and whole if it can. After a resize the old picture
    /// is wiped in the same update, so there is no moment without one.
    pub(crate) fn draw(&mut self, picture: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        queue!(io::stdout(), BeginSynchronizedUpdate)?;
        let drawn = self.terminal.draw(picture).map(drop);
        execute!(io::stdout(), EndSynchronizedUpdate)?;
        drawn
    }

    /// Whether clicks and the wheel are for us, or for the terminal to select text with.
    pub(crate) fn set_mouse(&mut self, has_mouse: bool) -> io::Result<()> {
        self.has_mouse = has_mouse;
        match has_mouse {
            true => execute!(io::stdout(), EnableMouseCapture),
            false => execute!(io::stdout(), DisableMouseCapture),
        }
    }

    /// Gives the terminal back, stops this process as Ctrl-Z does elsewhere, and takes the terminal again
    /// when it goes on.
    pub(crate) fn suspend(&mut self) -> io::Result<()> {
        give_back();
        rustix::process::kill_current_process_group(rustix::process::Signal::TSTP)?;
        take(self.has_mouse)?;
        self.terminal.clear()
    }

    /// Puts a text on the clipboard of the person's machine, through whatever terminals lie between
    /// (OSC 52, xterm's control sequences).
    pub(crate) fn copy(&mut self, text: &str) -> io::Result<()> {
        execute!(io::stdout(), Print(clipboard(text)))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// The sequence that copies a text. What is copied is in an alphabet that ends no sequence.
fn clipboard(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", BASE64_STANDARD.encode(text))
}

fn take(has_mouse: bool) -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen)?;
    if has_mouse { execute!(io::stdout(), EnableMouseCapture) } else { Ok(()) }
}

/// Nothing helps where this fails: the terminal is gone.
fn give_back() {
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
    use std::{
        process::Command,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn a_text_is_copied_as_it_is_and_ends_no_sequence() {
        assert_eq!(clipboard("select 1"), "\x1b]52;c;c2VsZWN0IDE=\x07");
        let hostile = clipboard("\x07\x1b]52;c;");
        assert_eq!(hostile.matches(['\x07', '\x1b']).count(), 2);
    }

    #[test]
    #[ignore = "panics: the next test runs it in a terminal of its own"]
    fn panics_in_the_middle_of_a_picture() {
        let mut screen = Screen::take(true).unwrap();
        screen.draw(|_| panic!("in the middle of a picture")).unwrap();
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_speaks() {
        if Command::new("tmux").arg("-V").output().is_err() {
            return;
        }
        let socket = format!("howdah-panic-{}", std::process::id());
        let tmux = |args: &[&str]| {
            let output = Command::new("tmux").args(["-L", &socket]).args(args).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let test = "terminal::tests::panics_in_the_middle_of_a_picture";
        let program = std::env::current_exe().unwrap();
        // A backtrace would push what is looked for out of the window.
        let line = format!(
            "RUST_BACKTRACE=0 '{}' --ignored --exact {test} --nocapture; exec cat",
            program.display()
        );
        tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "sh", "-c", &line]);
        let end = Instant::now() + Duration::from_secs(60);
        let screen = loop {
            let screen = tmux(&["capture-pane", "-p"]);
            if screen.contains("test result: FAILED") || Instant::now() > end {
                break screen;
            }
            // A terminal has no bell for that.
            std::thread::sleep(Duration::from_millis(50));
        };
        let flags =
            tmux(&["display-message", "-p", "#{alternate_on} #{mouse_any_flag} #{cursor_flag}"]);
        tmux(&["kill-server"]);
        assert!(screen.contains("in the middle of a picture"), "{screen}");
        assert_eq!(flags.trim(), "0 0 1");
    }
}

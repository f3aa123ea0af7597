//! The terminal: taken over at the beginning, given back at the end, whatever the end is.

use std::io::{self, Write};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ratatui::{
    Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor, execute, queue,
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
}

impl Screen {
    /// Takes the terminal over. A panic on any thread gives it back before it speaks.
    pub(crate) fn take() -> io::Result<Self> {
        enable_raw_mode()?;
        let taken = execute!(io::stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        let terminal = taken.inspect_err(|_| give_back())?;
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
        Ok(Self { terminal })
    }

    /// Draws a picture, which the terminal shows at once and whole if it can.
    pub(crate) fn draw(&mut self, picture: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        queue!(io::stdout(), BeginSynchronizedUpdate)?;
        let drawn = self.terminal.draw(picture).map(drop);
        execute!(io::stdout(), EndSynchronizedUpdate)?;
        drawn
    }

    /// Puts a text on the clipboard of the person's machine, through whatever terminals lie between
    /// (OSC 52, xterm's control sequences).
    pub(crate) fn copy(&mut self, text: &str) -> io::Result<()> {
        execute!(io::stdout(), Print(format!("\x1b]52;c;{}\x07", BASE64_STANDARD.encode(text))))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Nothing helps where this fails: the terminal is gone.
fn give_back() {
    let mut stdout = io::stdout();
    let _ = execute!(stdout, EndSynchronizedUpdate, LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
    let _ = stdout.flush();
}

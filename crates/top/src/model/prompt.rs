//! A line that somebody types.

use howdah_collect::Action;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What a line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Which rows to show.
    Filter,
    /// Which moment to look at.
    Time,
    /// From how long on statements are to be ended.
    Threshold(Action),
}

impl Asked {
    /// What stands in front of the line.
    pub fn label(self) -> &'static str {
        match self {
            Self::Filter => "Filter",
            Self::Time => "Time (5m ago, 14:30, 2026-03-01 14:30)",
            Self::Threshold(Action::Cancel) => "Cancel all slower than (seconds, at least 30)",
            Self::Threshold(Action::Terminate) => {
                "Terminate all slower than (seconds, at least 30)"
            }
        }
    }
}

/// A line, and where in it somebody types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What it is for.
    pub asked: Asked,
    /// The line.
    pub text: String,
    /// The cursor, in bytes; always between two characters.
    pub cursor: usize,
}

/// Longest line that can be typed, in bytes.
const BYTES_MAX: usize = 1000;

impl Prompt {
    /// A line that begins as `text`, with the cursor at its end.
    pub fn new(asked: Asked, text: &str) -> Self {
        Self { asked, text: text.to_owned(), cursor: text.len() }
    }

    /// Changes the line for a key.
    pub fn edit(&mut self, event: KeyEvent) {
        let control = event.modifiers.contains(KeyModifiers::CONTROL);
        match event.code {
            KeyCode::Char('u') if control => {
                self.text.drain(..self.cursor);
                self.cursor = 0;
            }
            KeyCode::Char('a') if control => self.cursor = 0,
            KeyCode::Char('e') if control => self.cursor = self.text.len(),
            KeyCode::Char(c) if !control && !c.is_control() && self.text.len() < BYTES_MAX => {
                self.text.insert(self.cursor, c);
                self.cursor += c.len_utf8();
            }
            KeyCode::Backspace if self.cursor > 0 => {
                self.cursor = self.before();
                self.text.remove(self.cursor);
            }
            KeyCode::Delete if self.cursor < self.text.len() => {
                self.text.remove(self.cursor);
            }
            KeyCode::Left => self.cursor = self.before(),
            KeyCode::Right => {
                let next = self.text[self.cursor..].chars().next();
                self.cursor += next.map_or(0, char::len_utf8);
            }
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.text.len(),
            _ => {}
        }
    }

    fn before(&self) -> usize {
        let before = self.text[..self.cursor].chars().next_back();
        self.cursor - before.map_or(0, char::len_utf8)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn typed(codes: &[KeyCode]) -> Prompt {
        let mut prompt = Prompt::new(Asked::Filter, "");
        for code in codes {
            prompt.edit(KeyEvent::new(*code, KeyModifiers::NONE));
        }
        prompt
    }

    #[test]
    fn a_line_is_edited_as_everywhere() {
        use KeyCode::{Backspace, Char, Delete, Home, Left};
        let prompt = typed(&[Char('ä'), Char('b'), Left, Char('x'), Backspace, Home, Delete]);
        assert_eq!((prompt.text.as_str(), prompt.cursor), ("b", 0));
    }

    proptest! {
        #[test]
        fn the_cursor_stays_between_characters(keys in proptest::collection::vec((0..8_usize, any::<char>()), 0..60)) {
            let code = |(which, c)| match which {
                0 => KeyCode::Left,
                1 => KeyCode::Right,
                2 => KeyCode::Backspace,
                3 => KeyCode::Delete,
                4 => KeyCode::Home,
                _ => KeyCode::Char(c),
            };
            let prompt = typed(&keys.into_iter().map(code).collect::<Vec<_>>());
            prop_assert!(prompt.text.is_char_boundary(prompt.cursor));
        }
    }
}

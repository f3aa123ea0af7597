//! The input line at the bottom of the screen.

use howdah_collect::SignalAction;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Purpose of an input line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptKind {
    /// Entering a row filter.
    Filter,
    /// Entering a time to display.
    Time,
    /// Entering the threshold above which slow sessions are signalled.
    Threshold(SignalAction),
}

impl PromptKind {
    /// Returns the label shown before the input.
    pub fn label(self) -> &'static str {
        match self {
            Self::Filter => "Filter",
            Self::Time => "Time (5m ago, 14:30, 2026-03-01 14:30)",
            Self::Threshold(SignalAction::Cancel) => {
                "Cancel all slower than (seconds, at least 30)"
            }
            Self::Threshold(SignalAction::Terminate) => {
                "Terminate all slower than (seconds, at least 30)"
            }
        }
    }
}

/// A line that the user edits at the bottom of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Purpose of the text, which decides how it is handled once entered.
    pub kind: PromptKind,
    /// Text entered so far.
    pub text: String,
    /// Cursor position in bytes, always at a character boundary.
    pub cursor: usize,
    /// Whether the text is a suggestion, which the first typed character replaces.
    pub is_suggestion: bool,
}

/// Length in bytes from which further characters are ignored.
const INPUT_BYTES_MAX: usize = 1000;

impl Prompt {
    /// Creates a line with initial text and the cursor at its end.
    pub fn new(kind: PromptKind, text: &str) -> Self {
        Self { kind, text: text.to_owned(), cursor: text.len(), is_suggestion: false }
    }

    /// Creates a line with a suggested text: typing replaces it, and other keys edit it.
    pub fn with_suggestion(kind: PromptKind, text: &str) -> Self {
        Self { is_suggestion: true, ..Self::new(kind, text) }
    }

    /// Applies a key that edits the text or moves the cursor. Ignores all others.
    pub fn edit(&mut self, event: KeyEvent) {
        let control = event.modifiers.contains(KeyModifiers::CONTROL);
        let is_typed = matches!(event.code, KeyCode::Char(_)) && !control;
        if std::mem::take(&mut self.is_suggestion) && is_typed {
            self.text.clear();
            self.cursor = 0;
        }
        match event.code {
            KeyCode::Char('u') if control => {
                self.text.drain(..self.cursor);
                self.cursor = 0;
            }
            KeyCode::Char('a') if control => self.cursor = 0,
            KeyCode::Char('e') if control => self.cursor = self.text.len(),
            KeyCode::Char(c)
                if !control && !c.is_control() && self.text.len() < INPUT_BYTES_MAX =>
            {
                self.text.insert(self.cursor, c);
                self.cursor += c.len_utf8();
            }
            KeyCode::Backspace if self.cursor > 0 => {
                self.cursor = self.previous_boundary();
                self.text.remove(self.cursor);
            }
            KeyCode::Delete if self.cursor < self.text.len() => {
                self.text.remove(self.cursor);
            }
            KeyCode::Left => self.cursor = self.previous_boundary(),
            KeyCode::Right => {
                let next = self.text[self.cursor..].chars().next();
                self.cursor += next.map_or(0, char::len_utf8);
            }
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.text.len(),
            _ => {}
        }
    }

    fn previous_boundary(&self) -> usize {
        let before = self.text[..self.cursor].chars().next_back();
        self.cursor - before.map_or(0, char::len_utf8)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn typed(codes: &[KeyCode]) -> Prompt {
        let mut prompt = Prompt::new(PromptKind::Filter, "");
        for code in codes {
            prompt.edit(KeyEvent::new(*code, KeyModifiers::NONE));
        }
        prompt
    }

    #[test]
    fn common_editing_keys_work() {
        use KeyCode::{Backspace, Char, Delete, Home, Left};
        let prompt = typed(&[Char('ä'), Char('b'), Left, Char('x'), Backspace, Home, Delete]);
        assert_eq!((prompt.text.as_str(), prompt.cursor), ("b", 0));
    }

    proptest! {
        #[test]
        fn cursor_stays_on_character_boundary(keys in proptest::collection::vec((0..8_usize, any::<char>()), 0..60)) {
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

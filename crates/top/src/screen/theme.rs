//! Colours and styles of the screen. Colours are never the only way to convey information, and are
//! off if the terminal lacks them or the user wants none.
//!
//! Row marks do not use green and red, which one man in twelve cannot distinguish. Rows use the
//! terminal's sixteen colours, so that its own palette applies. The wait chart needs more: most of
//! its colours are those of the terminal's 256 that are nearest to the palette of Okabe and Ito
//! ("Color Universal Design", 2008), and every cell has a symbol.

use ratatui::style::{Color, Modifier, Style};

use crate::table::RowMark;

/// A colour palette.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Palette {
    /// For a dark background.
    #[default]
    Dark,
    /// For a light background.
    Light,
    /// High contrast: black, white and saturated colours.
    Contrast,
    /// No colours: bold, faint and reversed text.
    Mono,
}

/// The styles of all parts of the screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    /// Style of the table's column titles.
    pub(crate) column_titles: Style,
    /// Style of emphasized text.
    pub(crate) strong: Style,
    /// Style of de-emphasized text.
    pub(crate) faint: Style,
    /// Style of failures and alerts.
    pub(crate) bad: Style,
    /// Style of what needs attention.
    pub(crate) warn: Style,
    /// Style of the selected row.
    pub(crate) selected: Style,
    /// Style of the line that tells the user that the past is displayed.
    pub(crate) past: Style,
    marks: [Style; 6],
    has_colours: bool,
}

/// Running (`cpu`) and PostgreSQL's wait event classes, with the symbol and colour of each in the
/// chart. The last entry is for all other classes.
pub(crate) const WAIT_CLASSES: [WaitClass; 11] = [
    WaitClass::new("cpu", 'c', 36),
    WaitClass::new("IO", 'i', 25),
    WaitClass::new("Lock", 'L', 166),
    WaitClass::new("LWLock", 'w', 214),
    WaitClass::new("BufferPin", 'b', 227),
    WaitClass::new("IPC", 'p', 74),
    WaitClass::new("Client", 'n', 175),
    WaitClass::new("Timeout", 't', 250),
    WaitClass::new("Activity", 'a', 244),
    WaitClass::new("Extension", 'x', 139),
    WaitClass::new("other", 'o', 231),
];

/// A wait event class, with its symbol and colour in the chart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitClass {
    pub(crate) name: &'static str,
    pub(crate) letter: char,
    colour: u8,
}

impl WaitClass {
    const fn new(name: &'static str, letter: char, colour: u8) -> Self {
        Self { name, letter, colour }
    }

    /// Returns the index in [`WAIT_CLASSES`] of a class that the server reports; `None` means
    /// running.
    pub(crate) fn index(class: Option<&str>) -> usize {
        let name = match class {
            None => "cpu",
            // Version 19 merges buffer pins and buffer locks into one class.
            Some("Buffer") => "BufferPin",
            Some(name) => name,
        };
        let known = WAIT_CLASSES.iter().position(|class| class.name == name);
        known.unwrap_or(WAIT_CLASSES.len() - 1)
    }
}

impl Theme {
    /// Creates the styles of a palette.
    pub(crate) fn new(palette: Palette) -> Self {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        let reversed = plain.add_modifier(Modifier::REVERSED);
        let dim = plain.add_modifier(Modifier::DIM);
        match palette {
            Palette::Dark => Self {
                column_titles: plain.fg(Color::Black).bg(Color::Gray),
                strong: bold,
                faint: plain.fg(Color::DarkGray),
                bad: bold.fg(Color::LightRed),
                warn: bold.fg(Color::Yellow),
                selected: reversed,
                past: bold.fg(Color::Black).bg(Color::Yellow),
                marks: [
                    plain,
                    plain.fg(Color::DarkGray),
                    plain.fg(Color::Magenta),
                    plain.fg(Color::LightBlue),
                    bold.fg(Color::LightBlue),
                    bold.fg(Color::Yellow),
                ],
                has_colours: true,
            },
            Palette::Light => Self {
                column_titles: plain.fg(Color::White).bg(Color::DarkGray),
                strong: bold,
                faint: plain.fg(Color::DarkGray),
                bad: bold.fg(Color::Red),
                warn: bold.fg(Color::Black).bg(Color::Yellow),
                selected: reversed,
                past: bold.fg(Color::White).bg(Color::Blue),
                marks: [
                    plain,
                    plain.fg(Color::DarkGray),
                    plain.fg(Color::Magenta),
                    plain.fg(Color::Blue),
                    bold.fg(Color::Blue),
                    // Yellow text is unreadable on white; black text on yellow is readable.
                    bold.fg(Color::Black).bg(Color::Yellow),
                ],
                has_colours: true,
            },
            Palette::Contrast => Self {
                column_titles: bold.fg(Color::Black).bg(Color::White),
                strong: bold.fg(Color::White),
                faint: plain.fg(Color::White),
                bad: bold.fg(Color::White).bg(Color::Red),
                warn: bold.fg(Color::Black).bg(Color::LightYellow),
                selected: bold.fg(Color::Black).bg(Color::LightCyan),
                past: bold.fg(Color::Black).bg(Color::LightYellow),
                marks: [
                    bold.fg(Color::White),
                    plain.fg(Color::White),
                    bold.fg(Color::LightMagenta),
                    bold.fg(Color::LightCyan),
                    bold.fg(Color::Black).bg(Color::LightCyan),
                    bold.fg(Color::Black).bg(Color::LightYellow),
                ],
                has_colours: true,
            },
            Palette::Mono => Self {
                column_titles: reversed,
                strong: bold,
                faint: dim,
                bad: bold,
                warn: bold,
                selected: reversed,
                past: bold.add_modifier(Modifier::REVERSED),
                marks: [plain, dim, plain, plain, bold, bold],
                has_colours: false,
            },
        }
    }

    /// Returns the style of a row with this mark.
    pub(crate) fn mark(&self, mark: RowMark) -> Style {
        self.marks[mark as usize]
    }

    /// Returns the style of a chart cell, in which the symbol is readable on the class's colour.
    pub(crate) fn wait(&self, class: &WaitClass) -> Style {
        let is_dark = matches!(class.colour, 25 | 36 | 166 | 244);
        let letter = if is_dark { Color::White } else { Color::Black };
        if self.has_colours {
            Style::new().fg(letter).bg(Color::Indexed(class.colour))
        } else {
            Style::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the approximate perceived lightness of one of the 256 colours (xterm's cube and
    /// greys).
    fn lightness(colour: u8) -> f64 {
        let step = |at: u8| if at == 0 { 0.0 } else { 55.0 + 40.0 * f64::from(at) };
        let (red, green, blue) = match colour {
            232.. => {
                let grey = 8.0 + 10.0 * f64::from(colour - 232);
                (grey, grey, grey)
            }
            _ => {
                let at = colour - 16;
                (step(at / 36), step(at / 6 % 6), step(at % 6))
            }
        };
        (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255.0
    }

    #[test]
    fn wait_classes_have_distinct_letters_and_colours() {
        for (at, class) in WAIT_CLASSES.iter().enumerate() {
            for other in &WAIT_CLASSES[at + 1..] {
                assert_ne!(class.letter, other.letter);
                assert_ne!(class.colour, other.colour);
            }
        }
        assert_eq!(WaitClass::index(None), 0);
        assert_eq!(WaitClass::index(Some("Lock")), 2);
        assert_eq!(WAIT_CLASSES[WaitClass::index(Some("InjectionPoint"))].name, "other");
    }

    #[test]
    fn letters_are_readable_on_their_colours() {
        let theme = Theme::new(Palette::Dark);
        for class in &WAIT_CLASSES {
            let is_white = theme.wait(class).fg == Some(Color::White);
            let light = lightness(class.colour);
            assert!(if is_white { light < 0.55 } else { light > 0.42 }, "{} {light}", class.name);
        }
        assert_eq!(Theme::new(Palette::Mono).wait(&WAIT_CLASSES[0]), Style::new());
    }
}

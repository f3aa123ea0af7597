//! Colours: never the only sign of anything, and none where the terminal or its user wants none.
//!
//! Blue and orange instead of green and red, which one man in twelve cannot tell apart. Rows use the sixteen
//! colours of every terminal, so its own palette decides what they look like. The chart of waits needs more
//! kinds than that: it uses the palette of Okabe and Ito ("Color Universal Design", 2008) in its nearest
//! colours of the 256, and a letter in every cell.

use ratatui::style::{Color, Modifier, Style};

use crate::table::Mark;

/// A set of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Palette {
    /// For a dark background.
    #[default]
    Dark,
    /// For a light background.
    Light,
    /// Black, white and full colours, for bad light and bad eyes.
    Contrast,
    /// Bold, faint and reversed only.
    Mono,
}

/// The styles of a screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    /// Titles of columns.
    pub(crate) heads: Style,
    /// What stands out.
    pub(crate) strong: Style,
    /// What stands back.
    pub(crate) faint: Style,
    /// What did not go well.
    pub(crate) bad: Style,
    /// The selected row.
    pub(crate) selected: Style,
    /// That this is not the present.
    pub(crate) past: Style,
    marks: [Style; 6],
    has_colours: bool,
}

/// The classes of waits, as the manual lists them, with the letter and the colour each has in the chart. What
/// is in none of them has the last.
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

/// A class of waits in the chart.
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

    /// The place of the class of that name; `None` is a session that runs.
    pub(crate) fn place(class: Option<&str>) -> usize {
        let name = match class {
            None => "cpu",
            // Since 19 pins and locks of buffers are one class.
            Some("Buffer") => "BufferPin",
            Some(name) => name,
        };
        let known = WAIT_CLASSES.iter().position(|class| class.name == name);
        known.unwrap_or(WAIT_CLASSES.len() - 1)
    }
}

impl Theme {
    /// The styles of a set of colours.
    pub(crate) fn of(palette: Palette) -> Self {
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        let reversed = plain.add_modifier(Modifier::REVERSED);
        let dim = plain.add_modifier(Modifier::DIM);
        match palette {
            Palette::Dark => Self {
                heads: plain.fg(Color::Black).bg(Color::Gray),
                strong: bold,
                faint: plain.fg(Color::DarkGray),
                bad: bold.fg(Color::LightRed),
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
                heads: plain.fg(Color::White).bg(Color::DarkGray),
                strong: bold,
                faint: plain.fg(Color::DarkGray),
                bad: bold.fg(Color::Red),
                selected: reversed,
                past: bold.fg(Color::White).bg(Color::Blue),
                marks: [
                    plain,
                    plain.fg(Color::DarkGray),
                    plain.fg(Color::Magenta),
                    plain.fg(Color::Blue),
                    bold.fg(Color::Blue),
                    // Yellow letters cannot be read on white; black ones on yellow can.
                    bold.fg(Color::Black).bg(Color::Yellow),
                ],
                has_colours: true,
            },
            Palette::Contrast => Self {
                heads: bold.fg(Color::Black).bg(Color::White),
                strong: bold.fg(Color::White),
                faint: plain.fg(Color::White),
                bad: bold.fg(Color::White).bg(Color::Red),
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
                heads: reversed,
                strong: bold,
                faint: dim,
                bad: bold,
                selected: reversed,
                past: bold.add_modifier(Modifier::REVERSED),
                marks: [plain, dim, plain, plain, bold, bold],
                has_colours: false,
            },
        }
    }

    /// A row of that mark.
    pub(crate) fn mark(&self, mark: Mark) -> Style {
        self.marks[mark as usize]
    }

    /// A cell of the chart: the letter is readable on the colour, and without it.
    pub(crate) fn wait(&self, class: &WaitClass) -> Style {
        let is_dark = matches!(class.colour, 25 | 36 | 166 | 244);
        let letter = if is_dark { Color::White } else { Color::Black };
        match self.has_colours {
            true => Style::new().fg(letter).bg(Color::Indexed(class.colour)),
            false => Style::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lightness, roughly as an eye has it, of one of the 256 colours (xterm's cube and greys).
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
    fn every_class_has_a_letter_and_a_colour_of_its_own() {
        for (at, class) in WAIT_CLASSES.iter().enumerate() {
            for other in &WAIT_CLASSES[at + 1..] {
                assert_ne!(class.letter, other.letter);
                assert_ne!(class.colour, other.colour);
            }
        }
        assert_eq!(WaitClass::place(None), 0);
        assert_eq!(WaitClass::place(Some("Lock")), 2);
        assert_eq!(WAIT_CLASSES[WaitClass::place(Some("InjectionPoint"))].name, "other");
    }

    #[test]
    fn a_letter_can_be_read_on_its_colour() {
        let theme = Theme::of(Palette::Dark);
        for class in &WAIT_CLASSES {
            let is_white = theme.wait(class).fg == Some(Color::White);
            let light = lightness(class.colour);
            assert!(if is_white { light < 0.55 } else { light > 0.42 }, "{} {light}", class.name);
        }
        assert_eq!(Theme::of(Palette::Mono).wait(&WAIT_CLASSES[0]), Style::new());
    }
}

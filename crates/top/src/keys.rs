//! What keys mean: one table, from which the help page is made.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What a person wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Leave.
    Quit,
    /// The help page, or back.
    Help,
    /// What the role cannot see, or back.
    Privileges,
    /// The next screen.
    NextScreen,
    /// The screen before.
    PreviousScreen,
    /// The screen of that number.
    Screen(usize),
    /// The next server.
    NextServer,
    /// The server before.
    PreviousServer,
    /// Select the row above.
    Up,
    /// Select the row below.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// The first row.
    First,
    /// The last row.
    Last,
    /// Columns further to the left.
    Left,
    /// Columns further to the right.
    Right,
    /// All of the selected row.
    Detail,
    /// Tag the selected row, or untag it.
    Tag,
    /// Sort by the next column.
    SortNext,
    /// Sort by the column before.
    SortPrevious,
    /// The other way round.
    Reverse,
    /// Type a filter.
    Filter,
    /// No filter any more.
    ClearFilter,
    /// Idle sessions too, or not.
    Idle,
    /// Stop the picture, or go on.
    Pause,
    /// Read more often.
    Faster,
    /// Read less often.
    Slower,
    /// Read now.
    Refresh,
    /// Cancel statements of the selected or tagged sessions.
    Cancel,
    /// Terminate the selected or tagged sessions.
    Terminate,
    /// Cancel or terminate all that are slower than a threshold.
    KillSlow,
    /// Copy the text of the selected row's statement.
    Copy,
    /// The plan of what the selected session runs.
    Plan,
    /// The reading before.
    Earlier,
    /// The reading after.
    Later,
    /// A minute before.
    MinuteEarlier,
    /// A minute after.
    MinuteLater,
    /// Type a time to look at.
    Time,
    /// Clicks and the wheel are for us, or for the terminal.
    Mouse,
    /// Stop, until somebody lets it go on.
    Suspend,
    /// Back to where it was before.
    Back,
}

/// A set of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keymap {
    /// Howdah's own.
    #[default]
    Default,
    /// pgtop's: `o` reverses, `k` cancels, `F` clears, `s` sets the interval.
    Pgtop,
    /// pg_activity's: `C` cancels, `K` terminates, F1 to F3 choose.
    PgActivity,
}

/// A line of a keymap.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The keys.
    pub keys: &'static [Key],
    /// What they do.
    pub command: Command,
    /// In words.
    pub help: &'static str,
    /// It changes something in the server.
    pub acts: bool,
}

/// A key as it is written: a character, or a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character, as the keyboard gives it with shift.
    Char(char),
    /// A character with control.
    Control(char),
    /// Another key.
    Code(KeyCode),
}

const fn says(keys: &'static [Key], command: Command, help: &'static str) -> Binding {
    Binding { keys, command, help, acts: false }
}

const fn acts(keys: &'static [Key], command: Command, help: &'static str) -> Binding {
    Binding { keys, command, help, acts: true }
}

use self::Key::{Char, Code, Control};

/// What all keymaps share.
const COMMON: &[Binding] = &[
    says(&[Char('q'), Control('c')], Command::Quit, "quit"),
    says(&[Char('?'), Char('h')], Command::Help, "help"),
    says(&[Char('g')], Command::Privileges, "what this role cannot see, and the grant that helps"),
    says(&[Code(KeyCode::Tab)], Command::NextScreen, "next screen"),
    says(&[Code(KeyCode::BackTab)], Command::PreviousScreen, "screen before"),
    says(&[Char('n')], Command::NextServer, "next server"),
    says(&[Char('N')], Command::PreviousServer, "server before"),
    says(&[Code(KeyCode::Up)], Command::Up, "row above"),
    says(&[Code(KeyCode::Down), Char('j')], Command::Down, "row below"),
    says(&[Code(KeyCode::PageUp), Control('b')], Command::PageUp, "page up"),
    says(&[Code(KeyCode::PageDown), Control('f')], Command::PageDown, "page down"),
    says(&[Code(KeyCode::Home)], Command::First, "first row"),
    says(&[Code(KeyCode::End), Char('G')], Command::Last, "last row"),
    says(&[Code(KeyCode::Left)], Command::Left, "columns to the left"),
    says(&[Code(KeyCode::Right)], Command::Right, "columns to the right"),
    says(&[Code(KeyCode::Enter)], Command::Detail, "all of this row"),
    says(&[Char('>'), Char('.')], Command::SortNext, "sort by the next column"),
    says(&[Char('<'), Char(',')], Command::SortPrevious, "sort by the column before"),
    says(&[Char('/')], Command::Filter, "filter: words, user:app, state=active, >5s, !not"),
    says(&[Char('i')], Command::Idle, "idle sessions too"),
    says(&[Char('+')], Command::Faster, "read more often"),
    says(&[Char('-')], Command::Slower, "read less often"),
    says(&[Control('l'), Char('R')], Command::Refresh, "read now"),
    says(&[Char('y')], Command::Copy, "copy the statement"),
    says(&[Char('e')], Command::Plan, "the plan of the statement, which is not run for it"),
    says(&[Char('[')], Command::Earlier, "the past: the reading before"),
    says(&[Char(']')], Command::Later, "the reading after"),
    says(&[Char('{')], Command::MinuteEarlier, "a minute before"),
    says(&[Char('}')], Command::MinuteLater, "a minute after"),
    says(&[Char('t')], Command::Time, "a time to look at: 5m ago, 14:30"),
    says(&[Char('m')], Command::Mouse, "the mouse is for us, or for the terminal"),
    says(&[Control('z')], Command::Suspend, "stop, as the shell does"),
    says(&[Code(KeyCode::Esc)], Command::Back, "back; from the past to now"),
];

const DEFAULT: &[Binding] = &[
    says(&[Char('k')], Command::Up, "row above"),
    says(&[Char(' ')], Command::Tag, "tag this row"),
    says(&[Char('r')], Command::Reverse, "sort the other way round"),
    says(&[Char('F')], Command::ClearFilter, "no filter"),
    says(&[Char('p')], Command::Pause, "stop the picture, or go on"),
    acts(&[Char('c')], Command::Cancel, "cancel the statement of this, or of all tagged"),
    acts(&[Char('x')], Command::Terminate, "terminate this session, or all tagged"),
    acts(&[Char('K')], Command::KillSlow, "cancel or terminate all slower than a threshold"),
];

const PGTOP: &[Binding] = &[
    says(&[Char(' ')], Command::Tag, "tag this row"),
    says(&[Char('o')], Command::Reverse, "sort the other way round"),
    says(&[Char('F')], Command::ClearFilter, "no filter"),
    says(&[Char('p')], Command::Pause, "stop the picture, or go on"),
    says(&[Char('f')], Command::Detail, "the whole statement"),
    acts(&[Char('k')], Command::Cancel, "cancel the statement of this, or of all tagged"),
    acts(&[Char('x')], Command::Terminate, "terminate this session, or all tagged"),
    acts(&[Char('K')], Command::KillSlow, "cancel or terminate all slower than a threshold"),
];

const PG_ACTIVITY: &[Binding] = &[
    says(&[Char('k')], Command::Up, "row above"),
    says(&[Code(KeyCode::F(1))], Command::Screen(0), "activity"),
    says(&[Code(KeyCode::F(2))], Command::Screen(7), "waiting"),
    says(&[Code(KeyCode::F(3))], Command::Screen(1), "blocking"),
    says(&[Char('r')], Command::Reverse, "sort the other way round"),
    says(&[Char(' ')], Command::Pause, "stop the picture, or go on"),
    says(&[Char('s')], Command::Tag, "tag this row"),
    acts(&[Char('C')], Command::Cancel, "cancel the statement of this, or of all tagged"),
    acts(&[Char('K')], Command::Terminate, "terminate this session, or all tagged"),
];

impl Keymap {
    /// Its lines, its own before those that all share.
    pub fn bindings(self, is_read_only: bool) -> impl Iterator<Item = &'static Binding> {
        let own = match self {
            Self::Default => DEFAULT,
            Self::Pgtop => PGTOP,
            Self::PgActivity => PG_ACTIVITY,
        };
        own.iter().chain(COMMON).filter(move |binding| !(is_read_only && binding.acts))
    }

    /// What a key means. Digits choose a screen in every keymap.
    pub fn command(self, event: KeyEvent, is_read_only: bool) -> Option<Command> {
        let key = match event.code {
            KeyCode::Char(c) if event.modifiers.contains(KeyModifiers::CONTROL) => Control(c),
            KeyCode::Char(c) => Char(c),
            code => Code(code),
        };
        let bound = self.bindings(is_read_only).find(|binding| binding.keys.contains(&key));
        bound.map(|binding| binding.command).or(match key {
            Char(digit @ '1'..='9') => Some(Command::Screen(digit as usize - '1' as usize)),
            Char('0') => Some(Command::Screen(9)),
            _ => None,
        })
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Char(' ') => f.write_str("Space"),
            Char(c) => write!(f, "{c}"),
            Control(c) => write!(f, "^{}", c.to_ascii_uppercase()),
            Code(code) => write!(f, "{code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(c: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)
    }

    #[test]
    fn no_key_means_two_things() {
        for keymap in [Keymap::Default, Keymap::Pgtop, Keymap::PgActivity] {
            let mut seen = Vec::new();
            for key in keymap.bindings(false).flat_map(|binding| binding.keys) {
                assert!(!seen.contains(key), "{keymap:?} {key}");
                seen.push(*key);
            }
        }
    }

    #[test]
    fn nothing_acts_where_it_may_only_read() {
        for keymap in [Keymap::Default, Keymap::Pgtop, Keymap::PgActivity] {
            assert!(keymap.bindings(true).all(|binding| !binding.acts));
        }
        assert_eq!(Keymap::Default.command(press('K'), false), Some(Command::KillSlow));
        assert_eq!(Keymap::Default.command(press('K'), true), None);
    }

    #[test]
    fn digits_choose_screens() {
        assert_eq!(Keymap::Default.command(press('1'), false), Some(Command::Screen(0)));
        assert_eq!(Keymap::Default.command(press('0'), false), Some(Command::Screen(9)));
    }

    #[test]
    fn control_is_not_the_letter_alone() {
        let event = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(Keymap::Default.command(event, false), Some(Command::Quit));
        assert_eq!(Keymap::Default.command(press('c'), false), Some(Command::Cancel));
    }
}

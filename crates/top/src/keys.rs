//! Key bindings: one table, from which the help page is generated.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A command that a key runs in the interactive mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyCommand {
    /// End the program; the servers are not affected.
    Quit,
    /// Open or close the help page.
    Help,
    /// Open or close the page of missing privileges.
    Privileges,
    /// Show the next screen.
    NextScreen,
    /// Show the previous screen.
    PreviousScreen,
    /// Show the screen with this index, from 0.
    Screen(usize),
    /// Show the next server.
    NextServer,
    /// Show the previous server.
    PreviousServer,
    /// Select the row above.
    Up,
    /// Select the row below.
    Down,
    /// Move the selection up by one page.
    PageUp,
    /// Move the selection down by one page.
    PageDown,
    /// Select the first row.
    First,
    /// Select the last row.
    Last,
    /// Scroll columns to the left.
    Left,
    /// Scroll columns to the right.
    Right,
    /// Show the selected row with all its columns.
    Detail,
    /// Tag or untag the selected row.
    Tag,
    /// Sort by the column to the right of the sort column.
    SortNext,
    /// Sort by the column to the left of the sort column.
    SortPrevious,
    /// Reverse the sort order.
    Reverse,
    /// Open the prompt for a row filter.
    Filter,
    /// Remove the filter.
    ClearFilter,
    /// Show how long the transaction has lasted instead of the statement, then the session.
    TimeMeasure,
    /// Show or hide idle sessions.
    Idle,
    /// Pause or resume updates or the replay.
    Pause,
    /// Sample more often, or replay faster.
    Faster,
    /// Sample less often, or replay more slowly.
    Slower,
    /// Take a sample immediately.
    Refresh,
    /// Cancel statements of the selected or tagged sessions, after a confirmation.
    Cancel,
    /// Terminate the selected or tagged sessions, after a confirmation.
    Terminate,
    /// Ask for a threshold, then cancel or terminate all slower sessions after a confirmation.
    KillSlow,
    /// Copy the selected row's statement to the clipboard.
    Copy,
    /// Show the plan of the selected session's statement.
    Plan,
    /// Go to the previous sample.
    Earlier,
    /// Go to the next sample.
    Later,
    /// Go back by one minute.
    MinuteEarlier,
    /// Go forward by one minute.
    MinuteLater,
    /// Open the prompt for a time to display.
    Time,
    /// Turn mouse support on or off.
    Mouse,
    /// Suspend this program, as Ctrl-Z does in a shell.
    Suspend,
    /// Return from the past to the present, or to the end of a recording; in the present, clear all
    /// tags.
    Back,
}

/// The set of key bindings in use, named after the program that they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keymap {
    /// Howdah's own keys.
    #[default]
    Default,
    /// pgtop's keys: `o` reverses the order, `k` cancels, `f` shows the full statement.
    Pgtop,
    /// pg_activity's keys: `C` cancels, `K` terminates, F1 to F3 choose a screen.
    PgActivity,
}

/// Keys that run a command, with the line of the help page.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// Keys with the same effect, the preferred one first.
    pub keys: &'static [KeySpec],
    /// The command that the keys run.
    pub command: KeyCommand,
    /// Description of the command on the help page.
    pub help: &'static str,
    /// Whether the command sends signals to the server.
    pub is_signal: bool,
}

/// A key that can be bound, alone or together with Control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpec {
    /// A character, with shift applied.
    Char(char),
    /// A character pressed together with Control.
    Control(char),
    /// A key without a character, such as an arrow or function key.
    Code(KeyCode),
}

const fn key(keys: &'static [KeySpec], command: KeyCommand, help: &'static str) -> Binding {
    Binding { keys, command, help, is_signal: false }
}

const fn signal_key(keys: &'static [KeySpec], command: KeyCommand, help: &'static str) -> Binding {
    Binding { keys, command, help, is_signal: true }
}

use self::KeySpec::{Char, Code, Control};

/// Bindings shared by all keymaps.
const COMMON: &[Binding] = &[
    key(&[Char('q'), Control('c')], KeyCommand::Quit, "quit"),
    key(&[Char('?'), Char('h')], KeyCommand::Help, "help"),
    key(
        &[Char('g')],
        KeyCommand::Privileges,
        "what this role cannot see, and the grant that helps",
    ),
    key(&[Code(KeyCode::Tab)], KeyCommand::NextScreen, "next screen"),
    key(&[Code(KeyCode::BackTab)], KeyCommand::PreviousScreen, "previous screen"),
    key(&[Char('n')], KeyCommand::NextServer, "next server"),
    key(&[Char('N')], KeyCommand::PreviousServer, "previous server"),
    key(&[Code(KeyCode::Up)], KeyCommand::Up, "row above"),
    key(&[Code(KeyCode::Down), Char('j')], KeyCommand::Down, "row below"),
    key(&[Code(KeyCode::PageUp), Control('b')], KeyCommand::PageUp, "page up"),
    key(&[Code(KeyCode::PageDown), Control('f')], KeyCommand::PageDown, "page down"),
    key(&[Code(KeyCode::Home)], KeyCommand::First, "first row"),
    key(&[Code(KeyCode::End), Char('G')], KeyCommand::Last, "last row"),
    key(&[Code(KeyCode::Left)], KeyCommand::Left, "columns to the left"),
    key(&[Code(KeyCode::Right)], KeyCommand::Right, "columns to the right"),
    key(&[Code(KeyCode::Enter)], KeyCommand::Detail, "row details"),
    key(&[Char('>'), Char('.')], KeyCommand::SortNext, "sort by the next column"),
    key(&[Char('<'), Char(',')], KeyCommand::SortPrevious, "sort by the previous column"),
    key(&[Char('/')], KeyCommand::Filter, "filter: words, user:app, state=active, >5s, !not"),
    key(&[Char('T')], KeyCommand::TimeMeasure, "time of statement, transaction or session"),
    key(&[Char('i')], KeyCommand::Idle, "toggle idle sessions"),
    key(&[Char('+')], KeyCommand::Faster, "sample more often"),
    key(&[Char('-')], KeyCommand::Slower, "sample less often"),
    key(&[Control('l'), Char('R')], KeyCommand::Refresh, "sample now"),
    key(&[Char('y')], KeyCommand::Copy, "copy the statement"),
    key(&[Char('e')], KeyCommand::Plan, "plan of the statement, without running it"),
    key(&[Char('[')], KeyCommand::Earlier, "the past: previous sample"),
    key(&[Char(']')], KeyCommand::Later, "next sample"),
    key(&[Char('{')], KeyCommand::MinuteEarlier, "back a minute"),
    key(&[Char('}')], KeyCommand::MinuteLater, "forward a minute"),
    key(&[Char('t')], KeyCommand::Time, "go to a time: 5m ago, 14:30"),
    key(&[Char('m')], KeyCommand::Mouse, "toggle mouse support"),
    key(&[Control('z')], KeyCommand::Suspend, "suspend"),
    key(&[Code(KeyCode::Esc)], KeyCommand::Back, "back; from the past to the present"),
];

const DEFAULT: &[Binding] = &[
    key(&[Char('k')], KeyCommand::Up, "row above"),
    key(&[Char(' ')], KeyCommand::Tag, "tag this row"),
    key(&[Char('r')], KeyCommand::Reverse, "reverse the sort order"),
    key(&[Char('F')], KeyCommand::ClearFilter, "clear the filter"),
    key(&[Char('p')], KeyCommand::Pause, "pause or resume"),
    signal_key(&[Char('c')], KeyCommand::Cancel, "cancel the statement, or those of all tagged"),
    signal_key(&[Char('x')], KeyCommand::Terminate, "terminate this session, or all tagged"),
    signal_key(
        &[Char('K')],
        KeyCommand::KillSlow,
        "cancel or terminate all slower than a threshold",
    ),
];

const PGTOP: &[Binding] = &[
    key(&[Char(' ')], KeyCommand::Tag, "tag this row"),
    key(&[Char('o')], KeyCommand::Reverse, "reverse the sort order"),
    key(&[Char('F')], KeyCommand::ClearFilter, "clear the filter"),
    key(&[Char('p')], KeyCommand::Pause, "pause or resume"),
    key(&[Char('f')], KeyCommand::Detail, "the full statement"),
    signal_key(&[Char('k')], KeyCommand::Cancel, "cancel the statement, or those of all tagged"),
    signal_key(&[Char('x')], KeyCommand::Terminate, "terminate this session, or all tagged"),
    signal_key(
        &[Char('K')],
        KeyCommand::KillSlow,
        "cancel or terminate all slower than a threshold",
    ),
];

const PG_ACTIVITY: &[Binding] = &[
    key(&[Char('k')], KeyCommand::Up, "row above"),
    key(&[Code(KeyCode::F(1))], KeyCommand::Screen(0), "activity"),
    key(&[Code(KeyCode::F(2))], KeyCommand::Screen(7), "waiting"),
    key(&[Code(KeyCode::F(3))], KeyCommand::Screen(1), "blocking"),
    key(&[Char('r')], KeyCommand::Reverse, "reverse the sort order"),
    key(&[Char(' ')], KeyCommand::Pause, "pause or resume"),
    key(&[Char('s')], KeyCommand::Tag, "tag this row"),
    signal_key(&[Char('C')], KeyCommand::Cancel, "cancel the statement, or those of all tagged"),
    signal_key(&[Char('K')], KeyCommand::Terminate, "terminate this session, or all tagged"),
];

impl Keymap {
    /// Returns all bindings, the keymap's own before the shared ones. With `is_read_only`, those
    /// that send signals are omitted.
    pub fn bindings(self, is_read_only: bool) -> impl Iterator<Item = &'static Binding> {
        let own = match self {
            Self::Default => DEFAULT,
            Self::Pgtop => PGTOP,
            Self::PgActivity => PG_ACTIVITY,
        };
        own.iter().chain(COMMON).filter(move |binding| !(is_read_only && binding.is_signal))
    }

    /// Returns the command bound to a key; with `is_read_only`, only if it sends no signals. Digits
    /// choose a screen in every keymap.
    pub fn command(self, event: KeyEvent, is_read_only: bool) -> Option<KeyCommand> {
        let key = match event.code {
            KeyCode::Char(c) if event.modifiers.contains(KeyModifiers::CONTROL) => Control(c),
            KeyCode::Char(c) => Char(c),
            code => Code(code),
        };
        let bound = self.bindings(is_read_only).find(|binding| binding.keys.contains(&key));
        bound.map(|binding| binding.command).or(match key {
            Char(digit @ '1'..='9') => Some(KeyCommand::Screen(digit as usize - '1' as usize)),
            Char('0') => Some(KeyCommand::Screen(9)),
            _ => None,
        })
    }
}

impl std::fmt::Display for KeySpec {
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
    fn keys_are_bound_once_per_keymap() {
        for keymap in [Keymap::Default, Keymap::Pgtop, Keymap::PgActivity] {
            let mut seen = Vec::new();
            for key in keymap.bindings(false).flat_map(|binding| binding.keys) {
                assert!(!seen.contains(key), "{keymap:?} {key}");
                seen.push(*key);
            }
        }
    }

    #[test]
    fn read_only_keymaps_have_no_signal_keys() {
        for keymap in [Keymap::Default, Keymap::Pgtop, Keymap::PgActivity] {
            assert!(keymap.bindings(true).all(|binding| !binding.is_signal));
        }
        assert_eq!(Keymap::Default.command(press('K'), false), Some(KeyCommand::KillSlow));
        assert_eq!(Keymap::Default.command(press('K'), true), None);
    }

    #[test]
    fn digits_choose_screens() {
        assert_eq!(Keymap::Default.command(press('1'), false), Some(KeyCommand::Screen(0)));
        assert_eq!(Keymap::Default.command(press('0'), false), Some(KeyCommand::Screen(9)));
    }

    #[test]
    fn control_key_differs_from_plain_letter() {
        let event = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(Keymap::Default.command(event, false), Some(KeyCommand::Quit));
        assert_eq!(Keymap::Default.command(press('c'), false), Some(KeyCommand::Cancel));
    }
}

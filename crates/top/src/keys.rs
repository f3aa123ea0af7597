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
    /// Open the page of the selected session, or show another row with all its columns.
    Detail,
    /// Open the list in which the screen's columns are chosen.
    Columns,
    /// Show the waits by the next dimension: by event, statement, role, and so on.
    WaitDimension,
    /// Start the period of the waits screen now.
    WaitMark,
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
    key(&[Code(KeyCode::Enter)], KeyCommand::Detail, "the session's page, or row details"),
    key(&[Char('v')], KeyCommand::Columns, "choose the columns"),
    key(&[Char('d')], KeyCommand::WaitDimension, "waits by statement, role, client …"),
    key(&[Char('w')], KeyCommand::WaitMark, "waits since now"),
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

/// A group of lines on the help page.
#[derive(Clone, Copy, Debug)]
pub struct HelpGroup {
    /// Title above the group.
    pub title: &'static str,
    /// The lines: commands whose keys are listed together, and what they do.
    pub lines: &'static [HelpLine],
}

/// Commands, and what they do, in few enough characters for half a screen of 80 columns.
pub type HelpLine = (&'static [KeyCommand], &'static str);

use self::KeyCommand as Do;

/// The help page. Lines without keys in a keymap are omitted.
pub const HELP: &[HelpGroup] = &[
    HelpGroup {
        title: "Screens",
        lines: &[
            (&[Do::NextScreen, Do::PreviousScreen], "next, previous screen"),
            (&[Do::NextServer, Do::PreviousServer], "next, previous server"),
            (&[Do::Columns], "choose the columns"),
            (&[Do::WaitDimension], "waits by statement, role …"),
            (&[Do::WaitMark], "waits since now"),
            (&[Do::Privileges], "what this role cannot see"),
        ],
    },
    HelpGroup {
        title: "Rows",
        lines: &[
            (&[Do::Up, Do::Down], "row above, below"),
            (&[Do::PageUp, Do::PageDown], "page up, down"),
            (&[Do::First, Do::Last], "first, last row"),
            (&[Do::Left, Do::Right], "other columns"),
            (&[Do::Detail], "page of the session, or row"),
            (&[Do::Filter, Do::ClearFilter], "filter: user:app, >5s, !not"),
            (&[Do::SortPrevious, Do::SortNext], "column to sort by"),
            (&[Do::Reverse], "reverse the order"),
            (&[Do::Idle], "idle sessions"),
            (&[Do::TimeMeasure], "time: query, tx, session"),
        ],
    },
    HelpGroup {
        title: "Sessions",
        lines: &[
            (&[Do::Cancel], "cancel the statement"),
            (&[Do::Terminate], "terminate the session"),
            (&[Do::KillSlow], "… all slower than a time"),
            (&[Do::Tag], "tag: act on several"),
            (&[Do::Plan], "plan, without running it"),
            (&[Do::Copy], "copy the statement"),
        ],
    },
    HelpGroup {
        title: "Time",
        lines: &[
            (&[Do::Pause], "pause or resume, play"),
            (&[Do::Faster, Do::Slower], "more, less often"),
            (&[Do::Refresh], "sample now"),
            (&[Do::Earlier, Do::Later], "the past: a sample"),
            (&[Do::MinuteEarlier, Do::MinuteLater], "a minute"),
            (&[Do::Time], "go to: 5m ago, 14:30"),
            (&[Do::Back], "back to the present"),
        ],
    },
    HelpGroup {
        title: "Program",
        lines: &[
            (&[Do::Help, Do::Quit], "help, quit"),
            (&[Do::Mouse, Do::Suspend], "mouse on or off, suspend"),
        ],
    },
];

impl Keymap {
    /// Returns the keys of some commands, the preferred ones first, as far as they fit `width`
    /// terminal columns.
    pub fn key_names(self, commands: &[KeyCommand], is_read_only: bool, width: usize) -> String {
        let keys = |command: &KeyCommand| -> Vec<String> {
            let bindings =
                self.bindings(is_read_only).filter(|binding| binding.command == *command);
            bindings.flat_map(|binding| binding.keys).map(ToString::to_string).collect()
        };
        let lists: Vec<Vec<String>> = commands.iter().map(keys).collect();
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut names = String::new();
        for key in (0..longest).flat_map(|at| lists.iter().filter_map(move |list| list.get(at))) {
            let gap = usize::from(!names.is_empty());
            if names.chars().count() + gap + key.chars().count() > width {
                break;
            }
            names.push_str(if gap == 1 { " " } else { "" });
            names.push_str(key);
        }
        names
    }

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
            Code(KeyCode::Up) => f.write_str("↑"),
            Code(KeyCode::Down) => f.write_str("↓"),
            Code(KeyCode::Left) => f.write_str("←"),
            Code(KeyCode::Right) => f.write_str("→"),
            Code(KeyCode::PageUp) => f.write_str("PgUp"),
            Code(KeyCode::PageDown) => f.write_str("PgDn"),
            Code(KeyCode::BackTab) => f.write_str("S-Tab"),
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
    fn every_command_is_on_the_help_page_once() {
        for keymap in [Keymap::Default, Keymap::Pgtop, Keymap::PgActivity] {
            for binding in keymap.bindings(false) {
                let lines = HELP.iter().flat_map(|group| group.lines);
                let found = lines.filter(|(commands, _)| commands.contains(&binding.command));
                let is_screen = matches!(binding.command, KeyCommand::Screen(_));
                assert_eq!(found.count(), usize::from(!is_screen), "{:?}", binding.command);
            }
        }
        let names = |commands, width| Keymap::Default.key_names(commands, false, width);
        assert_eq!(names(&[KeyCommand::Up, KeyCommand::Down], 12), "k ↓ ↑ j");
        assert_eq!(names(&[KeyCommand::Filter], 12), "/");
        assert_eq!(Keymap::Default.key_names(&[KeyCommand::Cancel], true, 12), "");
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

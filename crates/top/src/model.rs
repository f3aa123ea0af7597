//! All that a screen shows, and how one message changes it.
//!
//! Nothing here waits, draws or talks to a server: [`Model::update`] takes a message and says what has to be
//! done as [`Effect`]s. So what a key does is tested without a terminal and without a server.

mod acting;
mod cache;
mod mouse;
mod past;
mod prompt;

use std::{collections::BTreeSet, rc::Rc, sync::Arc, time::Duration};

use howdah_collect::{Action, Backend, SignalTarget, Signalled};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseEvent};

use self::cache::TableCache;
pub use self::{
    mouse::Geometry,
    past::{Playback, Replay},
    prompt::{Asked, Prompt},
};
use crate::{
    Filter, Sight, Snapshot, Standing,
    history::History,
    keys::{Command, Keymap},
    kill::{Listed, Plan, Policy, THRESHOLD_MIN},
    sampler::{INTERVAL_MIN, Wanted},
    screen::Palette,
    table::{Choice, Row, RowKey, Screen, Table},
    units::span,
};

/// What a person chose before it began.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often servers are read.
    pub interval: Duration,
    /// From how long on a statement is slow.
    pub slow: Option<Duration>,
    /// Nothing may be changed in a server.
    pub is_read_only: bool,
    /// Which keys.
    pub keymap: Keymap,
    /// What is looked at first.
    pub screen: Screen,
    /// Which rows, at first.
    pub filter: Filter,
    /// Idle sessions too.
    pub with_idle: bool,
    /// Who is spared.
    pub policy: Policy,
    /// Which colours, where there may be any.
    pub palette: Palette,
    /// Clicks and the wheel are for us.
    pub has_mouse: bool,
    /// Texts may be put on the clipboard through the terminal.
    pub has_clipboard: bool,
    /// The role that asks for plans, if another than the one that reads.
    pub plan_user: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            slow: Some(Duration::from_secs(60)),
            is_read_only: false,
            keymap: Keymap::Default,
            screen: Screen::Activity,
            filter: Filter::default(),
            with_idle: false,
            policy: Policy::default(),
            palette: Palette::default(),
            has_mouse: true,
            has_clipboard: true,
            plan_user: None,
        }
    }
}

/// Something that happened.
#[derive(Debug)]
pub enum Message {
    /// A key was pressed.
    Key(KeyEvent),
    /// The mouse did something.
    Mouse(MouseEvent),
    /// The terminal has another size.
    Resize,
    /// How it stands with a server.
    Standing(usize, Standing),
    /// What is to be told of a server.
    Sight(usize, Sight),
    /// Something went wrong that a person should know.
    Trouble(String),
    /// What became of signals that were sent.
    Signalled(Vec<(SignalTarget, Result<Signalled, String>)>),
    /// The plan that was asked for, or why there is none.
    Planned(Result<howdah_collect::Plan, String>),
}

/// Something that has to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// End.
    Quit,
    /// All samplers should read this from now on, at this interval.
    Want {
        /// How often.
        interval: Duration,
        /// What idle sessions ran last.
        idle_texts: bool,
        /// Which view.
        view: Option<&'static str>,
    },
    /// Send signals to a server.
    Signal(usize, Action, Vec<Listed>),
    /// Put a text on the clipboard.
    Copy(String),
    /// Ask a server for the plan of what a session runs.
    Plan(usize, Box<Backend>),
    /// Clicks and the wheel are for us, or not.
    Mouse(bool),
    /// Stop, until somebody lets it go on.
    Suspend,
}

/// What lies over the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Overlay {
    /// Nothing.
    #[default]
    None,
    /// The keys.
    Help,
    /// What the role cannot see.
    Privileges,
    /// All of a row.
    Detail(Vec<(String, String)>),
    /// A plan, or why there is none; `None` while it is waited for.
    Plan(Option<Result<howdah_collect::Plan, String>>),
    /// A list of whom a signal would reach; yes sends it.
    Confirm(Plan),
    /// A line that is being typed.
    Prompt(Prompt),
}

/// A server, as the screen knows it.
#[derive(Clone, Debug)]
pub struct Watched {
    /// What a person calls it.
    pub name: String,
    /// How it stands.
    pub standing: Standing,
    /// The alerts there, and what cannot be told.
    pub sight: Sight,
}

/// All that a screen shows.
#[derive(Debug)]
pub struct Model {
    /// What was chosen before.
    pub settings: Settings,
    /// The servers.
    pub servers: Vec<Watched>,
    /// Which server is looked at.
    pub shown: usize,
    /// What is looked at.
    pub screen: Screen,
    /// How often servers are read.
    pub interval: Duration,
    /// The column to sort by, if not the screen's own.
    pub order: Option<&'static str>,
    /// The smallest first.
    pub is_ascending: bool,
    /// Idle sessions too.
    pub with_idle: bool,
    /// Which rows, and the words it was made of.
    pub filter: (Filter, String),
    /// The row that keys are about.
    pub selected: Option<RowKey>,
    /// Rows that were tagged.
    pub tagged: BTreeSet<RowKey>,
    /// Columns that are left out at the left.
    pub shift: usize,
    /// The picture stands still.
    pub is_paused: bool,
    /// What lies over the table.
    pub overlay: Overlay,
    /// The last thing that there was to say.
    pub notice: Option<Notice>,
    /// How many lines of the page over the table are above its window.
    pub scroll: usize,
    /// How many rows a page has; the screen says.
    pub page: usize,
    /// Where the last picture has what; the screen says.
    pub geometry: Geometry,
    /// Clicks and the wheel are for us.
    pub has_mouse: bool,
    /// What was read before.
    pub history: Option<Arc<History>>,
    /// The moment that is looked at, if not the present.
    pub past: Option<Playback>,
    /// The recording that is shown, if one is.
    pub replay: Option<Replay>,
    cache: TableCache,
}

/// Something to say to a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The words.
    pub text: String,
    /// It did not go well.
    pub is_bad: bool,
}

/// A minute, in microseconds.
const MINUTE_US: i64 = 60_000_000;

impl Model {
    /// A screen for servers of these names, none of which was read yet.
    pub fn new(names: impl IntoIterator<Item = String>, settings: Settings) -> Self {
        let watched =
            |name| Watched { name, standing: Standing::Connecting, sight: Sight::default() };
        Self {
            servers: names.into_iter().map(watched).collect(),
            shown: 0,
            screen: settings.screen,
            interval: settings.interval.max(INTERVAL_MIN),
            order: None,
            is_ascending: false,
            with_idle: settings.with_idle,
            filter: (settings.filter.clone(), String::new()),
            selected: None,
            tagged: BTreeSet::new(),
            shift: 0,
            is_paused: false,
            overlay: Overlay::None,
            notice: None,
            scroll: 0,
            page: 10,
            geometry: Geometry::default(),
            has_mouse: settings.has_mouse,
            history: None,
            past: None,
            replay: None,
            cache: TableCache::default(),
            settings,
        }
    }

    /// What samplers should read for this screen.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            interval: self.interval,
            idle_texts: self.with_idle,
            view: self.screen.view(),
            all_views: false,
            whole_texts: Wanted::whole_texts_for(self.settings.slow),
        }
    }

    /// The last that was read of the server that is looked at, at the moment that is.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.standing(self.shown)?.snapshot()
    }

    /// The table that is looked at; `None` while it was not read.
    pub fn table(&self) -> Option<Rc<Table>> {
        let choice = Choice {
            with_idle: self.with_idle,
            filter: self.filter.0.clone(),
            order: self.order,
            is_ascending: self.is_ascending,
            slow_seconds: self.settings.slow.map(|slow| slow.as_secs_f64()),
        };
        self.cache.table(self.screen, self.snapshot()?, choice)
    }

    /// Changes it for what happened, and says what has to be done.
    pub fn update(&mut self, message: Message) -> Vec<Effect> {
        match message {
            Message::Key(event) => self.key(event),
            Message::Mouse(event) => {
                self.mouse(event);
                Vec::new()
            }
            Message::Resize => Vec::new(),
            Message::Standing(server, standing) => {
                let is_standing_still = self.is_paused && matches!(standing, Standing::Read(_));
                if let Some(watched) = self.servers.get_mut(server).filter(|_| !is_standing_still) {
                    watched.standing = standing;
                }
                Vec::new()
            }
            Message::Sight(server, sight) => {
                if let Some(watched) = self.servers.get_mut(server) {
                    watched.sight = sight;
                }
                Vec::new()
            }
            Message::Trouble(text) => {
                self.complain(text);
                Vec::new()
            }
            Message::Signalled(results) => {
                self.notice = Some(Notice::of_signals(&results));
                self.tagged.clear();
                Vec::new()
            }
            Message::Planned(plan) => {
                // Whoever has closed the page does not want it any more.
                if let Overlay::Plan(waiting) = &mut self.overlay {
                    *waiting = Some(plan);
                }
                Vec::new()
            }
        }
    }

    fn key(&mut self, event: KeyEvent) -> Vec<Effect> {
        let interrupts =
            event.code == KeyCode::Char('c') && event.modifiers.contains(KeyModifiers::CONTROL);
        if interrupts {
            return vec![Effect::Quit];
        }
        match std::mem::take(&mut self.overlay) {
            Overlay::Prompt(prompt) => self.typed(prompt, event),
            Overlay::Confirm(plan) => self.answered(plan, event),
            Overlay::None => {
                let is_read_only = self.settings.is_read_only;
                let command = self.settings.keymap.command(event, is_read_only);
                command.map_or_else(Vec::new, |command| self.command(command))
            }
            page => {
                self.read_on(page, event);
                Vec::new()
            }
        }
    }

    /// A key while a page lies over the table: those that move scroll it, any other closes it.
    fn read_on(&mut self, page: Overlay, event: KeyEvent) {
        let by = isize::try_from(self.page).unwrap_or(isize::MAX);
        let scroll = match event.code {
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll + 1,
            KeyCode::PageUp => self.scroll.saturating_add_signed(-by),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll.saturating_add_signed(by),
            KeyCode::Home => 0,
            _ => {
                self.scroll = 0;
                return;
            }
        };
        self.scroll = scroll;
        self.overlay = page;
    }

    /// A key while somebody types.
    fn typed(&mut self, mut prompt: Prompt, event: KeyEvent) -> Vec<Effect> {
        match event.code {
            KeyCode::Esc => Vec::new(),
            KeyCode::Enter => self.entered(&prompt),
            _ => {
                prompt.edit(event);
                self.overlay = Overlay::Prompt(prompt);
                Vec::new()
            }
        }
    }

    /// A line was typed to its end.
    fn entered(&mut self, prompt: &Prompt) -> Vec<Effect> {
        match prompt.asked {
            Asked::Filter => match Filter::parse(&prompt.text) {
                Ok(filter) => self.filter = (filter, prompt.text.clone()),
                Err(error) => self.complain(error.to_string()),
            },
            Asked::Time => self.travel_to(&prompt.text),
            Asked::Threshold(action) => match crate::units::parse_span(prompt.text.trim()) {
                Some(seconds) if seconds >= THRESHOLD_MIN => {
                    let policy = self.settings.policy;
                    let plan = self
                        .snapshot()
                        .map(|snapshot| Plan::of_slow(snapshot, seconds, action, policy));
                    self.confirm(plan);
                }
                Some(_) => {
                    self.complain(format!("the threshold is at least {}", span(THRESHOLD_MIN)));
                }
                None => self.complain(format!("{:?} is no time: write 60, 5m or 1h", prompt.text)),
            },
        }
        Vec::new()
    }

    /// Does what a key means.
    pub(crate) fn command(&mut self, command: Command) -> Vec<Effect> {
        self.notice = None;
        match command {
            Command::Quit => return vec![Effect::Quit],
            Command::Help => self.overlay = Overlay::Help,
            Command::Privileges => self.overlay = Overlay::Privileges,
            Command::NextScreen => return self.turn(1),
            Command::PreviousScreen => return self.turn(-1),
            Command::Screen(number) => return self.look_at(number),
            Command::NextServer => self.turn_server(1),
            Command::PreviousServer => self.turn_server(-1),
            Command::Up => self.select(-1),
            Command::Down => self.select(1),
            Command::PageUp => self.select(-self.page_rows()),
            Command::PageDown => self.select(self.page_rows()),
            Command::First => self.select(isize::MIN),
            Command::Last => self.select(isize::MAX),
            Command::Left => self.shift = self.shift.saturating_sub(1),
            Command::Right => self.shift += 1,
            Command::Detail => self.detail(),
            Command::Tag => self.tag(),
            Command::SortNext => self.sort(1),
            Command::SortPrevious => self.sort(-1),
            Command::Reverse => self.is_ascending = !self.is_ascending,
            Command::Filter => {
                self.overlay = Overlay::Prompt(Prompt::new(Asked::Filter, &self.filter.1));
            }
            Command::ClearFilter => self.filter = (Filter::default(), String::new()),
            Command::Idle => {
                self.with_idle = !self.with_idle;
                return vec![self.want()];
            }
            Command::Pause => self.pause(),
            Command::Faster => {
                let faster = self.change_speed(2.0);
                return faster.unwrap_or_else(|| self.pace(self.interval / 2));
            }
            Command::Slower => {
                let slower = self.change_speed(0.5);
                return slower.unwrap_or_else(|| self.pace(self.interval * 2));
            }
            Command::Refresh => return vec![self.want()],
            Command::Cancel => self.propose(Action::Cancel),
            Command::Terminate => self.propose(Action::Terminate),
            Command::KillSlow if self.is_past_only() => {}
            Command::KillSlow => {
                let text = self.settings.slow.map_or(60.0, |slow| slow.as_secs_f64());
                let text = format!("{:.0}", text.max(THRESHOLD_MIN));
                self.overlay =
                    Overlay::Prompt(Prompt::new(Asked::Threshold(Action::Cancel), &text));
            }
            Command::Copy => return self.copy(),
            Command::Plan => return self.plan(),
            Command::Mouse => {
                self.has_mouse = !self.has_mouse;
                self.say(format!("mouse {}", if self.has_mouse { "on" } else { "off" }));
                return vec![Effect::Mouse(self.has_mouse)];
            }
            Command::Suspend => return vec![Effect::Suspend],
            Command::Earlier => self.step_in_time(-1),
            Command::Later => self.step_in_time(1),
            Command::MinuteEarlier => self.jump_in_time(-MINUTE_US),
            Command::MinuteLater => self.jump_in_time(MINUTE_US),
            Command::Time => self.ask_for_time(),
            Command::Back if self.past.is_some() => self.return_to_now(),
            Command::Back => self.tagged.clear(),
        }
        Vec::new()
    }

    fn want(&self) -> Effect {
        Effect::Want {
            interval: self.interval,
            idle_texts: self.with_idle,
            view: self.screen.view().map(|view| view.name),
        }
    }

    fn pace(&mut self, interval: Duration) -> Vec<Effect> {
        self.interval = interval.clamp(INTERVAL_MIN, Duration::from_secs(300));
        self.say(format!("every {}", span(self.interval.as_secs_f64())));
        vec![self.want()]
    }

    fn turn(&mut self, by: isize) -> Vec<Effect> {
        let count = Screen::all().count();
        let at = Screen::all().position(|screen| screen == self.screen).unwrap_or(0);
        self.look_at((at + count).wrapping_add_signed(by) % count)
    }

    fn look_at(&mut self, number: usize) -> Vec<Effect> {
        let Some(screen) = Screen::all().nth(number) else { return Vec::new() };
        self.screen = screen;
        self.order = None;
        self.is_ascending = false;
        self.shift = 0;
        self.selected = None;
        self.look_again();
        vec![self.want()]
    }

    fn turn_server(&mut self, by: isize) {
        let count = self.servers.len().max(1);
        self.shown = (self.shown + count).wrapping_add_signed(by) % count;
        self.selected = None;
        // Process ids mean other sessions there.
        self.tagged.clear();
    }

    fn page_rows(&self) -> isize {
        isize::try_from(self.page.max(2) - 1).unwrap_or(1)
    }

    /// The place of the selected row in the table, the first if none is selected or it is gone.
    pub fn selected_at(&self, table: &Table) -> usize {
        let is_it = |row: &Row| Some(&row.key) == self.selected.as_ref();
        table.rows.iter().position(is_it).unwrap_or(0)
    }

    fn select(&mut self, by: isize) {
        let Some(table) = self.table() else { return };
        let last = table.rows.len().saturating_sub(1);
        let at = self.selected_at(&table).saturating_add_signed(by).min(last);
        self.selected = table.rows.get(at).map(|row| row.key.clone());
    }

    fn selected_row(&self) -> Option<(Rc<Table>, Row)> {
        let table = self.table()?;
        let row = table.rows.get(self.selected_at(&table))?.clone();
        Some((table, row))
    }

    fn tag(&mut self) {
        let Some((_, row)) = self.selected_row() else { return };
        if !self.tagged.remove(&row.key) {
            self.tagged.insert(row.key);
        }
        self.select(1);
    }

    fn sort(&mut self, by: isize) {
        let Some(table) = self.table() else { return };
        let now = self.order.or(self.screen.order());
        let count = table.columns.len().max(1);
        let at = now.and_then(|name| table.column(name)).unwrap_or(0);
        self.order =
            table.columns.get((at + count).wrapping_add_signed(by) % count).map(|head| head.name);
    }

    fn say(&mut self, text: String) {
        self.notice = Some(Notice { text, is_bad: false });
    }

    fn complain(&mut self, text: String) {
        self.notice = Some(Notice { text, is_bad: true });
    }
}

#[cfg(test)]
mod tests;

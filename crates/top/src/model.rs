//! The state of the interactive mode, and how each message changes it.
//!
//! Nothing here waits, draws or talks to a server: [`Model::update`] takes a message and returns
//! the [`ModelEffect`]s to apply. The effects of a key can therefore be tested without a terminal
//! or a server.

mod actions;
mod cache;
mod chooser;
mod mouse;
mod playback;
mod prompt;
pub(crate) mod session_page;
mod waits;

use std::{collections::BTreeSet, path::PathBuf, rc::Rc, sync::Arc, time::Duration};

use howdah_collect::{BackendActivity, SignalAction, SignalOutcome, SignalTarget};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseEvent};

pub(crate) use self::{
    cache::ModelCaches, chooser::ChooserEntry, waits::period_start as wait_period_start,
};
pub use self::{
    chooser::ColumnChooser,
    mouse::TableGeometry,
    playback::{Playback, ReplayState},
    prompt::{Prompt, PromptKind},
    session_page::{PagePlan, SessionPage},
};
use crate::{
    AlertView, RowFilter, ServerHealth, ServerSnapshot,
    history::SnapshotHistory,
    keys::{KeyCommand, Keymap},
    sampler::{INTERVAL_MIN, SampleRequest},
    screen::Palette,
    signal_plan::{KILL_THRESHOLD_MIN, PlannedSignal, SignalPlan, SignalPolicy},
    table::{ColumnChoices, RowId, ScreenKind, ScreenTable, TableOptions, TableRow, TimeMeasure},
    units::format_duration,
    waits::WaitDimension,
};

/// Settings given on the command line or in the configuration.
#[derive(Clone, Debug)]
pub struct TopSettings {
    /// Interval between samples.
    pub interval: Duration,
    /// Duration above which a statement is slow.
    pub slow: Option<Duration>,
    /// Whether signals are disabled.
    pub is_read_only: bool,
    /// Key bindings of the interactive mode.
    pub keymap: Keymap,
    /// Screen to show at startup.
    pub screen: ScreenKind,
    /// Row filter at startup.
    pub filter: RowFilter,
    /// Whether to show idle sessions.
    pub with_idle: bool,
    /// Sessions that are never signalled.
    pub policy: SignalPolicy,
    /// Colour palette, if the terminal has colours.
    pub palette: Palette,
    /// Whether mouse support is on.
    pub has_mouse: bool,
    /// Whether texts may be copied to the clipboard through the terminal.
    pub has_clipboard: bool,
    /// Role for requesting plans, if it differs from the monitoring role.
    pub plan_user: Option<String>,
    /// Columns chosen at startup.
    pub columns: ColumnChoices,
    /// File in which the user's choice of columns is saved.
    pub columns_file: Option<PathBuf>,
    /// Notice at startup, such as about a choice of columns that cannot be used.
    pub notice: Option<String>,
}

impl Default for TopSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            slow: Some(Duration::from_secs(60)),
            is_read_only: false,
            keymap: Keymap::Default,
            screen: ScreenKind::Activity,
            filter: RowFilter::default(),
            with_idle: false,
            policy: SignalPolicy::default(),
            palette: Palette::default(),
            has_mouse: true,
            has_clipboard: true,
            plan_user: None,
            columns: ColumnChoices::default(),
            columns_file: None,
            notice: None,
        }
    }
}

/// An event that the model handles.
#[derive(Debug)]
pub enum ModelMessage {
    /// A key was pressed.
    Key(KeyEvent),
    /// A mouse event, such as a click or a turn of the wheel.
    Mouse(MouseEvent),
    /// The terminal was resized.
    Resize,
    /// A sampler reported a new state of the server with this index.
    Health(usize, ServerHealth),
    /// The alerts of the server with this index were evaluated anew.
    Alerts(usize, AlertView),
    /// A problem to show to the user.
    Problem(String),
    /// Outcomes of the signals that the user confirmed, one for each.
    SignalOutcomes(Vec<(SignalTarget, Result<SignalOutcome, String>)>),
    /// The requested plan, or the reason why there is none.
    /// It has the number of its request.
    Plan(u64, Result<howdah_collect::GenericPlan, String>),
}

/// An action that the caller must perform.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEffect {
    /// End the program.
    Quit,
    /// Change the data that all samplers read, and sample immediately.
    Sample {
        /// Interval between samples.
        interval: Duration,
        /// Whether to read the last statements of idle sessions.
        idle_texts: bool,
        /// Name of the view to read, if the screen shows one.
        view: Option<&'static str>,
        /// Index of the server, and process id, of the session whose page is open.
        session: Option<(usize, i32)>,
    },
    /// Send signals to the server with this index.
    Signal(usize, SignalAction, Vec<PlannedSignal>),
    /// Copy a text to the clipboard.
    Copy(String),
    /// Request the plan of a session's statement from the server with this index. The last number
    /// identifies the request.
    Plan(usize, Box<BackendActivity>, u64),
    /// Turn mouse support on or off.
    Mouse(bool),
    /// Suspend this program, as Ctrl-Z does in a shell.
    Suspend,
    /// Save the choice of columns of a screen in a file.
    SaveColumns(PathBuf, ScreenKind, ColumnChoices),
}

/// A page or prompt on top of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Overlay {
    /// Nothing covers the table.
    #[default]
    None,
    /// The help page: all key bindings.
    Help,
    /// The page of privileges that the role lacks.
    Privileges,
    /// The page of the session in [`ScreenChoices::session`].
    Session,
    /// The list of columns to choose from.
    Columns(ColumnChooser),
    /// A row with all its columns, as pairs of title and value.
    Detail(Vec<(String, String)>),
    /// A plan, or the reason why there is none; `None` while waiting for it.
    Plan(Option<Result<howdah_collect::GenericPlan, String>>),
    /// Planned signals, waiting for confirmation.
    Confirm(SignalPlan),
    /// A prompt with the line that the user is editing.
    Prompt(Prompt),
}

/// A server as the screen shows it.
#[derive(Clone, Debug)]
pub struct WatchedServer {
    /// Name by which the server is displayed.
    pub name: String,
    /// The state that the sampler last reported. While updates are paused, only failures replace
    /// it.
    pub health: ServerHealth,
    /// The server's alerts, and outputs that fail.
    pub alerts: AlertView,
}

/// Choices of what screens show, beside sorting and filtering.
#[derive(Clone, Debug, Default)]
pub struct ScreenChoices {
    /// The columns to show on each screen.
    pub columns: ColumnChoices,
    /// The time that the time column of the activity screen has.
    pub time: TimeMeasure,
    /// The dimension of the waits screen.
    pub dimension: WaitDimension,
    /// Start of the period of the waits screen, in microseconds since 1970 by our clock.
    pub mark_us: Option<i64>,
    /// The session whose page is open, even while a confirmation or another page covers it.
    pub session: Option<SessionPage>,
}

/// The state of the interactive mode.
#[derive(Debug)]
pub struct Model {
    /// The settings at startup; some have a current value below.
    pub settings: TopSettings,
    /// The servers, in the order in which they are displayed.
    pub servers: Vec<WatchedServer>,
    /// Index of the displayed server.
    pub current: usize,
    /// The displayed screen.
    pub screen: ScreenKind,
    /// Interval between samples.
    pub interval: Duration,
    /// Sort column, if not the screen's default.
    pub order: Option<&'static str>,
    /// Whether the sort order is ascending.
    pub is_ascending: bool,
    /// Choices of what screens show.
    pub choices: ScreenChoices,
    /// Whether idle sessions are shown.
    pub with_idle: bool,
    /// The row filter, and the text that the user entered for it, which is empty for the filter of
    /// the settings.
    pub filter: (RowFilter, String),
    /// Identity of the selected row, which persists when rows move.
    pub selected: Option<RowId>,
    /// Identities of the rows that the next signal applies to.
    pub tagged: BTreeSet<RowId>,
    /// Number of columns scrolled out on the left.
    pub shift: usize,
    /// Whether updates are paused.
    pub is_paused: bool,
    /// The page or prompt on top of the table.
    pub overlay: Overlay,
    /// The last notice to the user, shown until the next command.
    pub notice: Option<StatusNotice>,
    /// Number of plans that were requested so far.
    plan_requests: u64,
    /// Number of overlay lines scrolled out at the top.
    pub scroll: usize,
    /// Number of rows that fit on the screen, by which a page is measured; set when drawing.
    pub page: usize,
    /// Layout of the last drawn table; set when drawing.
    pub geometry: TableGeometry,
    /// Whether mouse support is on.
    pub has_mouse: bool,
    /// History from which past samples are displayed, if one is kept.
    pub history: Option<Arc<SnapshotHistory>>,
    /// The displayed time, if it is not the present.
    pub past: Option<Playback>,
    /// State of the replay, if a recording is displayed.
    pub replay: Option<ReplayState>,
    pub(crate) caches: ModelCaches,
}

/// A message to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusNotice {
    /// Text of the message.
    pub text: String,
    /// Whether the message reports a failure.
    pub is_bad: bool,
}

/// A minute, in microseconds.
const MINUTE_US: i64 = 60_000_000;

impl Model {
    /// Creates a model for the named servers, none of which has been sampled yet.
    pub fn new(names: impl IntoIterator<Item = String>, settings: TopSettings) -> Self {
        let watched = |name| WatchedServer {
            name,
            health: ServerHealth::Connecting,
            alerts: AlertView::default(),
        };
        Self {
            servers: names.into_iter().map(watched).collect(),
            current: 0,
            screen: settings.screen,
            interval: settings.interval.max(INTERVAL_MIN),
            order: None,
            is_ascending: false,
            choices: ScreenChoices {
                columns: settings.columns.clone(),
                ..ScreenChoices::default()
            },
            with_idle: settings.with_idle,
            filter: (settings.filter.clone(), String::new()),
            selected: None,
            tagged: BTreeSet::new(),
            shift: 0,
            is_paused: false,
            overlay: Overlay::None,
            notice: settings.notice.clone().map(|text| StatusNotice { text, is_bad: true }),
            plan_requests: 0,
            scroll: 0,
            page: 10,
            geometry: TableGeometry::default(),
            has_mouse: settings.has_mouse,
            history: None,
            past: None,
            replay: None,
            caches: ModelCaches::default(),
            settings,
        }
    }

    /// Returns the data that samplers must read for the displayed screen.
    pub fn sample_request(&self) -> SampleRequest {
        SampleRequest {
            interval: self.interval,
            idle_texts: self.with_idle,
            view: self.screen.view(),
            all_views: false,
            full_texts: SampleRequest::needs_full_texts(self.settings.slow),
            sizes: true,
            session: None,
        }
    }

    /// Returns the displayed snapshot: the latest, or the one at the displayed time.
    pub fn snapshot(&self) -> Option<&Arc<ServerSnapshot>> {
        self.health(self.current)?.snapshot()
    }

    /// Returns the displayed table; `None` if its data is not available.
    pub fn table(&self) -> Option<Rc<ScreenTable>> {
        let options = TableOptions {
            with_idle: self.with_idle,
            filter: self.filter.0.clone(),
            order: self.order,
            is_ascending: self.is_ascending,
            slow_seconds: self.settings.slow.map(|slow| slow.as_secs_f64()),
            time: self.choices.time,
            full_texts: false,
            waits: waits::options(self),
        };
        self.caches.table.table(self.screen, self.snapshot()?, options)
    }

    /// Handles a message and returns the effects to apply.
    pub fn update(&mut self, message: ModelMessage) -> Vec<ModelEffect> {
        match message {
            ModelMessage::Key(event) => self.key(event),
            ModelMessage::Mouse(event) => self.mouse(event),
            ModelMessage::Resize => Vec::new(),
            ModelMessage::Health(server, health) => {
                let is_standing_still = self.is_paused && matches!(health, ServerHealth::Read(_));
                if let Some(watched) = self.servers.get_mut(server).filter(|_| !is_standing_still) {
                    watched.health = health;
                }
                let snapshot = self.snapshot().cloned();
                if let (Some(page), Some(snapshot)) = (&mut self.choices.session, snapshot) {
                    page.observe(&snapshot);
                }
                Vec::new()
            }
            ModelMessage::Alerts(server, alert_view) => {
                if let Some(watched) = self.servers.get_mut(server) {
                    watched.alerts = alert_view;
                }
                Vec::new()
            }
            ModelMessage::Problem(text) => {
                self.notify_error(text);
                Vec::new()
            }
            ModelMessage::SignalOutcomes(results) => {
                self.notice = Some(StatusNotice::from_outcomes(&results));
                self.tagged.clear();
                Vec::new()
            }
            // Another page may have been opened in the meantime, with a request of its own.
            ModelMessage::Plan(number, _) if number != self.plan_requests => Vec::new(),
            ModelMessage::Plan(_, plan) => {
                // Ignored if the user has closed the page in the meantime.
                if let Overlay::Plan(waiting) = &mut self.overlay {
                    *waiting = Some(plan);
                } else if let Some(page) = &mut self.choices.session
                    && page.plan == PagePlan::Requested
                {
                    page.plan = PagePlan::Received(plan);
                }
                Vec::new()
            }
        }
    }

    fn key(&mut self, event: KeyEvent) -> Vec<ModelEffect> {
        let interrupts =
            event.code == KeyCode::Char('c') && event.modifiers.contains(KeyModifiers::CONTROL);
        if interrupts {
            return vec![ModelEffect::Quit];
        }
        let effects = match std::mem::take(&mut self.overlay) {
            Overlay::Session => return session_page::handle_key(self, event),
            Overlay::Columns(chooser) => return chooser::handle_key(self, chooser, event),
            Overlay::Prompt(prompt) => self.prompt_key(prompt, event),
            Overlay::Confirm(plan) => self.answer_confirmation(plan, event),
            Overlay::None => {
                let is_read_only = self.settings.is_read_only;
                let command = self.settings.keymap.command(event, is_read_only);
                command.map_or_else(Vec::new, |command| self.command(command))
            }
            page => {
                self.page_key(page, event);
                Vec::new()
            }
        };
        // A page or prompt above the page of a session was closed.
        if self.overlay == Overlay::None && self.choices.session.is_some() {
            self.overlay = Overlay::Session;
        }
        effects
    }

    /// Handles a key while a page is open: movement keys scroll the page, any other key closes it.
    fn page_key(&mut self, page: Overlay, event: KeyEvent) {
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

    /// Handles a key while a line is being edited.
    fn prompt_key(&mut self, mut prompt: Prompt, event: KeyEvent) -> Vec<ModelEffect> {
        match event.code {
            KeyCode::Esc => Vec::new(),
            KeyCode::Enter => self.submit_prompt(&prompt),
            _ => {
                prompt.edit(event);
                self.overlay = Overlay::Prompt(prompt);
                Vec::new()
            }
        }
    }

    /// Handles the text that the user entered in a prompt.
    fn submit_prompt(&mut self, prompt: &Prompt) -> Vec<ModelEffect> {
        match prompt.kind {
            PromptKind::Filter => match RowFilter::parse(&prompt.text) {
                Ok(filter) => self.filter = (filter, prompt.text.clone()),
                Err(error) => self.notify_error(error.to_string()),
            },
            PromptKind::Time => self.travel_to_input(&prompt.text),
            PromptKind::Threshold(action) => {
                match howdah_settings::parse_seconds(prompt.text.trim()) {
                    Some(seconds) if seconds >= KILL_THRESHOLD_MIN => {
                        let policy = self.settings.policy;
                        let plan = self.snapshot().map(|snapshot| {
                            SignalPlan::for_slow(snapshot, seconds, action, policy)
                        });
                        self.confirm(plan);
                    }
                    Some(_) => {
                        self.notify_error(format!(
                            "the threshold must be at least {}",
                            format_duration(KILL_THRESHOLD_MIN)
                        ));
                    }
                    None => self.notify_error(format!(
                        "{:?} is not a time: write 60, 5m or 1h",
                        prompt.text
                    )),
                }
            }
        }
        Vec::new()
    }

    /// Runs the command of a key, and returns the effects to apply.
    pub(crate) fn command(&mut self, command: KeyCommand) -> Vec<ModelEffect> {
        self.notice = None;
        match command {
            KeyCommand::Quit => return vec![ModelEffect::Quit],
            KeyCommand::Help => self.overlay = Overlay::Help,
            KeyCommand::Privileges => self.overlay = Overlay::Privileges,
            KeyCommand::NextScreen => return self.next_screen(1),
            KeyCommand::PreviousScreen => return self.next_screen(-1),
            KeyCommand::Screen(number) => return self.show_screen(number),
            KeyCommand::NextServer => self.next_server(1),
            KeyCommand::PreviousServer => self.next_server(-1),
            KeyCommand::Up => self.select(-1),
            KeyCommand::Down => self.select(1),
            KeyCommand::PageUp => self.select(-self.page_rows()),
            KeyCommand::PageDown => self.select(self.page_rows()),
            KeyCommand::First => self.select(isize::MIN),
            KeyCommand::Last => self.select(isize::MAX),
            KeyCommand::Left => self.shift = self.shift.saturating_sub(1),
            KeyCommand::Right => self.shift += 1,
            KeyCommand::Detail => match session_page::open(self) {
                Some(effects) => return effects,
                None => self.show_detail(),
            },
            KeyCommand::Columns => {
                let chooser = ColumnChooser::new(self.screen, &self.choices.columns);
                self.overlay = Overlay::Columns(chooser);
            }
            KeyCommand::WaitDimension => waits::next_dimension(self),
            KeyCommand::WaitMark => waits::mark(self),
            KeyCommand::Tag => self.toggle_tag(),
            KeyCommand::SortNext => self.sort_by_neighbour(1),
            KeyCommand::SortPrevious => self.sort_by_neighbour(-1),
            KeyCommand::Reverse => self.is_ascending = !self.is_ascending,
            KeyCommand::Filter => {
                self.overlay = Overlay::Prompt(Prompt::new(PromptKind::Filter, &self.filter.1));
            }
            KeyCommand::ClearFilter => self.filter = (RowFilter::default(), String::new()),
            KeyCommand::TimeMeasure => self.choices.time = self.choices.time.next(),
            KeyCommand::Idle => {
                self.with_idle = !self.with_idle;
                return vec![self.sample_effect()];
            }
            KeyCommand::Pause => self.pause(),
            KeyCommand::Faster => {
                let faster = self.change_speed(2.0);
                return faster.unwrap_or_else(|| self.set_interval(self.interval / 2));
            }
            KeyCommand::Slower => {
                let slower = self.change_speed(0.5);
                return slower.unwrap_or_else(|| self.set_interval(self.interval * 2));
            }
            KeyCommand::Refresh => return vec![self.sample_effect()],
            KeyCommand::Cancel => self.propose(SignalAction::Cancel),
            KeyCommand::Terminate => self.propose(SignalAction::Terminate),
            KeyCommand::KillSlow if self.rejects_past_action() => {}
            KeyCommand::KillSlow => {
                let text = self.settings.slow.map_or(60.0, |slow| slow.as_secs_f64());
                let text = format!("{:.0}", text.max(KILL_THRESHOLD_MIN));
                self.overlay = Overlay::Prompt(Prompt::with_suggestion(
                    PromptKind::Threshold(SignalAction::Cancel),
                    &text,
                ));
            }
            KeyCommand::Copy => return self.copy(),
            KeyCommand::Plan => return self.plan(),
            KeyCommand::Mouse => {
                self.has_mouse = !self.has_mouse;
                self.notify(format!("mouse {}", if self.has_mouse { "on" } else { "off" }));
                return vec![ModelEffect::Mouse(self.has_mouse)];
            }
            KeyCommand::Suspend => return vec![ModelEffect::Suspend],
            KeyCommand::Earlier => self.step_samples(-1),
            KeyCommand::Later => self.step_samples(1),
            KeyCommand::MinuteEarlier => self.shift_time(-MINUTE_US),
            KeyCommand::MinuteLater => self.shift_time(MINUTE_US),
            KeyCommand::Time => self.prompt_for_time(),
            KeyCommand::Back if self.past.is_some() => self.return_to_now(),
            KeyCommand::Back => self.tagged.clear(),
        }
        Vec::new()
    }

    fn sample_effect(&self) -> ModelEffect {
        ModelEffect::Sample {
            interval: self.interval,
            idle_texts: self.with_idle,
            view: self.screen.view().map(|view| view.name),
            session: self.choices.session.as_ref().map(|page| (page.server, page.key().0)),
        }
    }

    fn set_interval(&mut self, interval: Duration) -> Vec<ModelEffect> {
        self.interval = interval.clamp(INTERVAL_MIN, Duration::from_secs(300));
        self.notify(format!("every {}", format_duration(self.interval.as_secs_f64())));
        vec![self.sample_effect()]
    }

    fn next_screen(&mut self, by: isize) -> Vec<ModelEffect> {
        let count = ScreenKind::all().count();
        let at = ScreenKind::all().position(|screen| screen == self.screen).unwrap_or(0);
        self.show_screen((at + count).wrapping_add_signed(by) % count)
    }

    fn show_screen(&mut self, number: usize) -> Vec<ModelEffect> {
        let Some(screen) = ScreenKind::all().nth(number) else { return Vec::new() };
        self.screen = screen;
        self.order = None;
        self.is_ascending = false;
        self.shift = 0;
        self.selected = None;
        self.reload_moment();
        vec![self.sample_effect()]
    }

    fn next_server(&mut self, by: isize) {
        let count = self.servers.len().max(1);
        self.current = (self.current + count).wrapping_add_signed(by) % count;
        self.selected = None;
        // On the other server, the same process ids belong to other sessions.
        self.tagged.clear();
    }

    fn page_rows(&self) -> isize {
        isize::try_from(self.page.max(2) - 1).unwrap_or(1)
    }

    /// Returns the index of the selected row; 0 if none is selected, or if the row is gone.
    pub fn selected_at(&self, table: &ScreenTable) -> usize {
        let is_it = |row: &TableRow| Some(&row.key) == self.selected.as_ref();
        table.rows.iter().position(is_it).unwrap_or(0)
    }

    fn select(&mut self, by: isize) {
        let Some(table) = self.table() else { return };
        let last = table.rows.len().saturating_sub(1);
        let at = self.selected_at(&table).saturating_add_signed(by).min(last);
        self.selected = table.rows.get(at).map(|row| row.key.clone());
    }

    fn selected_row(&self) -> Option<(Rc<ScreenTable>, TableRow)> {
        let table = self.table()?;
        let row = table.rows.get(self.selected_at(&table))?.clone();
        Some((table, row))
    }

    fn toggle_tag(&mut self) {
        let Some((_, row)) = self.selected_row() else { return };
        if !self.tagged.remove(&row.key) {
            self.tagged.insert(row.key);
        }
        self.select(1);
    }

    fn sort_by_neighbour(&mut self, by: isize) {
        let Some(table) = self.table() else { return };
        let now = self.order.or(self.screen.order());
        let count = table.columns.len().max(1);
        let at = now.and_then(|name| table.column(name)).unwrap_or(0);
        self.order =
            table.columns.get((at + count).wrapping_add_signed(by) % count).map(|head| head.name);
    }

    fn notify(&mut self, text: String) {
        self.notice = Some(StatusNotice { text, is_bad: false });
    }

    fn notify_error(&mut self, text: String) {
        self.notice = Some(StatusNotice { text, is_bad: true });
    }
}

#[cfg(test)]
mod tests;

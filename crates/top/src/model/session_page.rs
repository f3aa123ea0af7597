//! The page of one session: which session it shows, and its keys.

use std::sync::Arc;

use howdah_collect::{BackendActivity, GenericPlan, SessionDetails};
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{Model, ModelEffect, Overlay};
use crate::{ServerHealth, ServerSnapshot, keys::KeyCommand, waits::SessionProfile};

/// The session whose page is open.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionPage {
    /// Index of its server.
    pub server: usize,
    /// The session as it was last seen, and the server's clock then, in microseconds since 1970.
    pub last: (Box<BackendActivity>, i64),
    /// Start of the period whose waits are shown, in microseconds since 1970 by our clock.
    pub since_us: i64,
    /// The plan of its statement.
    pub plan: PagePlan,
}

/// The plan on a session's page.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PagePlan {
    /// The user has not requested it.
    #[default]
    None,
    /// The server is planning it.
    Requested,
    /// The plan, or the reason why there is none.
    Received(Result<GenericPlan, String>),
}

/// Length of the period before the page was opened whose waits are shown, in microseconds.
pub(super) const PERIOD_US: i64 = 300_000_000;

impl SessionPage {
    /// Returns the process id and the start time of the session.
    pub fn key(&self) -> (i32, i64) {
        self.last.0.key()
    }

    /// Returns the session in a snapshot, unless it has ended.
    pub fn backend<'a>(&self, snapshot: &'a ServerSnapshot) -> Option<&'a BackendActivity> {
        snapshot.activity.backends.iter().find(|backend| backend.key() == self.key())
    }

    /// Returns the details of the session, if the snapshot has them.
    pub(crate) fn details<'a>(&self, snapshot: &'a ServerSnapshot) -> Option<&'a SessionDetails> {
        snapshot.session.as_deref().filter(|details| details.pid == self.key().0)
    }

    /// Stores the session's current state, for the time after its end.
    pub(super) fn observe(&mut self, snapshot: &ServerSnapshot) {
        if let Some(backend) = self.backend(snapshot) {
            self.last = (Box::new(backend.clone()), snapshot.activity.taken_us);
        }
    }
}

/// Opens the page of the selected row's session. Returns `None` if the row is not a session.
pub(super) fn open(model: &mut Model) -> Option<Vec<ModelEffect>> {
    let (_, row) = model.selected_row()?;
    let backend = model.row_backend(&row)?.clone();
    let snapshot = model.snapshot()?;
    let (now_us, shown_us) = (snapshot.activity.taken_us, snapshot.sampled_us);
    model.choices.session = Some(SessionPage {
        server: model.current,
        last: (Box::new(backend), now_us),
        since_us: shown_us.saturating_sub(PERIOD_US),
        plan: PagePlan::None,
    });
    model.scroll = 0;
    model.overlay = Overlay::Session;
    Some(vec![model.sample_effect()])
}

/// Returns the session that keys apply to: that of the open page, else that of the selected row.
pub(super) fn subject(model: &Model) -> Option<BackendActivity> {
    match &model.choices.session {
        Some(page) => {
            let current = model.snapshot().and_then(|snapshot| page.backend(snapshot));
            Some(current.unwrap_or(&page.last.0).clone())
        }
        None => model.selected_row().and_then(|(_, row)| model.row_backend(&row).cloned()),
    }
}

/// Handles a key on the page.
pub(super) fn handle_key(model: &mut Model, event: KeyEvent) -> Vec<ModelEffect> {
    let is_read_only = model.settings.is_read_only;
    let by = isize::try_from(model.page.max(2) - 1).unwrap_or(1);
    let command = model.settings.keymap.command(event, is_read_only);
    let effects = match command {
        _ if event.code == KeyCode::Char('q') => return close(model),
        Some(KeyCommand::Back) if model.past.is_none() || model.replay.is_some() => {
            return close(model);
        }
        Some(KeyCommand::Detail) => return close(model),
        Some(KeyCommand::Up) => scroll(model, -1),
        Some(KeyCommand::Down) => scroll(model, 1),
        Some(KeyCommand::PageUp) => scroll(model, -by),
        Some(KeyCommand::PageDown) => scroll(model, by),
        Some(KeyCommand::First) => scroll(model, isize::MIN),
        Some(KeyCommand::Last) => scroll(model, isize::MAX),
        Some(
            command @ (KeyCommand::Help
            | KeyCommand::Privileges
            | KeyCommand::Cancel
            | KeyCommand::Terminate
            | KeyCommand::Plan
            | KeyCommand::Copy
            | KeyCommand::Pause
            | KeyCommand::Faster
            | KeyCommand::Slower
            | KeyCommand::Refresh
            | KeyCommand::Earlier
            | KeyCommand::Later
            | KeyCommand::MinuteEarlier
            | KeyCommand::MinuteLater
            | KeyCommand::Time
            | KeyCommand::Back
            | KeyCommand::Mouse
            | KeyCommand::Suspend),
        ) => model.command(command),
        _ => Vec::new(),
    };
    if model.overlay == Overlay::None {
        model.overlay = Overlay::Session;
    }
    effects
}

fn scroll(model: &mut Model, by: isize) -> Vec<ModelEffect> {
    model.scroll = model.scroll.saturating_add_signed(by);
    Vec::new()
}

pub(super) fn close(model: &mut Model) -> Vec<ModelEffect> {
    model.choices.session = None;
    model.scroll = 0;
    vec![model.sample_effect()]
}

/// Returns what the page's session did since the start of the page's period, and that period in
/// microseconds.
pub(crate) fn profile(model: &Model, page: &SessionPage) -> Option<(Arc<SessionProfile>, i64)> {
    let until_us = model.snapshot()?.sampled_us;
    let history = model.history.as_ref()?;
    let period = (page.since_us.min(until_us), page.since_us.max(until_us));
    let key = page.key();
    let sums = model.caches.session.sums((page.server, key.0, key.1), period, |sums, period| {
        let played = history.play_between(page.server, period, |health| {
            if let ServerHealth::Read(snapshot) = health {
                sums.add(&snapshot.activity, key);
            }
        });
        if let Err(error) = played {
            tracing::warn!(%error, "history is corrupt");
        }
    });
    Some((sums, period.1 - period.0))
}

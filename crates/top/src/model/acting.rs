//! What a person does with the selected row: signals, which a list comes before, its plan, its text, all of it.

use howdah_collect::{Action, Backend, SignalTarget, Signalled};
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{Effect, Model, Notice, Overlay};
use crate::{
    kill::Plan,
    table::{Row, RowKey},
};

impl Model {
    /// Shows whom a signal would reach: the tagged sessions, or the selected one.
    pub(super) fn propose(&mut self, action: Action) {
        if self.is_past_only() {
            return;
        }
        let chosen: Vec<RowKey> = if self.tagged.is_empty() {
            self.selected_row().map(|(_, row)| row.key).into_iter().collect()
        } else {
            self.tagged.iter().cloned().collect()
        };
        let policy = self.settings.policy;
        let plan =
            self.snapshot().map(|snapshot| Plan::of_chosen(snapshot, &chosen, action, policy));
        self.confirm(plan);
    }

    /// Shows a plan for somebody to say yes to; says so if there is nobody on it.
    pub(super) fn confirm(&mut self, plan: Option<Plan>) {
        match plan {
            Some(plan) if plan.listed.is_empty() && plan.excluded.is_empty() => {
                self.complain("nobody fits".to_owned());
            }
            Some(plan) => self.overlay = Overlay::Confirm(plan),
            None => self.complain("the server was not read yet".to_owned()),
        }
    }

    /// A key while a plan waits for a yes.
    pub(super) fn answered(&mut self, plan: Plan, event: KeyEvent) -> Vec<Effect> {
        match event.code {
            KeyCode::Char('y' | 'Y') if !plan.listed.is_empty() => {
                vec![Effect::Signal(self.shown, plan.action, plan.listed)]
            }
            // What was cancelled in vain can be terminated, from the same list.
            KeyCode::Char('t') if plan.action == Action::Cancel => {
                let action = Action::Terminate;
                self.overlay = Overlay::Confirm(Plan { action, ..plan });
                Vec::new()
            }
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => Vec::new(),
            // No other key is a no: a list that vanishes by a slip is looked for again in a hurry.
            _ => {
                self.overlay = Overlay::Confirm(plan);
                Vec::new()
            }
        }
    }

    /// The text of the selected row's statement, for the clipboard.
    pub(super) fn copy(&mut self) -> Vec<Effect> {
        if !self.settings.has_clipboard {
            self.complain("copying is switched off".to_owned());
            return Vec::new();
        }
        let text = self.selected_row().and_then(|(table, row)| {
            let whole = self.backend_of(&row).and_then(|backend| backend.query.as_ref());
            whole.map(|query| query.as_str().to_owned()).or_else(|| {
                let at = table.column("query")?;
                row.cells[at].text().map(str::to_owned)
            })
        });
        match text {
            Some(text) => {
                self.say("copied".to_owned());
                vec![Effect::Copy(text)]
            }
            None => {
                self.complain("there is no statement to copy".to_owned());
                Vec::new()
            }
        }
    }

    /// Asks for the plan of what the selected session runs.
    pub(super) fn plan(&mut self) -> Vec<Effect> {
        let backend = self.selected_row().and_then(|(_, row)| self.backend_of(&row).cloned());
        match backend {
            Some(_) if self.replay.is_some() => {
                self.complain("a recording has no server to ask".to_owned());
                Vec::new()
            }
            Some(backend) => {
                self.overlay = Overlay::Plan(None);
                vec![Effect::Plan(self.shown, Box::new(backend))]
            }
            None => {
                self.complain("this is no session".to_owned());
                Vec::new()
            }
        }
    }

    /// The session that a row is of.
    pub(super) fn backend_of(&self, row: &Row) -> Option<&Backend> {
        self.snapshot()?.activity.backends.get(row.backend?)
    }

    pub(super) fn detail(&mut self) {
        let Some((table, row)) = self.selected_row() else { return };
        let cells = table.columns.iter().zip(&row.cells);
        let mut lines: Vec<(String, String)> = cells
            .map(|(head, cell)| (head.title.to_owned(), crate::units::shown(cell, head.unit)))
            .collect();
        // The statement as it was written, with its lines.
        if let Some(query) = self.backend_of(&row).and_then(|backend| backend.query.as_ref())
            && let Some(line) = lines.last_mut()
        {
            let cut =
                if query.is_truncated { "\n… (the server keeps no more of it)" } else { "" };
            line.1 = format!("{}{cut}", query.as_str());
        }
        self.overlay = Overlay::Detail(lines);
    }
}

impl Notice {
    /// What became of signals: how many were sent, and each that was not.
    pub(super) fn of_signals(results: &[(SignalTarget, Result<Signalled, String>)]) -> Self {
        let sent = results.iter().filter(|(_, result)| *result == Ok(Signalled::Sent)).count();
        let mut text = format!("{sent} of {} signalled", results.len());
        for (suspect, result) in results {
            let why = match result {
                Ok(Signalled::Sent) => continue,
                Ok(Signalled::Gone) => "gone before",
                Ok(Signalled::NotSent) => "ended just then",
                Ok(Signalled::Refused { message, .. }) => message.as_str(),
                Err(message) => message.as_str(),
            };
            text.push_str(&format!("; {}: {why}", suspect.pid));
        }
        Self { text, is_bad: sent < results.len() }
    }
}

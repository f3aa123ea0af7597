//! Actions on the selected row: signals after confirmation, its plan, copying, and details.

use howdah_collect::{BackendActivity, SignalAction, SignalOutcome, SignalTarget};
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{Model, ModelEffect, Overlay, PagePlan, StatusNotice, session_page};
use crate::{
    signal_plan::SignalPlan,
    table::{RowId, TableRow},
};

impl Model {
    /// Opens the confirmation for signals to the tagged sessions, or the selected one.
    pub(super) fn propose(&mut self, action: SignalAction) {
        if self.rejects_past_action() {
            return;
        }
        let chosen: Vec<RowId> = match &self.choices.session {
            Some(page) => vec![RowId::Session(page.key().0, page.key().1)],
            None if self.tagged.is_empty() => {
                self.selected_row().map(|(_, row)| row.key).into_iter().collect()
            }
            None => self.tagged.iter().cloned().collect(),
        };
        let policy = self.settings.policy;
        let plan =
            self.snapshot().map(|snapshot| SignalPlan::for_rows(snapshot, &chosen, action, policy));
        self.confirm(plan);
    }

    /// Opens the confirmation page, or reports why there is nothing to confirm.
    pub(super) fn confirm(&mut self, plan: Option<SignalPlan>) {
        match plan {
            Some(plan) if plan.signals.is_empty() && plan.spared.is_empty() => {
                self.notify_error("no session matches".to_owned());
            }
            Some(plan) => self.overlay = Overlay::Confirm(plan),
            None => self.notify_error("the server has not been sampled yet".to_owned()),
        }
    }

    /// Handles a key on the confirmation page.
    pub(super) fn answer_confirmation(
        &mut self,
        plan: SignalPlan,
        event: KeyEvent,
    ) -> Vec<ModelEffect> {
        match event.code {
            KeyCode::Char('y' | 'Y') if !plan.signals.is_empty() => {
                vec![ModelEffect::Signal(self.current, plan.action, plan.signals)]
            }
            // If cancelling had no effect, the same list can be terminated.
            KeyCode::Char('t')
                if plan.action == SignalAction::Cancel && !plan.signals.is_empty() =>
            {
                let action = SignalAction::Terminate;
                self.overlay = Overlay::Confirm(SignalPlan { action, ..plan });
                Vec::new()
            }
            KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc => Vec::new(),
            // There is nothing to lose.
            _ if plan.signals.is_empty() => Vec::new(),
            // Other keys are ignored: losing the list to a mistyped key would be annoying.
            _ => {
                self.overlay = Overlay::Confirm(plan);
                Vec::new()
            }
        }
    }

    /// Copies the selected row's statement to the clipboard.
    pub(super) fn copy(&mut self) -> Vec<ModelEffect> {
        if !self.settings.has_clipboard {
            self.notify_error("copying is disabled".to_owned());
            return Vec::new();
        }
        let whole = session_page::subject(self).and_then(|backend| backend.query);
        let text = whole.map(|query| query.as_str().to_owned()).or_else(|| {
            let (table, row) = self.selected_row()?;
            let at = table.column("query").or_else(|| table.column("statement"))?;
            row.cells[at].text().map(str::to_owned)
        });
        match text {
            Some(text) => {
                self.notify("copied".to_owned());
                vec![ModelEffect::Copy(text)]
            }
            None => {
                self.notify_error("there is no statement to copy".to_owned());
                Vec::new()
            }
        }
    }

    /// Requests the plan of the selected session's statement.
    pub(super) fn plan(&mut self) -> Vec<ModelEffect> {
        match session_page::subject(self) {
            Some(_) if self.replay.is_some() => {
                self.notify_error("plans are not available in a recording".to_owned());
                Vec::new()
            }
            Some(backend) => {
                match &mut self.choices.session {
                    Some(page) => page.plan = PagePlan::Requested,
                    None => self.overlay = Overlay::Plan(None),
                }
                self.plan_requests += 1;
                vec![ModelEffect::Plan(self.current, Box::new(backend), self.plan_requests)]
            }
            None => {
                self.notify_error("the selected row is not a session".to_owned());
                Vec::new()
            }
        }
    }

    /// Returns the session that a row shows, if it shows one.
    pub(super) fn row_backend(&self, row: &TableRow) -> Option<&BackendActivity> {
        self.snapshot()?.activity.backends.get(row.backend?)
    }

    pub(super) fn show_detail(&mut self) {
        let Some((table, row)) = self.selected_row() else { return };
        let cells = table.columns.iter().zip(&row.cells);
        let mut lines: Vec<(String, String)> = cells
            .map(|(head, cell)| (head.title.to_owned(), crate::units::format_cell(cell, head.unit)))
            .collect();
        // Use the original text of the statement, with its line breaks.
        if let Some(query) = self.row_backend(&row).and_then(|backend| backend.query.as_ref())
            && let Some(line) = lines.last_mut()
        {
            let cut = if query.is_truncated { "\n… (truncated by the server)" } else { "" };
            line.1 = format!("{}{cut}", query.as_str());
        }
        self.overlay = Overlay::Detail(lines);
    }
}

impl StatusNotice {
    /// Summarizes outcomes: the number of signals sent, and each failure.
    pub(super) fn from_outcomes(results: &[(SignalTarget, Result<SignalOutcome, String>)]) -> Self {
        let sent = results.iter().filter(|(_, result)| *result == Ok(SignalOutcome::Sent)).count();
        let mut text = format!("{sent} of {} signalled", results.len());
        for (signal_target, result) in results {
            let why = match result {
                Ok(SignalOutcome::Sent) => continue,
                Ok(SignalOutcome::Gone) => "already ended",
                Ok(SignalOutcome::NotSent) => "ended just then",
                Ok(SignalOutcome::Refused { message, .. }) => message.as_str(),
                Err(message) => message.as_str(),
            };
            text.push_str(&format!("; {}: {why}", signal_target.pid));
        }
        Self { text, is_bad: sent < results.len() }
    }
}

//! The list in which the user chooses the columns of a screen.

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{Model, ModelEffect, Overlay, StatusNotice};
use crate::table::{ColumnChoices, ScreenKind};

/// The list of a screen's columns, each of which is marked or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnChooser {
    screen: ScreenKind,
    /// The columns: name, title, description, and whether it is marked.
    pub(crate) entries: Vec<ChooserEntry>,
    /// Index of the selected entry.
    pub(crate) selected: usize,
}

/// A column in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChooserEntry {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) help: &'static str,
    pub(crate) is_shown: bool,
}

impl ColumnChooser {
    pub(super) fn new(screen: ScreenKind, choices: &ColumnChoices) -> Self {
        let entry = |column: crate::table::TableColumn| ChooserEntry {
            name: column.name,
            title: column.title,
            help: column.help,
            is_shown: choices.is_visible(screen, column.name),
        };
        let entries = screen.all_columns().into_iter().map(entry).collect();
        Self { screen, entries, selected: 0 }
    }

    /// Returns the name of the screen whose columns these are.
    pub(crate) fn screen_name(&self) -> &'static str {
        self.screen.name()
    }

    fn marked(&self) -> Vec<&'static str> {
        self.entries.iter().filter(|entry| entry.is_shown).map(|entry| entry.name).collect()
    }

    /// Moves the selection or changes a mark. Returns false for a key that does neither.
    fn edit(&mut self, code: KeyCode) -> bool {
        let last = self.entries.len().saturating_sub(1);
        match code {
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::PageDown => self.selected = (self.selected + 10).min(last),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            KeyCode::Char(' ') => {
                if let Some(entry) = self.entries.get_mut(self.selected) {
                    entry.is_shown = !entry.is_shown;
                }
            }
            KeyCode::Char('a') => {
                let is_shown = self.entries.iter().any(|entry| !entry.is_shown);
                self.entries.iter_mut().for_each(|entry| entry.is_shown = is_shown);
            }
            _ => return false,
        }
        true
    }
}

/// Handles a key on the list: Enter uses the marked columns, `s` also saves them.
pub(super) fn handle_key(
    model: &mut Model,
    mut chooser: ColumnChooser,
    event: KeyEvent,
) -> Vec<ModelEffect> {
    let is_saved = event.code == KeyCode::Char('s');
    if is_saved || event.code == KeyCode::Enter {
        let shown = chooser.marked();
        if shown.is_empty() {
            let text = "at least one column must be shown".to_owned();
            model.notice = Some(StatusNotice { text, is_bad: true });
            model.overlay = Overlay::Columns(chooser);
            return Vec::new();
        }
        model.choices.columns.set(chooser.screen, shown);
        model.shift = 0;
        return if is_saved { save(model, chooser.screen) } else { Vec::new() };
    }
    if matches!(event.code, KeyCode::Esc | KeyCode::Char('q')) {
        return Vec::new();
    }
    chooser.edit(event.code);
    model.overlay = Overlay::Columns(chooser);
    Vec::new()
}

fn save(model: &mut Model, screen: ScreenKind) -> Vec<ModelEffect> {
    match model.settings.columns_file.clone() {
        Some(path) => vec![ModelEffect::SaveColumns(path, screen, model.choices.columns.clone())],
        None => {
            let text = "there is no folder to save columns in: set XDG_CONFIG_HOME".to_owned();
            model.notice = Some(StatusNotice { text, is_bad: true });
            Vec::new()
        }
    }
}

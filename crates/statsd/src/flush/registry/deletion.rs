//! Deletion of metrics by the management port's `del…` commands.

use std::collections::HashSet;

use crate::{MetricName, flush::table::MetricTable};

/// The result of a deletion command for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeleteOutcome {
    /// This key was deleted.
    Key(MetricName),
    /// No live metric has this key, or matches this pattern.
    NotFound(String),
}

impl<S: Default> MetricTable<S> {
    /// Deletes live metrics by key; with `folders`, the pattern `folder.*` deletes all keys below
    /// it. Results are in argument order, keys below a folder in order of first receipt.
    pub(crate) fn delete(&mut self, patterns: &[String], folders: bool) -> Vec<DeleteOutcome> {
        let mut deleted = Vec::new();
        for pattern in patterns {
            let folder = pattern.strip_suffix(".*").filter(|_| folders);
            let matching: HashSet<MetricName> = match folder {
                Some(front) => {
                    let prefix = format!("{front}.");
                    let names = self.iter().map(|entry| &entry.name);
                    names.filter(|name| name.key().starts_with(&prefix)).cloned().collect()
                }
                None => self.find(pattern).map(|_| MetricName::new(pattern)).into_iter().collect(),
            };
            if matching.is_empty() {
                deleted.push(DeleteOutcome::NotFound(pattern.clone()));
                continue;
            }
            self.retain(|entry| {
                let keep = !matching.contains(&entry.name);
                if !keep {
                    entry.last_flush = 0;
                    deleted.push(DeleteOutcome::Key(entry.name.clone()));
                }
                keep
            });
        }
        deleted
    }
}

//! Deleting metrics by hand, as the management port's `del…` commands do.

use std::collections::HashSet;

use crate::{Name, flush::table::Table};

/// What a management command deleted, in the order of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// This key is gone.
    Key(Name),
    /// Nothing was called that.
    NotFound(String),
}

impl<S: Default> Table<S> {
    /// Deletes live metrics by key, with `folders` also those below `folder.*`, in the order they were
    /// first seen.
    pub(crate) fn delete(&mut self, patterns: &[String], folders: bool) -> Vec<Deleted> {
        let mut deleted = Vec::new();
        for pattern in patterns {
            let folder = pattern.strip_suffix(".*").filter(|_| folders);
            let found: HashSet<Name> = match folder {
                Some(front) => {
                    let prefix = format!("{front}.");
                    let names = self.iter().map(|entry| &entry.name);
                    names.filter(|name| name.key().starts_with(&prefix)).cloned().collect()
                }
                None => self.find(pattern).map(|_| Name::new(pattern)).into_iter().collect(),
            };
            if found.is_empty() {
                deleted.push(Deleted::NotFound(pattern.clone()));
                continue;
            }
            self.retain(|entry| {
                let keep = !found.contains(&entry.name);
                if !keep {
                    entry.last_flush = 0;
                    deleted.push(Deleted::Key(entry.name.clone()));
                }
                keep
            });
        }
        deleted
    }
}

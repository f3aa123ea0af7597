//! Detects read-only statements, including those that use names of prepared statements and cursors.

use std::collections::{HashMap, HashSet};

use howdah_sql::{
    grammar::{Effect, EffectClassifier, NameKind, NameUse, SessionObject},
    is_side_effect_free_builtin,
};
use howdah_traffic::{Action, Event, SessionId, Text};

use crate::filter::criteria::ExclusionReason;

/// A detector of events that are not known to be read-only. It stores the names of each session's
/// read-only prepared statements and cursors, because later events refer to them.
#[derive(Debug, Default)]
pub(crate) struct ReadOnlyNames {
    classifier: EffectClassifier,
    names: HashMap<SessionId, HashSet<SessionObject>>,
}

/// Maximum number of names per session; further names count as unknown.
const NAMES_MAX: usize = 10_000;

impl ReadOnlyNames {
    /// Returns the reason why an event is not known to be read-only, if there is one. Otherwise,
    /// stores or removes the names that the event creates or drops.
    pub(crate) fn exclusion_reason(&mut self, event: &Event) -> Option<ExclusionReason> {
        match &event.action {
            Action::Connect | Action::Disconnect | Action::Cancel => None,
            Action::Call { function } => {
                // `set_config` may change any setting, because its arguments are not known.
                let known = |name: &str| is_side_effect_free_builtin(name) && name != "set_config";
                (!function.to_str().is_some_and(known)).then_some(ExclusionReason::UnknownFunction)
            }
            Action::Parse { statement, sql } => {
                let refused = self.text_exclusion_reason(&event.session, sql);
                if refused.is_none()
                    && let Some(name) = statement.to_str().filter(|name| !name.is_empty())
                {
                    let name = SessionObject { kind: NameKind::Statement, name: name.into() };
                    self.apply(&event.session, &NameUse::Creates(name));
                }
                refused
            }
            Action::Simple { sql } | Action::Copy { sql, .. } => {
                self.text_exclusion_reason(&event.session, sql)
            }
            Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => {
                self.text_exclusion_reason(&event.session, &bound.sql)
            }
        }
    }

    /// Removes a session that has ended.
    pub(crate) fn remove_session(&mut self, session: &str) {
        self.names.remove(session);
    }

    fn text_exclusion_reason(
        &mut self,
        session: &SessionId,
        sql: &Text,
    ) -> Option<ExclusionReason> {
        let statement_effect = self.classifier.classify(sql.as_bytes());
        let refused = match statement_effect.effect {
            Effect::ReadOnly => None,
            Effect::Writes => Some(ExclusionReason::Writes),
            Effect::Locks => Some(ExclusionReason::Locks),
            Effect::UnknownFunction => Some(ExclusionReason::UnknownFunction),
            _ => Some(ExclusionReason::Unreadable),
        };
        let refused =
            refused.or(statement_effect.allows_writes.then_some(ExclusionReason::AllowsWrites));
        if refused.is_some() || statement_effect.names.is_empty() {
            return refused;
        }
        let known = self.names.get(session);
        let mut created = HashSet::new();
        for name in &statement_effect.names {
            match name {
                NameUse::Creates(name) => {
                    created.insert(name);
                }
                NameUse::Uses(name) | NameUse::Drops(name) => {
                    let is_known = known.is_some_and(|names| names.contains(name));
                    if !is_known && !created.contains(name) {
                        return Some(ExclusionReason::UnknownName);
                    }
                }
                NameUse::DropsAll(_) => {}
            }
        }
        for name in &statement_effect.names {
            self.apply(session, name);
        }
        None
    }

    fn apply(&mut self, session: &SessionId, name: &NameUse) {
        let names = self.names.entry(session.clone()).or_default();
        match name {
            NameUse::Creates(name) if names.len() < NAMES_MAX => {
                names.insert(name.clone());
            }
            NameUse::Creates(_) | NameUse::Uses(_) => {}
            NameUse::Drops(name) => {
                names.remove(name);
            }
            NameUse::DropsAll(kind) => names.retain(|name| name.kind != *kind),
        }
    }
}

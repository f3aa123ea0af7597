//! Which statements are known to read only, in sessions that give names to statements.

use std::collections::{HashMap, HashSet};

use howdah_sql::{
    grammar::{Effect, Judge, Name, NameKind, NameUse},
    is_side_effect_free_builtin,
};
use howdah_traffic::{Action, Event, SessionId, Text};

use crate::filter::Reason;

/// Remembers which names of each session stand for something that reads.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    judge: Judge,
    names: HashMap<SessionId, HashSet<Name>>,
}

/// Names that are remembered of one session, at most; what is named beyond is not trusted.
const NAMES_MAX: usize = 10_000;

impl Trust {
    /// Why an event is not known to read only.
    pub(crate) fn refuses(&mut self, event: &Event) -> Option<Reason> {
        match &event.action {
            Action::Connect | Action::Disconnect | Action::Cancel => None,
            Action::Call { function } => {
                // The setting that set_config changes is among the arguments.
                let known = |name: &str| is_side_effect_free_builtin(name) && name != "set_config";
                (!function.to_str().is_some_and(known)).then_some(Reason::UnknownFunction)
            }
            Action::Parse { statement, sql } => {
                let refused = self.refuses_text(&event.session, sql);
                if refused.is_none()
                    && let Some(name) = statement.to_str().filter(|name| !name.is_empty())
                {
                    let name = Name { sort: NameKind::Statement, name: name.into() };
                    self.apply(&event.session, &NameUse::Makes(name));
                }
                refused
            }
            Action::Simple { sql } | Action::Copy { sql, .. } => {
                self.refuses_text(&event.session, sql)
            }
            Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => {
                self.refuses_text(&event.session, &bound.sql)
            }
        }
    }

    /// Forgets a session that has ended.
    pub(crate) fn forget(&mut self, session: &str) {
        self.names.remove(session);
    }

    fn refuses_text(&mut self, session: &SessionId, sql: &Text) -> Option<Reason> {
        let judgement = self.judge.judge(sql.as_bytes());
        let refused = match judgement.effect {
            Effect::ReadOnly => None,
            Effect::Writes => Some(Reason::Writes),
            Effect::Locks => Some(Reason::Locks),
            Effect::UnknownFunction => Some(Reason::UnknownFunction),
            _ => Some(Reason::Unreadable),
        };
        let refused = refused.or(judgement.allows_writes.then_some(Reason::AllowsWrites));
        if refused.is_some() || judgement.names.is_empty() {
            return refused;
        }
        let known = self.names.get(session);
        let mut made = HashSet::new();
        for name in &judgement.names {
            match name {
                NameUse::Makes(name) => {
                    made.insert(name);
                }
                NameUse::Uses(name) | NameUse::Drops(name) => {
                    let is_known = known.is_some_and(|names| names.contains(name));
                    if !is_known && !made.contains(name) {
                        return Some(Reason::UnknownName);
                    }
                }
                NameUse::DropsAll(_) => {}
            }
        }
        for name in &judgement.names {
            self.apply(session, name);
        }
        None
    }

    fn apply(&mut self, session: &SessionId, name: &NameUse) {
        let names = self.names.entry(session.clone()).or_default();
        match name {
            NameUse::Makes(name) if names.len() < NAMES_MAX => {
                names.insert(name.clone());
            }
            NameUse::Makes(_) | NameUse::Uses(_) => {}
            NameUse::Drops(name) => {
                names.remove(name);
            }
            NameUse::DropsAll(sort) => names.retain(|name| name.sort != *sort),
        }
    }
}

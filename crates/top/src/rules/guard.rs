//! The rules of one server, and which alerts hold there.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_collect::{Backend, SqlText};

use super::{
    Measure, Rule, Subject,
    measure::{self, Key},
};
use crate::{Standing, units::span};

/// Something that a rule wants to be told of.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// What the server is called.
    pub server: Arc<str>,
    /// What it is about.
    pub subject: Subject,
    /// The words of the rule.
    pub rule: Arc<str>,
    /// The last value that was seen.
    pub value: f64,
    /// The rule's threshold.
    pub threshold: f64,
    /// What both count.
    pub measure: Measure,
    /// Which session, if it is about one.
    pub who: Option<Who>,
    /// When it was last seen, by the server's clock, in microseconds since 1970; `None` where the server
    /// is away.
    pub seen_us: Option<i64>,
}

/// A session, as it is told to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The process.
    pub pid: i32,
    /// Its role.
    pub user: Arc<str>,
    /// Its database.
    pub database: Arc<str>,
    /// Its statement, on one line.
    pub query: String,
}

impl Who {
    pub(super) fn of(backend: &Backend) -> Self {
        let word = |word: &Option<Arc<str>>| word.clone().unwrap_or_else(|| "-".into());
        Self {
            pid: backend.pid,
            user: word(&backend.user),
            database: word(&backend.database),
            query: backend.query.as_ref().map(SqlText::one_line).unwrap_or_default(),
        }
    }
}

/// `query > 5m: 6m12s, 4711 app@shop select …`
impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.measure.shown(self.value))?;
        match &self.who {
            None => Ok(()),
            Some(Who { pid, user, database, query }) => {
                write!(f, ", {pid} {user}@{database} {query}")
            }
        }
    }
}

/// A rule that cannot be evaluated, because the role does not see what it is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unchecked {
    /// What the server is called.
    pub server: Arc<str>,
    /// What the rule is about.
    pub subject: Subject,
    /// The words of the rule.
    pub rule: Arc<str>,
    /// What is hidden, and the grant that helps.
    pub reason: String,
}

/// `alert 'query > 5m' cannot be checked: …`
impl fmt::Display for Unchecked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "alert '{}' cannot be checked: {}", self.rule, self.reason)
    }
}

/// What became of an alert.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It holds from now on.
    Began(Alert),
    /// It is over, after that time.
    Ended(Alert, Duration),
}

/// Looks at one server by rules.
#[derive(Clone, Debug)]
pub struct Guard {
    server: Arc<str>,
    rules: Arc<[Rule]>,
    /// What is above its threshold, by the place of the rule.
    above: BTreeMap<(usize, Key), Above>,
}

#[derive(Clone, Debug)]
struct Above {
    since: Instant,
    alert: Alert,
    /// It has been above for long enough, and was told.
    is_told: bool,
}

impl Guard {
    /// A guard that has seen nothing.
    pub fn new(server: &str, rules: Arc<[Rule]>) -> Self {
        Self { server: server.into(), rules, above: BTreeMap::new() }
    }

    /// The alerts that hold.
    pub fn holding(&self) -> impl Iterator<Item = &Alert> {
        self.above.values().filter(|above| above.is_told).map(|above| &above.alert)
    }

    /// The rules that a reading cannot answer. A rule with an alert that holds is answered, whatever else is hidden.
    pub fn unchecked(&self, standing: &Standing) -> Vec<Unchecked> {
        let Standing::Read(snapshot) = standing else { return Vec::new() };
        let unchecked = |rule: &Rule| {
            if self.holding().any(|alert| alert.rule == rule.text) {
                return None;
            }
            let reason = measure::hidden(rule, snapshot)?;
            let (server, rule_text) = (Arc::clone(&self.server), Arc::clone(&rule.text));
            Some(Unchecked { server, subject: rule.subject, rule: rule_text, reason })
        };
        self.rules.iter().filter_map(unchecked).collect()
    }

    /// Looks at how it stands with the server at `now`.
    pub fn look(&mut self, now: Instant, standing: &Standing) -> Vec<Change> {
        let mut seen = BTreeSet::new();
        let mut changes = Vec::new();
        for (at, rule) in Arc::clone(&self.rules).iter().enumerate() {
            let (measured, taken_us) = match (rule.subject, standing) {
                (_, Standing::Connecting) => return changes,
                (Subject::Away, Standing::Away { since, .. }) => {
                    let value = now.saturating_duration_since(*since).as_secs_f64();
                    let is_above = value > rule.clear;
                    let away = measure::Measured { key: Key::Server, value, who: None };
                    (is_above.then_some(away).into_iter().collect(), None)
                }
                (Subject::Away, Standing::Read(_)) => (Vec::new(), None),
                (_, Standing::Read(snapshot)) => {
                    (measure::of(rule, snapshot), Some(snapshot.activity.taken_us))
                }
                // What is not seen has not ended.
                (_, Standing::Away { .. }) => {
                    seen.extend(self.above.keys().filter(|(rule, _)| *rule == at).copied());
                    continue;
                }
            };
            for measured in measured {
                seen.insert((at, measured.key));
                changes.extend(self.see(now, (at, rule), measured, taken_us));
            }
        }
        let gone: Vec<_> = self.above.keys().filter(|key| !seen.contains(key)).copied().collect();
        for above in gone.iter().filter_map(|key| self.above.remove(key)) {
            if above.is_told {
                changes
                    .push(Change::Ended(above.alert, now.saturating_duration_since(above.since)));
            }
        }
        changes
    }

    /// Takes in a value that is above the end of its rule.
    fn see(
        &mut self,
        now: Instant,
        (at, rule): (usize, &Rule),
        measured: measure::Measured,
        seen_us: Option<i64>,
    ) -> Option<Change> {
        let measure::Measured { key, value, who } = measured;
        let alert = Alert {
            server: Arc::clone(&self.server),
            subject: rule.subject,
            rule: Arc::clone(&rule.text),
            value,
            threshold: rule.threshold,
            measure: rule.measure,
            who,
            seen_us,
        };
        let above = match self.above.get_mut(&(at, key)) {
            Some(above) => {
                above.alert = alert;
                // Between end and threshold an alert goes on, but none begins.
                if value <= rule.threshold && !above.is_told {
                    self.above.remove(&(at, key));
                    return None;
                }
                above
            }
            None if value <= rule.threshold => return None,
            None => {
                let over =
                    if rule.subject.is_time_that_passes() { value - rule.threshold } else { 0.0 };
                let over = Duration::try_from_secs_f64(over).unwrap_or_default();
                let since = now.checked_sub(over).unwrap_or(now);
                self.above.entry((at, key)).or_insert(Above { since, alert, is_told: false })
            }
        };
        let is_due = !above.is_told && now.saturating_duration_since(above.since) >= rule.hold;
        above.is_told |= is_due;
        is_due.then(|| Change::Began(above.alert.clone()))
    }
}

impl Change {
    /// The alert.
    pub fn alert(&self) -> &Alert {
        match self {
            Self::Began(alert) | Self::Ended(alert, _) => alert,
        }
    }
}

/// `query > 5m: …`, or that it is over.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Began(alert) => alert.fmt(f),
            Self::Ended(alert, lasted) => {
                write!(f, "over after {}: {alert}", span(lasted.as_secs_f64()))
            }
        }
    }
}

//! Evaluates the rules of one server, and tracks which alerts are firing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_collect::{BackendActivity, SqlText};

use super::{
    AlertRule, Measure, RuleSubject,
    values::{self, AlertKey},
};
use crate::{ServerHealth, units::format_duration};

/// An alert of a rule, started by a value that exceeded the threshold for the rule's hold time.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// Name of the server that the rule was evaluated for.
    pub server: Arc<str>,
    /// Quantity that the rule watches.
    pub subject: RuleSubject,
    /// Text of the rule.
    pub rule: Arc<str>,
    /// Most recent value above the one at which the alert ends, in the unit `measure`.
    pub value: f64,
    /// Threshold above which the rule starts an alert.
    pub threshold: f64,
    /// Unit of `value` and `threshold`.
    pub measure: Measure,
    /// The session that the value was measured for; `None` if the rule is about the server.
    pub session: Option<SessionInfo>,
    /// Time of the sample that `value` is from, in microseconds since 1970 by the server's clock;
    /// `None` for [`RuleSubject::Unreachable`].
    pub sampled_us: Option<i64>,
}

/// A session as shown with an alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Process id of the session's backend.
    pub pid: i32,
    /// Role of the session.
    pub user: Arc<str>,
    /// Database of the session.
    pub database: Arc<str>,
    /// Statement on one line.
    pub query: String,
}

impl SessionInfo {
    pub(super) fn new(backend: &BackendActivity) -> Self {
        let word = |word: &Option<Arc<str>>| word.clone().unwrap_or_else(|| "-".into());
        Self {
            pid: backend.pid,
            user: word(&backend.user),
            database: word(&backend.database),
            query: backend.query.as_ref().map(SqlText::one_line).unwrap_or_default(),
        }
    }
}

/// Formats the alert as `query > 5m: 6m12s, 4711 app@shop select …`.
impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.measure.format_value(self.value))?;
        match &self.session {
            None => Ok(()),
            Some(SessionInfo { pid, user, database, query }) => {
                write!(f, ", {pid} {user}@{database} {query}")
            }
        }
    }
}

/// A rule that cannot be evaluated because the role cannot see its input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UncheckedRule {
    /// Name of the server that the rule was evaluated for.
    pub server: Arc<str>,
    /// Quantity that the rule watches.
    pub subject: RuleSubject,
    /// Text of the rule.
    pub rule: Arc<str>,
    /// The data that is hidden, and the grant that helps.
    pub reason: String,
}

/// Formats the rule as `alert 'query > 5m' cannot be checked: …`.
impl fmt::Display for UncheckedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "alert '{}' cannot be checked: {}", self.rule, self.reason)
    }
}

/// The start or the end of an alert.
#[derive(Clone, Debug, PartialEq)]
pub enum AlertChange {
    /// The threshold has been exceeded for the rule's hold time.
    Started(Alert),
    /// The alert ended. The duration is the time since the value first exceeded the threshold.
    Ended(Alert, Duration),
}

/// Evaluates rules on the samples of one server, and tracks their alerts.
#[derive(Clone, Debug)]
pub struct RuleEvaluator {
    server: Arc<str>,
    rules: Arc<[AlertRule]>,
    /// Values above their rule's threshold, and firing alerts that have not fallen to the value at
    /// which they end, by index of the rule and key of the alert.
    active: BTreeMap<(usize, AlertKey), ActiveAlert>,
}

#[derive(Clone, Debug)]
struct ActiveAlert {
    since: Instant,
    alert: Alert,
    /// Whether the value was above the threshold for long enough and the alert was reported.
    is_firing: bool,
}

impl RuleEvaluator {
    /// Creates an evaluator in which no alert is firing.
    pub fn new(server: &str, rules: Arc<[AlertRule]>) -> Self {
        Self { server: server.into(), rules, active: BTreeMap::new() }
    }

    /// Returns the alerts that have started and not ended.
    pub fn firing(&self) -> impl Iterator<Item = &Alert> {
        self.active
            .values()
            .filter(|active_alert| active_alert.is_firing)
            .map(|active_alert| &active_alert.alert)
    }

    /// Returns the rules that cannot be evaluated on a sample, because the role cannot see their
    /// input. A rule with a firing alert counts as evaluated, even if more data is hidden.
    pub fn unchecked(&self, health: &ServerHealth) -> Vec<UncheckedRule> {
        let ServerHealth::Read(snapshot) = health else { return Vec::new() };
        let unchecked = |rule: &AlertRule| {
            if self.firing().any(|alert| alert.rule == rule.text) {
                return None;
            }
            let reason = values::hidden_input(rule, snapshot)?;
            let (server, rule_text) = (Arc::clone(&self.server), Arc::clone(&rule.text));
            Some(UncheckedRule { server, subject: rule.subject, rule: rule_text, reason })
        };
        self.rules.iter().filter_map(unchecked).collect()
    }

    /// Evaluates the rules on the server's state at `now`, and returns which alerts started or
    /// ended.
    pub fn evaluate(&mut self, now: Instant, health: &ServerHealth) -> Vec<AlertChange> {
        let mut current = BTreeSet::new();
        let mut changes = Vec::new();
        for (at, rule) in Arc::clone(&self.rules).iter().enumerate() {
            let (measured, taken_us) = match (rule.subject, health) {
                (_, ServerHealth::Connecting) => return changes,
                (RuleSubject::Unreachable, ServerHealth::Unreachable { since, .. }) => {
                    let value = now.saturating_duration_since(*since).as_secs_f64();
                    let is_above = value > rule.clear_below;
                    let unreachable =
                        values::RuleValue { key: AlertKey::Server, value, session: None };
                    (is_above.then_some(unreachable).into_iter().collect(), None)
                }
                (RuleSubject::Unreachable, ServerHealth::Read(_)) => (Vec::new(), None),
                (_, ServerHealth::Read(snapshot)) => {
                    (values::values(rule, snapshot), Some(snapshot.activity.taken_us))
                }
                // Without a sample, no alert can end.
                (_, ServerHealth::Unreachable { .. }) => {
                    current.extend(self.active.keys().filter(|(rule, _)| *rule == at).copied());
                    continue;
                }
            };
            for measured in measured {
                current.insert((at, measured.key));
                changes.extend(self.observe(now, (at, rule), measured, taken_us));
            }
        }
        let ended: Vec<_> =
            self.active.keys().filter(|key| !current.contains(key)).copied().collect();
        for active_alert in ended.iter().filter_map(|key| self.active.remove(key)) {
            if active_alert.is_firing {
                changes.push(AlertChange::Ended(
                    active_alert.alert,
                    now.saturating_duration_since(active_alert.since),
                ));
            }
        }
        changes
    }

    /// Updates the alert of a value above the rule's clear value. Returns the change if the alert
    /// starts.
    fn observe(
        &mut self,
        now: Instant,
        (at, rule): (usize, &AlertRule),
        measured: values::RuleValue,
        sampled_us: Option<i64>,
    ) -> Option<AlertChange> {
        let values::RuleValue { key, value, session } = measured;
        let alert = Alert {
            server: Arc::clone(&self.server),
            subject: rule.subject,
            rule: Arc::clone(&rule.text),
            value,
            threshold: rule.threshold,
            measure: rule.measure,
            session,
            sampled_us,
        };
        let active_alert = match self.active.get_mut(&(at, key)) {
            Some(active_alert) => {
                active_alert.alert = alert;
                // Between the two values, a firing alert continues, but no new one starts.
                if value <= rule.threshold && !active_alert.is_firing {
                    self.active.remove(&(at, key));
                    return None;
                }
                active_alert
            }
            None if value <= rule.threshold => return None,
            None => {
                let over =
                    if rule.subject.is_elapsed_time() { value - rule.threshold } else { 0.0 };
                let over = Duration::try_from_secs_f64(over).unwrap_or_default();
                let since = now.checked_sub(over).unwrap_or(now);
                self.active.entry((at, key)).or_insert(ActiveAlert {
                    since,
                    alert,
                    is_firing: false,
                })
            }
        };
        let is_starting = !active_alert.is_firing
            && now.saturating_duration_since(active_alert.since) >= rule.hold_for;
        active_alert.is_firing |= is_starting;
        is_starting.then(|| AlertChange::Started(active_alert.alert.clone()))
    }
}

impl AlertChange {
    /// Returns the alert that changed.
    pub fn alert(&self) -> &Alert {
        match self {
            Self::Started(alert) | Self::Ended(alert, _) => alert,
        }
    }
}

/// Formats the change as `query > 5m: …`, or states that the alert is over.
impl fmt::Display for AlertChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(alert) => alert.fmt(f),
            Self::Ended(alert, lasted) => {
                write!(f, "over after {}: {alert}", format_duration(lasted.as_secs_f64()))
            }
        }
    }
}

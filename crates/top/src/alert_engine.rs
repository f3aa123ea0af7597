//! Evaluates alert rules on every sample and notifies the slow log, webhooks, the program's log,
//! metrics and the screen.
//!
//! The engine runs on the sampler threads and waits only for file writes: webhooks, which may be
//! slow, have their own threads. A failure here becomes a sentence on the screen and affects
//! nothing else.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_stats::Registry;
use parking_lot::{Mutex, MutexGuard};

use crate::{
    ServerHealth,
    audit::Audit,
    metrics::ServerMetrics,
    rules::{Alert, AlertChange, AlertRule, RuleEvaluator, UncheckedRule},
    sampler::{SampleRequest, with_causes},
    slow_statements::{SlowLog, SlowStatement, SlowStatementDetector},
    webhook::{WebhookEvent, WebhookSender},
};

/// Configuration of an [`AlertEngine`]: the conditions to detect, and the outputs.
#[derive(Debug, Default)]
pub struct AlertConfig {
    /// Duration above which a statement counts as slow. Each slow statement is reported once.
    pub slow: Option<Duration>,
    /// File that slow statements are appended to.
    pub slow_log: Option<SlowLog>,
    /// Rules that are evaluated on every sample of every server.
    pub rules: Vec<AlertRule>,
    /// Webhooks that receive slow statements and alerts.
    pub webhooks: Vec<WebhookSender>,
    /// Registry in which each server's metrics are created.
    pub registry: Option<Registry>,
    /// Log to which the outcome of each signal is written.
    pub audit: Option<Audit>,
    /// Whether slow statements, alerts and rules that cannot be evaluated are also written to the
    /// program's log.
    pub log_events: bool,
}

/// The alert rules and the outputs for events, from which the monitor of each server is created.
/// Clones share all outputs.
#[derive(Clone, Debug)]
pub struct AlertEngine {
    slow: Option<Duration>,
    rules: Arc<[AlertRule]>,
    registry: Option<Registry>,
    log_events: bool,
    shared: Arc<EngineShared>,
}

#[derive(Debug)]
struct EngineShared {
    log: Mutex<SlowLogState>,
    webhooks: Vec<WebhookSender>,
    audit: Option<Arc<Audit>>,
}

/// The slow statement log, and the error of the last attempt to open or write it, if it failed.
#[derive(Debug)]
struct SlowLogState {
    file: Option<SlowLog>,
    problem: Option<String>,
}

/// Alerts of one server and failing outputs, as shown on the screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlertView {
    /// Alerts that are currently firing.
    pub alerts: Vec<Alert>,
    /// Rules that cannot be evaluated.
    pub unchecked: Vec<UncheckedRule>,
    /// One sentence for each output that fails.
    pub problems: Vec<String>,
}

impl Default for AlertEngine {
    fn default() -> Self {
        Self::new(AlertConfig::default())
    }
}

impl AlertEngine {
    /// Creates an engine, whose clones share all outputs.
    pub fn new(plan: AlertConfig) -> Self {
        let has_listener = plan.slow_log.is_some() || !plan.webhooks.is_empty() || plan.log_events;
        let problem = plan.slow_log.as_ref().and_then(SlowLog::problem);
        Self {
            slow: plan.slow.filter(|_| has_listener),
            rules: plan.rules.into(),
            registry: plan.registry,
            log_events: plan.log_events,
            shared: Arc::new(EngineShared {
                log: Mutex::new(SlowLogState { file: plan.slow_log, problem }),
                webhooks: plan.webhooks,
                audit: plan.audit.map(Arc::new),
            }),
        }
    }

    /// Whether the slow threshold is so short that samplers must read complete texts even of
    /// statements that have run for less than a second.
    pub(crate) fn needs_full_texts(&self) -> bool {
        SampleRequest::needs_full_texts(self.slow)
    }

    /// Creates the monitor of the server called `name`.
    pub(crate) fn for_server(&self, name: &str) -> ServerMonitor {
        ServerMonitor {
            engine: self.clone(),
            slow_detector: self.slow.map(|slow| SlowStatementDetector::new(name, slow)),
            evaluator: RuleEvaluator::new(name, Arc::clone(&self.rules)),
            unchecked: Vec::new(),
            metrics: self.registry.as_ref().map(|registry| ServerMetrics::new(registry, name)),
        }
    }

    /// Returns the audit log of signals, if there is one.
    pub(crate) fn audit(&self) -> Option<Arc<Audit>> {
        self.shared.audit.clone()
    }

    /// Waits at most `timeout` until the webhooks have sent or given up all queued events. They
    /// start no delivery after that.
    pub fn finish(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        for webhook in &self.shared.webhooks {
            webhook.finish(end.saturating_duration_since(Instant::now()));
        }
    }

    fn log(&self) -> MutexGuard<'_, SlowLogState> {
        // A panic elsewhere does not corrupt the log: a line is written completely or not at all.
        self.shared.log.lock()
    }

    /// Appends slow statements to the slow log, and remembers the error if that fails.
    fn append_slow(&self, slow: &[SlowStatement]) {
        let mut log = self.log();
        let SlowLogState { file: Some(file), problem } = &mut *log else { return };
        for slow in slow {
            match file.write(slow) {
                Ok(()) => *problem = None,
                Err(error) => {
                    let text = with_causes(&error);
                    if problem.as_ref() != Some(&text) {
                        tracing::error!(%error, pid = slow.pid, "cannot log slow statement");
                    }
                    *problem = Some(text);
                }
            }
        }
    }

    fn problems(&self) -> Vec<String> {
        let webhooks = self.shared.webhooks.iter().filter_map(WebhookSender::problem);
        self.log().problem.clone().into_iter().chain(webhooks).collect()
    }
}

/// Tracks alerts and slow statements of one server from sample to sample.
#[derive(Debug)]
pub(crate) struct ServerMonitor {
    engine: AlertEngine,
    slow_detector: Option<SlowStatementDetector>,
    evaluator: RuleEvaluator,
    /// Rules that could not be evaluated in the last sample.
    unchecked: Vec<UncheckedRule>,
    metrics: Option<ServerMetrics>,
}

impl ServerMonitor {
    /// Evaluates a server's state, reports new events, and returns the alerts to show on the
    /// screen.
    pub(crate) fn observe(&mut self, health: &ServerHealth) -> AlertView {
        let mut slow = Vec::new();
        if let (ServerHealth::Read(snapshot), Some(slow_detector)) =
            (health, &mut self.slow_detector)
        {
            slow = slow_detector.detect(&snapshot.activity);
        }
        let changes = self.evaluator.evaluate(Instant::now(), health);
        if let ServerHealth::Read(_) = health {
            let before = std::mem::replace(&mut self.unchecked, self.evaluator.unchecked(health));
            if self.engine.log_events {
                log_unchecked(&before, &self.unchecked);
            }
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.update(health, self.evaluator.firing(), &self.unchecked);
        }
        if self.engine.log_events {
            log_events(&slow, &changes);
        }
        self.engine.append_slow(&slow);
        let events: Vec<WebhookEvent> = slow
            .into_iter()
            .map(WebhookEvent::Slow)
            .chain(changes.into_iter().map(WebhookEvent::Alert))
            .collect();
        if !events.is_empty() {
            for webhook in &self.engine.shared.webhooks {
                webhook.notify(events.iter().cloned());
            }
        }
        AlertView {
            alerts: self.evaluator.firing().cloned().collect(),
            unchecked: self.unchecked.clone(),
            problems: self.engine.problems(),
        }
    }
}

/// Logs the rules that cannot be evaluated (`now`) and are not among those of the previous sample
/// (`before`).
fn log_unchecked(before: &[UncheckedRule], now: &[UncheckedRule]) {
    let is_new = |one: &&UncheckedRule| !before.iter().any(|known| known.rule == one.rule);
    for UncheckedRule { server, rule, reason, .. } in now.iter().filter(is_new) {
        let (server, rule) = (&**server, &**rule);
        tracing::warn!(server, rule, reason, "alert cannot be checked");
    }
}

fn log_events(slow: &[SlowStatement], changes: &[AlertChange]) {
    for slow in slow {
        let SlowStatement { server, database, user, pid, seconds, query, .. } = slow;
        tracing::warn!(server, database, user, pid, seconds, query, "slow statement");
    }
    for change in changes {
        let alert = change.alert();
        let (server, rule, value) = (&*alert.server, &*alert.rule, alert.value);
        let (pid, query) = match &alert.session {
            Some(who) => (Some(who.pid), Some(who.query.as_str())),
            None => (None, None),
        };
        match change {
            AlertChange::Started(_) => {
                tracing::warn!(server, rule, value, pid, query, "alert started");
            }
            AlertChange::Ended(_, lasted) => {
                let seconds = lasted.as_secs_f64();
                tracing::warn!(server, rule, value, pid, seconds, "alert ended");
            }
        }
    }
}

/// Groups alerts by rule. Returns, for each rule, the number of its alerts and the alert with the
/// largest value.
pub(crate) fn by_rule(alerts: &[Alert]) -> Vec<(usize, &Alert)> {
    let mut groups: BTreeMap<&str, (usize, &Alert)> = BTreeMap::new();
    for alert in alerts {
        let group = groups.entry(&alert.rule).or_insert((0, alert));
        group.0 += 1;
        if alert.value > group.1.value {
            group.1 = alert;
        }
    }
    groups.into_values().collect()
}

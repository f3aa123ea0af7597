//! Looks at every reading for what somebody wants to be told of, and tells it: to a log of slow statements, to
//! webhooks, to the program's own log, to metrics, and to the screen.
//!
//! It runs on the threads of samplers and waits for nothing but a file: what is slow to tell, a webhook, has a
//! thread of its own. Whatever fails here is a sentence for the screen and stops nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use howdah_stats::Registry;

use crate::{
    Standing,
    audit::Audit,
    metrics::Figures,
    rules::{Alert, Change, Guard, Rule, Unchecked},
    sampler::{Wanted, with_causes},
    slow::{SlowLog, SlowStatement, Watcher},
    webhook::{Event, WebhookSender},
};

/// What to look for, and whom to tell.
#[derive(Debug, Default)]
pub struct Plan {
    /// From how long on a statement is slow; each is told once.
    pub slow: Option<Duration>,
    /// The file that slow statements are appended to.
    pub slow_log: Option<SlowLog>,
    /// What else is told.
    pub rules: Vec<Rule>,
    /// Who is told.
    pub couriers: Vec<WebhookSender>,
    /// Where figures go.
    pub registry: Option<Registry>,
    /// Where signals are written that somebody sends.
    pub audit: Option<Audit>,
    /// Slow statements and alerts are lines of the program's log, too.
    pub logs: bool,
}

/// Looks at all servers. Clones share the log, the webhooks and the figures.
#[derive(Clone, Debug)]
pub struct AlertEngine {
    slow: Option<Duration>,
    rules: Arc<[Rule]>,
    registry: Option<Registry>,
    logs: bool,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    log: Mutex<Log>,
    couriers: Vec<WebhookSender>,
    audit: Option<Arc<Audit>>,
}

/// The log of slow statements, and why the last one is not in it.
#[derive(Debug)]
struct Log {
    file: Option<SlowLog>,
    trouble: Option<String>,
}

/// What a screen has to show of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sight {
    /// The alerts that hold at a server.
    pub alerts: Vec<Alert>,
    /// The rules that cannot be evaluated at that server.
    pub unchecked: Vec<Unchecked>,
    /// What cannot be told, and why.
    pub troubles: Vec<String>,
}

impl Default for AlertEngine {
    fn default() -> Self {
        Self::new(Plan::default())
    }
}

impl AlertEngine {
    /// A lookout for this plan.
    pub fn new(plan: Plan) -> Self {
        let has_listener = plan.slow_log.is_some() || !plan.couriers.is_empty() || plan.logs;
        let trouble = plan.slow_log.as_ref().and_then(SlowLog::trouble);
        Self {
            slow: plan.slow.filter(|_| has_listener),
            rules: plan.rules.into(),
            registry: plan.registry,
            logs: plan.logs,
            shared: Arc::new(Shared {
                log: Mutex::new(Log { file: plan.slow_log, trouble }),
                couriers: plan.couriers,
                audit: plan.audit.map(Arc::new),
            }),
        }
    }

    /// Whether it tells of statements that are so short that their texts are not read whole.
    pub(crate) fn wants_whole_texts(&self) -> bool {
        Wanted::whole_texts_for(self.slow)
    }

    /// What looks at one server.
    pub(crate) fn for_server(&self, name: &str) -> ServerMonitor {
        ServerMonitor {
            lookout: self.clone(),
            watcher: self.slow.map(|slow| Watcher::new(name, slow)),
            guard: Guard::new(name, Arc::clone(&self.rules)),
            unchecked: Vec::new(),
            figures: self.registry.as_ref().map(|registry| Figures::new(registry, name)),
        }
    }

    /// Where signals are written.
    pub(crate) fn audit(&self) -> Option<Arc<Audit>> {
        self.shared.audit.clone()
    }

    /// Waits until webhooks have sent what they were told, but not longer than `patience`.
    pub fn finish(&self, patience: Duration) {
        let end = Instant::now() + patience;
        for courier in &self.shared.couriers {
            courier.finish(end.saturating_duration_since(Instant::now()));
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        // A line is written whole or not at all.
        self.shared.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends to the log what was found to be slow.
    fn write(&self, slow: &[SlowStatement]) {
        let mut log = self.log();
        let Log { file: Some(file), trouble } = &mut *log else { return };
        for slow in slow {
            match file.write(slow) {
                Ok(()) => *trouble = None,
                Err(error) => {
                    let text = with_causes(&error);
                    if trouble.as_ref() != Some(&text) {
                        tracing::error!(%error, pid = slow.pid, "a slow statement is not in the log");
                    }
                    *trouble = Some(text);
                }
            }
        }
    }

    fn troubles(&self) -> Vec<String> {
        let couriers = self.shared.couriers.iter().filter_map(WebhookSender::trouble);
        self.log().trouble.clone().into_iter().chain(couriers).collect()
    }
}

/// Looks at one server.
#[derive(Debug)]
pub(crate) struct ServerMonitor {
    lookout: AlertEngine,
    watcher: Option<Watcher>,
    guard: Guard,
    /// Rules that could not be evaluated in the last reading.
    unchecked: Vec<Unchecked>,
    figures: Option<Figures>,
}

impl ServerMonitor {
    /// Looks at how it stands, and tells what is new to those who listen.
    pub(crate) fn look(&mut self, standing: &Standing) -> Sight {
        let mut slow = Vec::new();
        if let (Standing::Read(snapshot), Some(watcher)) = (standing, &mut self.watcher) {
            slow = watcher.look(&snapshot.activity);
        }
        let changes = self.guard.look(Instant::now(), standing);
        if let Standing::Read(_) = standing {
            let before = std::mem::replace(&mut self.unchecked, self.guard.unchecked(standing));
            if self.lookout.logs {
                log_unchecked(&before, &self.unchecked);
            }
        }
        if let Some(figures) = &mut self.figures {
            figures.show(standing, self.guard.holding(), &self.unchecked);
        }
        if self.lookout.logs {
            log_lines(&slow, &changes);
        }
        self.lookout.write(&slow);
        let events: Vec<Event> = slow
            .into_iter()
            .map(Event::Slow)
            .chain(changes.into_iter().map(Event::Alert))
            .collect();
        if !events.is_empty() {
            for courier in &self.lookout.shared.couriers {
                courier.tell(events.iter().cloned());
            }
        }
        Sight {
            alerts: self.guard.holding().cloned().collect(),
            unchecked: self.unchecked.clone(),
            troubles: self.lookout.troubles(),
        }
    }
}

/// Logs the rules that can no longer be evaluated; `before` are those of the last reading.
fn log_unchecked(before: &[Unchecked], now: &[Unchecked]) {
    let is_new = |one: &&Unchecked| !before.iter().any(|known| known.rule == one.rule);
    for Unchecked { server, rule, reason, .. } in now.iter().filter(is_new) {
        let (server, rule) = (&**server, &**rule);
        tracing::warn!(server, rule, reason, "an alert cannot be checked");
    }
}

fn log_lines(slow: &[SlowStatement], changes: &[Change]) {
    for slow in slow {
        let SlowStatement { server, database, user, pid, seconds, query, .. } = slow;
        tracing::warn!(server, database, user, pid, seconds, query, "a slow statement");
    }
    for change in changes {
        let alert = change.alert();
        let (server, rule, value) = (&*alert.server, &*alert.rule, alert.value);
        let (pid, query) = match &alert.who {
            Some(who) => (Some(who.pid), Some(who.query.as_str())),
            None => (None, None),
        };
        match change {
            Change::Began(_) => {
                tracing::warn!(server, rule, value, pid, query, "an alert begins");
            }
            Change::Ended(_, lasted) => {
                let seconds = lasted.as_secs_f64();
                tracing::warn!(server, rule, value, pid, seconds, "an alert is over");
            }
        }
    }
}

/// Alerts by the words of their rules: how many, and the one that is furthest above.
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

//! Lines for alerts and for outputs that fail.

use ratatui::text::Line;

use super::Theme;
use crate::{Model, alert_engine::by_rule, rules::UncheckedRule};

/// Maximum number of rules with their own line.
const RULES_MAX: usize = 3;

/// Returns one line for each of the first [`RULES_MAX`] firing rules of the displayed server, with
/// its worst alert; then, as needed, one line for all further rules, one for the alerts of other
/// servers and one for the rules that cannot be evaluated; and one line per problem.
pub(super) fn lines(model: &Model, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let mut texts = Vec::new();
    let shown = model.servers.get(model.current);
    let groups = shown.map(|watched| by_rule(&watched.alerts.alerts)).unwrap_or_default();
    for (count, worst) in groups.iter().take(RULES_MAX) {
        let times = if *count > 1 { format!(" ({count}×)") } else { String::new() };
        texts.push(format!("ALERT{times} {worst}"));
    }
    if let Some(more @ 1..) = groups.len().checked_sub(RULES_MAX) {
        texts.push(format!("ALERT … and {more} more"));
    }
    let elsewhere = model
        .servers
        .iter()
        .enumerate()
        .filter(|(at, watched)| *at != model.current && !watched.alerts.alerts.is_empty());
    let elsewhere: Vec<&str> = elsewhere.map(|(_, watched)| watched.name.as_str()).collect();
    if !elsewhere.is_empty() {
        texts.push(format!("ALERT at {}", elsewhere.join(", ")));
    }
    texts.extend(shown.into_iter().flat_map(|watched| unchecked(&watched.alerts.unchecked)));
    // All servers share the log and the webhooks.
    texts.extend(shown.into_iter().flat_map(|watched| watched.alerts.problems.clone()));
    let pooled = model.snapshot().and_then(|snapshot| snapshot.pooled_clients.as_ref());
    texts.extend(pooled.into_iter().flat_map(|pooled| pooled.problems.clone()));
    let line = |text: String| {
        Line::styled(text.chars().take(usize::from(width)).collect::<String>(), theme.bad)
    };
    texts.into_iter().map(line).collect()
}

/// Returns one line for all rules that cannot be evaluated. The privileges page names the grant.
fn unchecked(unchecked: &[UncheckedRule]) -> Option<String> {
    let rules: Vec<&str> = unchecked.iter().map(|unchecked| &*unchecked.rule).collect();
    (!rules.is_empty()).then(|| format!("NOT CHECKED, no grant (g): {}", rules.join(", ")))
}

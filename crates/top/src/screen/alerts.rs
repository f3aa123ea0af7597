//! Lines for what somebody wants to be told of: alerts that hold, and what cannot be told.

use ratatui::text::Line;

use super::Theme;
use crate::{Model, lookout::by_rule, rules::Unchecked};

/// Most rules that have a line of their own.
const RULES_MAX: usize = 3;

/// A line for each rule that holds at the server that is looked at, with its worst alert; one for those at
/// others; one for what cannot be told.
pub(super) fn lines(model: &Model, theme: &Theme, width: u16) -> Vec<Line<'static>> {
    let mut texts = Vec::new();
    let shown = model.servers.get(model.shown);
    let groups = shown.map(|watched| by_rule(&watched.sight.alerts)).unwrap_or_default();
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
        .filter(|(at, watched)| *at != model.shown && !watched.sight.alerts.is_empty());
    let elsewhere: Vec<&str> = elsewhere.map(|(_, watched)| watched.name.as_str()).collect();
    if !elsewhere.is_empty() {
        texts.push(format!("ALERT at {}", elsewhere.join(", ")));
    }
    texts.extend(shown.into_iter().flat_map(|watched| unchecked(&watched.sight.unchecked)));
    // All servers have the same log and webhooks.
    texts.extend(shown.into_iter().flat_map(|watched| watched.sight.troubles.clone()));
    let pooled = model.snapshot().and_then(|snapshot| snapshot.pooled.as_ref());
    texts.extend(pooled.into_iter().flat_map(|pooled| pooled.troubles.clone()));
    let line = |text: String| {
        Line::styled(text.chars().take(usize::from(width)).collect::<String>(), theme.bad)
    };
    texts.into_iter().map(line).collect()
}

/// A line for all rules that cannot be evaluated. The page of privileges names the grant.
fn unchecked(unchecked: &[Unchecked]) -> Option<String> {
    let rules: Vec<&str> = unchecked.iter().map(|unchecked| &*unchecked.rule).collect();
    (!rules.is_empty()).then(|| format!("NOT CHECKED, no grant (g): {}", rules.join(", ")))
}

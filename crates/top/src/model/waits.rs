//! The dimension of the waits screen, and its period since a mark.

use super::{Model, session_page::PERIOD_US};
use crate::{ScreenKind, ServerHealth, table::WaitOptions, waits::WaitDimension};

/// Returns the options of the waits screen at the displayed moment.
pub(super) fn options(model: &Model) -> WaitOptions {
    let Some(snapshot) = model.snapshot().filter(|_| model.screen == ScreenKind::Waits) else {
        return WaitOptions::default();
    };
    let dimension = model.choices.dimension;
    let since_us = period_start(model);
    let Some(since_us) = since_us.filter(|_| dimension != WaitDimension::Event) else {
        return WaitOptions { since_us, profile: None };
    };
    let period = (since_us, snapshot.sampled_us);
    let server = model.current;
    let profile = model.caches.waits.sums(server, period, |sums, period| {
        let Some(history) = &model.history else { return };
        let played = history.play_between(server, period, |health| {
            if let ServerHealth::Read(snapshot) = health {
                sums.add(&snapshot.activity);
            }
        });
        if let Err(error) = played {
            tracing::warn!(%error, server, "history is corrupt");
        }
    });
    WaitOptions { since_us: Some(since_us), profile: Some((dimension, profile)) }
}

/// Returns the start of the period of the waits screen, which ends at the displayed moment: the
/// mark, unless it is later. `None` means the beginning of the history.
pub(crate) fn period_start(model: &Model) -> Option<i64> {
    let until_us = model.snapshot()?.sampled_us;
    let mark_us = model.choices.mark_us.filter(|mark_us| *mark_us <= until_us);
    let is_by_event = model.choices.dimension == WaitDimension::Event;
    mark_us.or_else(|| (!is_by_event).then(|| until_us.saturating_sub(PERIOD_US)))
}

/// Shows waits by the next dimension. Without a mark, the period starts five minutes ago.
pub(super) fn next_dimension(model: &mut Model) {
    if model.screen != ScreenKind::Waits {
        model.notify("waits by dimension are on the waits screen: press 3".to_owned());
        return;
    }
    model.choices.dimension = model.choices.dimension.next();
    if let (None, Some(snapshot)) = (model.choices.mark_us, model.snapshot()) {
        model.choices.mark_us = Some(snapshot.sampled_us.saturating_sub(PERIOD_US));
    }
    model.selected = None;
}

/// Starts the period of the waits screen at the displayed moment, or, if it starts there already,
/// at the beginning of the history.
pub(super) fn mark(model: &mut Model) {
    let Some(now_us) = model.snapshot().map(|snapshot| snapshot.sampled_us) else { return };
    if model.choices.mark_us == Some(now_us) {
        model.choices.mark_us = None;
        model.notify("waits of all samples".to_owned());
    } else {
        model.choices.mark_us = Some(now_us);
        model.notify("waits since now".to_owned());
    }
}

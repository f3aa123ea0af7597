//! SHOW CAPTURE: what is recorded of clients' traffic.

use super::{
    super::view::View,
    Kind::{self, Int8, Text},
    Value,
};

pub(super) const COLUMNS: &[(&str, Kind)] = &[
    ("state", Text),
    ("path", Text),
    ("since", Text),
    ("events", Int8),
    ("sessions", Int8),
    ("files", Int8),
    ("waiting_bytes", Int8),
    ("gaps", Int8),
    ("lost_bytes", Int8),
    ("unknown_statements", Int8),
    ("copies_without_rows", Int8),
    ("error", Text),
];

/// The capture under way, or the last; no row if there was none.
pub(super) fn rows(view: &View) -> Vec<Vec<Value>> {
    let Some(capture) = &view.capture else { return Vec::new() };
    let state = match (&capture.error, capture.is_over) {
        (Some(_), _) => "failed",
        (None, true) => "ended",
        (None, false) => "active",
    };
    let tally = &capture.tally;
    vec![vec![
        state.into(),
        capture.path.display().to_string().into(),
        capture.began.to_string().into(),
        tally.events.into(),
        tally.sessions.into(),
        capture.files.into(),
        capture.waiting_bytes.into(),
        tally.gaps.into(),
        tally.lost_bytes.into(),
        tally.unknown_statements.into(),
        tally.copies_without_rows.into(),
        capture.error.clone().into(),
    ]]
}

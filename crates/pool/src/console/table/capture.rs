//! SHOW CAPTURE: the capture of clients' traffic.

use super::{
    super::snapshot::PoolerSnapshot,
    CellValue,
    ColumnType::{self, Int8, Text},
};

pub(super) const COLUMNS: &[(&str, ColumnType)] = &[
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

/// Returns one row for the running capture, or for the last one; no row if there was none yet.
pub(super) fn rows(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let Some(capture) = &view.capture else { return Vec::new() };
    let state = match (&capture.error, capture.is_finished) {
        (Some(_), _) => "failed",
        (None, true) => "ended",
        (None, false) => "active",
    };
    let tally = &capture.tally;
    vec![vec![
        state.into(),
        capture.path.display().to_string().into(),
        capture.started.to_string().into(),
        tally.events.into(),
        tally.sessions.into(),
        capture.files.into(),
        capture.queued_bytes.into(),
        tally.gaps.into(),
        tally.lost_bytes.into(),
        tally.unknown_statements.into(),
        tally.copies_without_rows.into(),
        capture.error.clone().into(),
    ]]
}

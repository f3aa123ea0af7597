//! Logs the result of a load: one line for the whole load, and the problems of individual
//! relations.

use crate::{diff::RelationIdentity, load::LoadReport};

/// Maximum number of problems logged one by one. The others are only counted.
const LOGGED_PROBLEMS_MAX: usize = 5;

/// Logs the result of a load into the server called `server`.
pub(crate) fn log_load_report(server: &str, loaded: &LoadReport) {
    let pages = loaded.pages();
    let resident = format!("{:.1} %", loaded.share() * 100.0);
    let usage_restored =
        loaded.usage.as_ref().map(|usage| format!("{:.1} %", usage.share() * 100.0));
    tracing::info!(
        server,
        loaded = pages.loaded,
        resident_before = pages.resident,
        no_room = pages.no_room,
        failed = pages.failed,
        resident,
        usage_restored,
        took = ?loaded.elapsed,
        "image loaded"
    );
    let failed = loaded.outcomes.iter().filter(|outcome| outcome.pages.failed > 0);
    let failed: Vec<_> = failed.collect();
    for outcome in failed.iter().take(LOGGED_PROBLEMS_MAX) {
        let relation = match &outcome.relation {
            RelationIdentity::Named(name) => name.to_string(),
            RelationIdentity::File(file) => format!("file {}", file.filenode),
        };
        let reason = match &outcome.problem {
            Some(problem) => problem.to_string(),
            None => "the load was stopped before its turn".to_owned(),
        };
        let (database, pages) = (outcome.database.as_deref(), outcome.pages.failed);
        tracing::warn!(server, database, relation, pages, reason, "relation loaded only in part");
    }
    if failed.len() > LOGGED_PROBLEMS_MAX {
        let more = failed.len() - LOGGED_PROBLEMS_MAX;
        tracing::warn!(server, more, "more relations loaded only in part");
    }
}

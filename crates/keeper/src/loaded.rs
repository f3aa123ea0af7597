//! What is told of a load: one line in sum, and what stopped it where.

use howdah_warm::{diff::Known, load::Loaded};

/// Reasons that are told one by one. The others are counted.
const REASONS_MAX: usize = 5;

/// Logs the result of a load.
pub(crate) fn tell(server: &str, loaded: &Loaded) {
    let pages = loaded.pages();
    let resident = format!("{:.1} %", loaded.share() * 100.0);
    tracing::info!(
        server,
        loaded = pages.loaded,
        resident_before = pages.resident,
        no_room = pages.no_room,
        failed = pages.failed,
        resident,
        took = ?loaded.elapsed,
        "loaded"
    );
    let failed = loaded.outcomes.iter().filter(|outcome| outcome.pages.failed > 0);
    let failed: Vec<_> = failed.collect();
    for outcome in failed.iter().take(REASONS_MAX) {
        let relation = match &outcome.relation {
            Known::Named(name) => name.to_string(),
            Known::File(file) => format!("file {}", file.filenode),
        };
        let reason = outcome.problem.as_ref().map(ToString::to_string).unwrap_or_default();
        let (database, pages) = (outcome.database.as_deref(), outcome.pages.failed);
        tracing::warn!(server, database, relation, pages, reason, "not all of it could be loaded");
    }
    if failed.len() > REASONS_MAX {
        let more = failed.len() - REASONS_MAX;
        tracing::warn!(server, more, "relations more could not be loaded in whole");
    }
}

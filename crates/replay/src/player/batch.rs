//! Decides which events belong to one batch of messages, and which start and end transactions.

use std::time::Duration;

use howdah_sql::{SqlCommand, TransactionBlock};
use howdah_traffic::{Action, Event, Kind, Text};

/// Maximum captured time between a Parse, its Bind and its Execute if they were sent in one batch.
/// This is a heuristic, because logs have no Sync: drivers that send the three together have them
/// logged within microseconds, while drivers that prepare first need another round trip.
const BATCH_GAP_MAX: Duration = Duration::from_millis(2);

/// Whether `next` belongs to the same batch of messages as `last`, as far as the capture shows
/// that.
pub(super) fn continues_batch(last: &Event, next: &Event) -> bool {
    if ends_without_sync(last)
        && matches!(next.action.kind(), Kind::Simple | Kind::Copy | Kind::Call)
    {
        return next.wire.is_some();
    }
    if let (Some(pipeline), Some(next_pipeline)) = (last.pipeline, next.pipeline) {
        // While a server waits for the rows of a COPY, it ignores a Sync that follows the COPY.
        let copies = |event: &Event| {
            event
                .action
                .sql()
                .is_some_and(|sql| SqlCommand::from_sql(sql.as_bytes()) == SqlCommand::Copy)
        };
        // If the captured messages include each Sync, a COPY may be the last of a batch.
        let fits = if last.messages().is_some() && next.messages().is_some() {
            !(last.action.kind().is_execution() && copies(last))
        } else {
            !copies(last) && !copies(next)
        };
        return pipeline == next_pipeline && fits;
    }
    let gap = next.time.saturating_since(last.captured_end());
    // A Bind alone has no effect, so it waits for its Execute, however late the Execute is.
    continues_statement(last, next)
        && last.action.sql() == next.action.sql()
        && (last.action.kind() == Kind::Bind || gap <= BATCH_GAP_MAX)
}

/// Whether the client is known to have sent no Sync after an event of the extended protocol: then a
/// Query or FunctionCall that follows it ended its pipeline.
fn ends_without_sync(last: &Event) -> bool {
    let lacks_sync = last.messages().is_some_and(|it| !it.as_bytes().ends_with(b"S"));
    last.pipeline.is_some() && lacks_sync
}

fn statement_name(action: &Action) -> Option<&Text> {
    match action {
        Action::Parse { statement, .. } => Some(statement),
        Action::Bind(bound) | Action::Execute(bound) => Some(&bound.statement),
        _ => None,
    }
}

/// Whether `next` uses what `last` has prepared or bound: a Parse, its Bind and its Execute.
pub(super) fn continues_statement(last: &Event, next: &Event) -> bool {
    let is_order_kept = matches!(
        (last.action.kind(), next.action.kind()),
        (Kind::Parse, Kind::Bind | Kind::Execute) | (Kind::Bind, Kind::Execute)
    );
    is_order_kept && statement_name(&last.action) == statement_name(&next.action)
}

/// Whether an action starts a transaction, so that it does not belong to an earlier one.
pub(super) fn begins_transaction(action: &Action) -> bool {
    action.sql().is_some_and(|sql| SqlCommand::from_sql(sql.as_bytes()) == SqlCommand::Begin)
}

/// Whether every transaction that was open before the action is closed after it.
pub(crate) fn ends_transaction(action: &Action) -> bool {
    let closes =
        |sql: &Text| TransactionBlock::after(sql.as_bytes()) == Some(TransactionBlock::Closed);
    action.sql().is_some_and(closes)
}

//! Which events came in one batch of messages, and which begin and end transactions.

use std::time::Duration;

use howdah_sql::{Command, TransactionBlock};
use howdah_traffic::{Action, Event, Kind, Text};

/// How far apart, in captured time, a Parse, its Bind and its Execute may be and still have come in
/// one batch from the client. A log has no Sync, so this is a guess: drivers that send them together
/// have them logged within microseconds of work, drivers that prepare first add a round trip.
const BATCH_GAP: Duration = Duration::from_millis(2);

/// Whether `next` came in the same batch of messages as `last`, as far as the capture can tell.
pub(super) fn continues(last: &Event, next: &Event) -> bool {
    if is_open_behind(last) && matches!(next.action.kind(), Kind::Simple | Kind::Copy | Kind::Call)
    {
        return next.wire.is_some();
    }
    if let (Some(pipeline), Some(next_pipeline)) = (last.pipeline, next.pipeline) {
        // While it waits for the rows of a COPY, a server ignores the Sync behind it.
        let copies = |event: &Event| {
            event.action.sql().is_some_and(|sql| Command::of(sql.as_bytes()) == Command::Copy)
        };
        // Where it is known which Syncs there were, a COPY may be the last.
        let fits = match last.messages().is_some() && next.messages().is_some() {
            true => !(last.action.kind().is_execution() && copies(last)),
            false => !copies(last) && !copies(next),
        };
        return pipeline == next_pipeline && fits;
    }
    let (Some(name), Some(next_name)) = (statement(&last.action), statement(&next.action)) else {
        return false;
    };
    let ahead = matches!(
        (last.action.kind(), next.action.kind()),
        (Kind::Parse, Kind::Bind | Kind::Execute) | (Kind::Bind, Kind::Execute)
    );
    let worked = Duration::from_micros(last.outcome.duration_us.unwrap_or(0));
    let gap = next.time.saturating_since(last.time).saturating_sub(worked);
    // A Bind has no effect of its own, so it waits for its Execute however late that comes.
    ahead
        && name == next_name
        && last.action.sql() == next.action.sql()
        && (last.action.kind() == Kind::Bind || gap <= BATCH_GAP)
}

/// Whether an event of the extended protocol is known to be the last of a pipeline that no Sync ended: a Query or
/// a FunctionCall behind it did.
fn is_open_behind(last: &Event) -> bool {
    let lacks_sync = last.messages().is_some_and(|it| !it.as_bytes().ends_with(b"S"));
    last.pipeline.is_some() && lacks_sync
}

fn statement(action: &Action) -> Option<&Text> {
    match action {
        Action::Parse { statement, .. } => Some(statement),
        Action::Bind(bound) | Action::Execute(bound) => Some(&bound.statement),
        _ => None,
    }
}

/// Whether it begins a transaction, so that it belongs to none before.
pub(super) fn begins(action: &Action) -> bool {
    action.sql().is_some_and(|sql| Command::of(sql.as_bytes()) == Command::Begin)
}

/// Whether no transaction that was open before it is open behind it.
pub(crate) fn ends_transaction(action: &Action) -> bool {
    let closes =
        |sql: &Text| TransactionBlock::after(sql.as_bytes()) == Some(TransactionBlock::Closed);
    action.sql().is_some_and(closes)
}

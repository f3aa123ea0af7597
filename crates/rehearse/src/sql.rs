//! Connects to the servers of a rehearsal. Errors name the side.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{CancelHandle, Client, ConnectTarget, QueryError, ResultSet};
use howdah_report::rehearsal::RehearsalSide;

use crate::error::RehearsalError;

/// Maximum time until a server accepts connections, for example after a reset restarted it.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between connection attempts, and between checks of the stop flag.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The `application_name` of control connections. They do not count as other clients of the server.
pub(crate) const APPLICATION_NAME: &str = "howdah rehearse";

/// Connects to a server of a side.
pub(crate) fn connect(
    side: RehearsalSide,
    target: &ConnectTarget,
) -> Result<Client, RehearsalError> {
    Client::connect(&target.with_application_name(APPLICATION_NAME))
        .map_err(|source| RehearsalError::Connect { side, source: Box::new(source) })
}

/// Connects to a server that may still be starting.
pub(crate) fn connect_after_restart(
    side: RehearsalSide,
    target: &ConnectTarget,
    stop: &AtomicBool,
) -> Result<Client, RehearsalError> {
    let deadline = Instant::now() + RESTART_TIMEOUT;
    loop {
        match connect(side, target) {
            Err(_) if Instant::now() < deadline && !stop.load(Ordering::Relaxed) => {
                thread::sleep(RETRY_INTERVAL);
            }
            result => return result,
        }
    }
}

/// Returns a function that adds the side and the task to a query error.
pub(crate) fn query_error(
    side: RehearsalSide,
    task: &'static str,
) -> impl FnOnce(QueryError) -> RehearsalError {
    move |source| RehearsalError::Query { side, task, source: Box::new(source) }
}

/// Runs statements that may take long. Cancels them when `stop` is set.
pub(crate) fn query_until_stopped(
    client: &mut Client,
    sql: &str,
    stop: &AtomicBool,
) -> Result<Vec<ResultSet>, QueryError> {
    let cancel = client.cancel_handle();
    let finished = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !finished.load(Ordering::Relaxed) {
                if stop.load(Ordering::Relaxed)
                    && let Some(Err(error)) = cancel.as_ref().map(CancelHandle::cancel)
                {
                    tracing::debug!(%error, "cannot cancel a statement");
                }
                thread::park_timeout(RETRY_INTERVAL);
            }
        });
        let result = client.query(sql);
        finished.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        result
    })
}

/// Fails if the user stopped the rehearsal.
pub(crate) fn check_stopped(stop: &AtomicBool) -> Result<(), RehearsalError> {
    if stop.load(Ordering::Relaxed) { Err(RehearsalError::Interrupted) } else { Ok(()) }
}

/// Quotes an identifier.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quotes a string constant.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

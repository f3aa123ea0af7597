//! `--webhook`: the result of a replay, sent as a JSON document at its end.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use howdah_http::client::HttpEndpoint;
use serde_json::Value;

use crate::{context::CommandContext, errors};

/// Maximum time for all attempts.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time for one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay before the second attempt; doubled each time.
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// Returns the receiver of the result.
pub(super) fn receiver(url: &str) -> anyhow::Result<HttpEndpoint> {
    let headers = vec![("Content-Type", "application/json".to_owned())];
    HttpEndpoint::new(concat!("howdah/", env!("CARGO_PKG_VERSION")), url, None, headers)
        .map_err(|error| errors::wrong_usage(format_args!("--webhook: {error}")))
}

/// Sends the result, in several attempts unless the command is interrupted. A failure is reported
/// and does not fail the replay.
pub(super) fn send(ctx: &CommandContext, receiver: &HttpEndpoint, result: &Value) {
    let body = result.to_string();
    let deadline = Instant::now() + TIMEOUT;
    let mut delay = FIRST_DELAY;
    loop {
        let now = Instant::now();
        let Err(error) = receiver.post(body.as_bytes(), deadline.min(now + ATTEMPT_TIMEOUT)) else {
            return;
        };
        let is_last = now + delay >= deadline || ctx.interrupted().load(Ordering::Relaxed);
        if error.is_refusal() || is_last {
            let url = receiver.origin();
            ctx.report(format_args!("warning: the result was not delivered to {url}: {error}"));
            return;
        }
        std::thread::sleep(delay);
        delay *= 2;
    }
}

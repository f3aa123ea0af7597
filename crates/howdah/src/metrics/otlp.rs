//! Sends the registry to a receiver of OpenTelemetry's protocol (OTLP) over HTTP.

use std::{
    path::PathBuf,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use howdah_http::client::{Headers, HttpEndpoint, authorization};
use howdah_stats::{Registry, otlp};

use super::periodic::PeriodicSender;
use crate::errors::WithHint as _;

/// Time for the reply to a request. The end of a command waits for at most two.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends the registry to `url` until the sender is dropped. Failures are logged: one line when they
/// begin, and one when they are over. Values are sums since the start, so a lost request loses no
/// counts.
///
/// # Errors
///
/// The URL is not valid, the token file cannot be read, or the thread cannot be created.
pub(super) fn start(
    url: &str,
    token_file: Option<&PathBuf>,
    registry: Registry,
) -> anyhow::Result<PeriodicSender> {
    let mut headers = Headers::from_iter(authorization("Bearer", token_file)?);
    headers.push(("Content-Type", "application/x-protobuf".to_owned()));
    let endpoint = HttpEndpoint::new("howdah", url, None, headers)
        .with_context(|| "cannot send metrics by OTLP")
        .hint("--metrics-otlp takes a URL such as http://127.0.0.1:4318/v1/metrics")?;
    let (started, mut is_failing) = (SystemTime::now(), false);
    let sender = PeriodicSender::start("metrics-otlp", move || {
        let request = otlp::encode(&registry, "howdah", started, SystemTime::now());
        match endpoint.post(&request, Instant::now() + TIMEOUT) {
            Ok(_) if is_failing => {
                is_failing = false;
                tracing::info!(url = endpoint.display_url(), "metrics are sent again");
            }
            Ok(_) => {}
            Err(error) if !is_failing => {
                is_failing = true;
                tracing::warn!(url = endpoint.display_url(), %error, "cannot send metrics");
            }
            Err(error) => {
                tracing::debug!(url = endpoint.display_url(), %error, "cannot send metrics");
            }
        }
    })?;
    Ok(sender)
}

//! `--admin`: requests that show and change a running replay.

use std::net::SocketAddr;

use anyhow::Context as _;
use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use howdah_http::server::HttpServer;
use howdah_replay::{PaceControl, ProgressReader, Rate};
use serde_json::json;

use crate::{context::CommandContext, errors::WithHint as _};

/// Maximum number of open connections.
const CONNECTIONS_MAX: usize = 16;

/// Serves `GET /status`, `GET /rate` and `PUT /rate` until the result is dropped.
pub(super) fn serve(
    address: SocketAddr,
    pace: &PaceControl,
    ctx: &CommandContext,
) -> anyhow::Result<HttpServer> {
    let progress = ProgressReader::new(ctx.registry());
    let (read, write) = (pace.clone(), pace.clone());
    let status_pace = pace.clone();
    let router = Router::new()
        .route("/status", get(async move || show_status(&status_pace, &progress)))
        .route(
            "/rate",
            get(async move || show_rate(&read))
                .put(async move |body: String| change_rate(&write, &body)),
        )
        .fallback(async || (StatusCode::NOT_FOUND, "try GET /status or PUT /rate\n"));
    let server = HttpServer::start_control("replay-admin", address, CONNECTIONS_MAX, router)
        .context("cannot serve --admin")
        .hint("--admin takes a loopback address and a port, such as 127.0.0.1:9128")?;
    ctx.announce(format_args!("admin: http://{}/status", server.address()));
    Ok(server)
}

fn show_status(pace: &PaceControl, progress: &ProgressReader) -> Response {
    let state = progress.read();
    let (rate, position) = pace.rate_and_position().unzip();
    let status = json!({
        "rate": rate.map(|rate| rate.to_string()),
        "scheduled_time": position.map(|position| position.to_string()),
        "events_ended": state.ended,
        "executions_failed": state.failed,
        "connections": state.connections,
        "lag_s": state.lag.as_secs_f64(),
    });
    ([(CONTENT_TYPE, "application/json")], format!("{status:#}\n")).into_response()
}

fn show_rate(pace: &PaceControl) -> Response {
    match pace.rate_and_position() {
        Some((rate, _)) => format!("{rate}\n").into_response(),
        None => (StatusCode::CONFLICT, "the replay has not begun\n").into_response(),
    }
}

fn change_rate(pace: &PaceControl, body: &str) -> Response {
    let rate = match body.trim().parse() {
        Ok(Rate::Times(rate)) => rate,
        Ok(Rate::Max) => {
            let text = "a running replay cannot be changed to the highest speed\n";
            return (StatusCode::CONFLICT, text).into_response();
        }
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match pace.set_rate(rate) {
        Ok(()) => format!("{rate}\n").into_response(),
        Err(error) => (StatusCode::CONFLICT, format!("{error}\n")).into_response(),
    }
}

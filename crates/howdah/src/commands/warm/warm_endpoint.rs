//! `/warm` of `howdah warm watch` and `follow`: whether servers are warm, for probes over HTTP.
//!
//! A request never waits for a server: it reads the last measurement, which is repeated every few
//! seconds while there are requests. Only the first request after a pause waits a moment for it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use axum::{
    Router,
    extract::RawQuery,
    http::{StatusCode, header::CACHE_CONTROL, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use howdah_http::server::HttpServer;
use howdah_traffic::Timestamp;
use howdah_warm::{
    daemon::{DatabaseReadiness, ReadinessBoard, ServerReadiness, WarmFloors, WarmState},
    heat::HeatShare,
};
use serde_json::{Value, json};

use crate::{
    context::CommandContext,
    errors::WithHint as _,
    metrics::{MetricsArgs, MetricsGuard},
};

/// Maximum open connections of `--listen`.
const CONNECTIONS_MAX: usize = 64;
/// Maximum wait for a new measurement, less than the usual timeout of a probe, 1 s.
const FRESH_TIMEOUT: Duration = Duration::from_millis(800);
const FRESH_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Options of the daemons that report readiness. Flatten into their `Args`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ReadinessArgs {
    /// Report on this address under /warm whether the server is warm, as the address of --metrics
    /// does; port 0 picks a free port
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Percentage of the image's heat (pages by usage count) that must be cached for /warm to
    /// report 200; with DATABASE=, of that database's heat
    #[arg(long, value_name = "PERCENT|DATABASE=PERCENT", default_value = "90", value_parser = floor)]
    warm_min: Vec<Floor>,
}

/// A floor of one database, or of the whole image.
#[derive(Clone, Debug, PartialEq)]
struct Floor {
    database: Option<String>,
    share: f64,
}

fn floor(text: &str) -> Result<Floor, String> {
    let (database, percent) = match text.rsplit_once('=') {
        Some((database, percent)) => (Some(database), percent),
        None => (None, text),
    };
    let percent = percent.trim_end_matches('%').parse::<f64>().ok();
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    match (database, percent) {
        (Some(""), _) | (_, None) => {
            Err("write a percentage from 0 to 100, such as 90, or shop=95 for one database".into())
        }
        (database, Some(percent)) => {
            Ok(Floor { database: database.map(str::to_owned), share: percent / 100.0 })
        }
    }
}

/// A guard that serves `/warm`, and metrics if requested, until it is dropped.
#[derive(Debug)]
pub(super) struct ReadinessGuard {
    _metrics: MetricsGuard,
    _server: Option<HttpServer>,
}

impl ReadinessArgs {
    /// Returns a board with the floors of the options. Of several floors of one kind, the last one
    /// counts.
    pub(super) fn board(&self) -> Arc<ReadinessBoard> {
        let mut floors = WarmFloors::default();
        for floor in &self.warm_min {
            match &floor.database {
                Some(database) => drop(floors.databases.insert(database.clone(), floor.share)),
                None => floors.all = floor.share,
            }
        }
        Arc::new(ReadinessBoard::new(floors))
    }

    /// Serves `/warm` on the addresses of `--listen` and `--metrics`, and metrics on the latter.
    ///
    /// # Errors
    ///
    /// An address is invalid or in use, or the metrics cannot be sent as requested.
    pub(super) fn serve(
        &self,
        ctx: &CommandContext,
        metrics: &MetricsArgs,
        board: &Arc<ReadinessBoard>,
    ) -> anyhow::Result<ReadinessGuard> {
        let metrics_guard = metrics.serve_with(ctx, routes(board))?;
        // One listener may serve both, but two free ports are two.
        let is_separate =
            |listen: &&String| metrics.metrics.as_ref() != Some(*listen) || listen.ends_with(":0");
        let separate = self.listen.as_ref().filter(is_separate);
        let server = match separate {
            None => None,
            Some(address) => {
                let router = routes(board)
                    .route("/healthz", get(async || "ok\n"))
                    .fallback(async || (StatusCode::NOT_FOUND, "try /warm or /healthz\n"));
                let server = HttpServer::start("warm", &**address, CONNECTIONS_MAX, router)
                    .with_context(|| format!("cannot serve /warm on {address}"))
                    .hint(
                        "--listen takes HOST:PORT, such as 0.0.0.0:9189; port 0 picks a free port",
                    )?;
                ctx.announce(format_args!("readiness: http://{}/warm", server.address()));
                Some(server)
            }
        };
        Ok(ReadinessGuard { _metrics: metrics_guard, _server: server })
    }
}

fn routes(board: &Arc<ReadinessBoard>) -> Router {
    let board = Arc::clone(board);
    let warm = async move |RawQuery(query): RawQuery| match ReadinessQuery::parse(query.as_deref())
    {
        Ok(query) => reply(&board, &query).await,
        Err(problem) => (StatusCode::BAD_REQUEST, format!("{problem}\n")).into_response(),
    };
    Router::new().route("/warm", get(warm))
}

/// The parameters of a request.
#[derive(Debug, Default, PartialEq)]
struct ReadinessQuery {
    server: Option<String>,
    database: Option<String>,
    is_text: bool,
}

impl ReadinessQuery {
    fn parse(text: Option<&str>) -> Result<Self, String> {
        let mut query = Self::default();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = percent_decode(value).ok_or_else(|| format!("invalid value of {key:?}"))?;
            match (key, &*value) {
                ("server", _) => query.server = Some(value),
                ("database", _) => query.database = Some(value),
                ("format", "text") => query.is_text = true,
                ("format", "json") => query.is_text = false,
                ("format", _) => return Err("format is json or text".to_owned()),
                _ => {
                    let parameters = "server, database and format";
                    return Err(format!("unknown parameter {key:?}; there are {parameters}"));
                }
            }
        }
        Ok(query)
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                rest = tail;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

async fn reply(board: &ReadinessBoard, query: &ReadinessQuery) -> Response {
    let server = query.server.as_deref();
    let deadline = tokio::time::Instant::now() + FRESH_TIMEOUT;
    while !board.poll(server) && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(FRESH_CHECK_INTERVAL).await;
    }
    let servers = match board.query(server, query.database.as_deref()) {
        Ok(servers) => servers,
        Err(error) => return (StatusCode::NOT_FOUND, format!("{error}\n")).into_response(),
    };
    // Without servers, nothing is known to be warm.
    let is_warm =
        !servers.is_empty() && servers.iter().all(|server| server.state == WarmState::Warm);
    let status = if is_warm { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let now = SystemTime::now();
    let (kind, body) = if query.is_text {
        let lines: String = servers.iter().map(|server| text_line(server, now)).collect();
        let body = if lines.is_empty() { "starting\n".to_owned() } else { lines };
        ("text/plain; charset=utf-8", body)
    } else {
        ("application/json", format!("{}\n", document(is_warm, &servers, now)))
    };
    (status, [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")], body).into_response()
}

/// The document of a reply. `docs/src/guide/warm.md` describes it.
fn document(is_warm: bool, servers: &[ServerReadiness], now: SystemTime) -> Value {
    json!({
        "schema": "howdah_warm_readiness",
        "version": 1,
        "time": micros(now).map(|micros| Timestamp::from_micros(micros).to_string()),
        "warm": is_warm,
        "servers": servers.iter().map(|server| server_document(server, now)).collect::<Vec<_>>(),
    })
}

fn server_document(server: &ServerReadiness, now: SystemTime) -> Value {
    let image = server.image.map(|(taken_at_us, pages)| {
        json!({
            "taken_at": Timestamp::from_micros(taken_at_us).to_string(),
            "age_seconds": age_seconds(micros(now), Some(taken_at_us)),
            "pages": pages,
        })
    });
    let measured_at = server.measured_at.and_then(micros);
    let share = server.share;
    json!({
        "server": server.server,
        "role": server.role.name(),
        "state": server.state.name(),
        "warm": server.state == WarmState::Warm,
        "reason": server.reason,
        "heat_ratio": share.and_then(|share| share.heat_ratio()).map(rounded),
        "page_ratio": share.and_then(|share| share.page_ratio()).map(rounded),
        "floor": rounded(server.floor),
        "unknown_pages": share.map(|share| share.unknown_pages),
        "measured_by": server.measured_by.map(howdah_warm::image::ImageSource::name),
        "measured_at": measured_at.map(|micros| Timestamp::from_micros(micros).to_string()),
        "measured_age_seconds": age_seconds(micros(now), measured_at),
        "image": image,
        "databases": server.databases.iter().map(database_document).collect::<Vec<_>>(),
    })
}

fn database_document(found: &DatabaseReadiness) -> Value {
    let share: &HeatShare = &found.share;
    json!({
        "database": found.database,
        "warm": found.is_warm,
        "heat_ratio": share.heat_ratio().map(rounded),
        "page_ratio": share.page_ratio().map(rounded),
        "floor": rounded(found.floor),
        "pages": share.pages,
        "unknown_pages": share.unknown_pages,
    })
}

/// Returns a line such as `db2:5432 cold 45.0 % of heat, 51.2 % of pages: …`.
fn text_line(server: &ServerReadiness, now: SystemTime) -> String {
    let percent = |ratio: Option<f64>| match ratio {
        Some(ratio) => format!("{:.1} %", ratio * 100.0),
        None => "unknown share".to_owned(),
    };
    let share = match &server.databases[..] {
        [only] => Some(only.share),
        _ => server.share,
    };
    let heat = percent(share.and_then(|share| share.heat_ratio()));
    let pages = percent(share.and_then(|share| share.page_ratio()));
    let measured_at = server.measured_at.and_then(micros);
    let age = age_seconds(micros(now), measured_at).map(|age| format!(", {age:.0} s ago"));
    let reason = server.reason.as_ref().map(|reason| format!(": {reason}"));
    format!(
        "{} {} {heat} of heat, {pages} of pages{}{}\n",
        server.server,
        server.state.name(),
        age.unwrap_or_default(),
        reason.unwrap_or_default(),
    )
}

/// Rounds a ratio to four digits, downwards, so that a share below a floor does not look like it.
fn rounded(ratio: f64) -> f64 {
    (ratio * 10_000.0 + 1e-6).floor() / 10_000.0
}

fn age_seconds(now: Option<i64>, then: Option<i64>) -> Option<f64> {
    let micros = now?.saturating_sub(then?).max(0);
    Some((micros as f64 / 1e5).round() / 10.0)
}

fn micros(time: SystemTime) -> Option<i64> {
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floor_is_a_percentage_with_an_optional_database() {
        let of = |text: &str| floor(text).unwrap();
        assert_eq!(of("90"), Floor { database: None, share: 0.9 });
        assert_eq!(of("a=b=97.5%"), Floor { database: Some("a=b".into()), share: 0.975 });
        for text in ["", "101", "-1", "=90", "shop=", "shop", "NaN"] {
            assert!(floor(text).is_err(), "{text}");
        }
    }

    #[test]
    fn query_parameters_are_decoded() {
        let query =
            ReadinessQuery::parse(Some("server=db1%3A5432&database=a+b&format=text")).unwrap();
        let expected = ReadinessQuery {
            server: Some("db1:5432".into()),
            database: Some("a b".into()),
            is_text: true,
        };
        assert_eq!(query, expected);
        assert_eq!(ReadinessQuery::parse(None).unwrap(), ReadinessQuery::default());
        for text in ["sever=db1", "format=xml", "server=%4", "server=%zz", "server=%ff"] {
            assert!(ReadinessQuery::parse(Some(text)).is_err(), "{text}");
        }
    }
}

//! [`LiveRehearsal`]: a page that shows a running rehearsal, for browsers on this machine.
//!
//! The rehearsal reports to it as to any [`RehearsalObserver`]. Pages request the state again and
//! again; such a request waits on the server until there is a change, so pages in the background,
//! whose timers browsers slow down, stay up to date.

mod state;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use axum::{
    Router,
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use howdah_http::server::{HttpServer, PageAccess, PageServerError};
use howdah_replay::ReplayProgress;
use howdah_report::rehearsal::{RehearsalReport, RunSummary, html::live_page};
use parking_lot::Mutex;
use tokio::{sync::watch, time::timeout};

use self::state::LiveState;
use crate::{
    archive::{HTML_REPORT, RehearsalArchive, ReportFile},
    options::{ChangeSource, RehearsalOptions},
    pages::{file_response, page_response},
    plan::Plan,
    rehearsal::{RehearsalObserver, StepProgress},
};

/// Maximum number of open connections; an open page has one.
const CONNECTIONS_MAX: usize = 32;

/// Maximum time until a request for the state is answered although nothing changed. Shorter than
/// the time after which the HTTP server closes idle connections.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time that the end of the rehearsal is delayed so that open pages can load the result.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between checks whether open pages have loaded the result.
const REPORT_INTERVAL: Duration = Duration::from_millis(20);

/// The page of a running rehearsal. Served until dropped.
#[derive(Debug)]
pub struct LiveRehearsal {
    shared: Arc<LiveShared>,
    server: HttpServer,
}

#[derive(Debug)]
struct LiveShared {
    state: Mutex<LiveState>,
    /// The revision of the state, for requests that wait for a change.
    revision: watch::Sender<u64>,
    /// Time at which a page last requested the state.
    polled: Mutex<Option<Instant>>,
    is_report_served: AtomicBool,
}

impl LiveRehearsal {
    /// Serves the page of a rehearsal that is about to start.
    ///
    /// # Errors
    ///
    /// Other machines could reach the address, or it cannot be listened on.
    pub fn start(address: SocketAddr, options: &RehearsalOptions) -> Result<Self, PageServerError> {
        let shared = Arc::new(LiveShared {
            state: Mutex::new(LiveState::new()),
            revision: watch::Sender::new(0),
            polled: Mutex::new(None),
            is_report_served: AtomicBool::new(false),
        });
        let router = router(Arc::clone(&shared), options);
        let access = PageAccess::default();
        let server = HttpServer::start_pages("live", address, &access, CONNECTIONS_MAX, router)?;
        Ok(Self { shared, server })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Shows the result, or the error that stopped the rehearsal, and ends the server. If a page
    /// has requested the state recently, first waits, for a few seconds at most, until all
    /// connections are closed and, unless the rehearsal stopped with an error, a page has loaded
    /// the report.
    pub fn finish(self, result: Result<&RehearsalReport, &str>) {
        self.shared.change(|state| state.finish(result));
        let polled = *self.shared.polled.lock();
        let is_watched = polled.is_some_and(|polled| polled.elapsed() < 2 * POLL_TIMEOUT);
        if !is_watched {
            return;
        }
        let deadline = Instant::now() + REPORT_TIMEOUT;
        let is_loaded = || result.is_err() || self.shared.is_report_served.load(Ordering::Relaxed);
        while !(is_loaded() && self.server.open_connections() == 0) && Instant::now() < deadline {
            thread::park_timeout(REPORT_INTERVAL);
        }
    }
}

impl RehearsalObserver for LiveRehearsal {
    fn on_plan(&self, plan: &Plan) {
        self.shared.change(|state| state.set_plan(plan.clone()));
    }

    fn on_run(&self, run: &RunSummary) {
        self.shared.change(|state| state.finish_run(run));
    }

    fn on_step(&self, progress: &StepProgress) {
        self.shared.change(|state| state.start_step(progress));
    }

    fn on_replay(&self, progress: ReplayProgress) {
        let mut state = self.shared.state.lock();
        if state.record(progress, Instant::now()) {
            self.shared.publish(&mut state);
        }
    }

    fn on_note(&self, text: &str) {
        self.shared.change(|state| state.add_note(text));
    }
}

impl LiveShared {
    fn change(&self, change: impl FnOnce(&mut LiveState)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.publish(&mut state);
    }

    fn publish(&self, state: &mut LiveState) {
        state.revision += 1;
        self.revision.send_replace(state.revision);
    }

    /// Returns the state as JSON, with the points from `from` on, once its revision is above
    /// `after`, there are such points, or [`POLL_TIMEOUT`] has passed.
    async fn poll(&self, after: u64, from: usize) -> Response {
        *self.polled.lock() = Some(Instant::now());
        let has_points = self.state.lock().points() > from;
        if !has_points {
            let mut revision = self.revision.subscribe();
            // Without a change, the same state is sent again: times have changed.
            let _ = timeout(POLL_TIMEOUT, revision.wait_for(|revision| *revision > after)).await;
        }
        let snapshot = self.state.lock().snapshot(from, Instant::now());
        let json = serde_json::to_vec(&snapshot).unwrap_or_default();
        ([(CONTENT_TYPE, "application/json")], json).into_response()
    }
}

fn router(shared: Arc<LiveShared>, options: &RehearsalOptions) -> Router {
    let dir = options.dir.clone();
    let page = live_page(&title(options), &dir.display().to_string());
    let state = {
        let shared = Arc::clone(&shared);
        async move |uri: Uri| {
            let [after, from] =
                ["after", "from"].map(|name| query_number(uri.query().unwrap_or_default(), name));
            shared.poll(after, usize::try_from(from).unwrap_or(usize::MAX)).await
        }
    };
    let file = async move |uri: Uri| {
        let file = ReportFile::from_name(uri.path().trim_start_matches('/'));
        // Until the end, the folder may have the report of an earlier rehearsal.
        let has_report = shared.state.lock().has_report();
        match (file.filter(|_| has_report), RehearsalArchive::open(dir.clone())) {
            (Some(file), Ok(archive)) => {
                let response = file_response(&archive, Path::new(""), file);
                if file == HTML_REPORT {
                    shared.is_report_served.store(true, Ordering::Relaxed);
                }
                response
            }
            _ => (StatusCode::NOT_FOUND, "there is no report yet\n").into_response(),
        }
    };
    Router::new()
        .route("/", get(async move || page_response(page)))
        .route("/state", get(state))
        .route("/{file}", get(file))
}

/// Returns the value of a query parameter; 0 if it is missing or not a number.
fn query_number(query: &str, name: &str) -> u64 {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.find(|(key, _)| *key == name).map(|(_, value)| value);
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

fn title(options: &RehearsalOptions) -> String {
    let database = options.base.database();
    match &options.change {
        ChangeSource::Server(change) => {
            format!("Rehearsal of {database}: {} and {change}", options.base)
        }
        ChangeSource::Migration { path, .. } => {
            format!("Rehearsal of {database}: {}", path.display())
        }
    }
}

#[test]
fn numbers_of_queries_are_parsed() {
    for (query, expected) in
        [("after=7&from=3", 7), ("from=3", 0), ("after=x", 0), ("after=-1", 0), ("", 0)]
    {
        assert_eq!(query_number(query, "after"), expected, "{query}");
    }
}

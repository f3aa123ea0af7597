//! Prometheus metrics of taking and loading images.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use howdah_connect::ConnectTarget;
use howdah_stats::{Counter, Description, Gauge, Histogram, MetricUnit, Registry};

use crate::load::{LoadEvent, LoadObserver, LoadReport};

/// All metrics of taking and loading images, in the order of the reference page.
pub const METRICS: &[Description] = &[
    DUMPS,
    DUMP_SECONDS,
    IMAGE_PAGES,
    IMAGE_TIMESTAMP,
    LOADS,
    LOAD_SECONDS,
    PLANNED_PAGES,
    DONE_PAGES,
    LOADED_PAGES,
    RESIDENT_RATIO,
];

const DUMPS: Description =
    Description::counter("howdah_warm_dumps_total", "Images taken, by result.")
        .labels(&["server", "end"]);
const DUMP_SECONDS: Description =
    Description::histogram("howdah_warm_dump_seconds", "Time to take an image.")
        .labels(&["server"]);
const IMAGE_PAGES: Description =
    Description::gauge("howdah_warm_image_pages", "Pages in the newest image.").labels(&["server"]);
const IMAGE_TIMESTAMP: Description = Description::gauge(
    "howdah_warm_image_timestamp_seconds",
    "Time when the newest image was taken, in seconds since 1970.",
)
.unit(MetricUnit::Seconds)
.labels(&["server"]);
const LOADS: Description =
    Description::counter("howdah_warm_loads_total", "Loads, by result.").labels(&["server", "end"]);
const LOAD_SECONDS: Description =
    Description::histogram("howdah_warm_load_seconds", "Duration of loads.").labels(&["server"]);
const PLANNED_PAGES: Description = Description::gauge(
    "howdah_warm_planned_pages",
    "Pages planned by the newest load: missing from the cache, and with room in it.",
)
.labels(&["server"]);
const DONE_PAGES: Description = Description::gauge(
    "howdah_warm_processed_pages",
    "Pages of the newest load that were loaded or given up so far.",
)
.labels(&["server"]);
const LOADED_PAGES: Description = Description::counter(
    "howdah_warm_loaded_pages_total",
    "Pages loaded, counted at the end of each load.",
)
.labels(&["server"]);
const RESIDENT_RATIO: Description = Description::gauge(
    "howdah_warm_resident_ratio",
    "Share of the requested pages that is in the cache after the newest load.",
)
.unit(MetricUnit::Ratio)
.labels(&["server"]);

/// The metrics of one server.
#[derive(Debug)]
pub struct WarmMetrics {
    registry: Registry,
    server: String,
    dump_seconds: Histogram,
    image_pages: Gauge,
    image_timestamp: Gauge,
    load_seconds: Histogram,
    planned_pages: Gauge,
    done_pages: Gauge,
    loaded_pages: Counter,
    resident_ratio: Gauge,
}

/// Returns the name of a server in metrics and logs: its endpoints, without the user.
pub fn server_label(target: &ConnectTarget) -> String {
    let places = target.endpoints().iter();
    let places: Vec<_> = places.map(|place| format!("{}:{}", place.host(), place.port())).collect();
    places.join(",")
}

impl WarmMetrics {
    /// Creates the metrics of the server with the label `server`; see [`server_label`].
    pub fn new(registry: &Registry, server: &str) -> Self {
        let labels = [("server", server)];
        for end in ["done", "failed"] {
            // Create both from the start, so that a rate over them starts at zero.
            registry.counter_with(&DUMPS, &[("server", server), ("end", end)]);
            registry.counter_with(&LOADS, &[("server", server), ("end", end)]);
        }
        Self {
            dump_seconds: registry.histogram_with(&DUMP_SECONDS, &labels),
            image_pages: registry.gauge_with(&IMAGE_PAGES, &labels),
            image_timestamp: registry.gauge_with(&IMAGE_TIMESTAMP, &labels),
            load_seconds: registry.histogram_with(&LOAD_SECONDS, &labels),
            planned_pages: registry.gauge_with(&PLANNED_PAGES, &labels),
            done_pages: registry.gauge_with(&DONE_PAGES, &labels),
            loaded_pages: registry.counter_with(&LOADED_PAGES, &labels),
            resident_ratio: registry.gauge_with(&RESIDENT_RATIO, &labels),
            registry: registry.clone(),
            server: server.to_owned(),
        }
    }

    /// Records that an image of `pages` pages was taken at `taken_at_us`, in microseconds since
    /// 1970, and how long that took.
    pub fn record_dump(&self, took: Duration, pages: u64, taken_at_us: i64) {
        self.count(&DUMPS, "done");
        self.dump_seconds.observe(took);
        self.set_image(pages, taken_at_us);
    }

    /// Sets the number of pages of the newest image, and when it was taken, in microseconds since
    /// 1970.
    pub fn set_image(&self, pages: u64, taken_at_us: i64) {
        self.image_pages.set(pages as f64);
        self.image_timestamp.set(taken_at_us as f64 / 1e6);
    }

    /// Records that an image could not be taken or stored.
    pub fn record_dump_failure(&self) {
        self.count(&DUMPS, "failed");
    }

    /// Records a load of an image that finished or was stopped early.
    pub fn record_load(&self, loaded: &LoadReport) {
        let end = if loaded.is_cut_short { "cut short" } else { "done" };
        self.record_end(end, loaded.elapsed, loaded.pages().loaded, loaded.share());
    }

    /// Records that relations were loaded by name. `pages` is the number of pages loaded, and
    /// `share` their fraction of the requested pages.
    pub fn record_tables(&self, took: Duration, pages: u64, share: f64) {
        self.record_end("done", took, pages, share);
    }

    /// Counts a failed load. Its duration and pages are not recorded.
    pub fn record_load_failure(&self) {
        self.count(&LOADS, "failed");
    }

    /// Returns an observer that exports the progress of a load, and forwards every call to
    /// `observer`.
    pub fn progress<'a>(&'a self, observer: &'a dyn LoadObserver) -> LoadProgressMetrics<'a> {
        LoadProgressMetrics { numbers: self, observer, done: AtomicU64::new(0) }
    }

    fn record_end(&self, end: &str, took: Duration, pages: u64, share: f64) {
        self.count(&LOADS, end);
        self.load_seconds.observe(took);
        self.loaded_pages.add(pages);
        self.resident_ratio.set(share);
    }

    fn count(&self, description: &Description, end: &str) {
        self.registry.counter_with(description, &[("server", &self.server), ("end", end)]).add(1);
    }
}

/// Counts the pages of a running load. See [`WarmMetrics::progress`].
pub struct LoadProgressMetrics<'a> {
    numbers: &'a WarmMetrics,
    observer: &'a dyn LoadObserver,
    done: AtomicU64,
}

impl LoadObserver for LoadProgressMetrics<'_> {
    fn planned(&self, pages: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.numbers.done_pages.set(0.0);
        self.numbers.planned_pages.set(pages as f64);
        self.observer.planned(pages);
    }

    fn progressed(&self, pages: u64) {
        // With two threads, the smaller number may be set last; the next chunk corrects it.
        let done = self.done.fetch_add(pages, Ordering::Relaxed) + pages;
        self.numbers.done_pages.set(done as f64);
        self.observer.progressed(pages);
    }

    fn notify(&self, event: &LoadEvent) {
        self.observer.notify(event);
    }

    fn should_stop(&self) -> bool {
        self.observer.should_stop()
    }
}

#[test]
fn progress_is_exported_during_a_load() {
    let registry = Registry::new();
    let numbers = WarmMetrics::new(&registry, "db1:5432");
    let progress = numbers.progress(&());
    let shown = |name: &str| {
        let text = registry.prometheus();
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse::<f64>().unwrap()
    };
    progress.planned(100);
    progress.progressed(30);
    progress.progressed(20);
    assert_eq!(
        (shown("howdah_warm_planned_pages"), shown("howdah_warm_processed_pages")),
        (100.0, 50.0)
    );
    // The server was restarted: the load starts over.
    progress.planned(90);
    assert_eq!(shown("howdah_warm_processed_pages"), 0.0);
    numbers.record_tables(Duration::from_secs(1), 90, 0.5);
    assert_eq!(shown("howdah_warm_loaded_pages_total"), 90.0);
    assert_eq!(shown("howdah_warm_resident_ratio"), 0.5);
    assert_eq!(shown("howdah_warm_dumps_total"), 0.0);
}

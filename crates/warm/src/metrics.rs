//! What runs that take or load images show to Prometheus: the table, and the handles of one server.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use howdah_connect::Target;
use howdah_stats::{Counter, Description, Gauge, Histogram, Registry, Unit};

use crate::load::{Event, Loaded, Observer};

/// Every metric of taking and loading, in the order of the reference page.
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
    Description::counter("howdah_warm_dumps_total", "Images taken, by how that ended.")
        .labels(&["server", "end"]);
const DUMP_SECONDS: Description =
    Description::histogram("howdah_warm_dump_seconds", "How long it took to take an image.")
        .labels(&["server"]);
const IMAGE_PAGES: Description =
    Description::gauge("howdah_warm_image_pages", "Pages in the newest image.").labels(&["server"]);
const IMAGE_TIMESTAMP: Description = Description::gauge(
    "howdah_warm_image_timestamp_seconds",
    "When the newest image was taken, since 1970.",
)
.unit(Unit::Seconds)
.labels(&["server"]);
const LOADS: Description =
    Description::counter("howdah_warm_loads_total", "Loads, by how they ended.")
        .labels(&["server", "end"]);
const LOAD_SECONDS: Description =
    Description::histogram("howdah_warm_load_seconds", "How long loads took.").labels(&["server"]);
const PLANNED_PAGES: Description = Description::gauge(
    "howdah_warm_planned_pages",
    "Pages that the newest load has to load, which were not in the cache and have room there.",
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
    "Share of what was to be loaded that is in the cache, after the newest load.",
)
.unit(Unit::Ratio)
.labels(&["server"]);

/// The handles of one server.
#[derive(Debug)]
pub struct Numbers {
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

/// What a server is called in metrics and logs: where it is, without who asks.
#[must_use]
pub fn name_of(target: &Target) -> String {
    let places = target.endpoints().iter();
    let places: Vec<_> = places.map(|place| format!("{}:{}", place.host(), place.port())).collect();
    places.join(",")
}

impl Numbers {
    /// The numbers of the server that [`name_of`] calls `server`.
    #[must_use]
    pub fn new(registry: &Registry, server: &str) -> Self {
        let labels = [("server", server)];
        for end in ["done", "failed"] {
            // Both are there from the beginning, so that a rate over them begins at nothing.
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

    /// An image of `pages` was taken.
    pub fn dumped(&self, took: Duration, pages: u64, taken_at_us: i64) {
        self.count(&DUMPS, "done");
        self.dump_seconds.observe(took);
        self.image_is(pages, taken_at_us);
    }

    /// What is known of the newest image.
    pub fn image_is(&self, pages: u64, taken_at_us: i64) {
        self.image_pages.set(pages as f64);
        self.image_timestamp.set(taken_at_us as f64 / 1e6);
    }

    /// No image could be taken or kept.
    pub fn dump_failed(&self) {
        self.count(&DUMPS, "failed");
    }

    /// A load of an image came to an end.
    pub fn loaded(&self, loaded: &Loaded) {
        let end = if loaded.is_cut_short { "cut short" } else { "done" };
        self.ended(end, loaded.elapsed, loaded.pages().loaded, loaded.share());
    }

    /// Relations were loaded by their names, `pages` of them, which is this share of what was asked for.
    pub fn warmed(&self, took: Duration, pages: u64, share: f64) {
        self.ended("done", took, pages, share);
    }

    /// Nothing could be loaded.
    pub fn load_failed(&self) {
        self.count(&LOADS, "failed");
    }

    /// An observer that shows how far the load is, and passes everything on to `observer`.
    #[must_use]
    pub fn progress<'a>(&'a self, observer: &'a dyn Observer) -> Progress<'a> {
        Progress { numbers: self, observer, done: AtomicU64::new(0) }
    }

    fn ended(&self, end: &str, took: Duration, pages: u64, share: f64) {
        self.count(&LOADS, end);
        self.load_seconds.observe(took);
        self.loaded_pages.add(pages);
        self.resident_ratio.set(share);
    }

    fn count(&self, description: &Description, end: &str) {
        self.registry.counter_with(description, &[("server", &self.server), ("end", end)]).add(1);
    }
}

/// Counts the pages of one load while it goes on. See [`Numbers::progress`].
pub struct Progress<'a> {
    numbers: &'a Numbers,
    observer: &'a dyn Observer,
    done: AtomicU64,
}

impl Observer for Progress<'_> {
    fn planned(&self, pages: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.numbers.done_pages.set(0.0);
        self.numbers.planned_pages.set(pages as f64);
        self.observer.planned(pages);
    }

    fn advanced(&self, pages: u64) {
        // Of two threads the later may set the smaller number; the next piece corrects it.
        let done = self.done.fetch_add(pages, Ordering::Relaxed) + pages;
        self.numbers.done_pages.set(done as f64);
        self.observer.advanced(pages);
    }

    fn said(&self, event: &Event) {
        self.observer.said(event);
    }

    fn wants_end(&self) -> bool {
        self.observer.wants_end()
    }
}

#[test]
fn what_is_done_is_shown_while_it_goes_on() {
    let registry = Registry::new();
    let numbers = Numbers::new(&registry, "db1:5432");
    let progress = numbers.progress(&());
    let shown = |name: &str| {
        let text = registry.prometheus();
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().parse::<f64>().unwrap()
    };
    progress.planned(100);
    progress.advanced(30);
    progress.advanced(20);
    assert_eq!(
        (shown("howdah_warm_planned_pages"), shown("howdah_warm_processed_pages")),
        (100.0, 50.0)
    );
    // The server was restarted: all begins anew.
    progress.planned(90);
    assert_eq!(shown("howdah_warm_processed_pages"), 0.0);
    numbers.warmed(Duration::from_secs(1), 90, 0.5);
    assert_eq!(shown("howdah_warm_loaded_pages_total"), 90.0);
    assert_eq!(shown("howdah_warm_resident_ratio"), 0.5);
    assert_eq!(shown("howdah_warm_dumps_total"), 0.0);
}

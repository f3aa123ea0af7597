//! What keepers show to Prometheus: the table and the handles.

use std::time::Duration;

use howdah_stats::{Counter, Description, Gauge, Histogram, Registry, Unit};
use howdah_warm::load::Loaded;

/// Every metric of `howdah warm`, in the order of the reference page.
pub const METRICS: &[Description] = &[
    SERVER_UP,
    RESTARTS,
    DUMPS,
    DUMP_SECONDS,
    IMAGE_PAGES,
    IMAGE_TIMESTAMP,
    READ_AHEAD_BYTES,
    LOADS,
    LOAD_SECONDS,
    LOADED_PAGES,
    RESIDENT_RATIO,
];

const SERVER_UP: Description =
    Description::gauge("howdah_warm_server_up", "Whether the server answers, 0 or 1.")
        .labels(&["server"]);
const RESTARTS: Description = Description::counter(
    "howdah_warm_restarts_total",
    "Times that the server came back with an empty cache.",
)
.labels(&["server"]);
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
const READ_AHEAD_BYTES: Description = Description::counter(
    "howdah_warm_read_ahead_bytes_total",
    "Bytes that the operating system was asked to read before the server let anybody in.",
)
.unit(Unit::Bytes)
.labels(&["server"]);
const LOADS: Description =
    Description::counter("howdah_warm_loads_total", "Loads of an image, by how they ended.")
        .labels(&["server", "end"]);
const LOAD_SECONDS: Description =
    Description::histogram("howdah_warm_load_seconds", "How long loads took.").labels(&["server"]);
const LOADED_PAGES: Description =
    Description::counter("howdah_warm_loaded_pages_total", "Pages that were loaded.")
        .labels(&["server"]);
const RESIDENT_RATIO: Description = Description::gauge(
    "howdah_warm_resident_ratio",
    "Share of what was to be loaded that is in the cache, after the newest load.",
)
.unit(Unit::Ratio)
.labels(&["server"]);

/// The handles of one server.
#[derive(Debug)]
pub(crate) struct Numbers {
    registry: Registry,
    server: String,
    pub(crate) up: Gauge,
    pub(crate) restarts: Counter,
    dump_seconds: Histogram,
    image_pages: Gauge,
    image_timestamp: Gauge,
    pub(crate) read_ahead_bytes: Counter,
    load_seconds: Histogram,
    loaded_pages: Counter,
    resident_ratio: Gauge,
}

impl Numbers {
    pub(crate) fn new(registry: &Registry, server: &str) -> Self {
        let labels = [("server", server)];
        for end in ["done", "failed"] {
            // Both are there from the beginning, so that a rate over them begins at nothing.
            registry.counter_with(&DUMPS, &[("server", server), ("end", end)]);
            registry.counter_with(&LOADS, &[("server", server), ("end", end)]);
        }
        Self {
            up: registry.gauge_with(&SERVER_UP, &labels),
            restarts: registry.counter_with(&RESTARTS, &labels),
            dump_seconds: registry.histogram_with(&DUMP_SECONDS, &labels),
            image_pages: registry.gauge_with(&IMAGE_PAGES, &labels),
            image_timestamp: registry.gauge_with(&IMAGE_TIMESTAMP, &labels),
            read_ahead_bytes: registry.counter_with(&READ_AHEAD_BYTES, &labels),
            load_seconds: registry.histogram_with(&LOAD_SECONDS, &labels),
            loaded_pages: registry.counter_with(&LOADED_PAGES, &labels),
            resident_ratio: registry.gauge_with(&RESIDENT_RATIO, &labels),
            registry: registry.clone(),
            server: server.to_owned(),
        }
    }

    pub(crate) fn dumped(&self, took: Duration, pages: u64, taken_at_us: i64) {
        self.count(&DUMPS, "done");
        self.dump_seconds.observe(took);
        self.image_is(pages, taken_at_us);
    }

    /// What is known of the newest image.
    pub(crate) fn image_is(&self, pages: u64, taken_at_us: i64) {
        self.image_pages.set(pages as f64);
        self.image_timestamp.set(taken_at_us as f64 / 1e6);
    }

    pub(crate) fn dump_failed(&self) {
        self.count(&DUMPS, "failed");
    }

    pub(crate) fn loaded(&self, loaded: &Loaded) {
        self.count(&LOADS, if loaded.is_cut_short { "cut short" } else { "done" });
        self.load_seconds.observe(loaded.elapsed);
        self.loaded_pages.add(loaded.pages().loaded);
        self.resident_ratio.set(loaded.share());
    }

    pub(crate) fn load_failed(&self) {
        self.count(&LOADS, "failed");
    }

    fn count(&self, description: &Description, end: &str) {
        self.registry.counter_with(description, &[("server", &self.server), ("end", end)]).add(1);
    }
}

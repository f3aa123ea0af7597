//! The memory of a whole server with the Prometheus backend, per key.

#![allow(clippy::unwrap_used, reason = "test code")]
#![expect(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixDatagram,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_lab::wait_until;
use howdah_statsd::{
    backends::PrometheusBackend,
    server::{ServerParts, StatsdServer},
    settings::{ListenSettings, ObserverType, PrometheusSettings, StatsdSettings},
};

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts the allocated bytes of all threads.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn grow(bytes: usize) {
    let allocated = ALLOCATED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(allocated, Ordering::Relaxed);
}

fn shrink(bytes: usize) {
    ALLOCATED.fetch_sub(bytes, Ordering::Relaxed);
}

// SAFETY: memory comes from `System` and is returned to it with the layout it was requested with;
// the counters are plain numbers.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller upholds the requirements of this method, which are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Large blocks are moved without a copy.
        shrink(layout.size());
        grow(size);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// The counters are those of the process, so the tests run one after another.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const TIMEOUT: Duration = Duration::from_secs(120);
const KEYS: usize = 100_000;

/// Sends a value of each key three times to a server with only the Prometheus backend, each time
/// followed by scrapes until all values are there. Returns the most bytes that were allocated at a
/// time, per key, over those of the idle server.
fn bytes_per_key(kind: &str, sample: &str, settings: PrometheusSettings) -> usize {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("statsd.sock");
    let listen = ([127, 0, 0, 1], 0).into();
    let prometheus = PrometheusBackend::new(&PrometheusSettings { listen, ..settings }).unwrap();
    let address = prometheus.address();
    let settings = StatsdSettings {
        listen: vec![ListenSettings::Unixgram {
            path: socket.clone(),
            mode: None,
            owner: None,
            buffer_bytes: 1 << 20,
        }],
        management: None,
        flush_interval: Duration::from_secs(1),
        ..StatsdSettings::default()
    };
    let parts =
        ServerParts { settings, backends: vec![Box::new(prometheus)], ..ServerParts::default() };
    let server = StatsdServer::start(parts).unwrap();
    let idle = ALLOCATED.load(Ordering::Relaxed);
    PEAK.store(idle, Ordering::Relaxed);
    for round in 1..=3 {
        send(&socket, kind);
        let expected = (round * KEYS) as f64;
        wait_until("all values in a scrape", TIMEOUT, || sum(address, sample) == expected);
    }
    let peak = PEAK.load(Ordering::Relaxed) - idle;
    server.stop();
    peak / KEYS
}

/// Sends a sample of each key, many to a packet. The socket blocks while it is full.
fn send(path: &Path, kind: &str) {
    let socket = UnixDatagram::unbound().unwrap();
    let mut packet = Vec::with_capacity(1500);
    for key in 0..KEYS {
        writeln!(packet, "bench.memory.key{key:07}:1|{kind}").unwrap();
        if packet.len() > 1400 || key + 1 == KEYS {
            socket.send_to(&packet, path).unwrap();
            packet.clear();
        }
    }
}

/// Returns the sum of all samples of a scrape whose names end in `suffix`, without buffering it.
fn sum(address: SocketAddr, suffix: &str) -> f64 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream);
    let (mut line, mut sum) = (String::with_capacity(1024), 0.0);
    while lines.read_line(&mut line).unwrap() > 0 {
        if let Some((name, value)) = line.trim_end().split_once(' ')
            && name.starts_with("bench_")
            && name.ends_with(suffix)
        {
            sum += value.parse::<f64>().unwrap();
        }
        line.clear();
    }
    sum
}

#[test]
fn memory_of_counters_is_bounded() {
    let bytes = bytes_per_key("c", "_total", PrometheusSettings::default());
    println!("{bytes} bytes per counter");
    // With unused capacity; in 1,000,000 counters less of it is ever touched.
    assert!(bytes <= 560, "{bytes}");
}

#[test]
fn memory_of_histograms_is_bounded() {
    let settings =
        PrometheusSettings { timers: ObserverType::Histogram, ..PrometheusSettings::default() };
    let bytes = bytes_per_key("ms", "_count", settings);
    println!("{bytes} bytes per histogram");
    assert!(bytes <= 1900, "{bytes}");
}

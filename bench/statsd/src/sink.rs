//! A Carbon stub that records the server's own counters.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// A listening stub; it runs until the process exits.
#[derive(Clone, Debug)]
pub(crate) struct CarbonSink {
    port: u16,
    totals: Arc<Mutex<SinkTotals>>,
}

/// The values received so far.
#[derive(Debug, Default)]
pub(crate) struct SinkTotals {
    /// Sum of each counter, by key.
    counts: HashMap<String, f64>,
    /// Largest value of every other metric, by key.
    largest: HashMap<String, f64>,
    /// Connections so far, which is the number of flushes.
    connections: u64,
}

impl CarbonSink {
    /// Listens on a free port.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let sink = Self { port, totals: Arc::default() };
        let listening = sink.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let receiving = listening.clone();
                receiving.totals().connections += 1;
                thread::spawn(move || receiving.listen(stream));
            }
        });
        Ok(sink)
    }

    /// The port it listens on.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Discards all recorded values.
    pub(crate) fn clear(&self) {
        *self.totals() = SinkTotals::default();
    }

    /// The sum of all counts of `stats_counts.<key>` so far.
    pub(crate) fn count(&self, key: &str) -> Option<f64> {
        self.totals().counts.get(key).copied()
    }

    /// The largest value of a name that ends in `suffix`.
    pub(crate) fn largest(&self, suffix: &str) -> Option<f64> {
        let totals = self.totals();
        totals.largest.iter().find(|(key, _)| key.ends_with(suffix)).map(|(_, value)| *value)
    }

    /// Waits up to `timeout` for a connection opened after this call.
    pub(crate) fn wait_for_flush(&self, timeout: Duration) {
        let (before, end) = (self.totals().connections, Instant::now() + timeout);
        while self.totals().connections == before && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn totals(&self) -> MutexGuard<'_, SinkTotals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, stream: TcpStream) {
        for line in BufReader::with_capacity(1 << 20, stream).lines().map_while(Result::ok) {
            // Only the server's own metrics matter; a flush may have 100,000 lines.
            if !line.contains("statsd.") {
                continue;
            }
            let mut fields = line.split(' ');
            let (Some(key), Some(value)) = (fields.next(), fields.next()) else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let mut totals = self.totals();
            match key.strip_prefix("stats_counts.") {
                Some(key) => *totals.counts.entry(key.to_owned()).or_default() += value,
                None => {
                    let largest = totals.largest.entry(key.to_owned()).or_insert(value);
                    *largest = largest.max(value);
                }
            }
        }
    }
}

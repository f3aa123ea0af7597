//! A Graphite that keeps what it is told about the server's own counters.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Listens until the process ends.
#[derive(Clone, Debug)]
pub(crate) struct Sink {
    port: u16,
    heard: Arc<Mutex<Heard>>,
}

/// What was heard so far.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Sums of counts, by key.
    counts: HashMap<String, f64>,
    /// Largest values of others, by key.
    largest: HashMap<String, f64>,
    /// Flushes.
    connections: u64,
}

impl Sink {
    /// Listens at a free port.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let sink = Self { port, heard: Arc::default() };
        let kept = sink.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = kept.clone();
                kept.heard().connections += 1;
                thread::spawn(move || kept.listen(stream));
            }
        });
        Ok(sink)
    }

    /// Where.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        *self.heard() = Heard::default();
    }

    /// The sum of all counts of `stats_counts.<key>` so far.
    pub(crate) fn count(&self, key: &str) -> Option<f64> {
        self.heard().counts.get(key).copied()
    }

    /// The largest value of a name that ends in `suffix`.
    pub(crate) fn largest(&self, suffix: &str) -> Option<f64> {
        let heard = self.heard();
        heard.largest.iter().find(|(key, _)| key.ends_with(suffix)).map(|(_, value)| *value)
    }

    /// Waits for the next connection that begins after this call; at most for `patience`.
    pub(crate) fn wait_for_flush(&self, patience: Duration) {
        let (before, end) = (self.heard().connections, Instant::now() + patience);
        while self.heard().connections == before && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(&self, stream: TcpStream) {
        for line in BufReader::with_capacity(1 << 20, stream).lines().map_while(Result::ok) {
            // Only what servers say about themselves is looked at; a flush may have 100,000 lines.
            if !line.contains("statsd.") {
                continue;
            }
            let mut words = line.split(' ');
            let (Some(key), Some(value)) = (words.next(), words.next()) else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let mut heard = self.heard();
            match key.strip_prefix("stats_counts.") {
                Some(key) => *heard.counts.entry(key.to_owned()).or_default() += value,
                None => {
                    let largest = heard.largest.entry(key.to_owned()).or_insert(value);
                    *largest = largest.max(value);
                }
            }
        }
    }
}

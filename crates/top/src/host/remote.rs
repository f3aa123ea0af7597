//! [`AgentMonitor`]: figures of a server on another host, from the agent there.
//!
//! A thread sends the requests, so a slow agent delays a sample by a limited time only, and at most
//! until it is known to be slow. What the agent sends is checked: its size, its numbers, and that
//! it describes the server that is sampled.

use std::{
    collections::HashMap,
    io, mem,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use howdah_collect::{BackendActivity, BackendProcess};
use howdah_http::client::{EndpointError, EndpointTls, Headers, HttpEndpoint};
use parking_lot::{Condvar, Mutex};

use super::{
    HostFigures, HostRates, ProcessFigures,
    agent::{AgentReading, FORMAT, PATH},
    has_started,
    reading::{HostReading, ProcessReading},
};

/// Maximum time of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum time that a sample waits for the agent.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The same, if the agent was late for the previous sample.
const WAIT_FOR_LATE: Duration = Duration::from_millis(20);

/// Maximum number of bytes that are read of a reply: those of twice as many processes as an agent
/// sends.
const REPLY_BYTES_MAX: u64 = 2 << 20;

/// Maximum number of characters of a problem in the header.
const PROBLEM_CHARS_MAX: usize = 120;

/// Maximum amount of memory that is believed: 1 PiB.
const MEMORY_MAX: i64 = 1 << 50;

/// The URL of an agent, with its TLS settings.
#[derive(Clone)]
pub struct AgentEndpoint(Arc<HttpEndpoint>);

impl AgentEndpoint {
    /// Parses the URL of an agent, without a path: `http://127.0.0.1:PORT` or `https://HOST:PORT`.
    ///
    /// # Errors
    ///
    /// The URL is invalid, or TLS cannot be set up.
    pub fn new(url: &str, tls: &EndpointTls) -> Result<Self, EndpointError> {
        let url = format!("{}{PATH}", url.trim_end_matches('/'));
        let endpoint = HttpEndpoint::with_tls("howdah-top", &url, tls, Headers::new())?;
        Ok(Self(Arc::new(endpoint)))
    }

    /// Requests a reading; an error says in a few words what is wrong.
    fn read(&self) -> Result<AgentReading, String> {
        let reply = self.0.get(REPLY_BYTES_MAX, Instant::now() + REQUEST_TIMEOUT);
        let reply = reply.map_err(|error| format!("away: {error}"))?;
        parse_reading(&reply)
    }
}

impl std::fmt::Debug for AgentEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AgentEndpoint").field(&self.0.origin()).finish()
    }
}

/// Parses the body of a reply.
fn parse_reading(reply: &[u8]) -> Result<AgentReading, String> {
    let format = serde_json::from_slice::<serde_json::Value>(reply)
        .ok()
        .and_then(|value| value.get("format")?.as_u64());
    match format {
        Some(format) if format == u64::from(FORMAT) => {
            let reading = serde_json::from_slice::<AgentReading>(reply);
            reading.map_err(|_| "its reply is not valid".to_owned())
        }
        Some(_) => Err("it is of another version of howdah".to_owned()),
        None => Err("its reply is not one of howdah agent".to_owned()),
    }
}

/// The server that is sampled, as SQL describes it.
#[derive(Clone, Debug)]
pub(crate) struct MonitoredServer {
    /// The backend that serves our connection.
    pub(crate) backend: BackendProcess,
    /// The system identifier, if the role may read it.
    pub(crate) system_identifier: Option<String>,
}

impl MonitoredServer {
    /// Checks that a reading describes this server. A standby has the system identifier of its
    /// primary, but not the process that serves our connection.
    fn check(&self, reading: &AgentReading) -> Result<(), String> {
        if let Some(expected) = &self.system_identifier
            && *expected != reading.system_identifier
        {
            let found: String = reading.system_identifier.chars().take(20).collect();
            return Err(format!(
                "refused: it reads another server, with system identifier {found} instead of \
                {expected}"
            ));
        }
        let has_backend = reading.processes.iter().any(|process| {
            process.pid == self.backend.pid
                && has_started(reading.booted_s, process.started_ticks, self.backend.started_us)
        });
        if has_backend {
            Ok(())
        } else {
            Err("refused: it reads another server, without the process of our connection"
                .to_owned())
        }
    }
}

/// Figures of a host and its server's processes, for one sample.
#[derive(Debug, Default)]
pub(crate) struct AgentFigures {
    /// Those of the host; `None` while there are none.
    pub(crate) host: Option<HostFigures>,
    /// Figures of processes by process id; empty while there are none.
    pub(crate) processes: HashMap<i32, ProcessFigures>,
    /// Why there are no figures.
    pub(crate) problem: Option<Arc<str>>,
}

/// Reads figures from an agent. Dropping it stops its thread without waiting for it.
#[derive(Debug)]
pub(crate) struct AgentMonitor {
    name: String,
    shared: Arc<AgentShared>,
    server: Option<MonitoredServer>,
    /// Number of the first request for this server.
    first_request: u64,
    rates: HostRates,
    /// Whether the last sample did not get a reading in time.
    is_late: bool,
    problem: Option<Arc<str>>,
}

#[derive(Debug, Default)]
struct AgentShared {
    exchange: Mutex<AgentExchange>,
    changed: Condvar,
}

/// The last request and the last reply. Requests are numbered, so that a late reply is recognized.
#[derive(Debug, Default)]
struct AgentExchange {
    /// Number of the last request.
    requested: u64,
    /// The last reply, with the number of its request.
    reply: Option<(u64, Result<AgentReading, String>)>,
    should_stop: bool,
}

impl AgentMonitor {
    /// Starts the thread that sends requests.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub(crate) fn start(endpoint: AgentEndpoint) -> io::Result<Self> {
        let shared = Arc::<AgentShared>::default();
        let name = endpoint.0.origin();
        let exchange = Arc::clone(&shared);
        thread::Builder::new().name("agent".to_owned()).spawn(move || exchange.serve(&endpoint))?;
        Ok(Self {
            name,
            shared,
            server: None,
            first_request: 1,
            rates: HostRates::default(),
            is_late: false,
            problem: None,
        })
    }

    /// Sets the server that is sampled from now on.
    pub(crate) fn set_server(&mut self, server: MonitoredServer) {
        self.server = Some(server);
        self.rates = HostRates::default();
        self.first_request = self.shared.exchange.lock().requested + 1;
    }

    /// Requests a reading, while the server is sampled.
    pub(crate) fn request(&self) {
        self.shared.exchange.lock().requested += 1;
        self.shared.changed.notify_all();
    }

    /// Returns figures for a sample with these sessions. Waits for the agent, but at most a second
    /// and a quarter of the interval. If it was late for the previous sample, does hardly wait, and
    /// accepts the reply to an earlier request.
    pub(crate) fn figures(
        &mut self,
        backends: &[BackendActivity],
        interval: Duration,
    ) -> AgentFigures {
        let wait = if self.is_late { WAIT_FOR_LATE } else { WAIT_MAX.min(interval / 4) };
        let (is_current, reply) = self.shared.reply(self.first_request, wait);
        self.is_late = !is_current;
        let outcome = match reply {
            None if self.problem.is_some() => return self.without_figures(),
            None => Err("away: no reply yet".to_owned()),
            Some(Ok(reading)) => match &self.server {
                Some(server) => server.check(&reading).map(|()| reading),
                None => Ok(reading),
            },
            Some(Err(problem)) => Err(problem),
        };
        self.set_problem(outcome.as_ref().err());
        let Ok(reading) = outcome else { return self.without_figures() };
        let host = self.rates.update(&sanitized_host(&reading.host));
        let started: HashMap<i32, i64> =
            backends.iter().map(|backend| (backend.pid, backend.started_us)).collect();
        let of_sample = |process: &ProcessReading| {
            // A session whose start time is hidden has 0.
            started.get(&process.pid).is_some_and(|started| {
                *started == 0 || has_started(reading.booted_s, process.started_ticks, *started)
            })
        };
        let processes = reading.processes.iter().filter(|process| of_sample(process));
        let processes = self.rates.processes.update(processes.map(sanitized_process));
        AgentFigures { host: Some(host), processes, problem: None }
    }

    fn without_figures(&mut self) -> AgentFigures {
        // Rates over the time without figures would be misleading.
        self.rates = HostRates::default();
        AgentFigures { problem: self.problem.clone(), ..AgentFigures::default() }
    }

    /// Sets the problem, and logs it if it is a new one.
    fn set_problem(&mut self, problem: Option<&String>) {
        let problem: Option<Arc<str>> = problem.map(|problem| {
            let line: String =
                howdah_collect::sanitized_line(problem).chars().take(PROBLEM_CHARS_MAX).collect();
            line.into()
        });
        if problem == self.problem {
            return;
        }
        match &problem {
            Some(problem) => tracing::warn!(agent = self.name, %problem, "no figures of the host"),
            None => tracing::info!(agent = self.name, "figures of the host are available again"),
        }
        self.problem = problem;
    }
}

impl Drop for AgentMonitor {
    fn drop(&mut self) {
        self.shared.exchange.lock().should_stop = true;
        self.shared.changed.notify_all();
    }
}

impl AgentShared {
    /// Sends a request whenever one is due, until the monitor is dropped.
    fn serve(&self, endpoint: &AgentEndpoint) {
        let mut last = 0;
        loop {
            let mut exchange = self.exchange.lock();
            while exchange.requested == last && !exchange.should_stop {
                self.changed.wait(&mut exchange);
            }
            if exchange.should_stop {
                return;
            }
            last = exchange.requested;
            drop(exchange);
            let reply = endpoint.read();
            self.exchange.lock().reply = Some((last, reply));
            self.changed.notify_all();
        }
    }

    /// Waits for the reply to the last request; returns whether there is one. Also returns the last
    /// reply, which may be to an earlier request, but not to one before `first`; `None` if there is
    /// none that was not returned before.
    fn reply(&self, first: u64, wait: Duration) -> (bool, Option<Result<AgentReading, String>>) {
        let deadline = Instant::now() + wait;
        let mut exchange = self.exchange.lock();
        loop {
            let is_current =
                matches!(exchange.reply, Some((number, _)) if number == exchange.requested);
            let left = deadline.saturating_duration_since(Instant::now());
            if is_current || left.is_zero() {
                let reply = mem::take(&mut exchange.reply);
                let reply = reply.filter(|(number, _)| *number >= first);
                return (is_current, reply.map(|(_, reply)| reply));
            }
            self.changed.wait_for(&mut exchange, left);
        }
    }
}

/// Returns a reading without numbers that no host has.
fn sanitized_host(reading: &HostReading) -> HostReading {
    let bytes = |number: Option<i64>| number.filter(|number| (0..=MEMORY_MAX).contains(number));
    let (swap_bytes, memory_bytes) = (bytes(reading.swap_bytes), bytes(reading.memory_bytes));
    HostReading {
        load: reading.load.filter(|load| (0.0..1e6).contains(load)),
        memory_bytes,
        available_bytes: bytes(reading.available_bytes),
        swap_bytes,
        swap_used_bytes: bytes(reading.swap_used_bytes).filter(|used| Some(*used) <= swap_bytes),
        ..*reading
    }
}

/// Returns a reading without numbers that no process has.
fn sanitized_process(reading: &ProcessReading) -> ProcessReading {
    let memory_bytes = reading.memory_bytes.filter(|number| (0..=MEMORY_MAX).contains(number));
    ProcessReading { memory_bytes, ..*reading }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKEND: BackendProcess = BackendProcess { pid: 7, started_us: 1_010_000_000 };

    fn reading() -> AgentReading {
        let process = ProcessReading {
            pid: BACKEND.pid,
            started_ticks: 1000,
            at_us: 20_000_000,
            cpu_ticks: 100,
            memory_bytes: Some(4096),
            read_bytes: Some(0),
            written_bytes: None,
        };
        AgentReading {
            format: FORMAT,
            system_identifier: "7301".to_owned(),
            booted_s: 1000,
            host: HostReading { load: Some(0.5), ..HostReading::default() },
            processes: vec![process],
        }
    }

    #[test]
    fn reading_is_of_the_sampled_server() {
        let server = |identifier: Option<&str>, pid, started_us| MonitoredServer {
            backend: BackendProcess { pid, started_us },
            system_identifier: identifier.map(str::to_owned),
        };
        let BackendProcess { pid, started_us } = BACKEND;
        assert_eq!(server(Some("7301"), pid, started_us).check(&reading()), Ok(()));
        assert_eq!(server(None, pid, started_us).check(&reading()), Ok(()));
        let refusal = server(Some("7302"), pid, started_us).check(&reading()).unwrap_err();
        assert!(refusal.contains("system identifier 7301 instead of 7302"), "{refusal}");
        for other in [server(None, 8, started_us), server(None, pid, started_us + 5_000_000)] {
            let refusal = other.check(&reading()).unwrap_err();
            assert!(refusal.contains("without the process"), "{refusal}");
        }
    }

    #[test]
    fn invalid_replies_are_refused() {
        let valid = serde_json::to_vec(&reading()).unwrap();
        assert_eq!(parse_reading(&valid).unwrap().processes, reading().processes);
        let later = serde_json::to_vec(&AgentReading { format: 2, ..reading() }).unwrap();
        assert!(parse_reading(&later).unwrap_err().contains("another version"));
        for reply in [&b""[..], b"{}", b"[1]", &valid[..valid.len() - 1], &[b'['; 100_000]] {
            assert!(parse_reading(reply).unwrap_err().contains("not one of howdah agent"));
        }
        let invalid = String::from_utf8(valid).unwrap().replace("\"pid\":7", "\"pid\":7e99");
        assert!(parse_reading(invalid.as_bytes()).unwrap_err().contains("not valid"));
    }

    #[test]
    fn numbers_that_no_host_has_are_dropped() {
        let host = HostReading {
            load: Some(1e300),
            memory_bytes: Some(i64::MAX),
            available_bytes: Some(-1),
            swap_bytes: Some(10),
            swap_used_bytes: Some(11),
            ..HostReading::default()
        };
        let expected = HostReading { swap_bytes: Some(10), ..HostReading::default() };
        assert_eq!(sanitized_host(&host), expected);
        let process = ProcessReading { memory_bytes: Some(-1), ..reading().processes[0] };
        assert_eq!(sanitized_process(&process).memory_bytes, None);
        // Times and counters may have any value.
        for number in [0, u64::MAX] {
            assert!(!has_started(i64::MIN, number, i64::MAX));
            assert!(!has_started(i64::MAX, number, i64::MIN));
        }
    }
}

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
use serde::Deserialize;

use super::{
    HostFigures, HostRates, ProcessFigures, TICKS_PER_SECOND,
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

/// The problem until the first reply.
const NO_REPLY: &str = "away: no reply yet";

/// Number of readings in a row without the process that serves our connection, after which the
/// agent is refused.
const WITHOUT_BACKEND_MAX: u32 = 2;

/// Microseconds of a clock tick.
const TICK_US: u64 = 1_000_000 / TICKS_PER_SECOND.cast_unsigned();

/// Age of a process, in microseconds, from which its start is not compared with the one that SQL
/// reports: the host's clock may have been set since.
const OLD_US: u64 = 60_000_000;

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
    match serde_json::from_slice::<ReadingFormat>(reply) {
        Ok(ReadingFormat { format: FORMAT }) => {
            let reading = serde_json::from_slice::<AgentReading>(reply);
            reading.map_err(|_| "its reply is not valid".to_owned())
        }
        Ok(_) => Err("it is of another version of howdah".to_owned()),
        Err(_) => Err("its reply is not one of howdah agent".to_owned()),
    }
}

/// The part that readings of all formats have.
#[derive(Deserialize)]
struct ReadingFormat {
    format: u32,
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
    /// Checks that a reading has the system identifier of this server.
    fn check_identifier(&self, reading: &AgentReading) -> Result<(), String> {
        match &self.system_identifier {
            Some(expected) if *expected != reading.system_identifier => {
                let found: String = reading.system_identifier.chars().take(20).collect();
                Err(format!(
                    "refused: it reads another server, with system identifier {found} instead of \
                     {expected}"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns the start of the process that serves our connection, in ticks since the host's boot;
    /// `None` if a reading does not have it. A standby has the system identifier of its primary,
    /// but not this process. `known` is the start in earlier readings: the clocks of the server and
    /// of its kernel agree about it only until one is set.
    fn backend_ticks(&self, reading: &AgentReading, known: Option<u64>) -> Option<u64> {
        let of_backend = reading.processes.iter().filter(|it| it.pid == self.backend.pid);
        let mut ticks = of_backend.map(|process| process.started_ticks);
        ticks.find(|ticks| match known {
            Some(known) => known == *ticks,
            None => has_started(reading.booted_s, *ticks, self.backend.started_us),
        })
    }
}

/// Figures of a host and its server's processes, for one sample.
#[derive(Clone, Debug, Default)]
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
    /// Start of the process that serves our connection, once a reading had it.
    backend_ticks: Option<u64>,
    /// Number of readings in a row without that process.
    without_backend: u32,
    /// Number of the first request for this server.
    first_request: u64,
    rates: HostRates,
    /// The figures of the last reading, or why there are none.
    last: AgentFigures,
    /// Whether there was a reply since the server was set.
    has_reply: bool,
    /// How long the last request took.
    took: Duration,
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
    /// Number of the last request that has a reply, also if that was taken.
    replied: u64,
    /// The last reply, until it is taken.
    reply: Option<AgentReply>,
    should_stop: bool,
}

/// A reply, with the number of its request and the time until it came.
#[derive(Debug)]
struct AgentReply {
    number: u64,
    took: Duration,
    reading: Result<AgentReading, String>,
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
            backend_ticks: None,
            without_backend: 0,
            first_request: 1,
            rates: HostRates::default(),
            last: AgentFigures::default(),
            has_reply: false,
            took: Duration::ZERO,
        })
    }

    /// Sets the server that is sampled from now on.
    pub(crate) fn set_server(&mut self, server: MonitoredServer) {
        self.server = Some(server);
        (self.backend_ticks, self.without_backend) = (None, 0);
        self.rates = HostRates::default();
        (self.last.host, self.last.processes) = (None, HashMap::new());
        self.has_reply = false;
        self.first_request = self.shared.exchange.lock().requested + 1;
    }

    /// Requests a reading, while the server is sampled. Does nothing while the reply to an earlier
    /// request for this server is outstanding.
    pub(crate) fn request(&self) {
        let mut exchange = self.shared.exchange.lock();
        if exchange.replied == exchange.requested || exchange.requested < self.first_request {
            exchange.requested += 1;
            self.shared.changed.notify_all();
        }
    }

    /// Returns figures for a sample with these sessions. Waits for the agent: at most a second,
    /// and a quarter of the interval except for the first reading; hardly at all if its last reply
    /// took longer. Without a new reply, returns the figures of the last one.
    pub(crate) fn figures(
        &mut self,
        backends: &[BackendActivity],
        interval: Duration,
    ) -> AgentFigures {
        let patience = if self.has_reply { WAIT_MAX.min(interval / 4) } else { WAIT_MAX };
        let wait = if self.took >= patience { WAIT_FOR_LATE } else { patience };
        let Some(reply) = self.shared.reply(self.first_request, wait) else {
            self.took = self.took.max(wait);
            if !self.has_reply && self.last.problem.is_none() {
                self.set_problem(NO_REPLY);
            }
            return self.last.clone();
        };
        (self.has_reply, self.took) = (true, reply.took);
        match reply.reading.and_then(|reading| self.checked(reading)) {
            Ok(Some(reading)) => self.update(&reading, backends),
            // A list of processes may miss one that has just started, or while others end.
            Ok(None) if self.last.host.is_some() => {}
            Ok(None) => self.set_problem("away: it has no process of our connection yet"),
            Err(problem) => self.set_problem(&problem),
        }
        self.last.clone()
    }

    /// Returns a reading of the sampled server; `None` if that is not certain.
    fn checked(&mut self, reading: AgentReading) -> Result<Option<AgentReading>, String> {
        let Some(server) = &self.server else { return Ok(Some(reading)) };
        server.check_identifier(&reading)?;
        match server.backend_ticks(&reading, self.backend_ticks) {
            Some(ticks) => {
                (self.backend_ticks, self.without_backend) = (Some(ticks), 0);
                Ok(Some(reading))
            }
            None => {
                self.without_backend += 1;
                if self.without_backend < WITHOUT_BACKEND_MAX {
                    return Ok(None);
                }
                Err("refused: it reads another server, without the process of our connection"
                    .to_owned())
            }
        }
    }

    /// Computes the figures of a reading.
    fn update(&mut self, reading: &AgentReading, backends: &[BackendActivity]) {
        // An agent replies to requests in quick succession with the same reading.
        if self.last.host.is_some() && self.rates.is_last(&reading.host) {
            return;
        }
        let host = self.rates.update(&sanitized_host(&reading.host));
        let started: HashMap<i32, i64> =
            backends.iter().map(|backend| (backend.pid, backend.started_us)).collect();
        let of_sample = |process: &&ProcessReading| {
            // A session whose start time is hidden has 0.
            started.get(&process.pid).is_some_and(|started| {
                *started == 0
                    || is_old(process)
                    || has_started(reading.booted_s, process.started_ticks, *started)
            })
        };
        let processes = reading.processes.iter().filter(of_sample);
        let processes = self.rates.processes.update(processes.map(sanitized_process));
        if self.last.problem.is_some() {
            tracing::info!(agent = self.name, "figures of the host are available again");
        }
        self.last = AgentFigures { host: Some(host), processes, problem: None };
    }

    /// Drops the figures because of a problem, and logs it if the last one was of another kind.
    fn set_problem(&mut self, problem: &str) {
        let line = howdah_collect::sanitized_line(problem);
        let problem: Arc<str> = line.chars().take(PROBLEM_CHARS_MAX).collect::<String>().into();
        let kind = |problem: &str| problem.split(':').next().map(str::to_owned);
        let last = self.last.problem.as_deref().and_then(kind);
        if last != kind(&problem) || self.last.problem.as_deref() == Some(NO_REPLY) {
            tracing::warn!(agent = self.name, %problem, "no figures of the host");
        }
        // Rates over the time without figures would be misleading.
        self.rates = HostRates::default();
        self.last = AgentFigures { problem: Some(problem), ..AgentFigures::default() };
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
            let begin = Instant::now();
            let reading = endpoint.read();
            let reply = AgentReply { number: last, took: begin.elapsed(), reading };
            let mut exchange = self.exchange.lock();
            (exchange.replied, exchange.reply) = (last, Some(reply));
            self.changed.notify_all();
        }
    }

    /// Waits for the reply to the last request. If it does not come in time, returns the reply to
    /// an earlier one, but not to one before `first`. A reply is returned only once.
    fn reply(&self, first: u64, wait: Duration) -> Option<AgentReply> {
        let deadline = Instant::now() + wait;
        let mut exchange = self.exchange.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if exchange.replied == exchange.requested || left.is_zero() {
                return mem::take(&mut exchange.reply).filter(|reply| reply.number >= first);
            }
            self.changed.wait_for(&mut exchange, left);
        }
    }
}

/// Whether a process started so long before its reading that its id was not used again since the
/// sample.
fn is_old(process: &ProcessReading) -> bool {
    process.at_us.saturating_sub(process.started_ticks.saturating_mul(TICK_US)) >= OLD_US
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
    fn clock_that_is_set_changes_nothing() {
        let server = MonitoredServer { backend: BACKEND, system_identifier: None };
        let later = AgentReading { booted_s: 5000, ..reading() };
        assert_eq!(server.backend_ticks(&reading(), None), Some(1000));
        assert_eq!(server.backend_ticks(&later, None), None);
        assert_eq!(server.backend_ticks(&later, Some(1000)), Some(1000));
        assert_eq!(server.backend_ticks(&reading(), Some(999)), None);
        let process = reading().processes[0];
        assert!(!is_old(&process));
        assert!(is_old(&ProcessReading { at_us: 70_000_000, ..process }));
    }

    #[test]
    fn reading_is_of_the_sampled_server() {
        let server = |identifier: Option<&str>, pid, started_us| MonitoredServer {
            backend: BackendProcess { pid, started_us },
            system_identifier: identifier.map(str::to_owned),
        };
        let BackendProcess { pid, started_us } = BACKEND;
        let check = |server: MonitoredServer| server.check_identifier(&reading());
        assert_eq!(check(server(Some("7301"), pid, started_us)), Ok(()));
        assert_eq!(check(server(None, pid, started_us)), Ok(()));
        let refusal = check(server(Some("7302"), pid, started_us)).unwrap_err();
        assert!(refusal.contains("system identifier 7301 instead of 7302"), "{refusal}");
        for other in [server(None, 8, started_us), server(None, pid, started_us + 5_000_000)] {
            assert_eq!(other.backend_ticks(&reading(), None), None);
        }
    }

    #[test]
    fn invalid_replies_are_refused() {
        let valid = serde_json::to_vec(&reading()).unwrap();
        assert_eq!(parse_reading(&valid).unwrap().processes, reading().processes);
        let later = serde_json::to_vec(&AgentReading { format: 2, ..reading() }).unwrap();
        assert!(parse_reading(&later).unwrap_err().contains("another version"));
        for reply in [&b""[..], b"{}", b"[]", &valid[..valid.len() - 1], &[b'['; 100_000]] {
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

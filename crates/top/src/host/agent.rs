//! The service of `howdah agent`: serves the figures of one server's processes, and of its host, to
//! `howdah top` on another host.
//!
//! It only reads `/proc` and the control file, and replies to `GET /processes` with numbers: no
//! statements, no command lines, no names, and nothing about processes of other programs.

use std::{
    fs::File,
    io::{self, Read as _},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::get,
};
use howdah_http::server::{HttpServer, MutualTls, PageServerError};
use howdah_inspect::{InspectError, ProcessError, RunningServer};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::reading::{HostReading, ProcessReading, booted_s};

/// Maximum number of open connections.
const CONNECTIONS_MAX: usize = 16;

/// Maximum number of processes in a reading, at some 50 µs and 170 bytes each.
const PROCESSES_MAX: usize = 5000;

/// Time for which a reading serves further requests, so that they do not cost the host more.
const READING_AGE_MAX: Duration = Duration::from_millis(100);

/// Path of the only resource.
pub(super) const PATH: &str = "/processes";

/// Number of the reading's format. It changes when older versions could misunderstand a reading.
pub(super) const FORMAT: u32 = 1;

/// The content of a reply: the figures of a server's processes and of its host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AgentReading {
    pub(super) format: u32,
    /// The server's system identifier, a text because programs round large numbers.
    pub(super) system_identifier: String,
    /// Time at which the host booted, in seconds since 1970.
    pub(super) booted_s: i64,
    pub(super) host: HostReading,
    pub(super) processes: Vec<ProcessReading>,
}

/// A running service. Dropping it stops it.
#[derive(Debug)]
pub struct AgentServer {
    http: HttpServer,
}

/// The server whose processes are read.
struct AgentSource {
    server: RunningServer,
    /// Start of the postmaster, in clock ticks since boot.
    started_ticks: u64,
    /// The data directory, by which the server is found again after a restart.
    data_dir: PathBuf,
    system_identifier: i64,
    /// The last reply, and when it was made.
    last: Option<(Instant, Bytes)>,
}

impl AgentServer {
    /// Starts to serve the figures of `server`, and of the server that runs on the same data
    /// directory later. Without `tls`, the address must be a loopback address.
    ///
    /// # Errors
    ///
    /// The address is not allowed without TLS or cannot be bound, or the server stopped.
    pub fn start(
        server: RunningServer,
        address: SocketAddr,
        tls: Option<&MutualTls>,
    ) -> Result<Self, AgentServerError> {
        let source = Arc::new(Mutex::new(AgentSource::new(server)?));
        let router = Router::new()
            .route(PATH, get(async move || respond(&source)))
            .fallback(async || (StatusCode::NOT_FOUND, "try /processes\n"));
        let http =
            HttpServer::start_readings("howdah-agent", address, tls, CONNECTIONS_MAX, router)?;
        Ok(Self { http })
    }

    /// Returns the address that the agent listens on.
    pub fn address(&self) -> SocketAddr {
        self.http.address()
    }
}

/// The reason why the agent did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentServerError {
    /// The address cannot be used.
    #[error(transparent)]
    Http(#[from] PageServerError),
    /// The server cannot be inspected.
    #[error("cannot inspect the server")]
    Inspect(#[from] InspectError),
    /// The server's control file cannot be read.
    #[error("cannot read the control file of the server")]
    ControlFile(#[source] io::Error),
    /// Another server runs in the data directory now.
    #[error("another server runs in the data directory: its system identifier is {0}")]
    OtherServer(i64),
    /// The reading cannot be encoded.
    #[error("cannot encode the figures")]
    Encode(#[from] serde_json::Error),
}

/// Reads everything on the HTTP thread: the requests are few, and reading takes milliseconds.
fn respond(source: &Mutex<AgentSource>) -> Response {
    match source.lock().reply() {
        Ok(bytes) => ([(CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "cannot read the server");
            // The reason may contain paths of this host.
            (StatusCode::SERVICE_UNAVAILABLE, "the server is not running\n").into_response()
        }
    }
}

impl AgentSource {
    fn new(server: RunningServer) -> Result<Self, AgentServerError> {
        let started_ticks = server.postmaster().start_time_ticks().map_err(InspectError::from)?;
        let data_dir = server.data_dir()?;
        let system_identifier =
            read_system_identifier(&server).map_err(AgentServerError::ControlFile)?;
        Ok(Self { server, started_ticks, data_dir, system_identifier, last: None })
    }

    /// Returns the current reading, encoded.
    fn reply(&mut self) -> Result<Bytes, AgentServerError> {
        self.find_again()?;
        if let Some((at, reply)) = &self.last
            && at.elapsed() < READING_AGE_MAX
        {
            return Ok(reply.clone());
        }
        let reply = Bytes::from(serde_json::to_vec(&self.read()?)?);
        self.last = Some((Instant::now(), reply.clone()));
        Ok(reply)
    }

    /// Finds the server again if its postmaster has ended.
    fn find_again(&mut self) -> Result<(), AgentServerError> {
        let started = self.server.postmaster().start_time_ticks();
        if matches!(started, Ok(ticks) if ticks == self.started_ticks) {
            return Ok(());
        }
        let found = Self::new(RunningServer::in_data_dir(&self.data_dir)?)?;
        // The path of a container's server may be that of another server on the host.
        if found.system_identifier != self.system_identifier {
            return Err(AgentServerError::OtherServer(found.system_identifier));
        }
        *self = found;
        Ok(())
    }

    fn read(&self) -> Result<AgentReading, AgentServerError> {
        let postmaster = self.server.postmaster();
        let gone = || InspectError::from(ProcessError::Gone { pid: postmaster.pid() });
        let parent = i32::try_from(postmaster.pid()).map_err(|_| gone())?;
        let children = postmaster.children().map_err(InspectError::from)?;
        // The oldest are first. The session of the reader, by which it knows its server, is new.
        let excess = children.len().saturating_sub(PROCESSES_MAX);
        let children = children.into_iter().skip(excess);
        let processes = children.filter_map(|child| i32::try_from(child.pid()).ok());
        Ok(AgentReading {
            format: FORMAT,
            system_identifier: self.system_identifier.to_string(),
            booted_s: booted_s().ok_or_else(gone)?,
            host: HostReading::of_this_host(),
            processes: processes.filter_map(|pid| ProcessReading::of_child(pid, parent)).collect(),
        })
    }
}

/// Reads the first field of the control file (`ControlFileData` in `pg_control.h`), through the
/// postmaster's working directory, which also works for containers.
fn read_system_identifier(server: &RunningServer) -> io::Result<i64> {
    let path = format!("/proc/{}/cwd/global/pg_control", server.postmaster().pid());
    let mut bytes = [0; 8];
    File::open(path)?.read_exact(&mut bytes)?;
    // SQL has it as a signed number, too.
    Ok(i64::from_ne_bytes(bytes))
}

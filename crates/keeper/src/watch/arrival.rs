//! A server that lets us in: since when its cache is what it is, and whether it runs on this host.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use howdah_connect::{Client, ConnectError, Endpoint, QueryError, Target};
use howdah_warm::dump::{Choice, local_server};

use super::host::{self, Host};

/// A server that lets us in.
#[derive(Debug)]
pub(super) struct Arrival {
    /// When its cache was empty last.
    pub(super) birth: CacheColdSince,
    /// The server on this host, if it is one that can be looked at.
    pub(super) host: Option<Host>,
    /// Why it cannot, where it was tried.
    pub(super) not_local: Option<String>,
}

/// When a server's cache was empty last.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheColdSince {
    /// By our clock, in microseconds since 1970: to be compared with images.
    pub(super) at_us: i64,
    /// By the server's clock: the same number for as long as the cache lives.
    mark: i64,
}

impl CacheColdSince {
    /// Whether that is the birth of the same cache. No span is too short for a restart, so this goes by the
    /// server's own mark and not by our clock, which is late by the time that a question takes.
    pub(super) fn is_same(self, other: Self) -> bool {
        self.mark == other.mark
    }
}

/// Why a server did not let us in or did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error("the server gave its start as {0:?}")]
    Answer(String),
}

impl Failure {
    fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Connect(error) => error.sqlstate(),
            Self::Query(error) => error.sqlstate(),
            Self::Answer(_) => None,
        }
    }

    /// It recovers, and will let in: `cannot_connect_now`.
    pub(super) fn is_starting(&self) -> bool {
        self.sqlstate() == Some("57P03")
    }

    /// Whether it means that the server we knew is no more, or about to be. One that is full, or refuses
    /// our password, is there. Class 57 is shutdown, crash and start.
    pub(super) fn is_absence(&self) -> bool {
        match self.sqlstate() {
            Some(code) => code.starts_with("57P"),
            None => !matches!(self, Self::Answer(_)),
        }
    }
}

/// How long ago the cache was empty last, and when that was. A crash of a single session empties the cache as
/// well, and the postmaster stays: the checkpointer, which runs as long as shared memory does, is then
/// another. Who may not see its start sees restarts only.
const BORN: &str = "SELECT (extract(epoch FROM clock_timestamp() - born) * 1e6)::int8,
        (extract(epoch FROM born) * 1e6)::int8
    FROM (SELECT greatest(
        pg_postmaster_start_time(),
        (SELECT max(backend_start) FROM pg_stat_activity WHERE backend_type = 'checkpointer')
    )) b (born)";

/// How long a server may take to let in or to answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn arrive(target: &Target, choice: Choice) -> Result<Arrival, Failure> {
    let mut client = connect(target)?;
    let birth = ask(&mut client)?;
    if choice == Choice::PgBuffercache {
        return Ok(Arrival { birth, host: None, not_local: None });
    }
    // Looking is tried now, so that it does not fail when it matters.
    let found = local_server(&mut client).map_err(|reason| reason.to_string()).and_then(|server| {
        server.buffers().map_err(|error| error.to_string())?;
        Host::new(server).map_err(|error| error.to_string())
    });
    let (host, not_local) = match found {
        Ok(host) => (Some(host), None),
        Err(reason) => (None, Some(reason)),
    };
    Ok(Arrival { birth, host, not_local })
}

/// When the server's cache was empty last.
pub(super) fn birth(target: &Target) -> Result<CacheColdSince, Failure> {
    ask(&mut connect(target)?)
}

fn connect(target: &Target) -> Result<Client, Failure> {
    let patience = target.connect_timeout().unwrap_or(PATIENCE);
    let target = target.with_application_name("howdah warm").with_connect_timeout(Some(patience));
    let mut client = Client::connect(&target)?;
    client.set_timeout(Some(PATIENCE));
    Ok(client)
}

fn ask(client: &mut Client) -> Result<CacheColdSince, Failure> {
    let results = client.query(BORN)?;
    let row = results.first().and_then(|result| result.rows.first());
    let number = |column| {
        let text = row.and_then(|row| row.text(column)).unwrap_or_default();
        text.parse::<i64>().map_err(|_| Failure::Answer(text.into_owned()))
    };
    let (age_us, mark) = (number(0)?, number(1)?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(CacheColdSince { at_us: i64::try_from(now.as_micros()).unwrap_or(i64::MAX) - age_us, mark })
}

/// The data directory behind a target that is a unix socket.
pub(super) fn data_dir_of(target: &Target) -> Option<PathBuf> {
    target.endpoints().iter().find_map(|endpoint| match endpoint {
        Endpoint::Unix { path } => host::data_dir_of_socket(path),
        Endpoint::Tcp { .. } => None,
    })
}

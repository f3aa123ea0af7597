//! Pages from the server's memory, read from outside.
//!
//! The backend of a session is a process of the server, so where server and howdah share a host, its id
//! leads to the postmaster. Whether that process is on this host, and not another with the same number,
//! is decided by what both sides say: the time the server was started, and its port.

use hashbrown::HashMap;
use howdah_connect::Client;
use howdah_inspect::{Buffer, Error, Server};

use super::{Cached, QueryFailure, number};
use crate::image::{Fork, Page, RelationFile};

/// Why a server's memory is not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotLocal {
    /// No process of this host is the session's backend.
    #[error("the server is not on this host, or hidden from it (a container's own namespace)")]
    Elsewhere,
    /// It is here, and cannot be looked at.
    #[error(transparent)]
    Unreadable(#[from] Error),
    /// The server could not be asked who it is.
    #[error(transparent)]
    Unanswered(#[from] QueryFailure),
}

/// The buffers of a server that was found before. Needs no session, so it works while the server stops.
pub(super) fn of_server(server: &Server) -> Result<Cached, Error> {
    let buffers = server.buffers()?.read()?;
    let unfinished = buffers.unfinished();
    let mut forks = Forks::default();
    for buffer in buffers {
        let Buffer {
            tablespace,
            database,
            filenode,
            fork,
            block,
            usage,
            is_dirty,
            is_permanent,
            ..
        } = buffer;
        let file = RelationFile { database, tablespace, filenode };
        let found = forks.of((file, fork));
        found.pages.push(Page { block, usage, is_dirty });
        found.is_permanent &= is_permanent;
    }
    let mut cached = Cached { unfinished, ..Cached::default() };
    for ((file, fork), found) in forks.found {
        cached.forks.insert((file, fork), found.pages);
        // An init fork is logged although its relation is not.
        if fork != Fork::Init {
            *cached.is_logged.entry(file).or_insert(true) &= found.is_permanent;
        }
    }
    Ok(cached)
}

/// Pages by fork, with as little work for each as can be: a large server has millions of buffers.
#[derive(Default)]
struct Forks {
    found: Vec<((RelationFile, Fork), Found)>,
    places: HashMap<(RelationFile, Fork), usize>,
    /// Where the one before was: neighbours are often of the same fork.
    last: usize,
}

struct Found {
    pages: Vec<Page>,
    is_permanent: bool,
}

impl Forks {
    fn of(&mut self, key: (RelationFile, Fork)) -> &mut Found {
        if self.found.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = *self.places.entry(key).or_insert_with(|| {
                self.found.push((key, Found { pages: Vec::new(), is_permanent: true }));
                self.found.len() - 1
            });
        }
        &mut self.found[self.last].1
    }
}

/// The server behind a session, if it runs on this host and may be looked at.
///
/// # Errors
///
/// It runs elsewhere, or its processes are not ours to look at.
pub fn local_server(client: &mut Client) -> Result<Server, NotLocal> {
    let pid =
        client.process_id().and_then(|pid| u32::try_from(pid).ok()).ok_or(NotLocal::Elsewhere)?;
    let mut ask = |what, sql: &str| {
        let answer = client.one_value(sql).map_err(QueryFailure::from)?;
        number::<i64>(what, answer)
    };
    let started =
        ask("start time", "SELECT floor(extract(epoch FROM pg_postmaster_start_time()))::int8")?;
    let port = ask("port", "SHOW port")?;
    let server = match Server::with_process(pid) {
        Ok(server) => server,
        Err(Error::Process(howdah_inspect::ProcessError::Gone { .. })) => {
            return Err(NotLocal::Elsewhere);
        }
        Err(Error::Process(howdah_inspect::ProcessError::NotPostgres { .. })) => {
            return Err(NotLocal::Elsewhere);
        }
        Err(error) => return Err(error.into()),
    };
    let lock = server.lock_file()?;
    // The lock file is written moments before the start time is taken.
    let is_it = i64::from(lock.port) == port && (lock.started_at_s - started).abs() <= 5;
    if is_it { Ok(server) } else { Err(NotLocal::Elsewhere) }
}

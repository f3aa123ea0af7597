//! Reads pages from the server's memory.
//!
//! The backend of a session is a process of the server, so if server and howdah share a host, its
//! process id leads to the postmaster. Start time and port, as reported by both sides, show whether
//! the process on this host is that backend and not another one with the same id.

use hashbrown::HashMap;
use howdah_connect::Client;
use howdah_inspect::{BufferDesc, InspectError, RunningServer};

use super::{BufferContents, QueryFailure, parse_number};
use crate::image::{CachedPage, Fork, RelationFile};

/// The reason why a server's memory cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotLocal {
    /// The session's backend was not found among the processes of this host.
    #[error("the server is not on this host, or runs in a container's own namespace")]
    Elsewhere,
    /// The server's processes cannot be inspected, or its memory cannot be read.
    #[error(transparent)]
    Unreadable(#[from] InspectError),
    /// The server could not be queried.
    #[error(transparent)]
    Query(#[from] QueryFailure),
}

/// Reads the buffers of a known server, without a session, so it works even while the server stops.
pub(super) fn read_buffers(server: &RunningServer) -> Result<BufferContents, InspectError> {
    let buffers = server.buffers()?.read()?;
    let unfinished = buffers.unfinished();
    let mut forks = ForkTable::default();
    for buffer in buffers {
        let BufferDesc {
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
        let found = forks.entry((file, fork));
        found.pages.push(CachedPage { block, usage, is_dirty });
        found.is_permanent &= is_permanent;
    }
    let mut cached = BufferContents { unfinished, ..BufferContents::default() };
    for ((file, fork), found) in forks.found {
        cached.forks.insert((file, fork), found.pages);
        // An init fork is logged although its relation is not.
        if fork != Fork::Init {
            *cached.is_logged.entry(file).or_insert(true) &= found.is_permanent;
        }
    }
    Ok(cached)
}

/// Groups pages by fork, with little work per page: a large server has millions of buffers.
#[derive(Default)]
struct ForkTable {
    found: Vec<((RelationFile, Fork), ForkPages)>,
    indices: HashMap<(RelationFile, Fork), usize>,
    /// Index of the previous page's fork: neighbours are often of the same fork.
    last: usize,
}

struct ForkPages {
    pages: Vec<CachedPage>,
    is_permanent: bool,
}

impl ForkTable {
    fn entry(&mut self, key: (RelationFile, Fork)) -> &mut ForkPages {
        if self.found.get(self.last).is_none_or(|(last, _)| *last != key) {
            self.last = *self.indices.entry(key).or_insert_with(|| {
                self.found.push((key, ForkPages { pages: Vec::new(), is_permanent: true }));
                self.found.len() - 1
            });
        }
        &mut self.found[self.last].1
    }
}

/// Returns the server of a session, if it runs on this host and may be inspected.
///
/// # Errors
///
/// The server runs elsewhere, or cannot be queried or inspected.
pub fn local_server(client: &mut Client) -> Result<RunningServer, NotLocal> {
    let pid =
        client.process_id().and_then(|pid| u32::try_from(pid).ok()).ok_or(NotLocal::Elsewhere)?;
    let mut query = |what, sql: &str| {
        let value = client.one_value(sql).map_err(QueryFailure::from)?;
        parse_number::<i64>(what, value)
    };
    let started =
        query("start time", "SELECT floor(extract(epoch FROM pg_postmaster_start_time()))::int8")?;
    let port = query("port", "SHOW port")?;
    let server = match RunningServer::from_pid(pid) {
        Ok(server) => server,
        Err(InspectError::Process(howdah_inspect::ProcessError::Gone { .. })) => {
            return Err(NotLocal::Elsewhere);
        }
        Err(InspectError::Process(howdah_inspect::ProcessError::NotPostgres { .. })) => {
            return Err(NotLocal::Elsewhere);
        }
        Err(error) => return Err(error.into()),
    };
    let lock = server.lock_file()?;
    // The lock file is written shortly before the start time is taken.
    let is_it = i64::from(lock.port) == port && (lock.started_at_s - started).abs() <= 5;
    if is_it { Ok(server) } else { Err(NotLocal::Elsewhere) }
}

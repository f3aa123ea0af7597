//! Reads the identities of sessions for samples of memory, in which a process is only known by its
//! id: a separate session reads `pg_stat_activity` once a second, and earlier for new processes.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use howdah_collect::{BackendActivity, CollectError, MissingPrivilege, MonitorConnection};
use howdah_connect::ConnectTarget;
use parking_lot::Mutex;

use crate::waits::{
    LabelId, Profile, ProfileKey, SampleRound, SessionDimension, SessionLabel, SessionLabels,
};

const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two reads, however many processes are new.
const READ_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Labels the samples of a server's processes.
#[derive(Debug)]
pub struct IdentityMonitor {
    labels: SessionLabels,
    shared: Arc<Mutex<IdentityTable>>,
    /// Requests a read before it is due. Dropped to end the thread.
    requests: SyncSender<()>,
    /// Number of the reads that [`Self::processes`] is from.
    reads: u64,
    processes: HashMap<u32, LabelId>,
    /// Processes that were not in the last read.
    preliminary: HashMap<u32, LabelId>,
    own_pid: Option<u32>,
    hidden: Option<String>,
}

/// The result of the last read.
#[derive(Debug, Default)]
struct IdentityTable {
    sessions: Vec<(u32, SessionLabel)>,
    reads: u64,
    error: Option<CollectError>,
}

impl IdentityMonitor {
    /// Connects to the server and reads the identities for the first time.
    ///
    /// # Errors
    ///
    /// The server cannot be connected to or queried.
    pub fn start(
        target: &ConnectTarget,
        dimensions: Vec<SessionDimension>,
    ) -> Result<Self, CollectError> {
        let mut server = MonitorConnection::connect(target)?;
        let own_pid = u32::try_from(server.info().backend.pid).ok();
        let missing = server.privileges().missing(server.info().version);
        let hidden = missing.iter().find(|missing| missing.what == MissingPrivilege::SESSIONS);
        let hidden = hidden.map(|missing| missing.remedy.to_string());
        let shared: Arc<Mutex<IdentityTable>> = Arc::default();
        read(&mut server, &shared)?;
        let (requests, requested) = sync_channel(1);
        let table = Arc::clone(&shared);
        thread::spawn(move || {
            if let Err(error) = read_repeatedly(&mut server, &requested, &table) {
                table.lock().error = Some(error);
            }
        });
        Ok(Self {
            labels: SessionLabels::new(dimensions),
            shared,
            requests,
            reads: 0,
            processes: HashMap::new(),
            preliminary: HashMap::new(),
            own_pid,
            hidden,
        })
    }

    /// Returns how to make the identities of other roles' sessions visible, if they are not.
    pub fn hidden(&self) -> Option<&str> {
        self.hidden.as_deref()
    }

    /// Returns the error that ended the reading of identities, if one did.
    pub fn take_error(&self) -> Option<CollectError> {
        self.shared.lock().error.take()
    }

    /// Returns the label of an id.
    pub fn label(&self, id: LabelId) -> Option<&SessionLabel> {
        self.labels.label(id)
    }

    /// Adds the observations of a round to a profile, by label, without those of this type's own
    /// session.
    pub(crate) fn add_round(&mut self, profile: &mut Profile, round: &SampleRound<'_>) {
        self.update(profile);
        let mut has_new = false;
        let mut keys = Vec::new();
        for observation in round.observations() {
            let backend = observation.backend;
            if Some(backend.pid) == self.own_pid {
                continue;
            }
            let session = self.processes.get(&backend.pid).copied().unwrap_or_else(|| {
                has_new = true;
                *self.preliminary.entry(backend.pid).or_insert_with(|| {
                    let (user, database) = (backend.user.as_deref(), backend.database.as_deref());
                    self.labels.add_preliminary(SessionLabel::of_title(user, database))
                })
            });
            keys.push(ProfileKey {
                kind: backend.kind,
                event: observation.event,
                query: observation.query,
                session: Some(session),
            });
        }
        if has_new {
            // Fails if a request is pending, or if reading has ended.
            let _ = self.requests.try_send(());
        }
        profile.add_checks(round.checks());
        profile.add_observations(round.elapsed(), keys);
    }

    /// Adopts the last read, and moves the observations of processes that were new before it.
    fn update(&mut self, profile: &mut Profile) {
        let table = self.shared.lock();
        if table.reads == self.reads {
            return;
        }
        self.reads = table.reads;
        self.processes.clear();
        for (pid, label) in &table.sessions {
            self.processes.insert(*pid, self.labels.intern(label.clone()));
        }
        drop(table);
        let mut moved = HashMap::new();
        for (pid, preliminary) in self.preliminary.drain() {
            // A process that has already exited is known by its title only.
            let title = self.labels.label(preliminary).cloned().unwrap_or_default();
            let known = self.processes.entry(pid).or_insert_with(|| self.labels.intern(title));
            if preliminary != LabelId::OTHER {
                moved.insert(preliminary, *known);
            }
        }
        if !moved.is_empty() {
            profile.relabel(&moved);
        }
        moved.into_keys().for_each(|id| self.labels.release_preliminary(id));
    }
}

/// Reads when requested and when due, until the requests' sender is dropped.
fn read_repeatedly(
    server: &mut MonitorConnection,
    requested: &Receiver<()>,
    table: &Mutex<IdentityTable>,
) -> Result<(), CollectError> {
    loop {
        thread::sleep(READ_INTERVAL_MIN);
        match requested.recv_timeout(READ_INTERVAL - READ_INTERVAL_MIN) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        read(server, table)?;
    }
}

fn read(server: &mut MonitorConnection, table: &Mutex<IdentityTable>) -> Result<(), CollectError> {
    let activity = server.activity(false)?;
    let session = |backend: &BackendActivity| {
        Some((u32::try_from(backend.pid).ok()?, SessionLabel::of_backend(backend)))
    };
    let sessions = activity.backends.iter().filter_map(session).collect();
    let mut table = table.lock();
    table.sessions = sessions;
    table.reads += 1;
    Ok(())
}

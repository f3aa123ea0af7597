//! Samples waits by SQL, from `pg_stat_activity`.

use std::time::{Duration, Instant};

use howdah_collect::{BackendActivity, MonitorConnection, ServerVersion};

use crate::{
    live::{LiveError, WaitSource},
    waits::{
        LabelId, ProcessKind, Profile, ProfileKey, QueryId, QueryOptions, QueryTexts,
        SessionDimension, SessionLabel, SessionLabels, WaitEventNames,
    },
};

/// Samples the waits of all sessions that the role may see.
#[derive(Debug)]
pub struct SqlWaits {
    server: MonitorConnection,
    names: WaitEventNames,
    /// The statements, if they are requested.
    texts: Option<QueryTexts>,
    /// The labels of sessions, if they are requested.
    labels: Option<SessionLabels>,
    sampled_at: Option<Instant>,
    unreadable: usize,
}

/// The error for a server version whose wait events are unknown.
#[derive(Debug, thiserror::Error)]
#[error("this version of howdah does not know the wait events of PostgreSQL {version}")]
pub struct UnknownWaitEvents {
    /// The server's version, as the server reported it.
    pub version: ServerVersion,
}

impl SqlWaits {
    /// Maximum number of samples per second: each sample is a query for the server.
    pub const FREQUENCY_MAX: u32 = 10;

    /// Limitation of the sampled data, as text for the user.
    pub const LIMITATION: &'static str = "misses waits shorter than the time between two samples, at most 10 \
        per second; without pg_monitor, no sessions of other roles";

    /// Creates a sampler on this connection. Statements are sampled only with `queries`, labels
    /// only if there are `dimensions`.
    ///
    /// # Errors
    ///
    /// The names of the server's wait events are unknown.
    pub fn new(
        mut server: MonitorConnection,
        queries: Option<QueryOptions>,
        dimensions: Vec<SessionDimension>,
    ) -> Result<Self, UnknownWaitEvents> {
        let version = server.info().version;
        let names = WaitEventNames::for_major(version.major());
        let names = names.ok_or(UnknownWaitEvents { version })?;
        if queries.is_some() {
            server.request_full_texts();
        }
        let texts = queries.map(QueryTexts::new);
        let labels = (!dimensions.is_empty()).then(|| SessionLabels::new(dimensions));
        Ok(Self { server, names, texts, labels, sampled_at: None, unreadable: 0 })
    }

    /// Returns the largest number of sessions in one sample whose waits the role may not see.
    pub fn unreadable(&self) -> usize {
        self.unreadable
    }
}

impl WaitSource for SqlWaits {
    fn sample(&mut self, profile: &mut Profile) -> Result<(), LiveError> {
        let activity = self.server.activity(false).map_err(LiveError::ActivityFailed)?;
        let now = Instant::now();
        let elapsed = self.sampled_at.map_or(Duration::ZERO, |at| now - at);
        self.sampled_at = Some(now);
        let own = self.server.info().backend.pid;
        let others = activity.backends.iter().filter(|backend| backend.pid != own);
        let (readable, hidden): (Vec<_>, Vec<_>) = others.partition(|backend| backend.is_readable);
        self.unreadable = self.unreadable.max(hidden.len());
        let observations = readable.into_iter().map(|backend| {
            let labels = self.labels.as_mut();
            let session = labels.map(|labels| labels.intern(SessionLabel::of_backend(backend)));
            ProfileKey { session, ..observation(backend, &self.names, self.texts.as_mut()) }
        });
        profile.add_observations(elapsed, observations);
        Ok(())
    }

    fn query(&self, id: QueryId) -> Option<&str> {
        self.texts.as_ref()?.text(id)
    }

    fn label(&self, id: LabelId) -> Option<&SessionLabel> {
        self.labels.as_ref()?.label(id)
    }
}

/// Returns the kind, the current wait and the statement of a session.
fn observation(
    backend: &BackendActivity,
    names: &WaitEventNames,
    texts: Option<&mut QueryTexts>,
) -> ProfileKey {
    let kind = backend
        .kind
        .as_ref()
        .map_or(ProcessKind::BackgroundWorker, |kind| ProcessKind::from_name(kind.as_str()));
    let event = match &backend.wait {
        Some(wait) => names.lookup(&wait.class, &wait.event),
        None => names.decode(0),
    };
    let is_active = kind.is_foreground() && !event.class().is_idle();
    let query = backend.query.as_ref().zip(texts).filter(|_| is_active);
    let query = query.map(|(query, texts)| texts.intern(query.as_str()));
    ProfileKey { kind, event, query, session: None }
}

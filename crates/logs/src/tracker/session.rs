//! The state of one session: its names, its open action, and the evidence in its records.

use std::sync::Arc;

use howdah_traffic::{
    ActionRef, BoundRef, EventIdentity, IdentityDigest, OutcomeRef, Source, Timestamp, name_text,
};

use super::{
    SessionKey,
    action_buffer::ActionBuffer,
    names::PreparedNames,
    output::{EventDraft, OpenAction},
    pipelines::{Membership, SessionPipelines},
    sampling::SamplingDetector,
    steps::no_values,
    vxid::Vxid,
};
use crate::{prefix::SessionNames, record::LogRecord, summary::LogFacts};

/// One session of a client.
#[derive(Debug)]
pub(super) struct TrackedSession {
    pub(super) key: SessionKey,
    /// Unique number of the session, from 1; 0 until the table assigns it.
    pub(super) number: u64,
    /// Incremented with each change of the session's names.
    pub(super) version: u32,
    id: Arc<str>,
    /// `%c`, if the log has it.
    logged_id: Vec<u8>,
    start: Option<i64>,
    remote: Vec<u8>,
    user: SessionName,
    database: SessionName,
    application: SessionName,
    /// Digest of id, user, database and application, for the hash of events.
    digest: IdentityDigest,
    /// The names of the open action, if a name has changed since it started.
    previous_names: Option<Box<PreviousNames>>,
    /// Whether the session's Connect was emitted, or is the open action.
    pub(super) is_connected: bool,
    pub(super) is_replication: bool,
    /// The action whose outcome is not known yet.
    pub(super) open: OpenAction,
    /// The last step of an extended query that has no execute yet.
    pub(super) last_step: LastLoggedStep,
    /// Bare durations of steps whose text is not known yet.
    pub(super) bare_durations: BareDurations,
    pub(super) prepared: PreparedNames,
    /// Lower limit for the start of later actions.
    pub(super) earliest_start: Timestamp,
    /// Number of the session's last record, counted over all sessions.
    pub(super) last_seen: u64,
    last_line: Option<u64>,
    /// Whether the log is known to contain the first record of the process, so that the session was
    /// not in a transaction before it.
    pub(super) started_in_log: bool,
    pub(super) pipelines: SessionPipelines,
    /// Whether a Bind of the unnamed portal was logged with its text, and has not been executed
    /// yet.
    pub(super) is_bind_logged: bool,
    pub(super) sampling: SamplingDetector,
}

/// Former names of a session.
#[derive(Debug)]
struct PreviousNames {
    user: Arc<str>,
    database: Arc<str>,
    application: Arc<str>,
    digest: IdentityDigest,
}

/// The last logged parse or bind step, if no other step followed.
#[derive(Debug, Default)]
pub(super) struct LastLoggedStep {
    step: Option<StepKind>,
    action: ActionBuffer,
}

impl LastLoggedStep {
    /// Stores a parse or a bind; any other action clears the step.
    pub(super) fn set(&mut self, action: &ActionRef<'_>) {
        self.step = match action {
            ActionRef::Parse { .. } => Some(StepKind::Parse),
            ActionRef::Bind(_) => Some(StepKind::Bind),
            _ => None,
        };
        match self.step {
            Some(_) => self.action.set(action),
            None => self.action.clear(),
        }
    }

    pub(super) fn clear(&mut self) {
        if self.step.take().is_some() {
            self.action.clear();
        }
    }

    /// Returns the kind of the step, if there is one.
    pub(super) fn step(&self) -> Option<StepKind> {
        self.step
    }

    /// Returns the text of the step.
    pub(super) fn sql(&self) -> &[u8] {
        self.action.sql().as_bytes()
    }

    /// Returns the statement, portal and parameters that an execute after this step has. After a
    /// parse, the parameters are unknown, unless the statement has none.
    pub(super) fn bound(&self) -> BoundRef<'_> {
        let bound = self.action.bound();
        match self.step {
            Some(StepKind::Bind) => bound,
            _ => BoundRef { parameters: no_values(bound.sql.as_bytes()), ..bound },
        }
    }
}

/// Bare durations before an execute: those of its parse and bind.
#[derive(Debug, Default)]
pub(super) struct BareDurations {
    /// The last two durations, oldest first.
    pub(super) last: [Option<BareStep>; 2],
    pub(super) count: usize,
    /// Number of the latest consecutive steps with the same transaction.
    in_transaction: usize,
}

/// A step known only from its duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct BareStep {
    pub(super) start: Timestamp,
    pub(super) micros: u64,
    /// Whether the step is a parse or a bind, if the log shows that.
    pub(super) kind: Option<StepKind>,
    /// Transaction of the step, which it shares with other steps unless it has its own Sync.
    pub(super) vxid: Option<Vxid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    Parse,
    Bind,
}

impl BareDurations {
    /// Removes all durations.
    pub(super) fn clear(&mut self) {
        if self.count > 0 {
            *self = Self::default();
        }
    }

    pub(super) fn push(&mut self, step: BareStep) {
        let before = self.last[1].take();
        // If the log shows the kind of each step, `in_transaction` is not needed.
        if step.kind.is_none() {
            let is_same = before.is_some_and(|before| before.vxid == step.vxid);
            self.in_transaction = if is_same { self.in_transaction + 1 } else { 1 };
        }
        self.last = [before, Some(step)];
        self.count += 1;
    }

    /// Whether the last step is known to be of this kind.
    pub(super) fn is_last(&self, kind: StepKind) -> bool {
        self.last[1].is_some_and(|step| step.kind == Some(kind))
    }

    /// Whether the log shows the kind of the last step; true if there is none.
    #[inline]
    pub(super) fn is_tagged(&self) -> bool {
        self.last[1].is_none_or(|step| step.kind.is_some())
    }

    /// Returns the number of the latest consecutive steps that ran in `transaction`; 0 if the log
    /// shows the kinds of steps.
    pub(super) fn untagged_in(&self, transaction: Vxid) -> usize {
        let is_one = |step: BareStep| step.kind.is_none() && step.vxid == Some(transaction);
        if self.last[1].is_some_and(is_one) { self.in_transaction } else { 0 }
    }

    /// Removes and returns the durations of parse and bind. If the log does not show the kinds of
    /// steps, two durations are taken for parse and bind, and a single one for the bind of an
    /// earlier statement; more than two are discarded, because some belong to unlogged actions.
    /// `may_parse` means that one of them may be a parse.
    pub(super) fn take_parse_and_bind(
        &mut self,
        may_parse: bool,
    ) -> (Option<BareStep>, Option<BareStep>) {
        let Self { last: [first, second], count, .. } = std::mem::take(self);
        let kind = |step: &Option<BareStep>| step.as_ref().and_then(|step| step.kind);
        let kinds = (kind(&first), kind(&second));
        match kinds {
            (Some(StepKind::Parse), Some(StepKind::Bind)) => (first, second),
            (_, Some(StepKind::Bind)) => (None, second),
            (_, Some(StepKind::Parse)) => (second, None),
            (_, None) if count <= 2 => (first.filter(|_| may_parse), second),
            _ => (None, None),
        }
    }
}

/// A name, with its logged bytes for comparison.
#[derive(Debug)]
struct SessionName {
    logged: Vec<u8>,
    text: Arc<str>,
}

impl SessionName {
    fn new(logged: &[u8]) -> Self {
        Self { logged: logged.to_vec(), text: name_text(logged).into() }
    }

    /// Whether `logged` is a different name; false if it is empty.
    #[inline]
    fn differs(&self, logged: &[u8]) -> bool {
        !logged.is_empty() && self.logged != logged
    }

    fn update(&mut self, logged: &[u8]) {
        if self.differs(logged) {
            *self = Self::new(logged);
        }
    }

    /// Whether `logged` may be the same name.
    fn agrees(&self, logged: &[u8]) -> bool {
        logged.is_empty() || self.logged.is_empty() || self.logged == logged
    }
}

impl TrackedSession {
    /// Creates the session first seen in `record`. `previous_id` is the id of the previous session
    /// of its process.
    pub(super) fn new(
        key: SessionKey,
        record: &LogRecord<'_>,
        last_seen: u64,
        previous_id: Option<&Arc<str>>,
    ) -> Self {
        let id = distinct_id(id(record), previous_id);
        let name = |logged| SessionName::new(logged);
        let mut session = Self {
            key,
            number: 0,
            version: 0,
            id,
            logged_id: record.session_id().to_vec(),
            start: record.session_start(),
            remote: record.remote().to_vec(),
            user: name(record.user()),
            database: name(record.database()),
            application: name(record.application()),
            digest: IdentityDigest::default(),
            previous_names: None,
            is_connected: false,
            is_replication: false,
            open: OpenAction::default(),
            last_step: LastLoggedStep::default(),
            bare_durations: BareDurations::default(),
            prepared: PreparedNames::default(),
            earliest_start: Timestamp::from_micros(i64::MIN),
            last_seen,
            last_line: record.lines().map(|(_, last)| last),
            started_in_log: super::is_first_of_process(record),
            pipelines: SessionPipelines::default(),
            // Assume that no Bind is missing before the first record.
            is_bind_logged: true,
            sampling: SamplingDetector::default(),
        };
        session.update_digest();
        session
    }

    pub(super) fn id(&self) -> Arc<str> {
        self.id.clone()
    }

    fn update_digest(&mut self) {
        let Self { id, user, database, application, .. } = self;
        self.digest = IdentityDigest::new(id, &user.text, &database.text, &application.text);
    }

    /// Returns the fields that are common to all events of the session.
    #[inline]
    pub(super) fn identity(&self) -> EventIdentity<'_> {
        let Self { id, user, database, application, digest, .. } = self;
        EventIdentity::with_digest(id, &user.text, &database.text, &application.text, *digest)
    }

    /// Whether a record of the same process belongs to this session, rather than to a later one.
    #[inline]
    pub(super) fn matches(&self, record: &LogRecord<'_>) -> bool {
        let logged_id = record.session_id();
        if !self.logged_id.is_empty() && !logged_id.is_empty() {
            return self.logged_id == logged_id;
        }
        if let (Some(known), Some(start)) = (self.start, record.session_start()) {
            return known == start;
        }
        if self.has_restarted_lines(record) {
            return false;
        }
        let remote = record.remote();
        let same_remote = self.remote.is_empty() || remote.is_empty() || self.remote == remote;
        same_remote && self.user.agrees(record.user()) && self.database.agrees(record.database())
    }

    /// Whether all names in a record are those of the session.
    #[inline]
    pub(super) fn has_names(&self, record: &LogRecord<'_>) -> bool {
        !self.user.differs(record.user())
            && !self.database.differs(record.database())
            && !self.application.differs(record.application())
    }

    /// Like [`has_names`](Self::has_names), but an unknown name of the session matches any.
    pub(super) fn agrees(&self, record: &LogRecord<'_>) -> bool {
        self.user.agrees(record.user())
            && self.database.agrees(record.database())
            && self.application.agrees(record.application())
    }

    /// Whether the line numbers of the process start again, because another process now has its id.
    fn has_restarted_lines(&self, record: &LogRecord<'_>) -> bool {
        match (self.last_line, record.lines()) {
            (Some(last), Some((first, _))) => first <= last,
            _ => false,
        }
    }

    /// Whether a record's session fields contain nothing new and certainly identify the session. If
    /// so, the same is true of all records with these fields.
    #[inline]
    pub(super) fn is_up_to_date(&self, record: &LogRecord<'_>) -> bool {
        let is_identified_by_id = !self.logged_id.is_empty() && !record.session_id().is_empty();
        let is_identified_by_start = self.start.is_some() && record.session_start().is_some();
        self.number != 0
            && (is_identified_by_id || is_identified_by_start)
            && self.has_names(record)
            && (!self.remote.is_empty() || record.remote().is_empty())
    }

    /// Stores the session fields of a record. If `is_named`, its names are known to be those of the
    /// session.
    #[inline]
    pub(super) fn update_from(&mut self, record: &LogRecord<'_>, is_named: bool) {
        if !is_named {
            self.update_names(record.user(), record.database(), record.application());
        }
        if self.remote.is_empty() {
            self.remote.extend_from_slice(record.remote());
        }
    }

    #[inline]
    pub(super) fn update_names(&mut self, user: &[u8], database: &[u8], application: &[u8]) {
        let has_changed = self.user.differs(user)
            || self.database.differs(database)
            || self.application.differs(application);
        if has_changed {
            self.set_names(user, database, application);
        }
    }

    /// Changes the names. An open action retains those it started with.
    fn set_names(&mut self, user: &[u8], database: &[u8], application: &[u8]) {
        if self.open.is_open && self.previous_names.is_none() {
            self.previous_names = Some(Box::new(PreviousNames {
                user: self.user.text.clone(),
                database: self.database.text.clone(),
                application: self.application.text.clone(),
                digest: self.digest,
            }));
        }
        self.version = self.version.wrapping_add(1);
        self.user.update(user);
        self.database.update(database);
        self.application.update(application);
        self.update_digest();
    }

    /// Returns the identity of the open action.
    pub(super) fn open_identity(&self) -> EventIdentity<'_> {
        let Some(former) = &self.previous_names else { return self.identity() };
        let PreviousNames { user, database, application, digest } = &**former;
        EventIdentity::with_digest(&self.id, user, database, application, *digest)
    }

    /// Clears the former names, because no action is open any more.
    #[inline]
    pub(super) fn clear_previous_names(&mut self) {
        if self.previous_names.is_some() {
            self.previous_names = None;
        }
    }

    pub(super) fn names(&self) -> SessionNames<'_> {
        SessionNames {
            user: &self.user.logged,
            database: &self.database.logged,
            application: &self.application.logged,
        }
    }

    /// Counts lost lines, whose numbers are between those of the last record and of this one, or a
    /// repeated record, whose number is not higher than the last.
    #[inline]
    pub(super) fn count_lines(&mut self, record: &LogRecord<'_>, facts: &mut LogFacts) {
        let Some((first, last)) = record.lines() else { return };
        let Some(before) = self.last_line.replace(last) else { return };
        if first > before {
            facts.lost_lines += first - before - 1;
        } else {
            facts.repeated_lines += 1;
        }
    }

    /// Creates an event of this session without an outcome, and assigns it to a pipeline.
    pub(super) fn draft<'a>(
        &mut self,
        time: Timestamp,
        action: ActionRef<'a>,
        source: Source,
        vxid: Option<Vxid>,
    ) -> EventDraft<'a> {
        let Membership { pipeline, unknown } = self.pipelines.assign(&action, source, vxid);
        EventDraft {
            time,
            action,
            outcome: OutcomeRef::default(),
            source,
            vxid,
            query_id: None,
            pipeline,
            unknown_syncs: unknown,
        }
    }

    /// Returns the start of an action that ended at `end`, but not before the end of the session's
    /// previous action: times in a log are truncated to milliseconds or seconds, so the difference
    /// may be too early.
    pub(super) fn start_time(&self, end: Timestamp, micros: u64) -> Timestamp {
        let start = end - std::time::Duration::from_micros(micros);
        start.max(self.earliest_start).min(end)
    }
}

/// Returns the id of a new session: `%c`, or an equivalent that consists of the start time, in
/// seconds since the Unix epoch, and the process id, both in hexadecimal. If the log does not show
/// the start, the first record's time is used; without a process id, the id consists of user,
/// database and client address.
fn id(record: &LogRecord<'_>) -> Arc<str> {
    if !record.session_id().is_empty() {
        return String::from_utf8_lossy(record.session_id()).into();
    }
    let start =
        record.session_start().unwrap_or_else(|| record.time().as_micros().div_euclid(1_000_000));
    match record.pid() {
        Some(pid) => format!("{start:x}.{pid:x}").into(),
        None => {
            let (user, database) = (name_text(record.user()), name_text(record.database()));
            format!("{user}@{database}/{}", name_text(record.remote())).into()
        }
    }
}

/// Makes an id differ from that of the previous session, because derived ids may repeat within a
/// second.
fn distinct_id(id: Arc<str>, previous_id: Option<&Arc<str>>) -> Arc<str> {
    let Some(rest) = previous_id.and_then(|previous_id| previous_id.strip_prefix(&*id)) else {
        return id;
    };
    match rest.strip_prefix('-').map(str::parse::<u32>) {
        Some(Ok(number)) => format!("{id}-{}", number.saturating_add(1)).into(),
        _ if rest.is_empty() => format!("{id}-2").into(),
        _ => id,
    }
}

#[test]
fn derived_ids_are_distinct() {
    let id = |previous_id: &str| distinct_id("a.7".into(), Some(&previous_id.into())).to_string();
    assert_eq!([id("a.7"), id("a.7-2"), id("a.70"), id("b.7")], ["a.7-2", "a.7-3", "a.7", "a.7"]);
}

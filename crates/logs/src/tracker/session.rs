//! What is known of one session.

use std::sync::Arc;

use howdah_traffic::{
    ActionRef, BoundRef, Identity, IdentityDigest, OutcomeRef, Source, Timestamp, name_text,
};

use super::{
    Key,
    balance::Balance,
    held::Held,
    output::{Draft, Open},
    pipelines::{Membership, Pipelines},
    steps::no_values,
    vxid::Vxid,
};
use crate::{names::Known, prefix::Names, record::Record, summary::Facts};

/// One session of a client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) key: Key,
    /// No other session had it; 0 if it has none.
    pub(super) number: u64,
    /// Counts the changes of its names.
    pub(super) version: u32,
    id: Arc<str>,
    /// `%c`, if the log has it.
    logged_id: Vec<u8>,
    start: Option<i64>,
    remote: Vec<u8>,
    user: Name,
    database: Name,
    application: Name,
    /// Of the four, for the hash of events.
    digest: IdentityDigest,
    /// What the open action goes by, if a name has changed since it began.
    former: Option<Box<Former>>,
    /// A Connect event was made.
    pub(super) is_connected: bool,
    pub(super) is_replication: bool,
    /// The action whose outcome is not known yet.
    pub(super) open: Open,
    /// How far an extended query has come that has no execute yet.
    pub(super) stage: Stage,
    /// Bare durations of steps whose text is not known yet.
    pub(super) unnamed: Unnamed,
    pub(super) known: Known,
    /// Nothing that the session did from now on began before this.
    pub(super) floor: Timestamp,
    /// When the session was last heard of, in records.
    pub(super) seen: u64,
    last_line: Option<u64>,
    /// Its first record is the first that its process wrote, so it was in no transaction before.
    pub(super) began_in_log: bool,
    pub(super) pipelines: Pipelines,
    /// A Bind of the unnamed portal was logged with its text, and no Execute since.
    pub(super) is_bind_logged: bool,
    pub(super) balance: Balance,
}

/// Names that a session had.
#[derive(Debug)]
struct Former {
    user: Arc<str>,
    database: Arc<str>,
    application: Arc<str>,
    digest: IdentityDigest,
}

/// The last parse or bind step that was logged, if nothing came after it.
#[derive(Debug, Default)]
pub(super) struct Stage {
    step: Option<StepKind>,
    held: Held,
}

impl Stage {
    /// Remembers a parse or a bind; anything else ends what came before.
    pub(super) fn set(&mut self, action: &ActionRef<'_>) {
        self.step = match action {
            ActionRef::Parse { .. } => Some(StepKind::Parse),
            ActionRef::Bind(_) => Some(StepKind::Bind),
            _ => None,
        };
        match self.step {
            Some(_) => self.held.set(action),
            None => self.held.clear(),
        }
    }

    pub(super) fn clear(&mut self) {
        if self.step.take().is_some() {
            self.held.clear();
        }
    }

    /// Which step it is, if there is one.
    pub(super) fn step(&self) -> Option<StepKind> {
        self.step
    }

    /// The text of the step.
    pub(super) fn sql(&self) -> &[u8] {
        self.held.sql().as_bytes()
    }

    /// What an execute would speak of that follows. Of a parse, the values are not known unless there
    /// are none.
    pub(super) fn bound(&self) -> BoundRef<'_> {
        let bound = self.held.bound();
        match self.step {
            Some(StepKind::Bind) => bound,
            _ => BoundRef { parameters: no_values(bound.sql.as_bytes()), ..bound },
        }
    }
}

/// Bare durations before an execute: those of its parse and bind.
#[derive(Debug, Default)]
pub(super) struct Unnamed {
    /// The last two.
    pub(super) last: [Option<UnnamedStep>; 2],
    pub(super) count: usize,
    /// How many of the last ones are of one transaction.
    in_transaction: usize,
}

/// A step that is known by its duration only.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnnamedStep {
    pub(super) start: Timestamp,
    pub(super) micros: u64,
    /// Whether it is a parse or a bind, if the log says.
    pub(super) kind: Option<StepKind>,
    /// The transaction it was in: a step with a Sync of its own had one of its own.
    pub(super) vxid: Option<Vxid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepKind {
    Parse,
    Bind,
}

impl Unnamed {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        if self.count > 0 {
            *self = Self::default();
        }
    }

    pub(super) fn push(&mut self, step: UnnamedStep) {
        let before = self.last[1].take();
        // Where the log tells of which steps they are, nobody asks how many there are.
        if step.kind.is_none() {
            let is_same = before.is_some_and(|before| before.vxid == step.vxid);
            self.in_transaction = if is_same { self.in_transaction + 1 } else { 1 };
        }
        self.last = [before, Some(step)];
        self.count += 1;
    }

    /// Whether the last one is of this kind.
    pub(super) fn ends_in(&self, kind: StepKind) -> bool {
        self.last[1].is_some_and(|step| step.kind == Some(kind))
    }

    /// Whether the log says of which step the last one is; true if there is none.
    #[inline]
    pub(super) fn is_tagged(&self) -> bool {
        self.last[1].is_none_or(|step| step.kind.is_some())
    }

    /// How many of a transaction there are right before now, if the log does not say of which steps.
    pub(super) fn untagged_in(&self, transaction: Vxid) -> usize {
        let is_one = |step: UnnamedStep| step.kind.is_none() && step.vxid == Some(transaction);
        if self.last[1].is_some_and(is_one) { self.in_transaction } else { 0 }
    }

    /// The durations of parse and bind, and forgets them. Where the log does not say which is which, two
    /// are both and one is the bind of a statement parsed before; with more, some belong to actions
    /// that are not in the log. `may_parse`: the statement was not parsed before, as far as is known.
    pub(super) fn take(&mut self, may_parse: bool) -> (Option<UnnamedStep>, Option<UnnamedStep>) {
        let Self { last: [first, second], count, .. } = std::mem::take(self);
        let kind = |step: &Option<UnnamedStep>| step.as_ref().and_then(|step| step.kind);
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

/// A name, with its bytes as logged to compare by.
#[derive(Debug)]
struct Name {
    logged: Vec<u8>,
    text: Arc<str>,
}

impl Name {
    fn new(logged: &[u8]) -> Self {
        Self { logged: logged.to_vec(), text: name_text(logged).into() }
    }

    /// Whether `logged` says another name.
    #[inline]
    fn differs(&self, logged: &[u8]) -> bool {
        !logged.is_empty() && self.logged != logged
    }

    fn learn(&mut self, logged: &[u8]) {
        if self.differs(logged) {
            *self = Self::new(logged);
        }
    }

    /// Whether `logged` could be the same name.
    fn agrees(&self, logged: &[u8]) -> bool {
        logged.is_empty() || self.logged.is_empty() || self.logged == logged
    }
}

impl Session {
    /// A session first seen in `record`; `gone` is the id of the one that its process served before.
    pub(super) fn new(key: Key, record: &Record<'_>, seen: u64, gone: Option<&Arc<str>>) -> Self {
        let id = distinct(id(record), gone);
        let name = |logged| Name::new(logged);
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
            former: None,
            is_connected: false,
            is_replication: false,
            open: Open::default(),
            stage: Stage::default(),
            unnamed: Unnamed::default(),
            known: Known::default(),
            floor: Timestamp::from_micros(i64::MIN),
            seen,
            last_line: record.lines().map(|(_, last)| last),
            began_in_log: super::begins_session(record),
            pipelines: Pipelines::default(),
            // Nothing is known to be missing of what came before.
            is_bind_logged: true,
            balance: Balance::default(),
        };
        session.take_digest();
        session
    }

    pub(super) fn id(&self) -> Arc<str> {
        self.id.clone()
    }

    fn take_digest(&mut self) {
        let Self { id, user, database, application, .. } = self;
        self.digest = IdentityDigest::of(id, &user.text, &database.text, &application.text);
    }

    /// What is the same in all its events.
    #[inline]
    pub(super) fn identity(&self) -> Identity<'_> {
        let Self { id, user, database, application, digest, .. } = self;
        Identity::with_digest(id, &user.text, &database.text, &application.text, *digest)
    }

    /// Whether a record of the same process belongs to this session, and not to one that was started
    /// later.
    #[inline]
    pub(super) fn is_same(&self, record: &Record<'_>) -> bool {
        let logged_id = record.session_id();
        if !self.logged_id.is_empty() && !logged_id.is_empty() {
            return self.logged_id == logged_id;
        }
        if let (Some(known), Some(start)) = (self.start, record.session_start()) {
            return known == start;
        }
        if self.is_numbered_anew(record) {
            return false;
        }
        let remote = record.remote();
        let same_remote = self.remote.is_empty() || remote.is_empty() || self.remote == remote;
        same_remote && self.user.agrees(record.user()) && self.database.agrees(record.database())
    }

    /// Whether a record says no name that the session is not known by.
    #[inline]
    pub(super) fn is_named(&self, record: &Record<'_>) -> bool {
        !self.user.differs(record.user())
            && !self.database.differs(record.database())
            && !self.application.differs(record.application())
    }

    /// The same, where a name that is not known yet may be any.
    pub(super) fn agrees(&self, record: &Record<'_>) -> bool {
        self.user.agrees(record.user())
            && self.database.agrees(record.database())
            && self.application.agrees(record.application())
    }

    /// Whether the lines of the process are counted from the beginning again: it is another one that
    /// has its id.
    fn is_numbered_anew(&self, record: &Record<'_>) -> bool {
        match (self.last_line, record.lines()) {
            (Some(last), Some((first, _))) => first <= last,
            _ => false,
        }
    }

    /// Whether nothing that a record says of its owner is news, nor leaves in doubt whose it is: then the
    /// same holds for each record of this owner.
    #[inline]
    pub(super) fn has_learnt(&self, record: &Record<'_>) -> bool {
        let is_told_by_id = !self.logged_id.is_empty() && !record.session_id().is_empty();
        let is_told_by_start = self.start.is_some() && record.session_start().is_some();
        self.number != 0
            && (is_told_by_id || is_told_by_start)
            && self.is_named(record)
            && (!self.remote.is_empty() || record.remote().is_empty())
    }

    /// Takes over what a record says of its session, whose names it has if it [`is_named`](Self::is_named).
    #[inline]
    pub(super) fn learn(&mut self, record: &Record<'_>, is_named: bool) {
        if !is_named {
            self.learn_names(record.user(), record.database(), record.application());
        }
        if self.remote.is_empty() {
            self.remote.extend_from_slice(record.remote());
        }
    }

    #[inline]
    pub(super) fn learn_names(&mut self, user: &[u8], database: &[u8], application: &[u8]) {
        let is_other = self.user.differs(user)
            || self.database.differs(database)
            || self.application.differs(application);
        if is_other {
            self.rename(user, database, application);
        }
    }

    /// Takes other names on. An action that is open keeps those that it began with.
    fn rename(&mut self, user: &[u8], database: &[u8], application: &[u8]) {
        if self.open.is_open && self.former.is_none() {
            self.former = Some(Box::new(Former {
                user: self.user.text.clone(),
                database: self.database.text.clone(),
                application: self.application.text.clone(),
                digest: self.digest,
            }));
        }
        self.version = self.version.wrapping_add(1);
        self.user.learn(user);
        self.database.learn(database);
        self.application.learn(application);
        self.take_digest();
    }

    /// The identity of the action that is open.
    pub(super) fn identity_of_open(&self) -> Identity<'_> {
        let Some(former) = &self.former else { return self.identity() };
        let Former { user, database, application, digest } = &**former;
        Identity::with_digest(&self.id, user, database, application, *digest)
    }

    /// No action is open any more.
    #[inline]
    pub(super) fn forget_former(&mut self) {
        if self.former.is_some() {
            self.former = None;
        }
    }

    pub(super) fn names(&self) -> Names<'_> {
        Names {
            user: &self.user.logged,
            database: &self.database.logged,
            application: &self.application.logged,
        }
    }

    /// Counts lines that the server numbered between the last record and this one, and notices when the
    /// numbers go back: these lines came before.
    #[inline]
    pub(super) fn count_lines(&mut self, record: &Record<'_>, facts: &mut Facts) {
        let Some((first, last)) = record.lines() else { return };
        let Some(before) = self.last_line.replace(last) else { return };
        if first > before {
            facts.lost_lines += first - before - 1;
        } else {
            facts.repeated_lines += 1;
        }
    }

    /// An event of this session, without an outcome.
    pub(super) fn draft<'a>(
        &mut self,
        time: Timestamp,
        action: ActionRef<'a>,
        source: Source,
        vxid: Option<Vxid>,
    ) -> Draft<'a> {
        let Membership { pipeline, unknown } = self.pipelines.of(&action, source, vxid);
        Draft {
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

    /// When an action began that ended at `end`. Times in a log are cut to milliseconds or seconds, so
    /// that the sum may fall before the end of the session's previous action.
    pub(super) fn start_of(&self, end: Timestamp, micros: u64) -> Timestamp {
        let start = end - std::time::Duration::from_micros(micros);
        start.max(self.floor).min(end)
    }
}

/// `%c`, or what it would be: the start's second and the process, in hexadecimal. Where the start is
/// not logged, the first record's time stands for it.
fn id(record: &Record<'_>) -> Arc<str> {
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

/// An id that differs from that of the session before: a rebuilt one may come twice in a second.
fn distinct(id: Arc<str>, gone: Option<&Arc<str>>) -> Arc<str> {
    let Some(rest) = gone.and_then(|gone| gone.strip_prefix(&*id)) else { return id };
    match rest.strip_prefix('-').map(str::parse::<u32>) {
        Some(Ok(number)) => format!("{id}-{}", number.saturating_add(1)).into(),
        _ if rest.is_empty() => format!("{id}-2").into(),
        _ => id,
    }
}

#[test]
fn rebuilt_ids_are_distinct() {
    let id = |gone: &str| distinct("a.7".into(), Some(&gone.into())).to_string();
    assert_eq!([id("a.7"), id("a.7-2"), id("a.70"), id("b.7")], ["a.7-2", "a.7-3", "a.7", "a.7"]);
}

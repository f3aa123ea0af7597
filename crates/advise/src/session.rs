//! [`CapturedSession`]: one session of the capture, with its transaction and its state.

use std::sync::Arc;

use howdah_traffic::{Bound, Event, Parameter, Timestamp};

use crate::{
    session_states::{Removal, SessionStates},
    state_kind::StateKind,
    text_effects::{LockArgument, StateName, StateRemoval},
};

/// A session that is open.
#[derive(Debug)]
pub(crate) struct CapturedSession {
    pub(crate) name: Arc<str>,
    /// Number of its pool: database and user.
    pub(crate) pool: usize,
    /// Number of its group: also the application, which is known from its first statement.
    pub(crate) group: Option<usize>,
    pub(crate) start: Timestamp,
    pub(crate) transaction: Option<CapturedTransaction>,
    /// The end of its transaction in the schedule.
    pub(crate) scheduled_end: Option<Timestamp>,
    pub(crate) states: SessionStates,
    /// Whether it needs a server in adaptive mode.
    pub(crate) has_server: bool,
    pub(crate) has_been_pinned: bool,
    pub(crate) has_read_sequence: bool,
    /// Functions that count as seen in this session, up to [`FUNCTIONS_MAX`].
    pub(crate) functions: Vec<Arc<str>>,
}

/// Maximum number of functions of a session whose sessions are counted.
pub(crate) const FUNCTIONS_MAX: usize = 64;

/// A transaction that has not ended.
#[derive(Debug)]
pub(crate) struct CapturedTransaction {
    pub(crate) start: Timestamp,
    /// When the transaction ends, unless a block is open or the pipeline continues.
    pub(crate) end: Timestamp,
    /// Whether BEGIN was executed, and neither COMMIT nor ROLLBACK.
    pub(crate) is_block: bool,
    /// Whether a statement has failed, so that COMMIT rolls back.
    pub(crate) has_failed: bool,
    pub(crate) pipeline: Option<u32>,
    pub(crate) executions: u64,
    pub(crate) may_have_advanced_sequence: bool,
    pub(crate) pending: Vec<PendingChange>,
}

/// A change of state that takes effect at the end of its transaction.
#[derive(Debug)]
pub(crate) enum PendingChange {
    Savepoint(Box<str>),
    Leave {
        kind: StateKind,
        name: Option<Arc<str>>,
        /// The statement, if the group has no example yet.
        example: Option<String>,
    },
    Remove(Removal),
}

/// Maximum number of pending changes; the oldest savepoints, then the oldest changes are dropped.
const PENDING_MAX: usize = 1_024;

impl CapturedSession {
    pub(crate) fn new(name: Arc<str>, pool: usize, start: Timestamp) -> Self {
        Self {
            name,
            pool,
            group: None,
            start,
            transaction: None,
            scheduled_end: None,
            states: SessionStates::default(),
            has_server: false,
            has_been_pinned: false,
            has_read_sequence: false,
            functions: Vec::new(),
        }
    }
}

impl CapturedTransaction {
    pub(crate) fn new(start: Timestamp, pipeline: Option<u32>) -> Self {
        Self {
            start,
            end: start,
            is_block: false,
            has_failed: false,
            pipeline,
            executions: 0,
            may_have_advanced_sequence: false,
            pending: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, change: PendingChange) {
        if self.pending.len() >= PENDING_MAX {
            let is_savepoint =
                |change: &PendingChange| matches!(change, PendingChange::Savepoint(_));
            self.pending.remove(self.pending.iter().position(is_savepoint).unwrap_or(0));
        }
        self.pending.push(change);
    }

    /// `RELEASE`: the savepoint and later ones do not exist any more.
    pub(crate) fn release(&mut self, name: &str) {
        let Some(position) = self.savepoint(name) else { return };
        let mut index = 0;
        self.pending.retain(|change| {
            index += 1;
            index <= position || !matches!(change, PendingChange::Savepoint(_))
        });
    }

    /// `ROLLBACK TO`: undoes later changes, except those that are not transactional.
    pub(crate) fn roll_back_to(&mut self, name: &str) {
        self.has_failed = false;
        let Some(position) = self.savepoint(name) else { return };
        let later = self.pending.split_off(position + 1);
        self.pending.extend(later.into_iter().filter(PendingChange::survives_rollback));
    }

    fn savepoint(&self, name: &str) -> Option<usize> {
        self.pending
            .iter()
            .rposition(|it| matches!(it, PendingChange::Savepoint(own) if **own == *name))
    }
}

impl PendingChange {
    /// Whether a rollback does not undo the change.
    pub(crate) fn survives_rollback(&self) -> bool {
        match self {
            Self::Savepoint(_) => false,
            Self::Leave { kind, .. }
            | Self::Remove(Removal::Named(kind, _) | Removal::AllOfKind(kind)) => {
                !kind.is_transactional()
            }
            // DISCARD ALL cannot run in a transaction block.
            Self::Remove(Removal::Everything) => false,
        }
    }
}

/// Returns the changes of a transaction that last beyond its end: first the removals, then the
/// state that it leaves and does not remove itself.
pub(crate) fn lasting_changes(
    pending: Vec<PendingChange>,
    is_committed: bool,
) -> (Vec<Removal>, Vec<LeftObject>) {
    let (mut removals, mut left): (Vec<Removal>, Vec<LeftObject>) = (Vec::new(), Vec::new());
    for change in pending {
        if !is_committed && !change.survives_rollback() {
            continue;
        }
        match change {
            PendingChange::Savepoint(_) => {}
            PendingChange::Leave { kind, name, example } => {
                left.push(LeftObject { kind, name, example });
            }
            PendingChange::Remove(removal) => {
                let is_counted = matches!(&removal, Removal::Named(kind, _) if kind.is_counted());
                let own = |it: &LeftObject| removal.matches(it.kind, it.name.as_ref());
                if is_counted && let Some(index) = left.iter().rposition(own) {
                    left.remove(index);
                } else {
                    left.retain(|it| !own(it));
                    removals.push(removal);
                }
            }
        }
    }
    (removals, left)
}

/// State that a transaction has left.
#[derive(Debug)]
pub(crate) struct LeftObject {
    pub(crate) kind: StateKind,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) example: Option<String>,
}

/// Returns the name with the bound values of an event; `None` if it is not known.
pub(crate) fn resolved_name(
    name: &StateName,
    event: &Event,
    bound: Option<&Bound>,
) -> Option<Arc<str>> {
    match name {
        StateName::Fixed(name) => Some(Arc::clone(name)),
        StateName::Unknown => None,
        StateName::Arguments(arguments) => {
            let values: Option<Vec<String>> =
                arguments.iter().map(|it| argument_text(it, event, bound)).collect();
            Some(values?.join(", ").into())
        }
    }
}

/// Returns the removal with the bound values of an event.
pub(crate) fn resolved_removal(
    removal: &StateRemoval,
    event: &Event,
    bound: Option<&Bound>,
) -> Removal {
    match removal {
        StateRemoval::Everything => Removal::Everything,
        StateRemoval::AllOfKind(kind) => Removal::AllOfKind(*kind),
        StateRemoval::One(kind, name) => Removal::Named(*kind, resolved_name(name, event, bound)),
    }
}

/// Returns the text of a lock function's argument. Values that are bound in binary format look the
/// same for the same session, although not the same as constants.
fn argument_text(argument: &LockArgument, event: &Event, bound: Option<&Bound>) -> Option<String> {
    let index = match argument {
        LockArgument::Constant(text) => return Some(text.to_string()),
        LockArgument::Parameter(index) => *index,
    };
    match bound?.parameters.as_ref()?.get(index)? {
        Parameter::Value(value) if value.len() <= VALUE_BYTES_MAX => {
            let is_binary = event.wire.as_ref().is_some_and(|wire| wire.is_binary(index));
            let bytes = value.as_bytes();
            // Integers are big-endian.
            let number =
                |bytes: &[u8]| bytes.iter().fold(0_i64, |sum, it| sum << 8 | i64::from(*it));
            Some(match bytes.len() {
                1..=8 if is_binary => number(bytes).to_string(),
                _ => String::from_utf8_lossy(bytes).into_owned(),
            })
        }
        _ => None,
    }
}

/// Maximum size of a key of an advisory lock, which has at most 20 digits.
const VALUE_BYTES_MAX: usize = 64;

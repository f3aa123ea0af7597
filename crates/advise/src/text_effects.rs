//! [`TextEffects`]: what a text of statements does to its transaction and its session's state, in
//! order.

use std::sync::Arc;

use crate::state_kind::StateKind;

/// The effects of a text, in the order of its statements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextEffects {
    pub(crate) steps: Vec<TextStep>,
    /// Whether PostgreSQL's grammar accepts the text.
    pub(crate) is_readable: bool,
    /// Whether texts that differ in constants only may have other effects.
    pub(crate) depends_on_constants: bool,
}

/// One effect of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TextStep {
    Begin,
    /// `COMMIT`, or `PREPARE TRANSACTION`.
    Commit {
        chain: bool,
    },
    Rollback {
        chain: bool,
    },
    Savepoint(Box<str>),
    Release(Box<str>),
    RollbackTo(Box<str>),
    Leave(StateKind, StateName),
    Remove(StateRemoval),
    /// A statement that may have called `nextval`.
    MayAdvanceSequence,
    /// A call of `currval` or `lastval`.
    ReadsSequence,
}

/// The state that a statement removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StateRemoval {
    One(StateKind, StateName),
    AllOfKind(StateKind),
    /// `DISCARD ALL`.
    Everything,
}

/// The name of an object of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StateName {
    Fixed(Arc<str>),
    /// The arguments of a lock function, some of which are bound values.
    Arguments(Box<[LockArgument]>),
    Unknown,
}

/// An argument of a lock function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LockArgument {
    Constant(Box<str>),
    /// The number of a parameter, from 0.
    Parameter(usize),
}

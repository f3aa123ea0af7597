//! [`SessionEffects`]: the state that a statement may leave in its session, or remove from it.

use std::fmt;

/// Kinds of session state that a query can detect, as a bit set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateKinds(u8);

impl StateKinds {
    /// No state.
    pub const NONE: Self = Self(0);
    /// Objects in the session's temporary schema.
    pub const TEMPORARY: Self = Self(1);
    /// Session-level advisory locks.
    pub const LOCKS: Self = Self(2);
    /// Cursors declared `WITH HOLD`.
    pub const CURSORS: Self = Self(4);
    /// Statements prepared by the command `PREPARE`.
    pub const PREPARED: Self = Self(8);
    /// Channels that the session listens to.
    pub const CHANNELS: Self = Self(16);
    /// Settings whose names are not known.
    pub const SETTINGS: Self = Self(32);
    /// Another session user, by `SET SESSION AUTHORIZATION`.
    pub const AUTHORIZATION: Self = Self(64);
    /// All kinds.
    pub const ALL: Self = Self(127);

    /// Whether no kind is in the set.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Whether the two sets have a kind in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the kinds of this set that are not in `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Adds the kinds of `other`.
    pub fn insert(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Session state that no query can detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UndetectableState {
    /// `LOAD`, of a library.
    Library,
    /// Another seed of `random()`, set by `setseed` or by `SET seed`.
    RandomSeed,
    /// A replication slot, which may be temporary.
    ReplicationSlot,
    /// The session's replication origin.
    ReplicationOrigin,
    /// A base backup, which ends with its session.
    Backup,
    /// A setting whose name is a bound value or an expression.
    UnnamedSetting,
    /// SQL in the value of an expression, such as the argument of `query_to_xml`.
    DynamicSql,
    /// More unknown functions than [`SessionEffects::functions`] can contain.
    ManyFunctions,
}

impl UndetectableState {
    /// Whether `DISCARD ALL` removes the state.
    pub fn ends_with_discard_all(self) -> bool {
        matches!(self, Self::UnnamedSetting | Self::DynamicSql | Self::ManyFunctions)
    }
}

impl fmt::Display for UndetectableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Library => "LOAD",
            Self::RandomSeed => "random seed",
            Self::ReplicationSlot => "replication slot",
            Self::ReplicationOrigin => "replication origin",
            Self::Backup => "base backup",
            Self::UnnamedSetting => "set_config without a constant name",
            Self::DynamicSql => "SQL in a value",
            Self::ManyFunctions => "many unknown functions",
        })
    }
}

/// The state that a text of one or more statements may leave in its session, or remove from it.
///
/// Functions that a trigger, a view, a default or an operator calls are not seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionEffects {
    /// Kinds of state that the text may leave.
    pub leaves: StateKinds,
    /// Kinds of state that the text may remove.
    pub removes: StateKinds,
    /// Settings that the text may change for the session, in lower case.
    pub settings: Vec<Box<str>>,
    /// State that the text may leave and that no query can detect.
    pub undetectable: Vec<UndetectableState>,
    /// Functions that are not PostgreSQL's own, as `name` or `schema.name`, up to
    /// [`FUNCTIONS_MAX`]; `do` for an anonymous code block.
    pub functions: Vec<Box<str>>,
    /// Whether the text calls `currval` or `lastval`, which depend on earlier calls of `nextval` in
    /// the session.
    pub reads_sequence_state: bool,
    /// Whether texts that differ in constants only may have other effects.
    pub depends_on_constants: bool,
}

/// Maximum number of functions in [`SessionEffects::functions`].
pub const FUNCTIONS_MAX: usize = 16;

impl SessionEffects {
    /// The effects of a text that is not analyzed: any state that a query can detect.
    pub fn unknown() -> Self {
        Self {
            leaves: StateKinds::ALL,
            removes: StateKinds::ALL,
            depends_on_constants: true,
            ..Self::default()
        }
    }

    /// Whether the text neither leaves nor removes state.
    pub fn is_none(&self) -> bool {
        self.leaves.is_none()
            && self.removes.is_none()
            && self.settings.is_empty()
            && self.undetectable.is_empty()
            && self.functions.is_empty()
    }
}

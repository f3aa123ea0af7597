//! [`InputProblem`]: the kinds of problems with an envelope or archive.

/// A kind of problem with the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InputProblem {
    /// Output of another program between the entries.
    NotARecord,
    /// The input ended inside an entry.
    CutShort,
    /// An entry is longer than the size limit.
    TooLong,
    /// A truncated or damaged archive or pgreplay file.
    Damaged,
    /// A line or object without the envelope that its neighbours have, or with an invalid one.
    BadEnvelope,
    /// Part of a message was lost on its way through syslog, so the message was skipped.
    LostParts,
    /// Entries run from new to old and were reversed.
    Backwards,
    /// Entries run from new to old, and are too many to reverse, so they are read in that order.
    BackwardsTooLong,
    /// Messages of several hosts are mixed in one log.
    SeveralServers,
    /// A line of another program in a shared log.
    OtherProgram,
}

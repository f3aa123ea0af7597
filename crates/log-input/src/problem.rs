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
    /// An entry without the envelope that its neighbours have, or one that cannot be interpreted.
    BadEnvelope,
    /// Part of a message was lost on its way through syslog, so the message was skipped.
    LostParts,
    /// Entries run from new to old and were reversed, unless they are too many.
    Backwards,
    /// Entries run from new to old, and are too many to reverse, so they are read in that order.
    BackwardsTooLong,
    /// Messages of several hosts are mixed in one log.
    SeveralServers,
    /// An entry of a shared log that is not part of the server's log, such as output of another
    /// program.
    OtherProgram,
}

//! The problems of an import: records that could not be read, and assumptions that were made.

use howdah_log_input::InputProblem;
use serde::Serialize;

/// A problem found in the input, with samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportProblem {
    /// The kind of problem.
    pub reason: ProblemReason,
    /// Number of occurrences.
    pub count: u64,
    /// The first few occurrences.
    pub samples: Vec<ProblemSample>,
}

/// An occurrence of a problem in the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProblemSample {
    /// Name of the file, as given or as found in a directory.
    pub file: String,
    /// Line number, from 1; in a replay file of pgreplay, the number of the item; 0 for an archive.
    pub line: u64,
    /// The first line of the affected input, or a message about it, shortened.
    pub excerpt: String,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident, $loses:literal, $text:literal;)*) => {
        /// A kind of problem with the input: the reason why some of it was skipped, or a doubt
        /// about something that was read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ProblemReason { $($(#[$doc])* $variant,)* }

        impl ProblemReason {
            /// Every reason, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Whether input was skipped that may be part of the server's log. False for lines of
            /// other programs in a shared log, although they are skipped.
            pub const fn drops_record(self) -> bool {
                match self { $(Self::$variant => $loses,)* }
            }

            /// Returns a phrase for display, to follow a count.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// Text that is not part of a record, such as output of another program between records.
    NotARecord, true, "lines that are not log records";
    /// A `DETAIL`, `STATEMENT` or similar line without its message.
    Orphan, true, "detail lines without their message";
    /// The input ended, or another record began, inside a record.
    CutShort, true, "records cut short";
    /// A record is longer than the [limit](crate::ImportOptions::max_record_bytes).
    TooLong, true, "records over the size limit";
    /// The time of a record is missing or not valid.
    BadTime, true, "records without a readable time";
    /// A csvlog row has stray quotes, or a number of columns that no server writes: fewer than 22,
    /// or 25.
    BadRow, true, "malformed csvlog rows: stray quotes, or a number of columns that no server writes (22 to 24, 26 are valid)";
    /// A jsonlog line that is not an object, or an object without a time.
    BadObject, true, "malformed jsonlog lines";
    /// The severity is missing or in another language.
    BadSeverity, true, "records of unknown severity";
    /// `execute`, `parse` or `bind` without the name that must follow.
    BadStep, true, "execute, parse or bind messages without a name";
    /// The parameter list is broken; the event has no values.
    BadParameters, false, "parameter lists that could not be read";
    /// A truncated or damaged archive or pgreplay file.
    Damaged, true, "files that are cut short or damaged; the part before the damage was read";
    /// An entry without the envelope that its neighbours have, or one that cannot be interpreted.
    BadEnvelope, true, "lines or objects without the envelope of the others";
    /// Syslog lost part of a message, so the message was skipped.
    LostParts, true, "messages that syslog lost a part of";
    /// Entries run from new to old and were reversed, unless they are too many.
    Backwards, false, "files whose entries run from new to old, read in reverse";
    /// Entries run from new to old, and are too many to reverse, so they were read in that order.
    BackwardsTooLong, false, "files whose entries run from new to old, too large to reverse: export them oldest first (gcloud logging read --order=asc)";
    /// Messages of several hosts are mixed in one log.
    SeveralServers, false, "messages of a different host than the first: pass the log of one server";
    /// An entry of a shared log that is not part of the server's log, such as output of another
    /// program.
    OtherProgram, false, "lines of other programs, skipped";
    /// The time zone is not known; UTC was assumed.
    UnknownZone, false, "times in an unknown zone, read as UTC";
    /// The time zone abbreviation has several meanings; PostgreSQL's default was assumed.
    AmbiguousZone, false, "times with an ambiguous zone abbreviation";
}

impl From<InputProblem> for ProblemReason {
    fn from(problem: InputProblem) -> Self {
        match problem {
            InputProblem::NotARecord => Self::NotARecord,
            InputProblem::CutShort => Self::CutShort,
            InputProblem::TooLong => Self::TooLong,
            InputProblem::BadEnvelope => Self::BadEnvelope,
            InputProblem::LostParts => Self::LostParts,
            InputProblem::Backwards => Self::Backwards,
            InputProblem::BackwardsTooLong => Self::BackwardsTooLong,
            InputProblem::SeveralServers => Self::SeveralServers,
            InputProblem::OtherProgram => Self::OtherProgram,
            InputProblem::Damaged => Self::Damaged,
        }
    }
}

/// A line of an input file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPosition<'a> {
    pub(crate) file: &'a str,
    pub(crate) line: u64,
}

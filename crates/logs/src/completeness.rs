//! What a capture lacks of what the clients did, and what that means for its replay.
//!
//! A log is not a recording: some things are never written to it, others only with certain settings.
//! Whoever replays it wants to know, before drawing conclusions, what is not there.

use serde::{Serialize, Serializer, ser::SerializeStruct};

use crate::summary::Summary;

/// Everything that is known to be missing or doubtful, most harmful first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Completeness {
    /// One entry for each lack that was met; none has a count of 0.
    pub gaps: Vec<Gap>,
}

/// Something that is missing or doubtful, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// What.
    pub lack: GapKind,
    /// How often it was met. What the log does not hold cannot always be counted: then this is the
    /// number of signs of it.
    pub count: u64,
}

/// As an object with `lack`, `count`, and for people `text`, `meaning` and, where there is one, the server's
/// setting as `remedy` and something else to do as `advice`.
impl Serialize for Gap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Gap", 6)?;
        object.serialize_field("lack", &self.lack)?;
        object.serialize_field("count", &self.count)?;
        object.serialize_field("text", self.lack.as_str())?;
        object.serialize_field("meaning", self.lack.meaning())?;
        object.serialize_field("remedy", &self.lack.remedy())?;
        object.serialize_field("advice", &self.lack.advice())?;
        object.end()
    }
}

macro_rules! lacks {
    ($($(#[$doc:meta])* $variant:ident, $count:expr, $text:literal, $meaning:literal, $remedy:expr;)*) => {
        /// What a capture can lack.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum GapKind { $($(#[$doc])* $variant,)* }

        impl GapKind {
            /// Every lack, most harmful first.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// A phrase for people, to follow a count.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What it means for a replay.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }

            /// The setting of the server that would have helped, if one would.
            pub const fn remedy(self) -> Option<&'static str> {
                match self { $(Self::$variant => $remedy,)* }
            }

            /// What a person can do about it in a replay, if the server's settings cannot help.
            pub const fn advice(self) -> Option<&'static str> {
                match self {
                    Self::LoginSettings => Some(
                        "replay with --set [USER@DATABASE:]NAME=VALUE, such as --set app@shop:search_path=s2",
                    ),
                    Self::Repeated => Some("give each part of the log once"),
                    _ => None,
                }
            }

            fn count(self, summary: &Summary) -> u64 {
                match self { $(Self::$variant => ($count)(summary),)* }
            }
        }
    };
}

lacks! {
    /// Gaps in the numbers that the server gives to the lines of a session.
    LostLines, |s: &Summary| s.facts.lost_lines,
        "lines that the server wrote and the log does not hold",
        "whatever they said is not replayed: statements, values or ends of sessions",
        Some("logging_collector = on; with syslog, no rate limit");
    /// Records of a session that go back in the server's numbers.
    Repeated, |s: &Summary| s.facts.repeated_lines,
        "places where the lines of a session begin anew: a part of the log was read twice",
        "what stands there twice is replayed twice",
        None;
    /// Records that could not be read.
    Rejected, |s: &Summary| s.rejected(),
        "records or lines that could not be read",
        "whatever they said is not replayed",
        None;
    /// Items of pgreplay-go, replay files of pgreplay.
    OtherCapture, |s: &Summary| s.inputs.other_captures(),
        "files that another replay tool made, not the server",
        "they hold no durations and no errors; what that tool could not read is missing without a trace",
        None;
    /// Messages in another language.
    Translated, |s: &Summary| s.facts.translated_messages,
        "messages about statements in another language than English",
        "these statements are not replayed",
        Some("lc_messages = 'C'");
    /// Signs of `log_statement_sample_rate` below 1, or of `log_transaction_sample_rate`.
    Sampled, |s: &Summary| s.facts.signs_of_sample(),
        "executions without their Bind, or transactions without beginning, end or trace, which no threshold kept out: the log is a sample",
        "only a part of the load is replayed, and transactions may lack their BEGIN or COMMIT",
        Some("log_min_duration_sample = -1, log_transaction_sample_rate = 0");
    /// Only statements slower than a threshold are in the log.
    OnlySlow, |s: &Summary| s.facts.only_slow_executions(),
        "executions in a log that has none faster than a millisecond: a threshold kept the others out",
        "only the slow part of the load is replayed, and transactions may lack their BEGIN or COMMIT",
        Some("log_statement = 'all', log_duration = on, log_min_duration_statement = -1");
    /// Errors without their `STATEMENT`.
    TextUnknown, |s: &Summary| s.facts.errors_without_statement,
        "failed statements whose text the log does not hold",
        "they are not replayed",
        Some("log_min_error_statement = error");
    /// Parameters that the log does not show at all.
    ValuesUnknown, |s: &Summary| s.facts.executions_without_values,
        "executions whose parameters the log does not hold",
        "they are skipped",
        Some("log_error_verbosity = default, log_parameter_max_length = -1");
    /// Parameters cut by `log_parameter_max_length`.
    ValuesCut, |s: &Summary| s.facts.executions_with_cut_values,
        "executions with parameters that the server cut",
        "they are skipped",
        Some("log_parameter_max_length = -1, log_parameter_max_length_on_error = -1");
    /// The rows that clients sent.
    CopyRows, |s: &Summary| s.facts.copies_in,
        "COPY FROM STDIN, whose rows no log holds",
        "they are skipped: what they loaded is not there for later statements",
        None;
    /// Arguments of function calls.
    CallArguments, |s: &Summary| s.events(howdah_traffic::Kind::Call),
        "function calls by the fast path, whose arguments no log holds",
        "they are skipped",
        None;
    /// The line prefix names no session.
    SessionsMerged, |s: &Summary| u64::from(s.facts.sessions_merged),
        "line prefix that tells no session: those of one user are taken as one",
        "what ran side by side is replayed one after another",
        Some("log_line_prefix with %c, such as '%m|%u|%d|%c|'");
    /// Sessions of which the log does not tell user or database.
    NamesUnknown, |s: &Summary| s.facts.sessions_without_names,
        "sessions of unknown user or database",
        "they are replayed as the user and in the database of the target's connection string",
        Some("log_line_prefix with %u and %d, or log_connections = on");
    /// Sessions that were inside of a transaction block at their first record.
    InTransaction, |s: &Summary| s.facts.joined_in_transaction,
        "sessions that were inside a transaction when the log began",
        "the rest of that transaction is replayed without its beginning",
        None;
    /// Sessions that were open before their first record.
    JoinedMidway, |s: &Summary| s.facts.joined_midway,
        "sessions that were open before the log began",
        "settings, prepared statements and temporary tables that they made before are not there",
        None;
    /// Statements that the log shows beginning, not ending.
    OutcomeUnknown, |s: &Summary| s.facts.executions_without_outcome,
        "executions of unknown duration",
        "they are replayed; nothing says how long they took when they were captured",
        Some("log_duration = on");
    /// Statements known from the record of their error only.
    StartUnknown, |s: &Summary| s.facts.error_form,
        "failed statements known from their error alone",
        "they are replayed at the time of the error, which is that of the end",
        Some("log_statement = 'all'");
    /// Executions of a portal that fetch a part of the rows.
    FetchCounts, |s: &Summary| s.events(howdah_traffic::Kind::Fetch),
        "fetches from portals, whose number of rows no log holds",
        "they fetch as many rows as the replay is told to",
        None;
    /// Settings in startup packets.
    LoginSettings, |s: &Summary| s.events(howdah_traffic::Kind::Connect),
        "sessions whose settings at login (options, PGOPTIONS, currentSchema, TimeZone) no log holds",
        "they have the settings of role and database on the target: a search_path may lead to other tables",
        None;
    /// Types and formats of parameters.
    ParameterTypes, |s: &Summary| s.facts.executions_with_values,
        "executions with parameters, whose declared types and binary formats no log holds",
        "values are sent as text and the server deduces the types, which for a few statements it cannot",
        None;
    /// Executions of which it is not known whether they shared a Sync with others.
    SyncUnknown, |s: &Summary| s.facts.executions_of_unknown_pipeline,
        "extended executions of which the log does not tell whether they were sent in one pipeline",
        "each is sent with a Sync of its own",
        Some("log_destination = 'csvlog' or 'jsonlog', or %v in log_line_prefix; and log_duration = on, or log_min_duration_statement = 0");
    /// Statements that a timeout of the server ended.
    Timeouts, |s: &Summary| s.facts.timeouts(),
        "statements or sessions ended by a timeout, whose setting the log need not hold",
        "they run on unless the same timeout is set for role, database or target",
        None;
    /// Texts in another encoding than UTF-8.
    OtherEncoding, |s: &Summary| s.facts.executions_not_utf8,
        "executions with text or parameters that are not UTF-8",
        "their bytes are sent as they are, which is right where the target's database has the same encoding",
        None;
}

impl Summary {
    /// What the capture lacks of what the clients did, as far as it can be told.
    pub fn completeness(&self) -> Completeness {
        let gap = |lack: &GapKind| Gap { lack: *lack, count: lack.count(self) };
        let gaps = GapKind::ALL.iter().map(gap).filter(|gap| gap.count > 0).collect();
        Completeness { gaps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_nothing_lacks_nothing() {
        assert_eq!(Summary::default().completeness(), Completeness::default());
    }

    #[test]
    fn lacks_are_told_with_what_they_mean() {
        let mut summary = Summary::default();
        summary.facts.lost_lines = 3;
        summary.facts.copies_in = 2;
        let completeness = summary.completeness();
        let gaps =
            [Gap { lack: GapKind::LostLines, count: 3 }, Gap { lack: GapKind::CopyRows, count: 2 }];
        assert_eq!(completeness.gaps, gaps);
        for lack in GapKind::ALL {
            assert!(!lack.as_str().is_empty() && !lack.meaning().is_empty());
        }
    }
}

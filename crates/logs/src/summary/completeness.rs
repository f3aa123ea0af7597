//! Reports the gaps of a capture, compared with the clients' actions, and their consequences for a
//! replay.
//!
//! A log is not a complete recording: the server never logs some data, and logs other data only
//! with certain settings. The user should know the gaps before drawing conclusions from a replay.

use serde::{Serialize, Serializer, ser::SerializeStruct};

use super::ImportSummary;

/// The gaps of a capture: everything known to be missing or uncertain, most harmful first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Completeness {
    /// One entry for each kind of gap that occurred; none has a count of 0.
    pub gaps: Vec<Gap>,
}

/// A kind of missing or uncertain information, and the number of its occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The missing or uncertain information.
    pub kind: GapKind,
    /// Number of occurrences, or of signs of the gap where the missing data cannot be counted.
    pub count: u64,
}

/// Serializes as an object with `kind` and `count`, and `text` and `meaning` for display. `remedy`,
/// a server setting, and `advice`, another measure, are null if there is none.
impl Serialize for Gap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Gap", 6)?;
        object.serialize_field("kind", &self.kind)?;
        object.serialize_field("count", &self.count)?;
        object.serialize_field("text", self.kind.as_str())?;
        object.serialize_field("meaning", self.kind.meaning())?;
        object.serialize_field("remedy", &self.kind.remedy())?;
        object.serialize_field("advice", &self.kind.advice())?;
        object.end()
    }
}

macro_rules! gap_kinds {
    ($($(#[$doc:meta])* $variant:ident, $count:expr, $text:literal, $meaning:literal, $remedy:expr;)*) => {
        /// A kind of gap in a capture.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum GapKind { $($(#[$doc])* $variant,)* }

        impl GapKind {
            /// Every kind, most harmful first.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns a phrase for display, to follow a count.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Returns the consequence of the gap for a replay.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }

            /// Returns the server settings that would have prevented the gap, if there are any.
            pub const fn remedy(self) -> Option<&'static str> {
                match self { $(Self::$variant => $remedy,)* }
            }

            /// Returns advice on dealing with the gap, for some gaps that no server setting
            /// prevents.
            pub const fn advice(self) -> Option<&'static str> {
                match self {
                    Self::LoginSettings => Some(
                        "replay with --set [USER@DATABASE:]NAME=VALUE, such as --set app@shop:search_path=s2",
                    ),
                    Self::Repeated => Some("give each part of the log once"),
                    _ => None,
                }
            }

            fn count(self, summary: &ImportSummary) -> u64 {
                match self { $(Self::$variant => ($count)(summary),)* }
            }
        }
    };
}

gap_kinds! {
    /// Lines that are missing, according to the line numbers of their session.
    LostLines, |s: &ImportSummary| s.facts.lost_lines,
        "lines that the server wrote and the log does not contain",
        "their contents are not replayed: statements, values or ends of sessions",
        Some("logging_collector = on; with syslog, no rate limit");
    /// Places where a session's line numbers go back, because part of the log was read twice.
    Repeated, |s: &ImportSummary| s.facts.repeated_lines,
        "places where a session's line numbers go back: part of the log was read twice",
        "the repeated part is replayed twice",
        None;
    /// Records, lines or files that could not be read, at least in part.
    Rejected, |s: &ImportSummary| s.rejected(),
        "records or lines that could not be read",
        "their contents are not replayed",
        None;
    /// Files made by pgreplay or pgreplay-go instead of the server.
    OtherCapture, |s: &ImportSummary| s.inputs.other_captures(),
        "files made by another replay tool, not by the server",
        "they contain no durations and no errors; what that tool could not read is missing without a trace",
        None;
    /// Messages about statements or durations in a language other than English.
    Translated, |s: &ImportSummary| s.facts.translated_messages,
        "messages about statements in a language other than English",
        "these statements are not replayed",
        Some("lc_messages = 'C'");
    /// Signs of `log_statement_sample_rate` below 1, or of `log_transaction_sample_rate`.
    Sampled, |s: &ImportSummary| s.facts.sampling_evidence(),
        "executions without their Bind, or transactions without a beginning, an end or any record, although no threshold explains it: the log is a sample",
        "only part of the load is replayed, and transactions may lack their BEGIN or COMMIT",
        Some("log_min_duration_sample = -1, log_transaction_sample_rate = 0");
    /// Only statements slower than a threshold are in the log.
    OnlySlow, |s: &ImportSummary| s.facts.only_slow_executions(),
        "executions in a log that has none faster than a millisecond: a threshold excluded the others",
        "only the slow part of the load is replayed, and transactions may lack their BEGIN or COMMIT",
        Some("log_statement = 'all', log_duration = on, log_min_duration_statement = -1");
    /// Errors whose statement the log does not show, usually because of `log_min_error_statement`.
    TextUnknown, |s: &ImportSummary| s.facts.errors_without_statement,
        "failed statements whose text is not in the log",
        "they are not replayed",
        Some("log_min_error_statement = error");
    /// Parameters that the log does not show at all.
    ValuesUnknown, |s: &ImportSummary| s.facts.executions_without_values,
        "executions whose parameters are not in the log",
        "they are skipped",
        Some("log_error_verbosity = default, log_parameter_max_length = -1");
    /// Parameters that the server cut to a maximum length.
    ValuesCut, |s: &ImportSummary| s.facts.executions_with_cut_values,
        "executions with parameters that the server cut",
        "they are skipped",
        Some("log_parameter_max_length = -1, log_parameter_max_length_on_error = -1");
    /// Rows that clients sent for `COPY … FROM STDIN`.
    CopyRows, |s: &ImportSummary| s.facts.copies_in,
        "COPY FROM STDIN, whose rows are never logged",
        "they are skipped: later statements do not find the rows they loaded",
        None;
    /// Arguments of function calls.
    CallArguments, |s: &ImportSummary| s.events(howdah_traffic::Kind::Call),
        "fast-path function calls, whose arguments are never logged",
        "they are skipped",
        None;
    /// The line prefix does not identify sessions.
    SessionsMerged, |s: &ImportSummary| u64::from(s.facts.sessions_merged),
        "line prefix that does not identify sessions: those of one user are merged",
        "what ran concurrently is replayed one after another",
        Some("log_line_prefix with %c, such as '%m|%u|%d|%c|'");
    /// Sessions whose user or database the log does not show.
    NamesUnknown, |s: &ImportSummary| s.facts.sessions_without_names,
        "sessions of unknown user or database",
        "they are replayed as the user and in the database of the target's connection string",
        Some("log_line_prefix with %u and %d, or log_connections = on");
    /// Sessions that were inside a transaction block at their first action.
    InTransaction, |s: &ImportSummary| s.facts.joined_in_transaction,
        "sessions that were inside a transaction when the log began",
        "the rest of that transaction is replayed without its beginning",
        None;
    /// Sessions whose beginning is not in the log, so that they may have been open before it.
    JoinedMidway, |s: &ImportSummary| s.facts.joined_midway,
        "sessions whose beginning is not in the log",
        "settings, prepared statements and temporary tables from before their first action may be missing",
        None;
    /// Executions of which the log shows neither a duration nor an error.
    OutcomeUnknown, |s: &ImportSummary| s.facts.executions_without_outcome,
        "executions of unknown duration",
        "they are replayed; how long they originally took is not known",
        Some("log_duration = on");
    /// Statements known only from their error record.
    StartUnknown, |s: &ImportSummary| s.facts.error_form,
        "failed statements known only from their error",
        "they are replayed at the time of the error, which is that of the end",
        Some("log_statement = 'all'");
    /// Executions that fetch further rows from a portal.
    FetchCounts, |s: &ImportSummary| s.events(howdah_traffic::Kind::Fetch),
        "fetches from portals, whose number of rows is never logged",
        "they fetch as many rows as the replay is configured to",
        None;
    /// Settings in startup packets.
    LoginSettings, |s: &ImportSummary| s.events(howdah_traffic::Kind::Connect),
        "sessions whose settings at login (options, PGOPTIONS, currentSchema, TimeZone) are never logged",
        "they have the settings of role and database on the target: a search_path may lead to other tables",
        None;
    /// Types and formats of parameters.
    ParameterTypes, |s: &ImportSummary| s.facts.executions_with_values,
        "executions with parameters, whose declared types and binary formats are never logged",
        "values are sent as text and the server infers the types, which fails for a few statements",
        None;
    /// Executions that may have shared a Sync with others.
    SyncUnknown, |s: &ImportSummary| s.facts.executions_of_unknown_pipeline,
        "extended executions for which the log does not show whether they were sent in one pipeline",
        "each is sent with a Sync of its own",
        Some("log_destination = 'csvlog' or 'jsonlog', or %v in log_line_prefix; and log_duration = on, or log_min_duration_statement = 0");
    /// Statements and sessions ended by a timeout of the server.
    Timeouts, |s: &ImportSummary| s.facts.timeouts(),
        "statements or sessions ended by a timeout, whose setting may not be in the log",
        "they keep running unless the same timeout is set for role, database or target",
        None;
    /// Texts in an encoding other than UTF-8.
    OtherEncoding, |s: &ImportSummary| s.facts.executions_not_utf8,
        "executions with text or parameters that are not UTF-8",
        "their bytes are sent unchanged, which is correct if the target database has the same encoding",
        None;
}

impl ImportSummary {
    /// Returns all known gaps of the import, compared with the clients' actions.
    pub fn completeness(&self) -> Completeness {
        let gap = |kind: &GapKind| Gap { kind: *kind, count: kind.count(self) };
        let gaps = GapKind::ALL.iter().map(gap).filter(|gap| gap.count > 0).collect();
        Completeness { gaps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_summary_has_no_gaps() {
        assert_eq!(ImportSummary::default().completeness(), Completeness::default());
    }

    #[test]
    fn gaps_have_text_and_meaning() {
        let mut summary = ImportSummary::default();
        summary.facts.lost_lines = 3;
        summary.facts.copies_in = 2;
        let completeness = summary.completeness();
        let gaps =
            [Gap { kind: GapKind::LostLines, count: 3 }, Gap { kind: GapKind::CopyRows, count: 2 }];
        assert_eq!(completeness.gaps, gaps);
        for kind in GapKind::ALL {
            assert!(!kind.as_str().is_empty() && !kind.meaning().is_empty());
        }
    }
}

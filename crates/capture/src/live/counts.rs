//! [`RecorderCounts`]: the counts of a recording, and its report on missing data.

use howdah_traffic::EventHash;
use serde::Serialize;
use serde_json::{Value, json};

/// Counts of what a recording contains, and of what is missing from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecorderCounts {
    /// Number of events written to the capture.
    pub events: u64,
    /// Number of sessions recorded.
    pub sessions: u64,
    /// Number of sessions that were already open when their recording started.
    pub entered_open: u64,
    /// Number of gaps: chunks of a worker's buffer that were dropped.
    pub gaps: u64,
    /// Number of bytes lost because a queue was full: those of dropped chunks, and those that
    /// clients sent before recording them could start or resume.
    pub lost_bytes: u64,
    /// Number of events that awaited their reply at a gap, so that their outcome is unknown.
    pub cut_short: u64,
    /// Number of Bind messages for an unknown statement, plus Execute messages for an unknown named
    /// portal. A name is unknown, for example, if the message that created it was not recorded.
    pub unknown_statements: u64,
    /// Number of Query, Parse, Bind and FunctionCall messages that were too long to be recorded,
    /// plus pipelines that sent more than 64 KiB of other messages between two events, plus events
    /// that were too large to be written.
    pub too_long: u64,
    /// Number of messages with a `COPY … FROM STDIN` whose rows were not recorded, or not all of
    /// them.
    pub copies_without_rows: u64,
    /// Number of function calls that were written without their arguments, which redaction removes.
    pub calls: u64,
    /// Number of messages that the server skipped because an earlier one in their pipeline failed.
    pub skipped_by_server: u64,
    /// Number of clients whose messages could not be parsed.
    pub malformed: u64,
}

impl RecorderCounts {
    /// Whether the counts show no missing data. [`Self::lost_bytes`] is ignored.
    pub fn is_complete(&self) -> bool {
        self.completeness().is_empty()
    }

    /// Returns the kinds of missing data, in the same form as in captures of logs.
    fn completeness(&self) -> Vec<Value> {
        const BUFFER: &str = "increase capture.buffer, or use a faster disk";
        let gaps: [(&str, u64, &str, &str, &str); 7] = [
            (
                "overflow",
                self.gaps,
                "chunks of a worker's traffic were dropped",
                "sessions are missing what they did until their next transaction",
                BUFFER,
            ),
            (
                "cut-short",
                self.cut_short,
                "statements were running when a chunk was dropped",
                "their time, rows and errors are not known",
                BUFFER,
            ),
            (
                "unknown-statements",
                self.unknown_statements,
                "executions used statements whose preparation was not captured",
                "they are not in the capture",
                "start the capture before the clients, or pool by transaction",
            ),
            (
                "too-long",
                self.too_long,
                "messages were too long to be kept",
                "they are not in the capture",
                "",
            ),
            (
                "copy-rows",
                self.copies_without_rows,
                "COPYs are without their rows",
                "they cannot be replayed",
                "set capture.copy = \"full\", and increase capture.copy-max",
            ),
            (
                "call-arguments",
                self.calls,
                "function calls are without their arguments",
                "they cannot be replayed",
                "",
            ),
            (
                "malformed",
                self.malformed,
                "clients sent invalid messages",
                "what they sent after that is not in the capture; the pooler disconnected them",
                "",
            ),
        ];
        gaps
            .into_iter()
            .filter(|(_, count, ..)| *count > 0)
            .map(|(kind, count, text, meaning, advice)| {
                let advice = (!advice.is_empty()).then_some(advice);
                json!({ "kind": kind, "count": count, "text": text, "meaning": meaning, "advice": advice })
            })
            .collect()
    }

    /// Returns the report for the capture's manifest. `withheld` is
    /// [`Redactor::withheld`](crate::Redactor::withheld), if events are redacted; `error` is the
    /// failure that ended the recording.
    pub fn report(&self, hash: &EventHash, withheld: Option<u64>, error: Option<&str>) -> Value {
        let mut report = json!({
            "recorder": self,
            "sessions": self.sessions,
            "hash": hash.to_string(),
            "completeness": self.completeness(),
        });
        if let Some(withheld) = withheld {
            report["redacted"] = json!({ "withheld": withheld });
        }
        if let Some(error) = error {
            report["error"] = error.into();
        }
        report
    }
}

//! [`RecorderCounts`]: the counts of a recording, and its report on missing data.

use howdah_traffic::EventHash;
use serde::Serialize;
use serde_json::{Value, json};

/// The counts of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecorderCounts {
    /// Number of events written.
    pub events: u64,
    /// Number of sessions recorded.
    pub sessions: u64,
    /// Number of sessions that were open when recording started.
    pub entered_open: u64,
    /// Number of gaps: chunks of a worker's buffer that were dropped.
    pub gaps: u64,
    /// Number of dropped bytes: records of gaps, and bytes of clients that could not be recorded.
    pub lost_bytes: u64,
    /// Number of statements that were pending at a gap, so that their end is unknown.
    pub cut_short: u64,
    /// Number of executions of statements that were prepared before recording started and are
    /// unknown.
    pub unknown_statements: u64,
    /// Number of messages that were too long to be recorded.
    pub too_long: u64,
    /// Number of COPYs whose rows were not recorded.
    pub copies_without_rows: u64,
    /// Number of function calls whose arguments were not recorded.
    pub calls: u64,
    /// Number of messages that the server skipped because an earlier one in their pipeline failed.
    pub skipped_by_server: u64,
    /// Number of clients whose messages could not be parsed.
    pub malformed: u64,
}

impl RecorderCounts {
    /// Whether everything that clients sent was recorded.
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
                "executions used statements prepared before the capture started",
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

    /// Returns the report for the capture's manifest. `withheld` is the number of texts that
    /// redaction removed as a whole; `error` is the failure that ended the recording.
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

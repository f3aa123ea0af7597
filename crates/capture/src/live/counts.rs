//! [`RecorderCounts`]: the counts of a recording, and its report on what is missing.

use howdah_traffic::EventHash;
use serde::Serialize;
use serde_json::{Value, json};

/// The counts of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecorderCounts {
    /// Events written.
    pub events: u64,
    /// Sessions recorded.
    pub sessions: u64,
    /// Sessions that were open when recording started.
    pub entered_open: u64,
    /// Gaps: chunks of a worker's buffer that were dropped.
    pub gaps: u64,
    /// Bytes lost in gaps.
    pub lost_bytes: u64,
    /// Statements that were pending at a gap, whose end is not known.
    pub cut_short: u64,
    /// Executions of statements that were prepared before recording started and are not known.
    pub unknown_statements: u64,
    /// Messages that were too long to be kept.
    pub too_long: u64,
    /// COPYs whose rows were not kept.
    pub copies_without_rows: u64,
    /// Function calls whose arguments were not kept.
    pub calls: u64,
    /// Messages that the server skipped because an earlier one in their pipeline failed.
    pub skipped_by_server: u64,
    /// Clients whose messages could not be parsed.
    pub malformed: u64,
}

impl RecorderCounts {
    /// Whether nothing is missing that clients sent.
    pub fn is_complete(&self) -> bool {
        self.completeness().is_empty()
    }

    /// What is missing, in the same form as in captures of logs.
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

    /// The report in the capture's manifest. `withheld` is the number of texts that redaction
    /// removed as a whole, `error` the failure that ended the recording.
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

//! [`Tally`]: what a recording counted, and what it has to say about what it lacks.

use howdah_traffic::EventHash;
use serde::Serialize;
use serde_json::{Value, json};

/// Counts of one recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Events that were written.
    pub events: u64,
    /// Sessions that are in it.
    pub sessions: u64,
    /// Those of them that were open when it began.
    pub entered_open: u64,
    /// Stretches of a worker's tape that found no room and are missing.
    pub gaps: u64,
    /// Bytes that are missing for that reason.
    pub lost_bytes: u64,
    /// Statements that were under way when such a stretch began, of which the end is not known.
    pub cut_short: u64,
    /// Executions of statements that were prepared before they were recorded and that nobody knows.
    pub unknown_statements: u64,
    /// Messages that were longer than is kept.
    pub too_long: u64,
    /// COPYs of which the rows were not kept.
    pub copies_without_rows: u64,
    /// Function calls, of which the arguments are not kept.
    pub calls: u64,
    /// Messages that a server does not look at, because one before them in their pipeline has failed.
    pub skipped_by_server: u64,
    /// Clients that sent what cannot be understood.
    pub malformed: u64,
}

impl Tally {
    /// Whether something is missing that clients sent.
    pub fn is_complete(&self) -> bool {
        self.lacks().is_empty()
    }

    /// What the capture lacks, in the form in which captures of logs say it.
    fn lacks(&self) -> Vec<Value> {
        const BUFFER: &str = "give it a larger capture.buffer, or a faster disk";
        let lacks: [(&str, u64, &str, &str, &str); 7] = [
            (
                "overflow",
                self.gaps,
                "stretches of a worker's traffic found no room",
                "sessions lack what they did until they were between two transactions again",
                BUFFER,
            ),
            (
                "cut-short",
                self.cut_short,
                "statements were under way when such a stretch began",
                "their time, rows and errors are not known",
                BUFFER,
            ),
            (
                "unknown-statements",
                self.unknown_statements,
                "executions are of statements that were prepared before the capture began",
                "they are not in it",
                "start the capture before the clients, or pool by transaction",
            ),
            (
                "too-long",
                self.too_long,
                "messages were too long to be kept",
                "they are not in it",
                "",
            ),
            (
                "copy-rows",
                self.copies_without_rows,
                "COPYs are without their rows",
                "they cannot be replayed",
                "capture.copy = \"full\", and a capture.copy-max that takes them",
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
                "clients sent what is no message",
                "what they sent after it is not in it; the pooler ended them too",
                "",
            ),
        ];
        lacks
            .into_iter()
            .filter(|(_, count, ..)| *count > 0)
            .map(|(lack, count, text, meaning, advice)| {
                let advice = (!advice.is_empty()).then_some(advice);
                json!({ "lack": lack, "count": count, "text": text, "meaning": meaning, "advice": advice })
            })
            .collect()
    }

    /// What stands in the capture's manifest.
    pub(crate) fn report(
        &self,
        hash: &EventHash,
        withheld: Option<u64>,
        error: Option<&str>,
    ) -> Value {
        let mut report = json!({
            "recorder": self,
            "sessions": self.sessions,
            "hash": hash.to_string(),
            "completeness": self.lacks(),
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

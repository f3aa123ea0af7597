//! Synthetic runs for tests.

use howdah_dataset::{Disposition, ReplayOutcome};
use howdah_traffic::{Kind, SqlState, Timestamp};

use crate::{RunInfo, Samples, statistics::random::SeededRandom};

/// Builds a synthetic run, which consists of the given executions.
pub(crate) struct RunBuilder {
    pub(crate) samples: Samples,
    pub(crate) random: SeededRandom,
    sent_us: i64,
}

impl RunBuilder {
    pub(crate) fn new(seed: u64) -> Self {
        let about = RunInfo { complete: true, ..RunInfo::default() };
        Self { samples: Samples::new(about), random: SeededRandom::new(seed), sent_us: 0 }
    }

    pub(crate) fn outcome(&mut self, query: u64, service_us: f64) -> ReplayOutcome {
        self.sent_us += 5_000;
        ReplayOutcome {
            time: Timestamp::from_micros(self.sent_us),
            session: "a".into(),
            user: "app".into(),
            database: "shop".into(),
            kind: Kind::Execute,
            fingerprint: Some(query),
            due_us: self.sent_us,
            sent_us: Some(self.sent_us),
            service_us: Some(service_us as u64),
            schedule_error_us: Some(0),
            dependency_lag_us: None,
            input_late_us: None,
            rows: Some(1),
            disposition: Disposition::Done,
            captured_us: None,
            order_wait_us: None,
            captured_rows: None,
            check: None,
        }
    }

    pub(crate) fn record_done(&mut self, query: u64, service_us: f64) {
        let outcome = self.outcome(query, service_us);
        self.samples.record(&outcome);
    }

    pub(crate) fn record_failed(&mut self, query: u64, sqlstate: &str) {
        let disposition = Disposition::Failed {
            sqlstate: SqlState::new(sqlstate.as_bytes()),
            message: "no".into(),
        };
        let outcome = ReplayOutcome { disposition, ..self.outcome(query, 1.0) };
        self.samples.record(&outcome);
    }

    /// Adds log-normal executions around `median_us`; a third of them differ from it by more than
    /// `spread`.
    pub(crate) fn record_many(&mut self, query: u64, count: usize, median_us: f64, spread: f64) {
        for _ in 0..count {
            let service_us = median_us * (spread * self.random.normal()).exp();
            self.record_done(query, service_us);
        }
    }
}

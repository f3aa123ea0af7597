//! The client: reads single rows by key, one after another, and counts the reads of each step.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget};
use howdah_stats::Percentiles;

use crate::benchmark::{
    binding::ProcessorBinding,
    data::TABLE,
    error::{BenchmarkError, StepContext as _},
    host::{ConditionSampler, StepConditions},
    row_sequence::RowSequence,
};

/// Throughput and latency of the reads in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThroughputStep {
    /// Number of reads that began in this step, each of one row in its own transaction.
    pub transactions: u64,
    /// 99th percentile of the latency of reads that began in this step, in microseconds; 0 without
    /// reads.
    pub p99_us: u64,
    /// The conditions on the host meanwhile. After a read that spans several steps, those of all of
    /// them are in the last one.
    pub conditions: StepConditions,
}

/// A connected client with its prepared statement.
pub(crate) struct ReadClient {
    client: Client,
    rows: RowSequence,
}

/// The result of a measurement: the reads of each step, and the latencies of all reads.
#[derive(Clone, Debug)]
pub(crate) struct ReadMeasurement {
    pub(crate) steps: Vec<ThroughputStep>,
    pub(crate) latencies: Percentiles,
    /// Whether the client and its backend were bound to two processors.
    pub(crate) is_bound: bool,
}

const STATEMENT_NAME: &str = "point";

impl ReadClient {
    pub(crate) fn connect(
        target: &ConnectTarget,
        rows: RowSequence,
    ) -> Result<Self, BenchmarkError> {
        let mut client = Client::connect(target)?;
        let sql = format!("SELECT abalance FROM {TABLE} WHERE aid = $1");
        client.prepare(STATEMENT_NAME, &sql).step("prepare the client's query")?;
        Ok(Self { client, rows })
    }

    /// Returns the process id of the client's backend.
    pub(crate) fn process_id(&self) -> Option<i32> {
        self.client.process_id()
    }

    /// Reads for `duration`, rounded up to whole steps. A read that spans several steps counts in
    /// the one in which it began. `local_backend` is the process id of the client's backend, if
    /// that runs on this host; then its waits are measured as well, and both are bound to
    /// processors.
    pub(crate) fn run(
        &mut self,
        step: Duration,
        duration: Duration,
        local_backend: Option<i32>,
        stop: &AtomicBool,
    ) -> Result<ReadMeasurement, BenchmarkError> {
        let count = (duration.as_secs_f64() / step.as_secs_f64()).ceil().max(1.0) as usize;
        let mut steps = Vec::with_capacity(count);
        let mut latencies = Percentiles::new();
        let binding = local_backend.and_then(ProcessorBinding::bind);
        let mut sampler = ConditionSampler::start(local_backend);
        let began = Instant::now();
        let mut before = began;
        for number in 1..=count {
            let end = began + step * number as u32;
            let mut in_step = Percentiles::new();
            // If a read takes longer than a step, the steps it spans remain empty.
            while before < end {
                self.read_one()?;
                let now = Instant::now();
                let latency = now - before;
                before = now;
                in_step.record(latency);
                if stop.load(Ordering::Relaxed) {
                    return Err(BenchmarkError::Interrupted);
                }
            }
            steps.push(ThroughputStep {
                transactions: in_step.count(),
                p99_us: in_step.at_us(0.99).unwrap_or(0),
                conditions: sampler.sample(),
            });
            latencies.merge(&in_step);
        }
        Ok(ReadMeasurement { steps, latencies, is_bound: binding.is_some() })
    }

    fn read_one(&mut self) -> Result<(), BenchmarkError> {
        let row = self.rows.next_row().to_string();
        self.client.query_prepared(STATEMENT_NAME, &[Some(&row)]).step("read a row")?;
        Ok(())
    }
}

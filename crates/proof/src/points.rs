//! The client: reads single rows by their key, one after another, and writes down how many in each step.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use howdah_connect::{Client, Target};
use howdah_stats::Percentiles;

use crate::{
    data::TABLE,
    error::{InStep as _, ProofError},
    rank::Rows,
};

/// What was done within one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Rows read.
    pub transactions: u64,
    /// 99 of 100 reads that ended in it took at most this, in microseconds.
    pub p99_us: u64,
}

/// A client, connected and ready.
pub(crate) struct Points {
    client: Client,
    rows: Rows,
}

/// What it did.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) steps: Vec<Step>,
    pub(crate) latencies: Percentiles,
}

const STATEMENT: &str = "point";

impl Points {
    pub(crate) fn connect(target: &Target, rows: Rows) -> Result<Self, ProofError> {
        let mut client = Client::connect(target)?;
        let sql = format!("SELECT abalance FROM {TABLE} WHERE aid = $1");
        client.prepare(STATEMENT, &sql).step("preparing the client's statement")?;
        Ok(Self { client, rows })
    }

    /// The process of its session.
    pub(crate) fn process_id(&self) -> Option<i32> {
        self.client.process_id()
    }

    /// Reads until `duration` is over. The last step is whole; a read that spans steps belongs to the one
    /// it ends in.
    pub(crate) fn run(
        &mut self,
        step: Duration,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<Measured, ProofError> {
        let count = (duration.as_secs_f64() / step.as_secs_f64()).ceil().max(1.0) as usize;
        let mut steps = Vec::with_capacity(count);
        let mut latencies = Percentiles::new();
        let began = Instant::now();
        let mut before = began;
        for number in 1..=count {
            let end = began + step * number as u32;
            let mut own = Percentiles::new();
            // A read that took longer than a step leaves those it spans empty.
            while before < end {
                self.read_one()?;
                let now = Instant::now();
                let latency = now - before;
                (before, own) = (now, recorded(own, latency));
                if stop.load(Ordering::Relaxed) {
                    return Err(ProofError::Interrupted);
                }
            }
            steps.push(Step { transactions: own.count(), p99_us: own.at_us(0.99).unwrap_or(0) });
            latencies.merge(&own);
        }
        Ok(Measured { steps, latencies })
    }

    fn read_one(&mut self) -> Result<(), ProofError> {
        let row = self.rows.draw().to_string();
        self.client.query_prepared(STATEMENT, &[Some(&row)]).step("a read of the client")?;
        Ok(())
    }
}

fn recorded(mut into: Percentiles, latency: Duration) -> Percentiles {
    into.record(latency);
    into
}

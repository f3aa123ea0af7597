//! The loop that profiles waits, from samples of memory or by SQL.

use std::{
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use howdah_inspect::RunningServer;

use super::{LiveError, Pace, ProbeOutput, ServerLiveness, ticks::Ticks};
use crate::{
    SampleError,
    by_sql::IdentityMonitor,
    waits::{LabelId, Profile, QueryId, SamplingCost, SessionLabel, WaitReport, WaitSampler},
};

/// Samples the current waits of all processes.
pub trait WaitSource {
    /// Takes a sample.
    ///
    /// # Errors
    ///
    /// The server stopped, or cannot be sampled.
    fn sample(&mut self, profile: &mut Profile) -> Result<(), LiveError>;

    /// Returns the text of a sampled statement; `None` if unknown.
    fn query(&self, id: QueryId) -> Option<&str>;

    /// Returns the label of sampled sessions; `None` if unknown.
    fn label(&self, id: LabelId) -> Option<&SessionLabel>;
}

/// An update of [`profile_waits`]: the waits since the previous report or mark, and their source.
pub struct WaitInterval<'s> {
    /// The mark that was set now, if the waits are those since the previous mark or the start;
    /// `None` if they are those since the previous report.
    pub mark: Option<String>,
    /// The waits of that time.
    pub report: WaitReport,
    /// The source, which has the texts of the statements.
    pub source: &'s dyn WaitSource,
}

/// Totals of a profile, from start to end.
#[derive(Debug)]
pub struct WaitTotals {
    /// Waits since the start.
    pub report: WaitReport,
    /// Number of samples skipped because others took too long.
    pub missed: u64,
    /// The error, if the server stopped or no longer responded.
    pub ended: Option<LiveError>,
}

/// Samples every `period` until the duration has passed, the user interrupts, or the server stops
/// or no longer responds. Each text that is received from `marks` sets a mark.
///
/// # Errors
///
/// The server cannot be sampled, or the output cannot be written.
pub fn profile_waits<S: WaitSource>(
    source: &mut S,
    (pace, period): (&Pace, Duration),
    marks: Option<&Receiver<String>>,
    output: &mut impl for<'s> ProbeOutput<WaitInterval<'s>>,
) -> Result<WaitTotals, LiveError> {
    let mut profile = Profile::default();
    let mut ticks = Ticks::start(pace, period);
    let mut due = Instant::now() + pace.interval;
    let mut ended = None;
    while ticks.tick(output) {
        match source.sample(&mut profile) {
            Ok(()) => {}
            Err(error) if has_ended(&error) => {
                ended = Some(error);
                break;
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= due {
            due += pace.interval;
            let report = profile.take_interval();
            output.write(WaitInterval { mark: None, report, source })?;
        }
        // At most one per tick, so that no number of them delays the samples.
        if let Some(mark) = marks.and_then(|marks| marks.try_recv().ok()) {
            let report = profile.take_since_mark();
            output.write(WaitInterval { mark: Some(mark), report, source })?;
        }
    }
    Ok(WaitTotals { report: profile.total(), missed: ticks.missed(), ended })
}

/// Whether an error means that the server is gone, so that the totals up to it are complete.
fn has_ended(error: &LiveError) -> bool {
    match error {
        LiveError::Server(stopped) => matches!(stopped.source, SampleError::ServerStopped { .. }),
        LiveError::ActivityFailed(_) => true,
        _ => false,
    }
}

/// Samples the memory of a server.
#[derive(Debug)]
pub struct MemoryWaits {
    sampler: WaitSampler,
    monitor: ServerLiveness,
    /// Labels the samples, if requested.
    identities: Option<IdentityMonitor>,
}

impl MemoryWaits {
    /// Creates a source from an opened sampler. Samples are labelled only with `identities`.
    ///
    /// # Errors
    ///
    /// The server has stopped, or cannot be inspected.
    pub fn new(
        sampler: WaitSampler,
        server: &RunningServer,
        identities: Option<IdentityMonitor>,
    ) -> Result<Self, SampleError> {
        Ok(Self { sampler, monitor: ServerLiveness::new(server)?, identities })
    }

    /// Returns what labels the samples, if requested.
    pub fn identities(&self) -> Option<&IdentityMonitor> {
        self.identities.as_ref()
    }

    /// Returns the number of samples and their cost.
    pub fn cost(&self) -> SamplingCost {
        self.sampler.cost()
    }
}

impl WaitSource for MemoryWaits {
    fn sample(&mut self, profile: &mut Profile) -> Result<(), LiveError> {
        match self.sampler.sample(Instant::now()) {
            Ok(round) => match &mut self.identities {
                Some(identities) => identities.add_round(profile, &round),
                None => profile.add(&round),
            },
            Err(error @ SampleError::ServerStopped { .. }) => {
                return Err(self.monitor.explain(error).into());
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn query(&self, id: QueryId) -> Option<&str> {
        self.sampler.query(id)
    }

    fn label(&self, id: LabelId) -> Option<&SessionLabel> {
        self.identities.as_ref()?.label(id)
    }
}

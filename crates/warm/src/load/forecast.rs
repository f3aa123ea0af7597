//! Forecasts a load: what would be loaded, and how long it would take.
//!
//! The time is estimated from a sample: the server reads pieces of what would be loaded with
//! `pg_prewarm(…, 'read')`, which leaves its buffers as they are. This shows how fast files are
//! read, cold or hot as they are now, apart from the pages of the sample, which the operating
//! system caches. Without the extension a wide range is assumed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use howdah_connect::ConnectTarget;

use super::{
    LoadOptions,
    catalog::LocatedRelation,
    method::PrewarmMode,
    plan::LoadChunk,
    report::{PageCounts, RelationOutcome, RelationProblem, ResidencyError, sum_counts},
    session::{ChunkResult, LoadSession},
};
use crate::dump;

/// The forecast of a load, in total and for each relation.
#[derive(Debug)]
pub struct LoadForecast {
    /// Each relation, in the order of the image, with the pages that are in the cache, and those
    /// without room. The remaining requested pages would be loaded: see [`PageCounts::to_load`].
    pub outcomes: Vec<RelationOutcome>,
    /// Pages that [`LoadOptions::limit`] excluded.
    pub limited: u64,
    /// Why the cache could not be scanned, so that no page counts as resident and there seems to be
    /// room in all buffers.
    pub scan_error: Option<ResidencyError>,
    /// Whether the image does not record its cluster, so that its file numbers were trusted
    /// unchecked.
    pub is_origin_unknown: bool,
    /// Block size of the server (`block_size`).
    pub page_bytes: u32,
    /// How long the load would take.
    pub estimate: TimeEstimate,
}

/// An estimate of the time of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeEstimate {
    /// If the connections do not slow each other down, and reading is as fast as in the fastest
    /// part of the sample.
    pub shortest: Duration,
    /// If several connections are no faster than one, and reading is as slow as in the slowest part
    /// of the sample.
    pub longest: Duration,
    /// The reason for the rates.
    pub basis: RateBasis,
}

/// The reason for the rates of a [`TimeEstimate`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RateBasis {
    /// Nothing would be loaded.
    NothingToLoad,
    /// A sample was read, over one connection.
    Sample {
        /// Bytes that were read, at most [`SAMPLE_BYTES_MAX`].
        bytes: u64,
        /// Time that this took.
        elapsed: Duration,
    },
    /// No sample could be read, because the extension `pg_prewarm` is missing or may not be used:
    /// [`ASSUMED_RATES`] are assumed.
    Assumed,
}

/// Rates that are assumed without a sample, in bytes per second: a network disk with scattered
/// pages, and files in the operating system's cache.
pub const ASSUMED_RATES: (f64, f64) = (50e6, 2e9);
/// Maximum size of the sample.
pub const SAMPLE_BYTES_MAX: u64 = 16 << 20;
/// Number of pieces that a sample consists of.
const PIECES: usize = 16;
/// Time after which no further piece is read.
const SAMPLE_TIME: Duration = Duration::from_secs(2);
/// Rates at which one connection copies pages into the server's buffers, in bytes per second:
/// memory touched for the first time since the server's start, and later.
const COPY_RATES: (f64, f64) = (700e6, 1.6e9);

impl LoadForecast {
    /// Returns the sums of the counts over all relations.
    pub fn pages(&self) -> PageCounts {
        sum_counts(&self.outcomes)
    }
}

impl TimeEstimate {
    /// Estimates the time to load `bytes`, by the rates of the pieces of a sample.
    fn new(bytes: u64, rates: (f64, f64), basis: RateBasis, options: &LoadOptions) -> Self {
        let bytes = bytes as f64;
        let jobs = options.jobs.max(1) as f64;
        let throttled = options.bytes_per_second.map_or(0.0, |rate| bytes / rate.max(1) as f64);
        let ((slow, fast), (slow_copy, fast_copy)) = (rates, COPY_RATES);
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Self {
            shortest: time(((bytes / fast + bytes / fast_copy) / jobs).max(throttled)),
            longest: time((bytes / slow + bytes / slow_copy).max(throttled)),
            basis,
        }
    }
}

/// The server and options by which [`estimate`] reads a sample.
pub(super) struct SampleContext<'a> {
    pub(super) target: &'a ConnectTarget,
    pub(super) options: &'a LoadOptions,
    pub(super) page_bytes: u32,
    pub(super) located: &'a [Result<LocatedRelation, RelationProblem>],
    pub(super) should_stop: &'a dyn Fn() -> bool,
}

/// Estimates the time of loading `chunks`, by reading a sample of them.
pub(super) fn estimate(context: &SampleContext<'_>, chunks: &[LoadChunk]) -> TimeEstimate {
    let page_bytes = u64::from(context.page_bytes);
    let bytes = chunks.iter().map(LoadChunk::pages).sum::<u64>() * page_bytes;
    if bytes == 0 {
        return TimeEstimate {
            shortest: Duration::ZERO,
            longest: Duration::ZERO,
            basis: RateBasis::NothingToLoad,
        };
    }
    let pieces = read_sample(context, chunks);
    match rates(&pieces) {
        Some(rates) => {
            let sum = |of: fn(&SamplePiece) -> Duration| pieces.iter().map(of).sum();
            let basis = RateBasis::Sample {
                bytes: pieces.iter().map(|piece| piece.bytes).sum(),
                elapsed: sum(|piece| piece.elapsed),
            };
            TimeEstimate::new(bytes, rates, basis, context.options)
        }
        None => TimeEstimate::new(bytes, ASSUMED_RATES, RateBasis::Assumed, context.options),
    }
}

/// A piece of the sample that was read.
struct SamplePiece {
    bytes: u64,
    elapsed: Duration,
}

/// Returns the rates of the slowest and the fastest piece; `None` without pieces. Pieces of less
/// than half of the largest one do not count: their time is mostly that of the query.
fn rates(pieces: &[SamplePiece]) -> Option<(f64, f64)> {
    let largest = pieces.iter().map(|piece| piece.bytes).max()?;
    let large = pieces.iter().filter(|piece| piece.bytes * 2 >= largest);
    let rates = large.map(|piece| piece.bytes as f64 / piece.elapsed.as_secs_f64().max(1e-6));
    rates.fold(None, |range, rate| {
        let (slowest, fastest) = range.unwrap_or((rate, rate));
        Some((f64::min(slowest, rate), f64::max(fastest, rate)))
    })
}

/// Reads pieces at regular distances in the plan. Failures only reduce the sample.
fn read_sample(context: &SampleContext<'_>, chunks: &[LoadChunk]) -> Vec<SamplePiece> {
    let page_bytes = u64::from(context.page_bytes.max(1));
    let pages_max = SAMPLE_BYTES_MAX / page_bytes / PIECES as u64;
    let mut sessions: BTreeMap<&str, Option<LoadSession>> = BTreeMap::new();
    let mut pieces = Vec::new();
    let started_at = Instant::now();
    for at in 0..PIECES.min(chunks.len()) {
        if started_at.elapsed() > SAMPLE_TIME || (context.should_stop)() {
            break;
        }
        let chunk = chunks[at * chunks.len() / PIECES.min(chunks.len())].first_blocks(pages_max);
        let Ok(found) = &context.located[chunk.relation] else { continue };
        let session = sessions.entry(&found.database).or_insert_with(|| {
            let client = dump::connect(&context.target.with_database(&found.database)).ok()?;
            LoadSession::new(client, 0, context.options.lock_timeout, None).ok().map(|(it, _)| it)
        });
        let Some(session) = session else { continue };
        let start = Instant::now();
        if let ChunkResult::Loaded(_) = session.load(found, &chunk, PrewarmMode::Read, false) {
            let bytes = chunk.pages() * page_bytes;
            pieces.push(SamplePiece { bytes, elapsed: start.elapsed() });
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: u64, ms: u64) -> SamplePiece {
        SamplePiece { bytes, elapsed: Duration::from_millis(ms) }
    }

    #[test]
    fn rates_are_those_of_large_pieces() {
        assert_eq!(rates(&[]), None);
        let pieces = [piece(1000, 10), piece(800, 4), piece(10, 100), piece(10, 0)];
        assert_eq!(rates(&pieces), Some((100_000.0, 200_000.0)));
    }

    #[test]
    fn estimate_respects_jobs_and_rate() {
        let estimate = |jobs, bytes_per_second| {
            let options = LoadOptions { jobs, bytes_per_second, ..LoadOptions::default() };
            TimeEstimate::new(1_000_000_000, (1e8, 1e9), RateBasis::Assumed, &options)
        };
        let seconds = |time: Duration| (time.as_secs_f64() * 100.0).round() / 100.0;
        let one = estimate(1, None);
        assert_eq!((seconds(one.shortest), seconds(one.longest)), (1.63, 11.43));
        let four = estimate(4, None);
        assert_eq!((seconds(four.shortest), four.longest), (0.41, one.longest));
        let slow = estimate(4, Some(10_000_000));
        assert_eq!((seconds(slow.shortest), seconds(slow.longest)), (100.0, 100.0));
    }
}

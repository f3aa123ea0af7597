//! [`TargetClock`]: the clock of the target, by which several workers start at the same time.

use std::time::{Duration, Instant};

use howdah_connect::{Client, QueryError};
use howdah_traffic::Timestamp;

/// When the first event is due.
#[derive(Clone, Copy, Debug)]
pub struct ReplayStart {
    /// Captured time that is due at `at`; `None` for that of the first event of the replay. A
    /// worker that replays only some sessions uses the first event of all.
    pub origin: Option<Timestamp>,
    /// The time at which it is due. Events that were due in the past are late.
    pub at: Instant,
}

/// The clock of the target, relative to that of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetClock {
    /// The target's clock minus the clock of this host, in microseconds.
    pub offset_us: i64,
    /// Round trip of the query that measured it, in microseconds. The offset is exact to half of
    /// it.
    pub round_trip_us: u64,
}

/// Number of queries, of which the fastest counts.
const QUERIES: usize = 20;

const CLOCK_SQL: &str = "select pg_catalog.trunc(1000000 * extract(epoch from \
                         pg_catalog.clock_timestamp())::numeric)::int8";

impl TargetClock {
    /// Queries the clock of a target several times. The query with the shortest round trip counts,
    /// because it is known best when the server read its clock: half a round trip after the query
    /// was sent, to within half a round trip.
    ///
    /// # Errors
    ///
    /// The server refused the query, or the connection is lost.
    pub fn measure(client: &mut Client) -> Result<Option<Self>, QueryError> {
        let mut best: Option<Self> = None;
        for _ in 0..QUERIES {
            let (sent_at, sent) = (Timestamp::now(), Instant::now());
            let time = client.one_value(CLOCK_SQL)?;
            let round_trip = sent.elapsed();
            let Some(time) = time.and_then(|time| time.parse().ok()) else { return Ok(None) };
            let measured = Self::from_reply(sent_at, round_trip, Timestamp::from_micros(time));
            if best.is_none_or(|best| measured.round_trip_us < best.round_trip_us) {
                best = Some(measured);
            }
        }
        Ok(best)
    }

    fn from_reply(sent_at: Timestamp, round_trip: Duration, time: Timestamp) -> Self {
        let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        let read_at = sent_at.as_micros().saturating_add(micros(round_trip / 2));
        Self {
            offset_us: time.as_micros().saturating_sub(read_at),
            round_trip_us: micros(round_trip).unsigned_abs(),
        }
    }

    /// Returns when the target's clock shows a time.
    pub fn instant_of(&self, time: Timestamp) -> Instant {
        let now = Instant::now();
        let target_now = Timestamp::now().as_micros().saturating_add(self.offset_us);
        let wait_us = time.as_micros().saturating_sub(target_now);
        let wait = Duration::from_micros(wait_us.unsigned_abs());
        // An instant before the start of this host cannot be represented.
        let instant = if wait_us < 0 { now.checked_sub(wait) } else { now.checked_add(wait) };
        instant.unwrap_or(now)
    }
}

#[test]
fn server_reads_its_clock_in_the_middle_of_the_round_trip() {
    let time = Timestamp::from_micros;
    let measured = TargetClock::from_reply(time(1_000), Duration::from_micros(400), time(6_200));
    assert_eq!(measured, TargetClock { offset_us: 5_000, round_trip_us: 400 });
    let behind = TargetClock::from_reply(time(9_000), Duration::from_micros(10), time(5));
    assert_eq!(behind.offset_us, -9_000);
    // A target whose clock is an hour ahead shows the present time of this host an hour ago.
    let ahead = TargetClock { offset_us: 3_600_000_000, round_trip_us: 0 };
    let ago = Instant::now().saturating_duration_since(ahead.instant_of(Timestamp::now()));
    assert!((3_590..3_610).contains(&ago.as_secs()), "{ago:?}");
}

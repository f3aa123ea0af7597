//! [`Track`]: how far the primary was when, so that it can be said by how much a standby is behind: in
//! bytes, and in time by our own clock. The time of the last transaction that a standby has replayed says
//! neither: where nothing is written it grows, and where two clocks differ it is wrong.

use std::{collections::VecDeque, time::Duration};

use super::thin::thin;
use crate::time::Time;

/// Places that are remembered. Before there are more, those that are long ago get fewer.
const PLACES_MAX: usize = 600;

/// Where the primary was.
#[derive(Debug, Default)]
pub(crate) struct Track {
    /// Which server it is.
    primary: Option<usize>,
    /// When it was first seen to be so far; rising in both.
    places: VecDeque<(Time, u64)>,
}

impl Track {
    /// Takes where the primary is.
    pub(crate) fn note(&mut self, primary: usize, lsn: u64, now: Time) {
        if self.primary.replace(primary) != Some(primary) {
            self.places.clear();
        }
        if self.places.back().is_none_or(|(_, last)| *last < lsn) {
            self.places.push_back((now, lsn));
        }
        if self.places.len() >= PLACES_MAX {
            thin(&mut self.places, PLACES_MAX, |(at, _)| at.0);
        }
    }

    /// By how much a standby is behind that has replayed so much; `None` if no primary was heard of.
    pub(crate) fn behind(&self, lsn: u64, now: Time) -> Option<(u64, Duration)> {
        let (_, newest) = self.places.back()?;
        let missing = self.places.iter().find(|(_, place)| *place > lsn);
        let lag = missing.map_or(Duration::ZERO, |(since, _)| now.since(*since));
        Some((newest.saturating_sub(lsn), lag))
    }
}

#[test]
fn a_standby_is_as_late_as_the_first_place_that_it_has_not_reached() {
    let at = |seconds: u64| Time::default() + Duration::from_secs(seconds);
    let mut track = Track::default();
    assert_eq!(track.behind(5, at(0)), None);
    track.note(0, 100, at(1));
    track.note(0, 200, at(2));
    track.note(0, 200, at(3));
    track.note(0, 300, at(4));
    let seconds = Duration::from_secs;
    assert_eq!(track.behind(300, at(60)), Some((0, seconds(0))), "nothing was written since");
    assert_eq!(track.behind(250, at(5)), Some((50, seconds(1))));
    assert_eq!(track.behind(100, at(5)), Some((200, seconds(3))));
    // Asked often and for long, it still knows of an hour ago.
    for second in 5..40_000 {
        track.note(0, 300 + second, at(second));
    }
    let (_, lag) = track.behind(36_300, at(40_000)).unwrap();
    assert!((3500..=4000).contains(&lag.as_secs()), "{lag:?}");
    track.note(1, 310, at(6));
    assert_eq!(track.behind(300, at(7)), Some((10, seconds(1))), "it is another primary");
}

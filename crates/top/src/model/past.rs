//! Looking at the past: the same screens, as they would have been.

use std::{sync::Arc, time::Duration};

use jiff::{
    Timestamp, Zoned,
    civil::{DateTime, Time},
    tz::TimeZone,
};

use super::{Asked, Effect, Model, Overlay, Prompt};
use crate::{
    Standing,
    history::{History, Look},
    units::parse_span,
};

/// A moment that is looked at instead of the present.
#[derive(Clone, Debug)]
pub struct Playback {
    /// The moment, by our clock, in microseconds since 1970.
    pub at_us: i64,
    /// How each server stood then.
    standings: Vec<Standing>,
}

/// Where a recording is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// What it is called.
    pub name: String,
    /// It goes on by itself.
    pub is_playing: bool,
    /// How many seconds of it pass in one of ours.
    pub speed: f64,
}

/// How fast and how slowly a recording can be played.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.125..=1024.0;

impl Model {
    /// With a past that can be looked at.
    #[must_use]
    pub fn with_history(self, history: Arc<History>) -> Self {
        Self { history: Some(history), ..self }
    }

    /// A recording, at the first reading of the first server that was read; at its beginning if none was. Nothing in
    /// it can be acted on.
    #[must_use]
    pub fn replaying(mut self, name: String, history: Arc<History>) -> Self {
        let mut servers = 0..self.servers.len();
        let read = servers.find_map(|server| Some((server, history.first_read(server)?)));
        let (server, first_us) = read.unwrap_or((0, i64::MIN));
        self.shown = server;
        self.settings.is_read_only = true;
        self.replay = Some(Replay { name, is_playing: false, speed: 1.0 });
        self.history = Some(history);
        self.travel(first_us);
        self
    }

    /// How a server stands, or stood at the moment that is looked at.
    pub fn standing(&self, server: usize) -> Option<&Standing> {
        match &self.past {
            Some(past) => past.standings.get(server),
            None => self.servers.get(server).map(|watched| &watched.standing),
        }
    }

    /// Looks at a moment; at the present if that is later than all there is.
    pub(super) fn travel(&mut self, at_us: i64) {
        let Some(history) = self.history.clone() else {
            self.complain("there is no past here".to_owned());
            return;
        };
        let Some((first_us, last_us)) = history.whole_range() else {
            self.complain("nothing was read yet".to_owned());
            return;
        };
        if at_us >= last_us && self.replay.is_none() {
            self.past = None;
            return;
        }
        let at_us = at_us.clamp(first_us, last_us);
        let view = self.screen.view().map(|view| view.name);
        let mut standings = Vec::new();
        for server in 0..self.servers.len() {
            standings.push(match history.look(server, at_us, view) {
                Ok(Some(Look { standing, .. })) => standing,
                Ok(None) => Standing::Connecting,
                Err(damage) => {
                    self.complain(format!("that moment cannot be read: {damage}"));
                    Standing::Connecting
                }
            });
        }
        self.past = Some(Playback { at_us, standings });
    }

    /// Reads the moment once more, for another screen.
    pub(super) fn look_again(&mut self) {
        if let Some(past) = &self.past {
            self.travel(past.at_us);
        }
    }

    /// So many readings of the server that is looked at, forwards or back.
    pub(super) fn step_in_time(&mut self, by: isize) {
        let from_us = self.past.as_ref().map_or(i64::MAX, |past| past.at_us);
        let step = self.history.as_ref().and_then(|history| history.step(self.shown, from_us, by));
        match step {
            // Behind the last reading there is the present.
            Some(at_us) if by > 0 && at_us <= from_us => self.travel(i64::MAX),
            Some(at_us) => self.travel(at_us),
            None => self.complain("nothing was read yet".to_owned()),
        }
    }

    /// So long forwards or back.
    pub(super) fn jump_in_time(&mut self, by_us: i64) {
        let from_us = match (&self.past, &self.history) {
            (Some(past), _) => past.at_us,
            (None, Some(history)) => history.whole_range().map_or(0, |(_, last_us)| last_us),
            (None, None) => 0,
        };
        self.travel(from_us.saturating_add(by_us));
    }

    /// Asks for a time.
    pub(super) fn ask_for_time(&mut self) {
        self.overlay = Overlay::Prompt(Prompt::new(Asked::Time, ""));
    }

    /// Looks at the time that somebody typed.
    pub(super) fn travel_to(&mut self, text: &str) {
        let whole = self.history.as_ref().and_then(|history| history.whole_range());
        let latest_us = match (&self.past, whole) {
            (Some(past), None) => past.at_us,
            (_, Some((_, last_us))) => last_us,
            (None, None) => crate::sampler::now_us(),
        };
        match moment_of(text, latest_us, &TimeZone::system()) {
            Some(at_us) => self.travel(at_us),
            None => {
                self.complain(format!("{text:?} is no time: write 5m, 14:30 or 2026-03-01 14:30"));
            }
        }
    }

    /// Back to the present, or to the end of a recording.
    pub(super) fn return_to_now(&mut self) {
        match self.replay {
            Some(_) => self.travel(i64::MAX),
            None => self.past = None,
        }
    }

    /// Whether nothing can be done to a server, because it is not the present that is seen.
    pub(super) fn is_past_only(&mut self) -> bool {
        let is_past = self.past.is_some();
        if is_past {
            self.complain("this is the past: Esc goes back to now".to_owned());
        }
        is_past
    }

    /// Lets time pass in a recording that is being played.
    pub fn pass(&mut self, elapsed: Duration) {
        let (Some(replay), Some(past)) = (&self.replay, &self.past) else { return };
        if !replay.is_playing {
            return;
        }
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        let passed_us = (elapsed.as_secs_f64() * replay.speed * 1e6) as i64;
        let before_us = past.at_us;
        self.travel(before_us.saturating_add(passed_us));
        if self.past.as_ref().is_some_and(|past| past.at_us == before_us)
            && let Some(replay) = &mut self.replay
        {
            // The end.
            replay.is_playing = false;
        }
    }

    /// Whether the picture changes by itself.
    pub fn is_playing(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| replay.is_playing)
    }

    /// Stops the picture or lets it go on.
    pub(super) fn pause(&mut self) {
        match &mut self.replay {
            Some(replay) => replay.is_playing = !replay.is_playing,
            None => self.is_paused = !self.is_paused,
        }
    }

    /// Plays a recording faster or more slowly; `None` if none is shown.
    pub(super) fn change_speed(&mut self, factor: f64) -> Option<Vec<Effect>> {
        let replay = self.replay.as_mut()?;
        replay.speed = (replay.speed * factor).clamp(*SPEEDS.start(), *SPEEDS.end());
        Some(Vec::new())
    }
}

/// The moment that a person means: `5m` or `-5m` is so long before the latest, `14:30` the last time that the
/// clock showed it, and dates are dates. In microseconds since 1970.
fn moment_of(text: &str, latest_us: i64, zone: &TimeZone) -> Option<i64> {
    let text = text.trim();
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Some(moment.as_microsecond());
    }
    if let Ok(moment) = text.parse::<DateTime>().and_then(|moment| moment.to_zoned(zone.clone())) {
        return Some(moment.timestamp().as_microsecond());
    }
    if text.contains(':') {
        let time: Time = text.parse().ok()?;
        let latest: Zoned = Timestamp::from_microsecond(latest_us).ok()?.to_zoned(zone.clone());
        let today = latest.date().to_datetime(time).to_zoned(zone.clone()).ok()?;
        let is_ahead = today.timestamp() > latest.timestamp();
        let day = if is_ahead { latest.date().yesterday().ok()? } else { latest.date() };
        let moment = day.to_datetime(time).to_zoned(zone.clone()).ok()?;
        return Some(moment.timestamp().as_microsecond());
    }
    let ago = parse_span(text.strip_prefix('-').unwrap_or(text))?;
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    Some(latest_us.saturating_sub((ago * 1e6) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_s_time_is_understood() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        let latest: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let at = |text| {
            let us = moment_of(text, latest.as_microsecond(), &zone)?;
            Some(Timestamp::from_microsecond(us).unwrap().to_string())
        };
        let cases = [
            ("5m", Some("2026-03-01T11:55:00Z")),
            ("-90", Some("2026-03-01T11:58:30Z")),
            ("12:30", Some("2026-03-01T11:30:00Z")),
            ("23:59:59", Some("2026-02-28T22:59:59Z")),
            ("2026-02-01 10:00", Some("2026-02-01T09:00:00Z")),
            ("2026-02-01T10:00:00Z", Some("2026-02-01T10:00:00Z")),
            ("soon", None),
            ("", None),
            ("25:00", None),
        ];
        for (text, expected) in cases {
            assert_eq!(at(text).as_deref(), expected, "{text}");
        }
    }
}

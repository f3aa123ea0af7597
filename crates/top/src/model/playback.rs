//! Displays past samples on the same screens as the present.

use std::{sync::Arc, time::Duration};

use jiff::{
    Timestamp, Zoned,
    civil::{DateTime, Time},
    tz::TimeZone,
};

use super::{Model, ModelEffect, Overlay, Prompt, PromptKind};
use crate::{
    ServerHealth,
    history::{PastState, SnapshotHistory},
};

/// The displayed time in the past, and the states of the servers at that time.
#[derive(Clone, Debug)]
pub struct Playback {
    /// The time by our clock, in microseconds since 1970.
    pub at_us: i64,
    /// State of each server at that time.
    health: Vec<ServerHealth>,
}

/// State of the replay of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayState {
    /// Name of the recording.
    pub name: String,
    /// Whether the replay is running rather than paused.
    pub is_playing: bool,
    /// Recorded seconds per real second.
    pub speed: f64,
}

/// Minimum and maximum replay speed, in recorded seconds per real second.
const SPEED_RANGE: std::ops::RangeInclusive<f64> = 0.125..=1024.0;

impl Model {
    /// Adds a history, in which the user can go back in time.
    #[must_use]
    pub fn with_history(self, history: Arc<SnapshotHistory>) -> Self {
        Self { history: Some(history), ..self }
    }

    /// Displays a recording, paused at the first sample of the first server that has one, or at the
    /// start of the recording if no server has one. Signals are disabled.
    #[must_use]
    pub fn replaying(mut self, name: String, history: Arc<SnapshotHistory>) -> Self {
        let mut servers = 0..self.servers.len();
        let read = servers.find_map(|server| Some((server, history.first_sample(server)?)));
        let (server, first_us) = read.unwrap_or((0, i64::MIN));
        self.current = server;
        self.settings.is_read_only = true;
        self.replay = Some(ReplayState { name, is_playing: false, speed: 1.0 });
        self.history = Some(history);
        self.travel(first_us);
        self
    }

    /// Returns the state of a server at the displayed time.
    pub fn health(&self, server: usize) -> Option<&ServerHealth> {
        match &self.past {
            Some(past) => past.health.get(server),
            None => self.servers.get(server).map(|watched| &watched.health),
        }
    }

    /// Displays the state at a time, or at the start of the history if that is later. From the
    /// history's end on, displays the present, or the end of a recording.
    pub(super) fn travel(&mut self, at_us: i64) {
        let Some(history) = self.history.clone() else {
            self.notify_error("there is no history".to_owned());
            return;
        };
        let Some((first_us, last_us)) = history.overall_range() else {
            self.notify_error("nothing has been sampled yet".to_owned());
            return;
        };
        if at_us >= last_us && self.replay.is_none() {
            self.past = None;
            return;
        }
        let at_us = at_us.clamp(first_us, last_us);
        let view = self.screen.view().map(|view| view.name);
        let mut updates = Vec::new();
        for server in 0..self.servers.len() {
            updates.push(match history.at(server, at_us, view) {
                Ok(Some(PastState { health, .. })) => health,
                Ok(None) => ServerHealth::Connecting,
                Err(error) => {
                    self.notify_error(format!("cannot restore that time: {error}"));
                    ServerHealth::Connecting
                }
            });
        }
        self.past = Some(Playback { at_us, health: updates });
    }

    /// Reloads the displayed time for another screen.
    pub(super) fn reload_moment(&mut self) {
        if let Some(past) = &self.past {
            self.travel(past.at_us);
        }
    }

    /// Moves the displayed time by a number of samples of the displayed server.
    pub(super) fn step_samples(&mut self, by: isize) {
        let from_us = self.past.as_ref().map_or(i64::MAX, |past| past.at_us);
        let step =
            self.history.as_ref().and_then(|history| history.step(self.current, from_us, by));
        match step {
            // The step after the last sample leads to the present.
            Some(at_us) if by > 0 && at_us <= from_us => self.travel(i64::MAX),
            Some(at_us) => self.travel(at_us),
            None => self.notify_error("nothing has been sampled yet".to_owned()),
        }
    }

    /// Moves the displayed time by a duration.
    pub(super) fn shift_time(&mut self, by_us: i64) {
        let from_us = match (&self.past, &self.history) {
            (Some(past), _) => past.at_us,
            (None, Some(history)) => history.overall_range().map_or(0, |(_, last_us)| last_us),
            (None, None) => 0,
        };
        self.travel(from_us.saturating_add(by_us));
    }

    /// Opens the prompt for a time.
    pub(super) fn prompt_for_time(&mut self) {
        self.overlay = Overlay::Prompt(Prompt::new(PromptKind::Time, ""));
    }

    /// Displays the time that the user entered.
    pub(super) fn travel_to_input(&mut self, text: &str) {
        let whole = self.history.as_ref().and_then(|history| history.overall_range());
        let latest_us = match (&self.past, whole) {
            (Some(past), None) => past.at_us,
            (_, Some((_, last_us))) => last_us,
            (None, None) => crate::sampler::now_us(),
        };
        match parse_moment(text, latest_us, &TimeZone::system()) {
            Some(at_us) => self.travel(at_us),
            None => {
                self.notify_error(format!(
                    "{text:?} is not a time: write 5m, 14:30 or 2026-03-01 14:30"
                ));
            }
        }
    }

    /// Returns to the present, or to the end of a recording.
    pub(super) fn return_to_now(&mut self) {
        match self.replay {
            Some(_) => self.travel(i64::MAX),
            None => self.past = None,
        }
    }

    /// Returns whether the past is displayed, in which no signals can be sent. If so, shows a
    /// notice.
    pub(super) fn rejects_past_action(&mut self) -> bool {
        let is_past = self.past.is_some();
        if is_past {
            self.notify_error("this is the past: press Esc to return to the present".to_owned());
        }
        is_past
    }

    /// Advances a running replay by `elapsed` times its speed, and pauses it at the end of the
    /// recording.
    pub fn advance_replay(&mut self, elapsed: Duration) {
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
            // End of the recording.
            replay.is_playing = false;
        }
    }

    /// Whether a replay is running.
    pub fn is_playing(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| replay.is_playing)
    }

    /// Pauses or resumes updates, or the replay.
    pub(super) fn pause(&mut self) {
        match &mut self.replay {
            Some(replay) => replay.is_playing = !replay.is_playing,
            None => self.is_paused = !self.is_paused,
        }
    }

    /// Multiplies the replay speed by `factor`, within [`SPEED_RANGE`]. Returns `None` without a
    /// replay.
    pub(super) fn change_speed(&mut self, factor: f64) -> Option<Vec<ModelEffect>> {
        let replay = self.replay.as_mut()?;
        replay.speed = (replay.speed * factor).clamp(*SPEED_RANGE.start(), *SPEED_RANGE.end());
        Some(Vec::new())
    }
}

/// Parses a time: `5m`, `-5m` or `5m ago` is relative to the latest time, `14:30` the last time the
/// clock showed it, and dates are absolute. Returns microseconds since 1970.
fn parse_moment(text: &str, latest_us: i64, zone: &TimeZone) -> Option<i64> {
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
    let ago = text.strip_suffix("ago").map_or(text, str::trim_end);
    let ago = howdah_settings::parse_seconds(ago.strip_prefix('-').unwrap_or(ago))?;
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    Some(latest_us.saturating_sub((ago * 1e6) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_times_are_parsed() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        let latest: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let at = |text| {
            let us = parse_moment(text, latest.as_microsecond(), &zone)?;
            Some(Timestamp::from_microsecond(us).unwrap().to_string())
        };
        let cases = [
            ("5m", Some("2026-03-01T11:55:00Z")),
            ("5m ago", Some("2026-03-01T11:55:00Z")),
            ("-90", Some("2026-03-01T11:58:30Z")),
            ("12:30", Some("2026-03-01T11:30:00Z")),
            ("23:59:59", Some("2026-02-28T22:59:59Z")),
            ("2026-02-01 10:00", Some("2026-02-01T09:00:00Z")),
            ("2026-02-01T10:00:00Z", Some("2026-02-01T10:00:00Z")),
            ("soon", None),
            ("", None),
            ("ago", None),
            ("25:00", None),
        ];
        for (text, expected) in cases {
            assert_eq!(at(text).as_deref(), expected, "{text}");
        }
    }
}

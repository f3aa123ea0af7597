//! The line that tells the user that the past is displayed.

use jiff::{Timestamp, tz::TimeZone};
use ratatui::text::Line;

use super::Theme;
use crate::{Model, units::format_duration};

/// Returns the line with the displayed time and the keys that change it, padded to the terminal's
/// width; `None` if the present is displayed.
pub(super) fn line(model: &Model, theme: &Theme, width: u16) -> Option<Line<'static>> {
    let past = model.past.as_ref()?;
    let moment = Timestamp::from_microsecond(past.at_us).unwrap_or_default();
    let moment = moment.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S");
    let text = match &model.replay {
        Some(replay) => {
            let state = if replay.is_playing { "playing" } else { "stopped" };
            let whole = model.history.as_ref().and_then(|history| history.overall_range());
            let left = whole.map_or(0, |(_, last_us)| last_us - past.at_us);
            format!(
                " RECORDING {}  {moment}  {} to its end  {state} {}×   p: play  [ ] a sample  {{ }} a minute  t: a time",
                replay.name,
                seconds(left),
                replay.speed,
            )
        }
        None => {
            let ago = seconds(crate::sampler::now_us() - past.at_us);
            format!(
                " PAST  {moment}  {ago} ago   [ ] a sample  {{ }} a minute  t: a time  Esc: now"
            )
        }
    };
    let text: String = text.chars().take(usize::from(width)).collect();
    Some(Line::styled(format!("{text:<width$}", width = usize::from(width)), theme.past))
}

#[expect(clippy::cast_precision_loss, reason = "a span of less than a century")]
fn seconds(us: i64) -> String {
    format_duration(us.max(0) as f64 / 1e6)
}

//! [`JsDate`]: a time formatted like `new Date(…).toString()`.

use std::fmt;

use jiff::{Timestamp, tz::TimeZone};

/// A time in seconds since 1970, formatted as JavaScript does, in the system's time zone:
/// `Sun Mar 01 2026 10:00:00 GMT+0000 (Coordinated Universal Time)`.
///
/// Time zones other than UTC have their abbreviation in parentheses, `(CET)`, where JavaScript has
/// a long name from its own tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsDate(pub i64);

impl JsDate {
    /// Formats the time like Perl's `localtime`: `Sun Mar  1 10:00:00 2026`.
    pub fn perl(self) -> String {
        self.format("%a %b %e %H:%M:%S %Y", &TimeZone::system())
    }

    /// Formats the time so that it sorts as text: `2026-03-01 10:00:00`.
    pub fn sortable(self) -> String {
        self.format("%Y-%m-%d %H:%M:%S", &TimeZone::system())
    }

    fn format(self, format: &str, zone: &TimeZone) -> String {
        // Only times beyond the year 9999 are out of range; then the clock is wrong anyway.
        let timestamp = Timestamp::from_second(self.0).unwrap_or(Timestamp::UNIX_EPOCH);
        timestamp.to_zoned(zone.clone()).strftime(format).to_string()
    }

    fn in_zone(self, zone: &TimeZone) -> String {
        match self.format("%Z", zone).as_str() {
            "UTC" => self.format("%a %b %d %Y %H:%M:%S GMT%z (Coordinated Universal Time)", zone),
            _ => self.format("%a %b %d %Y %H:%M:%S GMT%z (%Z)", zone),
        }
    }
}

impl fmt::Display for JsDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_zone(&TimeZone::system()))
    }
}

#[test]
fn dates_match_node() {
    let date = JsDate(1_772_359_200);
    assert_eq!(
        date.in_zone(&TimeZone::UTC),
        "Sun Mar 01 2026 10:00:00 GMT+0000 (Coordinated Universal Time)"
    );
    let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a time zone");
    assert_eq!(date.in_zone(&zone), "Sun Mar 01 2026 11:00:00 GMT+0100 (CET)");
    assert_eq!(date.format("%a %b %e %H:%M:%S %Y", &TimeZone::UTC), "Sun Mar  1 10:00:00 2026");
}

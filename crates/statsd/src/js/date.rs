//! [`Date`]: a moment as `new Date(…).toString()` writes it.

use std::fmt;

use jiff::{Timestamp, tz::TimeZone};

/// Shows seconds since 1970 as JavaScript does, in this machine's time zone:
/// `Sun Mar 01 2026 10:00:00 GMT+0000 (Coordinated Universal Time)`.
///
/// Time zones other than UTC have their abbreviation in the brackets, `(CET)`, where JavaScript has
/// a name from its own tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date(pub i64);

impl Date {
    /// The same as Perl's `localtime` writes it: `Sun Mar  1 10:00:00 2026`.
    #[must_use]
    pub fn perl(self) -> String {
        self.format("%a %b %e %H:%M:%S %Y", &TimeZone::system())
    }

    /// To be sorted as text: `2026-03-01 10:00:00`.
    #[must_use]
    pub fn sortable(self) -> String {
        self.format("%Y-%m-%d %H:%M:%S", &TimeZone::system())
    }

    fn format(self, format: &str, zone: &TimeZone) -> String {
        // Out of range is beyond the year 9999, where a clock is wrong anyway.
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

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_zone(&TimeZone::system()))
    }
}

#[test]
fn dates_are_those_of_node() {
    let date = Date(1_772_359_200);
    assert_eq!(
        date.in_zone(&TimeZone::UTC),
        "Sun Mar 01 2026 10:00:00 GMT+0000 (Coordinated Universal Time)"
    );
    let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a time zone");
    assert_eq!(date.in_zone(&zone), "Sun Mar 01 2026 11:00:00 GMT+0100 (CET)");
    assert_eq!(date.format("%a %b %e %H:%M:%S %Y", &TimeZone::UTC), "Sun Mar  1 10:00:00 2026");
}

use super::*;

fn read(zone: Option<&str>, text: &str) -> String {
    let mut clock = LogClock::new(zone).expect("a zone");
    clock.read(text.as_bytes()).map_or("none".to_owned(), |time| time.to_string())
}

#[test]
fn times_with_and_without_fraction_are_read() {
    assert_eq!(read(None, "2026-11-20 12:43:19.577 UTC"), "2026-11-20T12:43:19.577000Z");
    assert_eq!(read(None, "2026-11-20 12:43:19 UTC"), "2026-11-20T12:43:19.000000Z");
    assert_eq!(read(None, "2026-11-20 12:43:19.577 +03"), "2026-11-20T09:43:19.577000Z");
    assert_eq!(read(None, "2026-07-20 12:43:19.5 CEST"), "2026-07-20T10:43:19.500000Z");
}

#[test]
fn invalid_time_is_rejected() {
    for not in ["", "2026-11-20", "2026-13-20 12:43:19 UTC", "2026-02-30 12:43:19 UTC"] {
        assert_eq!(read(None, not), "none");
    }
    assert_eq!(read(None, "2026-11-20 12:43:19. UTC"), "none");
    assert_eq!(read(None, "2026-11-20 25:43:19 UTC"), "none");
}

#[test]
fn repeated_hour_is_resolved_by_abbreviation() {
    let zone = Some("Europe/Berlin");
    assert_eq!(read(zone, "2026-10-25 02:30:00 CEST"), "2026-10-25T00:30:00.000000Z");
    assert_eq!(read(zone, "2026-10-25 02:30:00 CET"), "2026-10-25T01:30:00.000000Z");
}

#[test]
fn given_zone_resolves_ambiguous_abbreviation() {
    assert_eq!(
        read(Some("Asia/Shanghai"), "2026-11-20 12:00:00 CST"),
        "2026-11-20T04:00:00.000000Z"
    );
    assert_eq!(
        read(Some("Asia/Shanghai"), "2026-11-20 12:00:00 UTC"),
        "2026-11-20T12:00:00.000000Z"
    );
    let mut clock = LogClock::new(None).expect("no zone");
    assert!(clock.read(b"2026-11-20 12:00:00 CST").is_some());
    assert_eq!(clock.take_assumption(), Some(Assumption::Ambiguous));
    assert!(clock.read(b"2026-11-20 12:00:00 XXT").is_some());
    assert_eq!(clock.take_assumption(), Some(Assumption::Unknown));
    assert_eq!(clock.take_assumption(), None);
}

#[test]
fn cached_second_is_not_used_for_another_zone() {
    let mut clock = LogClock::new(None).expect("no zone");
    let utc = clock.read(b"2026-11-20 12:00:01 UTC").expect("a time");
    let east = clock.read(b"2026-11-20 12:00:02 +01").expect("a time");
    assert_eq!(utc.as_micros() - east.as_micros(), 3_599_000_000);
}

#[test]
fn unknown_zone_option_is_rejected() {
    let error = LogClock::new(Some("Mars/Phobos")).expect_err("no such zone");
    assert!(
        matches!(error, OptionsError::UnknownTimezone { timezone } if timezone == "Mars/Phobos")
    );
}

#[test]
fn epochs_are_read() {
    assert_eq!(
        read_epoch(b"1795178602.248").map(Timestamp::as_micros),
        Some(1_795_178_602_248_000)
    );
    for not in [&b"1795178602"[..], b".5", b"1.5x", b"99999999999999999999.0"] {
        assert_eq!(read_epoch(not), None);
    }
}

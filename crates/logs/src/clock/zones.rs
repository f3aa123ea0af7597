//! Converts zone names in a log to UTC offsets, without a time zone database.

/// Returns the seconds east of UTC of a zone with only one meaning: a name of UTC, or a numeric
/// offset.
pub(super) fn unambiguous_offset(zone: &[u8]) -> Option<i32> {
    match zone {
        b"UTC" | b"GMT" | b"Z" | b"UCT" => Some(0),
        [sign @ (b'+' | b'-'), digits @ ..] => {
            let seconds = parse_offset(digits)?;
            Some(if *sign == b'-' { -seconds } else { seconds })
        }
        _ => None,
    }
}

/// Parses an offset without its sign: `hh`, `hhmm` or `hh:mm`.
fn parse_offset(digits: &[u8]) -> Option<i32> {
    let (hours, minutes) = match digits {
        [a, b] => ([*a, *b], [b'0', b'0']),
        [a, b, c, d] | [a, b, b':', c, d] => ([*a, *b], [*c, *d]),
        _ => return None,
    };
    let two = |[a, b]: [u8; 2]| {
        (a.is_ascii_digit() && b.is_ascii_digit())
            .then(|| i32::from(a - b'0') * 10 + i32::from(b - b'0'))
    };
    let (hours, minutes) = (two(hours)?, two(minutes)?);
    (hours <= 15 && minutes < 60).then_some(hours * 3600 + minutes * 60)
}

/// Returns the seconds east of UTC of an abbreviation, and whether it has only one meaning; `None`
/// if the abbreviation is not known.
pub(super) fn abbreviation_offset(zone: &[u8]) -> Option<(i32, bool)> {
    let row = ABBREVIATIONS.iter().find(|(name, ..)| name.as_bytes() == zone)?;
    Some((row.1 * 60, row.2))
}

/// Name, minutes east of UTC, and whether the name has only one meaning today. Names with several
/// meanings have the offset of PostgreSQL's `timezone_abbreviations = 'Default'`.
const ABBREVIATIONS: &[(&str, i32, bool)] = &[
    ("ACDT", 630, true),
    ("ACST", 570, true),
    ("ADT", -180, true),
    ("AEDT", 660, true),
    ("AEST", 600, true),
    ("AKDT", -480, true),
    ("AKST", -540, true),
    ("AST", -240, false),
    ("AWST", 480, true),
    ("BST", 60, false),
    ("CAT", 120, true),
    ("CDT", -300, false),
    ("CEST", 120, true),
    ("CET", 60, true),
    ("CST", -360, false),
    ("EAT", 180, true),
    ("EDT", -240, true),
    ("EEST", 180, true),
    ("EET", 120, true),
    ("EST", -300, true),
    ("HDT", -540, true),
    ("HKT", 480, true),
    ("HST", -600, true),
    ("IDT", 180, true),
    ("IST", 120, false),
    ("JST", 540, true),
    ("KST", 540, true),
    ("MDT", -360, true),
    ("MEST", 120, true),
    ("MET", 60, true),
    ("MSK", 180, true),
    ("MST", -420, true),
    ("NDT", -150, true),
    ("NST", -210, true),
    ("NZDT", 780, true),
    ("NZST", 720, true),
    ("PDT", -420, true),
    ("PKT", 300, true),
    ("PST", -480, false),
    ("SAST", 120, true),
    ("SST", -660, true),
    ("WAT", 60, true),
    ("WEST", 60, true),
    ("WET", 0, true),
    ("WIB", 420, true),
    ("WIT", 540, true),
    ("WITA", 480, true),
];

#[test]
fn numeric_zones_are_unambiguous() {
    assert_eq!(unambiguous_offset(b"+03"), Some(3 * 3600));
    assert_eq!(unambiguous_offset(b"-0330"), Some(-(3 * 60 + 30) * 60));
    assert_eq!(unambiguous_offset(b"+05:45"), Some((5 * 60 + 45) * 60));
    for not in [&b"+3"[..], b"+99", b"CET", b"", b"+"] {
        assert_eq!(unambiguous_offset(not), None);
    }
    assert_eq!(abbreviation_offset(b"CEST"), Some((2 * 3600, true)));
    assert_eq!(abbreviation_offset(b"CST"), Some((-6 * 3600, false)));
    assert_eq!(abbreviation_offset(b"XYZ"), None);
}

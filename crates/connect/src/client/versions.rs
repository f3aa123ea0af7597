//! Server versions as text and as comparable numbers.

/// Converts `server_version` to one number, like `server_version_num`: `17.2` becomes 170002,
/// `9.6.24` 90624, `18beta1` 180000. Text after the numbers, which packagers add, is ignored.
/// `None` if the text does not start with a number, or if a number is too large.
pub(super) fn number(version: &str) -> Option<u32> {
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let mut parts = version[..end].split('.').filter(|part| !part.is_empty()).map(str::parse);
    let mut part = || parts.next().transpose().ok();
    let major: u32 = part()??;
    let minor: u32 = part()?.unwrap_or(0);
    let patch: u32 = part()?.unwrap_or(0);
    let number = if major >= 10 {
        major.checked_mul(10_000)?.checked_add(minor)?
    } else {
        major * 10_000 + minor.checked_mul(100)?.checked_add(patch)?
    };
    Some(number)
}

#[test]
fn versions_are_parsed_to_numbers() {
    let table = [
        ("17.2", Some(170_002)),
        ("15.14 (Debian 15.14-0+deb12u1)", Some(150_014)),
        ("9.6.24", Some(90_624)),
        ("18beta1", Some(180_000)),
        ("19devel", Some(190_000)),
        ("1.25.0/bouncer", Some(12_500)),
        ("", None),
        ("bouncer", None),
        ("99999999999", None),
        ("999999999.1", None),
    ];
    for (text, expected) in table {
        assert_eq!(number(text), expected, "{text}");
    }
}

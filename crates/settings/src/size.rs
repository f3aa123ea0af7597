//! Sizes in bytes, in PostgreSQL's notation.

/// Parses a size in `B`, `kB`, `MB`, `GB` or `TB`, such as `64MB`, or a number of bytes. Units are
/// powers of 1,024, as in `postgresql.conf`.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match &text[digits..] {
        "" | "B" => 0,
        "kB" => 10,
        "MB" => 20,
        "GB" => 30,
        "TB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[test]
fn sizes_with_units_are_parsed() {
    let table = [
        ("0", Some(0)),
        ("1024", Some(1024)),
        ("1500B", Some(1500)),
        ("500kB", Some(512_000)),
        ("64MB", Some(64 << 20)),
        ("1GB", Some(1 << 30)),
        ("1gb", None),
        ("many", None),
        ("-1", None),
        ("99999999999999TB", None),
    ];
    for (text, expected) in table {
        assert_eq!(parse_size(text), expected, "{text}");
    }
}

//! Tests of COPY data that is cut at any position, and of rows that cannot be routed.

use super::*;

fn rows(
    format: CopyRowFormat,
    key: usize,
    data: &[u8],
    piece: usize,
) -> Result<Vec<(RowTarget, String)>, Refusal> {
    let map = ShardMap::hash(3, vec![KeyType::Int]).expect("a map");
    let copy = CopyFrom { table: "t".into(), key: vec![key], format, header: false };
    let mut rows = CopyRowSplitter::new(copy.into(), 100).expect("not binary");
    let mut found = Vec::new();
    let own = |(place, row): (RowTarget, &[u8])| (place, String::from_utf8_lossy(row).into_owned());
    for piece in data.chunks(piece) {
        rows.push(piece);
        while let Some(row) = rows.next(&map, true)? {
            found.push(own(row));
        }
    }
    found.extend(rows.finish(&map, true)?.map(own));
    Ok(found)
}

/// The shard of a row, and its text.
type ShardRow = (u32, &'static str);

#[test]
fn rows_are_split_regardless_of_message_boundaries() {
    let comma = CopyRowFormat::Csv { delimiter: b',', null: "".into(), quote: b'"', escape: b'"' };
    let backslash =
        CopyRowFormat::Csv { delimiter: b';', null: "NULL".into(), quote: b'\'', escape: b'\\' };
    let tab = CopyRowFormat::Text { delimiter: b'\t', null: "\\N".into() };
    // The keys 1234 and NULL are on shard 0, 1 is on shard 2.
    let cases: [(_, _, &str, &[ShardRow]); 3] = [
        (
            &tab,
            1,
            "a\t1234\nb\\\n\\t\t\\x31\\0623\\64\r\nc\t\\N\td\nd\t1\n\\.\nx\n",
            &[
                (0, "a\t1234\n"),
                (0, "b\\\n\\t\t\\x31\\0623\\64\r\n"),
                (0, "c\t\\N\td\n"),
                (2, "d\t1\n"),
            ],
        ),
        (
            &comma,
            1,
            "a,1234\n\"b,\n\"\"\",\"1\",x\r\nc,,\nd,1",
            &[(0, "a,1234\n"), (2, "\"b,\n\"\"\",\"1\",x\r\n"), (0, "c,,\n"), (2, "d,1")],
        ),
        (
            &backslash,
            0,
            "'1';'a\\'\n\\\\'\nNULL;\n'12'34;\n\\.\r\n",
            &[(2, "'1';'a\\'\n\\\\'\n"), (0, "NULL;\n"), (0, "'12'34;\n")],
        ),
    ];
    for (format, key, data, expected) in cases {
        let place = |(shard, row): &ShardRow| (RowTarget::Shard(*shard), (*row).to_owned());
        let expected: Vec<_> = expected.iter().map(place).collect();
        for piece in [1, 2, 3, 7, 1000] {
            let found = rows(format.clone(), key, data.as_bytes(), piece);
            assert_eq!(found.as_ref(), Ok(&expected), "{data} in pieces of {piece}");
        }
    }
}

#[test]
fn rows_without_key_are_refused() {
    let tab = CopyRowFormat::Text { delimiter: b'\t', null: "\\N".into() };
    let comma = CopyRowFormat::Csv { delimiter: b',', null: "".into(), quote: b'"', escape: b'"' };
    let long = "x".repeat(200);
    for (format, data) in [
        (&tab, "a\n"),
        (&tab, "a\tb\n"),
        (&tab, "a\t1\rb\t2\r"),
        (&tab, "a\t1\rb\t2\n"),
        (&comma, "a,1\rb,2\n"),
        (&tab, &*long),
        (&comma, "a\n"),
        (&comma, "a,1.0\n"),
        (&comma, "a,\"1"),
        (&comma, "a,\"\"\n"),
        (&comma, "a,1\n\\.\nb,1\n"),
    ] {
        assert!(rows(format.clone(), 1, data.as_bytes(), 50).is_err(), "{data}");
    }
}

proptest::proptest! {
    #[test]
    fn message_boundaries_do_not_change_rows(
        data in "([a1,\"\\\\\n\r\t.;']|\n\\\\\\.\r?\n){0,40}",
        piece in 1_usize..9,
    ) {
        for format in [
            CopyRowFormat::Text { delimiter: b'\t', null: "\\N".into() },
            CopyRowFormat::Csv { delimiter: b',', null: "".into(), quote: b'"', escape: b'"' },
            CopyRowFormat::Csv { delimiter: b';', null: "a".into(), quote: b'\'', escape: b'\\' },
        ] {
            let whole = rows(format.clone(), 0, data.as_bytes(), 1000);
            assert_eq!(rows(format, 0, data.as_bytes(), piece), whole);
        }
    }
}

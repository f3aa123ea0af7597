//! Rows sent by COPY are split as the server splits them.

use howdah_route::{CopyRowSplitter, RowTarget, ShardTarget};

use super::*;

/// Odd texts, numbers and NULLs, as the server writes them.
const ROWS: &str = r"
    SELECT CASE n % 7 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE
               repeat(E'a\n,\t\\\'\x22;\r\b', n % 3) || chr(1 + n % 500) || '\N' END AS x,
           CASE n % 5 WHEN 0 THEN NULL ELSE (n * 7919 - 3000000)::bigint END AS k0,
           CASE n % 11 WHEN 0 THEN NULL ELSE
               'k' || chr(1 + n % 300) || E'\n\\,;\x22' || chr(1 + n % 30) || n % 100 END AS k1
    FROM generate_series(1, 5000) n";

#[test]
fn copy_rows_are_split_like_server() {
    let Some((_cluster, mut client)) = server("rows by COPY") else { return };
    let columns = [KeyType::Int, KeyType::Text];
    let map = ShardMap::hash(SHARDS, columns.to_vec()).unwrap();
    let mut router = TestRouter::new(&columns, &[("t", &["k0", "k1"])]);
    for options in [
        "",
        "(DELIMITER '|', NULL 'k')",
        "(FORMAT csv)",
        "(FORMAT csv, HEADER)",
        "(FORMAT csv, DELIMITER ';', QUOTE '''', ESCAPE '\\', NULL 'none')",
    ] {
        keys::make(&mut client, &columns);
        client.query("SET search_path = whole; ALTER TABLE t ALTER x TYPE text").unwrap();
        client.query(&format!("CREATE TABLE source AS {ROWS}")).unwrap();
        let mut data = Vec::new();
        let source = format!("COPY source (x, k1, k0) TO STDOUT {options}");
        client.copy_out(&source, &mut data).unwrap();
        let statement = format!("COPY t (x, k1, k0) FROM STDIN {options}");
        let ShardTarget::Copy(copy) = router.route(&statement).unwrap().shards else {
            panic!("{statement} is not split");
        };
        assert_eq!(copy.key, [2, 1]);
        let mut rows = CopyRowSplitter::new(copy, 10_000).unwrap();
        let mut parts = vec![Vec::new(); SHARDS as usize];
        for piece in data.chunks(777) {
            rows.push(piece);
            while let Some((place, row)) = rows.next(&map, true).unwrap() {
                match place {
                    RowTarget::Shard(shard) => parts[shard as usize].extend_from_slice(row),
                    RowTarget::All => parts.iter_mut().for_each(|part| part.extend_from_slice(row)),
                }
            }
        }
        assert_eq!(rows.finish(&map, true), Ok(None));
        for (shard, part) in parts.iter().enumerate() {
            client.query(&format!("SET search_path = s{shard}")).unwrap();
            client.copy_in(&statement, &mut &part[..]).unwrap();
        }
        let lost = "SET search_path = whole;
            SELECT count(*) FROM (TABLE source EXCEPT ALL SELECT x, k0, k1 FROM t) lost";
        assert_eq!(client.one_value(lost).unwrap().as_deref(), Some("0"), "{options}");
        assert_eq!(client.one_value("SELECT count(*) FROM t").unwrap().as_deref(), Some("5000"));
    }
}

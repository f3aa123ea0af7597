//! Compares the hash with the server's own, on every major version.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use std::fmt::Write as _;

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_lab::{Cluster, skip_without_postgres};
use howdah_route::shard::{KeyType, ShardKey, ShardMap};

/// Number of keys per type.
const KEYS: usize = 100_000;
const KEYS_OF_OTHER_MAJORS: usize = 1000;
const ROWS_AT_ONCE: usize = 5000;
const SHARDS: u32 = 7;

/// The generator SplitMix64: the same keys in every run.
struct KeyRandom(u64);

impl KeyRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Generates numbers of every size, byte strings of every length up to 40, and non-ASCII text.
    fn key(&mut self, of: KeyType) -> ShardKey {
        match of {
            KeyType::Int => {
                let shift = self.next() % 64;
                ShardKey::Int(self.next().cast_signed() >> shift)
            }
            KeyType::Uuid => {
                let halves = [self.next().to_be_bytes(), self.next().to_be_bytes()];
                ShardKey::Bytes(halves.concat())
            }
            KeyType::Bytea => {
                let length = self.next() % 41;
                ShardKey::Bytes((0..length).map(|_| self.next() as u8).collect())
            }
            KeyType::Text => {
                let letters: Vec<_> = "abcXYZ019 _-äß漢🐘".chars().collect();
                let length = self.next() % 21;
                let letter = |_| letters[self.next() as usize % letters.len()];
                ShardKey::Bytes((0..length).map(letter).collect::<String>().into_bytes())
            }
        }
    }
}

/// The key as an SQL literal.
fn literal(of: KeyType, key: &ShardKey) -> String {
    match key {
        ShardKey::Int(value) => format!("'{value}'"),
        ShardKey::Bytes(bytes) if of == KeyType::Text => {
            format!("'{}'", String::from_utf8(bytes.clone()).unwrap())
        }
        ShardKey::Bytes(bytes) => {
            let mut text = bytes.iter().fold(String::from("'"), |mut text, byte| {
                write!(text, "{byte:02x}").unwrap();
                text
            });
            if of == KeyType::Bytea {
                text.insert_str(1, r"\x");
            }
            text + "'"
        }
    }
}

/// Number of rows that the server would put elsewhere.
fn misplaced(client: &mut Client, columns: &[KeyType], keys: usize) -> String {
    let map = ShardMap::hash(SHARDS, columns.to_vec()).unwrap();
    let named: Vec<_> = columns.iter().enumerate().map(|(at, of)| format!("k{at} {of}")).collect();
    let names: Vec<_> = (0..columns.len()).map(|at| format!("k{at}")).collect();
    let (named, names) = (named.join(", "), names.join(", "));
    client.query(&format!("CREATE TABLE keys ({named}, shard int)")).unwrap();
    client.query(&format!("CREATE TABLE parts ({named}) PARTITION BY HASH ({names})")).unwrap();
    let mut random = KeyRandom(columns.len() as u64);
    let mut left = keys;
    while left > 0 {
        let rows: Vec<_> = (0..left.min(ROWS_AT_ONCE))
            .map(|_| {
                // One in eight is NULL where there are several columns.
                let may_be_null = columns.len() > 1;
                let values: Vec<_> = columns
                    .iter()
                    .map(|of| {
                        let is_null = may_be_null && random.next().is_multiple_of(8);
                        (!is_null).then(|| random.key(*of))
                    })
                    .collect();
                let shard = map.shard(&values).unwrap();
                let literals = columns.iter().zip(&values).map(|(of, value)| {
                    value.as_ref().map_or_else(|| "NULL".to_owned(), |key| literal(*of, key))
                });
                // The text of a key must parse to the same key.
                for (of, key) in columns.iter().zip(&values) {
                    if let Some(key) = key {
                        let text = literal(*of, key);
                        assert_eq!(of.parse(&text[1..text.len() - 1]).as_ref(), Ok(key));
                    }
                }
                format!("({}, {shard})", literals.collect::<Vec<_>>().join(", "))
            })
            .collect();
        client.query(&format!("INSERT INTO keys VALUES {}", rows.join(", "))).unwrap();
        left -= rows.len();
    }
    let elsewhere = format!(
        "SELECT count(*) FILTER (WHERE NOT satisfies_hash_partition('parts'::regclass, {SHARDS}, \
         shard, {names})) || ' of ' || count(*) FROM keys"
    );
    let told = client.one_value(&elsewhere).unwrap().unwrap();
    client.query("DROP TABLE keys, parts").unwrap();
    told
}

#[test]
fn every_key_hashes_to_server_partition() {
    const ALL: [KeyType; 4] = [KeyType::Int, KeyType::Text, KeyType::Uuid, KeyType::Bytea];
    let mut is_first = true;
    for major in [15, 14, 16, 17, 18] {
        let started = Cluster::builder().major(major).start();
        let Some(cluster) = skip_without_postgres(&format!("hashes of {major}"), started) else {
            continue;
        };
        let words = ConnParams::from_conninfo(cluster.uri("postgres"));
        let target = ConnectTarget::resolve(&words, &Environment::empty()).unwrap();
        let mut client = Client::connect(&target).unwrap();
        let keys = if is_first { KEYS } else { KEYS_OF_OTHER_MAJORS };
        for columns in [&ALL[..1], &ALL[1..2], &ALL[2..3], &ALL[3..], &ALL] {
            let told = misplaced(&mut client, columns, keys);
            assert_eq!(told, format!("0 of {keys}"), "{columns:?} on {major}");
        }
        is_first = false;
    }
}

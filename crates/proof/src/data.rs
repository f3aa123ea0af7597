//! The tables of pgbench, filled by us: the same columns and rows, so that figures can be compared.

use std::io::{self, Read, Write as _};

use howdah_connect::Client;

use crate::error::{InStep as _, ProofError};

/// The schema all is made in: nothing of the user's is touched.
pub(crate) const SCHEMA: &str = "howdah_proof";
/// The table that is read.
pub(crate) const TABLE: &str = "howdah_proof.pgbench_accounts";

/// Rows of it for each unit of scale.
pub(crate) const ROWS_PER_SCALE: u64 = 100_000;
/// Bytes of it and its index for each unit of scale: 1640 and 276 pages, rounded up.
pub(crate) const BYTES_PER_SCALE: u64 = 15_750_000;

const TABLES: &str = "
DROP SCHEMA IF EXISTS howdah_proof CASCADE;
CREATE SCHEMA howdah_proof;
CREATE TABLE howdah_proof.pgbench_history
    (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
CREATE TABLE howdah_proof.pgbench_tellers
    (tid int NOT NULL, bid int, tbalance int, filler char(84)) WITH (fillfactor = 100);
CREATE TABLE howdah_proof.pgbench_branches
    (bid int NOT NULL, bbalance int, filler char(88)) WITH (fillfactor = 100);
CREATE TABLE howdah_proof.pgbench_accounts
    (aid int NOT NULL, bid int, abalance int, filler char(84)) WITH (fillfactor = 100)";

/// Makes the tables and fills them.
pub(crate) fn make(client: &mut Client, scale: u32) -> Result<(), ProofError> {
    client.query(TABLES).step("making the tables")?;
    let rows = u64::from(scale) * ROWS_PER_SCALE;
    let small = format!(
        "INSERT INTO {SCHEMA}.pgbench_branches SELECT n, 0 FROM generate_series(1, {scale}) n;
         INSERT INTO {SCHEMA}.pgbench_tellers
         SELECT n, (n - 1) / 10 + 1, 0 FROM generate_series(1, {scale} * 10) n"
    );
    client.query(&small).step("filling the tables")?;
    // In the transaction that empties the table rows may come frozen: no vacuum has to follow.
    client.query(&format!("BEGIN; TRUNCATE {TABLE}")).step("filling the tables")?;
    let copy = format!("COPY {TABLE} FROM STDIN WITH (FREEZE)");
    client.copy_in(&copy, &mut Accounts::new(rows)).step("filling the tables")?;
    client.query("COMMIT").step("filling the tables")?;
    let keys = format!(
        "ALTER TABLE {SCHEMA}.pgbench_branches ADD PRIMARY KEY (bid);
         ALTER TABLE {SCHEMA}.pgbench_tellers ADD PRIMARY KEY (tid);
         ALTER TABLE {TABLE} ADD PRIMARY KEY (aid)"
    );
    client.query(&keys).step("making the keys")?;
    client.query(&format!("VACUUM ANALYZE {TABLE}")).step("vacuuming")?;
    client.query("CHECKPOINT").step("a checkpoint").or_else(|error| match error {
        // Not everybody may; it only makes the shutdown shorter.
        ProofError::Query { source, .. } if !source.is_fatal() => Ok(Vec::new()),
        error => Err(error),
    })?;
    Ok(())
}

/// Brings all pages of the table and its key into the cache, by means that every server has: a scan over a
/// range of TIDs uses no ring buffer, and an index-only scan reads every leaf.
pub(crate) fn warm(client: &mut Client) -> Result<(), ProofError> {
    let sql = format!(
        "SET enable_seqscan = off; SET max_parallel_workers_per_gather = 0; SET jit = off;
         SELECT count(*) FROM {TABLE} WHERE ctid >= '(0,0)';
         SELECT count(aid) FROM {TABLE} WHERE aid > 0;
         RESET enable_seqscan"
    );
    client.query(&sql).step("reading the table").map(drop)
}

/// Removes everything.
pub(crate) fn remove(client: &mut Client) -> Result<(), ProofError> {
    client.query(&format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")).step("cleaning up").map(drop)
}

/// Rows of `pgbench_accounts` in COPY's text format.
struct Accounts {
    next: u64,
    rows: u64,
    line: Vec<u8>,
    at: usize,
}

impl Accounts {
    fn new(rows: u64) -> Self {
        Self { next: 1, rows, line: Vec::new(), at: 0 }
    }
}

impl Read for Accounts {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            if self.at == self.line.len() {
                if self.next > self.rows {
                    break;
                }
                self.line.clear();
                let bid = (self.next - 1) / ROWS_PER_SCALE + 1;
                // An empty filler: the type pads it to its length, as it does pgbench's.
                writeln!(self.line, "{}\t{bid}\t0\t", self.next)?;
                (self.next, self.at) = (self.next + 1, 0);
            }
            let count = (self.line.len() - self.at).min(into.len() - filled);
            into[filled..filled + count].copy_from_slice(&self.line[self.at..self.at + count]);
            (self.at, filled) = (self.at + count, filled + count);
        }
        Ok(filled)
    }
}

#[test]
fn rows_come_in_pieces_of_any_size() {
    let mut whole = String::new();
    Accounts::new(100_001).read_to_string(&mut whole).unwrap();
    assert!(whole.starts_with("1\t1\t0\t\n2\t1\t0\t\n"));
    assert!(whole.ends_with("\n100000\t1\t0\t\n100001\t2\t0\t\n"));
    let mut pieces = Vec::new();
    let mut rows = Accounts::new(1000);
    let mut piece = [0; 7];
    loop {
        match rows.read(&mut piece).unwrap() {
            0 => break,
            count => pieces.extend_from_slice(&piece[..count]),
        }
    }
    assert_eq!(pieces, whole.as_bytes()[..pieces.len()]);
    assert_eq!(pieces.iter().filter(|&&byte| byte == b'\n').count(), 1000);
}

//! Creates tables like those of pgbench, with the same columns and rows, so that results are
//! comparable.

use std::io::{self, Read, Write as _};

use howdah_connect::Client;

use crate::benchmark::error::{BenchmarkError, StepContext as _};

/// The schema of the tables; this module changes nothing outside of it.
pub(crate) const SCHEMA: &str = "howdah_benchmark";
/// The table that the client reads.
pub(crate) const TABLE: &str = "howdah_benchmark.pgbench_accounts";

/// Rows of [`TABLE`] per unit of scale.
pub(crate) const ROWS_PER_SCALE: u64 = 100_000;
/// Bytes of [`TABLE`] and its index per unit of scale: 1640 and 276 pages, rounded up.
pub(crate) const BYTES_PER_SCALE: u64 = 15_750_000;

const TABLES: &str = "
DROP SCHEMA IF EXISTS howdah_benchmark CASCADE;
CREATE SCHEMA howdah_benchmark;
CREATE TABLE howdah_benchmark.pgbench_history
    (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
CREATE TABLE howdah_benchmark.pgbench_tellers
    (tid int NOT NULL, bid int, tbalance int, filler char(84)) WITH (fillfactor = 100);
CREATE TABLE howdah_benchmark.pgbench_branches
    (bid int NOT NULL, bbalance int, filler char(88)) WITH (fillfactor = 100);
CREATE TABLE howdah_benchmark.pgbench_accounts
    (aid int NOT NULL, bid int, abalance int, filler char(84)) WITH (fillfactor = 100)";

/// Creates the schema, replacing an existing one of this name, and its tables, and fills them.
pub(crate) fn create(client: &mut Client, scale: u32) -> Result<(), BenchmarkError> {
    client.query(TABLES).step("create the tables")?;
    let rows = u64::from(scale) * ROWS_PER_SCALE;
    let small = format!(
        "INSERT INTO {SCHEMA}.pgbench_branches SELECT n, 0 FROM generate_series(1, {scale}) n;
         INSERT INTO {SCHEMA}.pgbench_tellers
         SELECT n, (n - 1) / 10 + 1, 0 FROM generate_series(1, {scale} * 10) n"
    );
    client.query(&small).step("fill the tables")?;
    // COPY FREEZE requires that the table was truncated in the same transaction. It saves a later
    // VACUUM.
    client.query(&format!("BEGIN; TRUNCATE {TABLE}")).step("fill the tables")?;
    let copy = format!("COPY {TABLE} FROM STDIN WITH (FREEZE)");
    client.copy_in(&copy, &mut AccountRows::new(rows)).step("fill the tables")?;
    client.query("COMMIT").step("fill the tables")?;
    let keys = format!(
        "ALTER TABLE {SCHEMA}.pgbench_branches ADD PRIMARY KEY (bid);
         ALTER TABLE {SCHEMA}.pgbench_tellers ADD PRIMARY KEY (tid);
         ALTER TABLE {TABLE} ADD PRIMARY KEY (aid)"
    );
    client.query(&keys).step("create the primary keys")?;
    client.query(&format!("VACUUM ANALYZE {TABLE}")).step("vacuum the table")?;
    client.query("CHECKPOINT").step("run a checkpoint").or_else(|error| match error {
        // The role may lack the privilege. The checkpoint only shortens the shutdown.
        BenchmarkError::Query { source, .. } if !source.is_fatal() => Ok(Vec::new()),
        error => Err(error),
    })?;
    Ok(())
}

/// Reads all pages of the table and all leaves of its index into the cache without an extension: a
/// TID range scan uses no ring buffer, and an index-only scan reads every leaf.
pub(crate) fn warm(client: &mut Client) -> Result<(), BenchmarkError> {
    let sql = format!(
        "SET enable_seqscan = off; SET max_parallel_workers_per_gather = 0; SET jit = off;
         SELECT count(*) FROM {TABLE} WHERE ctid >= '(0,0)';
         SELECT count(aid) FROM {TABLE} WHERE aid > 0;
         RESET enable_seqscan"
    );
    client.query(&sql).step("read the table").map(drop)
}

/// Drops the schema.
pub(crate) fn remove(client: &mut Client) -> Result<(), BenchmarkError> {
    client
        .query(&format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))
        .step("drop the schema howdah_benchmark")
        .map(drop)
}

/// The rows of `pgbench_accounts` in COPY's text format.
struct AccountRows {
    next: u64,
    rows: u64,
    line: Vec<u8>,
    /// Number of bytes of `line` that were returned already.
    position: usize,
}

impl AccountRows {
    fn new(rows: u64) -> Self {
        Self { next: 1, rows, line: Vec::new(), position: 0 }
    }
}

impl Read for AccountRows {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            if self.position == self.line.len() {
                if self.next > self.rows {
                    break;
                }
                self.line.clear();
                let bid = (self.next - 1) / ROWS_PER_SCALE + 1;
                // An empty filler: the type pads it to its length, as it does pgbench's.
                writeln!(self.line, "{}\t{bid}\t0\t", self.next)?;
                (self.next, self.position) = (self.next + 1, 0);
            }
            let count = (self.line.len() - self.position).min(into.len() - filled);
            into[filled..filled + count]
                .copy_from_slice(&self.line[self.position..self.position + count]);
            (self.position, filled) = (self.position + count, filled + count);
        }
        Ok(filled)
    }
}

#[test]
fn rows_are_read_in_chunks_of_any_size() {
    let mut whole = String::new();
    AccountRows::new(100_001).read_to_string(&mut whole).unwrap();
    assert!(whole.starts_with("1\t1\t0\t\n2\t1\t0\t\n"));
    assert!(whole.ends_with("\n100000\t1\t0\t\n100001\t2\t0\t\n"));
    let mut chunks = Vec::new();
    let mut rows = AccountRows::new(1000);
    let mut chunk = [0; 7];
    loop {
        match rows.read(&mut chunk).unwrap() {
            0 => break,
            count => chunks.extend_from_slice(&chunk[..count]),
        }
    }
    assert_eq!(chunks, whole.as_bytes()[..chunks.len()]);
    assert_eq!(chunks.iter().filter(|&&byte| byte == b'\n').count(), 1000);
}

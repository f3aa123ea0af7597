//! Clients of a sharded table that do not select shards: their statements contain keys, or are for
//! all shards.

use howdah_wire::frontend::{DescribeTarget, encode};

use super::{SimClient, bind};
use crate::sim::{random::SimRandom, sharded_table::READS, simulation::shards::shard_of};

/// A COPY of rows for several shards.
pub(in crate::sim) struct TableCopy {
    /// The rows' text, without their keys.
    pub(in crate::sim) rows: Vec<String>,
    /// Whether the COPY succeeded; `None` before its reply.
    pub(in crate::sim) has_succeeded: Option<bool>,
}

/// A statement that a client has prepared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyedStatement {
    Read,
    Write,
    /// One of [`READS`].
    FanOut(usize),
}

impl KeyedStatement {
    fn sql(self) -> String {
        match self {
            Self::Read => "select * from t where k = $1 and x = $2".to_owned(),
            Self::Write => "update t set v = 1 where k = $1 and x = $2".to_owned(),
            Self::FanOut(read) => format!("{}x = $1{}", READS[read].0, READS[read].1),
        }
    }
}

impl SimClient {
    /// Writes the next statement.
    pub(super) fn keyed_step(&mut self, buf: &mut Vec<u8>, random: &mut SimRandom) {
        self.tokens += 1;
        if self.is_in_block {
            return match random.below(5) {
                0 => {
                    let commits = random.percent(50);
                    self.end_block(buf, commits);
                }
                1 => self.keyed_batch(buf, random),
                _ => self.keyed_query(buf, random),
            };
        }
        self.key = u32::try_from(random.below(1000)).unwrap();
        let every = format!("{}.every", self.base_token());
        match random.below(14) {
            0 => {
                self.is_in_block = true;
                self.push_query(buf, "BEGIN");
            }
            1..=2 => self.keyed_query(buf, random),
            3..=6 => {
                let (read, order) = random.pick(&READS);
                self.push_query(buf, &format!("{read}{every}{order}"));
            }
            7 => self.push_query(buf, &format!("update t set v = 1 where {every}")),
            8..=9 if !self.is_awaiting_reply() => self.table_copy(buf, random),
            10 if !self.is_awaiting_reply() => {
                let columns = if random.percent(50) { "slow" } else { "stalled" };
                self.push_query(buf, &format!("select {columns} from t where {every}"));
            }
            _ => self.keyed_batch(buf, random),
        }
    }

    fn base_token(&self) -> String {
        format!("c{}.t{}", self.number, self.tokens)
    }

    /// Returns the token of a statement for the shard of the current key.
    fn keyed_token(&self) -> String {
        format!("{}.s{}", self.base_token(), shard_of(self.key, self.shards))
    }

    fn keyed_query(&mut self, buf: &mut Vec<u8>, random: &mut SimRandom) {
        let (key, token) = (self.key, self.keyed_token());
        let verb = if random.percent(70) { "select * from t" } else { "update t set v = 1" };
        self.push_query(buf, &format!("{verb} where k = {key} and {token}"));
    }

    /// Writes a batch that prepares a statement, or executes one that was prepared earlier.
    fn keyed_batch(&mut self, buf: &mut Vec<u8>, random: &mut SimRandom) {
        let name = *random.pick(&["", "s1", "s2"]);
        let is_fan_out = |of: KeyedStatement| matches!(of, KeyedStatement::FanOut(_));
        let known = self.known.get(name).copied();
        let known = known.filter(|it| !(self.is_in_block && is_fan_out(*it)));
        let statement = match known {
            Some(known) if random.percent(60) => known,
            _ => {
                let read = random.below(READS.len() as u64) as usize;
                let statement = match random.below(4) {
                    0 => KeyedStatement::Read,
                    1 => KeyedStatement::Write,
                    _ if self.is_in_block => KeyedStatement::Read,
                    _ => KeyedStatement::FanOut(read),
                };
                if !name.is_empty() {
                    encode::close(buf, DescribeTarget::Statement(name.as_bytes())).unwrap();
                    self.known.insert(name, statement);
                }
                let types: &[u32] = if is_fan_out(statement) { &[25] } else { &[23, 25] };
                encode::parse(buf, name.as_bytes(), statement.sql().as_bytes(), types).unwrap();
                statement
            }
        };
        if random.percent(20) {
            encode::describe(buf, DescribeTarget::Statement(name.as_bytes())).unwrap();
        }
        for _ in 0..1 + random.below(2) {
            if is_fan_out(statement) {
                let token = format!("{}.every", self.base_token());
                bind(buf, name.as_bytes(), &[&token]);
            } else {
                bind(buf, name.as_bytes(), &[&self.key.to_string(), &self.keyed_token()]);
            }
            if random.percent(30) {
                encode::describe(buf, DescribeTarget::Portal(b"")).unwrap();
            }
            encode::execute(buf, b"", 0).unwrap();
        }
        encode::sync(buf);
    }

    /// Starts a COPY of rows for several shards, one of which may be invalid.
    fn table_copy(&mut self, buf: &mut Vec<u8>, random: &mut SimRandom) {
        let word = format!("c{}_t{}_every", self.number, self.tokens);
        self.push_query(buf, &format!("copy t (k, {word}) from stdin"));
        let count = random.below(8);
        let bad = random.percent(30).then(|| random.below(count.max(1)));
        let token = self.base_token();
        let row = |row: u64| {
            let bad = if bad == Some(row) { " bad" } else { "" };
            format!("{token} row {row}{bad}")
        };
        let rows: Vec<_> = (0..count).map(row).collect();
        self.unsent_rows =
            rows.iter().map(|row| format!("{}\t{row}\n", random.below(1000))).collect::<Vec<_>>();
        self.copies.push(TableCopy { rows, has_succeeded: None });
        // Otherwise, two shards could fail for different reasons.
        self.fails_copy = bad.is_none() && random.percent(20);
        self.copying = Some((0, false));
    }

    /// Sends the rows of a COPY, and ends it.
    pub(super) fn send_table_rows(&mut self, buf: &mut Vec<u8>) {
        for row in std::mem::take(&mut self.unsent_rows) {
            encode::copy_data(buf, row.as_bytes()).unwrap();
        }
        if self.fails_copy {
            encode::copy_fail(buf, b"no more").unwrap();
        } else {
            encode::copy_done(buf);
        }
    }

    /// Records the result of the last COPY, if `message` shows it.
    pub(super) fn record_copy_result(&mut self, message: &[u8]) {
        let Some(copy) = self.copies.last_mut().filter(|copy| copy.has_succeeded.is_none()) else {
            return;
        };
        match message[0] {
            b'C' if message.get(5..10) == Some(b"COPY ") => copy.has_succeeded = Some(true),
            b'E' => copy.has_succeeded = Some(false),
            _ => {}
        }
    }
}

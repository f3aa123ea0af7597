//! Statements on the sharded table: reads of all shards, writes with keys, and COPY.

use howdah_route::{NoShardKey, Refusal};
use howdah_wire::{
    ValueFormat,
    backend::encode::{self, Bare, CopyStart},
};

use super::{SimBackend, SimCopy, token::StatementToken};
use crate::{
    routing::context::write_refusal,
    sim::{
        coverage::Situation,
        sharded_table::{HeldRows, TableRead},
        simulation::shards::shard_of,
    },
};

impl SimBackend {
    pub(super) fn describe_result(&mut self, sql: &str) {
        match TableRead::parse(sql) {
            Some(read) => read.describe(&mut self.output),
            None => encode::bare(&mut self.output, Bare::NoData),
        }
    }

    /// Runs a read of all shards.
    pub(super) fn read_table(&mut self, read: TableRead, token: String, extended: bool) {
        let Some(held) = self.table else {
            return self.violations.push(format!("{read:?} runs on a server without the table"));
        };
        if read.fails(&token, held) {
            self.situations.push(Situation::FanOutFailed);
            return self.fail_as(extended, "22012", &format!("division by zero {token}!"));
        }
        if !extended {
            read.describe(&mut self.output);
        }
        if let TableRead::Sleeping { stalls } = read {
            (self.sleeping, self.sleeping_read, self.is_stalled) =
                (Some(token), Some(read), stalls);
            return;
        }
        self.situations.push(Situation::FanOutRead);
        self.return_table_rows(read, &token);
    }

    pub(super) fn return_table_rows(&mut self, read: TableRead, token: &str) {
        let held = self.table.expect("only servers with the table read it");
        let rows = read.write_rows(token, held, &mut self.output);
        self.complete(&format!("SELECT {rows}"));
    }

    /// Runs an UPDATE or a COPY of the sharded table.
    pub(super) fn write_table(&mut self, sql: &str, extended: bool) {
        let token = StatementToken::parse(sql).expect("writes have tokens").text;
        if sql.starts_with("copy ") {
            encode::copy_response(&mut self.output, CopyStart::In, ValueFormat::Text, &[]).unwrap();
            let token = token.replace(".every", "");
            let (rows, fails_at, is_table) = (0, usize::MAX, true);
            self.copying = Some(SimCopy { token, rows, fails_at, extended, is_table });
        } else if sql.contains(" where k = ") || self.shard.is_none() && !self.is_reference {
            self.executed_once.push(token);
            self.complete("UPDATE 1");
        } else if self.shard.is_some() {
            self.violations.push(format!("a server received {sql}, which has no key"));
        } else {
            let refusal = Refusal::UnknownShard(NoShardKey::Write("t".into()));
            write_refusal(&mut self.output, &refusal); // The pooler sends it nowhere.
        }
    }

    /// Handles rows of a COPY to the sharded table. Returns `false` if one is invalid.
    pub(super) fn copy_table_rows(&mut self, copying: &mut SimCopy, data: &[u8]) -> bool {
        for line in String::from_utf8_lossy(data).lines() {
            let (key, row) = line.split_once('\t').expect("a key and a text");
            let key = key.parse().expect("keys are numbers");
            if !row.starts_with(&copying.token) {
                self.violations.push(format!("{copying:?} received the row {row:?}"));
            }
            if let Some(HeldRows::Shard { shard, shards }) = self.table
                && shard_of(key, shards) != shard
            {
                self.violations.push(format!("{row:?} with key {key} is copied to shard {shard}"));
            }
            copying.rows += 1;
            if self.shard.is_some() {
                self.uncommitted_rows.push(row.to_owned());
            }
            if row.contains("bad") {
                return false;
            }
        }
        true
    }
}

//! A `pgcat.toml` into [`Config`](super::Config).
//!
//! Each key is one row of a table: what it becomes here, or why nothing becomes of it, which is then said by
//! file and line. Source: `src/config.rs` of PgCat at its last commit, of February 2025.
//!
//! What PgCat has for each user of each pool is here for a user or for a database; where users of one
//! name differ between pools, that is said, too.

mod general;
mod import;
mod keys;
#[cfg(test)]
mod page;
mod pools;
mod value;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use ::toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use self::{general::General, keys::Row, pools::Pool};
use super::file::{Remark, Wrong};

/// What a value does: something to say about it, or why it cannot be.
type Outcome = Result<Option<String>, String>;

/// A whole file.
#[derive(Debug)]
struct File {
    general: General,
    pools: BTreeMap<String, Pool>,
    remarks: Vec<Remark>,
    /// Keys that are there and do something else here, a little: name, ours, and what is different.
    notes: BTreeSet<(&'static str, &'static str, &'static str)>,
    wrong: Vec<Remark>,
}

impl File {
    fn read(text: &str, path: &Path) -> Result<Self, Wrong> {
        let mut file = Self {
            general: General::default(),
            pools: BTreeMap::new(),
            remarks: Vec::new(),
            notes: BTreeSet::new(),
            wrong: Vec::new(),
        };
        let parsed = DeTable::parse(text).map_err(|error| {
            let line = line(text, error.span().map_or(0, |span| span.start));
            Wrong(vec![Remark::new(path, line, "", error.message())])
        })?;
        let mut reader = Reader { text, path, file: &mut file };
        reader.whole(parsed.get_ref());
        if file.wrong.is_empty() { Ok(file) } else { Err(Wrong(file.wrong)) }
    }
}

/// The line of an offset, from 1.
fn line(text: &str, at: usize) -> usize {
    1 + text[..at.min(text.len())].matches('\n').count()
}

type Name<'a> = Spanned<Cow<'a, str>>;
type Given<'a> = Spanned<DeValue<'a>>;

struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
    file: &'a mut File,
}

impl Reader<'_> {
    fn whole(&mut self, table: &DeTable<'_>) {
        let mut plugins = None;
        for (name, value) in table {
            match name.get_ref().as_ref() {
                "general" => {
                    let mut general = std::mem::take(&mut self.file.general);
                    self.rows(general::KEYS, &mut general, "general", value);
                    self.file.general = general;
                }
                "pools" => self.each("pools", value, |reader, name, key, value| {
                    let mut pool = Pool::default();
                    reader.pool(&mut pool, &key, value);
                    reader.file.pools.insert(name, pool);
                }),
                "plugins" => plugins = Some(value),
                "path" => {}
                key => self.remark(name.span().start, key, "PgCat knows no such key"),
            }
        }
        // Those of all pools are for such as have none of their own.
        if let Some(value) = plugins {
            let mut pool = Pool::default();
            self.rows(pools::PLUGINS, &mut pool, "plugins", value);
            for own in self.file.pools.values_mut().filter(|own| own.connect_query.is_none()) {
                own.connect_query.clone_from(&pool.connect_query);
            }
        }
    }

    fn pool(&mut self, pool: &mut Pool, key: &str, value: &Given<'_>) {
        let Some(table) = self.table(key, value) else { return };
        for (name, value) in table {
            let below = format!("{key}.{}", name.get_ref());
            match name.get_ref().as_ref() {
                "users" => self.each(&below, value, |reader, _, key, value| {
                    let mut user = pools::User::default();
                    reader.rows(pools::USERS, &mut user, &key, value);
                    user.line = line(reader.text, value.span().start);
                    if user.name.is_empty() {
                        reader.wrong(value.span().start, &key, "it has no username");
                    }
                    pool.users.push(user);
                }),
                "shards" => self.each(&below, value, |reader, name, key, value| {
                    let mut shard = pools::Shard::default();
                    reader.rows(pools::SHARDS, &mut shard, &key, value);
                    match name.parse() {
                        Ok(number) => drop(pool.shards.insert(number, shard)),
                        Err(_) => reader.wrong(value.span().start, &key, "must be a number"),
                    }
                }),
                "plugins" => self.rows(pools::PLUGINS, pool, &below, value),
                known => self.row(pools::KEYS, pool, known, &below, name, value),
            }
        }
    }

    /// Goes through a table of tables.
    fn each(
        &mut self,
        key: &str,
        value: &Given<'_>,
        mut read: impl FnMut(&mut Self, String, String, &Given<'_>),
    ) {
        let Some(table) = self.table(key, value) else { return };
        for (name, value) in table {
            let name = name.get_ref().to_string();
            let below = format!("{key}.{name}");
            read(self, name, below, value);
        }
    }

    fn table<'v, 'i>(&mut self, key: &str, value: &'v Given<'i>) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.wrong(value.span().start, key, "must be a table");
        }
        table
    }

    /// Reads a table all of whose keys are rows.
    fn rows<T>(&mut self, rows: &[Row<T>], into: &mut T, key: &str, value: &Given<'_>) {
        let Some(table) = self.table(key, value) else { return };
        for (name, value) in table {
            let below = format!("{key}.{}", name.get_ref());
            self.row(rows, into, name.get_ref(), &below, name, value);
        }
    }

    fn row<T>(
        &mut self,
        rows: &[Row<T>],
        into: &mut T,
        known: &str,
        key: &str,
        name: &Name<'_>,
        value: &Given<'_>,
    ) {
        let at = name.span().start;
        let Some(row) = rows.iter().find(|row| row.name == known) else {
            return self.remark(at, key, "PgCat knows no such key, and passes over it, too");
        };
        match (row.read)(into, value.get_ref()) {
            Ok(None) if row.ours.is_empty() || row.note.is_empty() => {}
            Ok(None) => drop(self.file.notes.insert((row.name, row.ours, row.note))),
            Ok(Some(remark)) => self.remark(at, key, &remark),
            Err(why) => self.wrong(at, key, &why),
        }
    }

    fn remark(&mut self, at: usize, key: &str, text: &str) {
        self.file.remarks.push(Remark::new(self.path, line(self.text, at), key, text));
    }

    fn wrong(&mut self, at: usize, key: &str, text: &str) {
        self.file.wrong.push(Remark::new(self.path, line(self.text, at), key, text));
    }
}

/// Milliseconds; 0 is none.
fn some_millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis)).filter(|it| !it.is_zero())
}

#[cfg(test)]
mod tests;

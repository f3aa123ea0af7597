//! Reads a `pgcat.toml` into [`Config`](super::Config).
//!
//! Each key is a row of a table: the key it is converted to, or the reason why it is dropped, which
//! is reported with file and line. Source: `src/config.rs` at PgCat's last commit (February 2025).
//!
//! PgCat's settings of each user of each pool become settings of a user or of a database. Users of
//! the same name whose settings differ between pools are reported as well.

mod general;
mod import;
mod keys;
mod pools;
#[cfg(test)]
mod reference_page;
mod value;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use howdah_settings::{Diagnostic, SettingsErrors, SettingsText};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use self::{general::General, keys::PgcatKey, pools::PgcatPool};

/// The result of reading a key: a remark, if any, or the reason why the value is invalid.
type PgcatKeyResult = Result<Option<String>, String>;

/// The contents of a `pgcat.toml`, with everything that could not be converted exactly.
#[derive(Debug)]
struct PgcatFile {
    general: General,
    pools: BTreeMap<String, PgcatPool>,
    remarks: Vec<Diagnostic>,
    /// Keys of the file that behave differently: PgCat's key, the key of `[pool]`, and the
    /// difference.
    differences: BTreeSet<(&'static str, &'static str, &'static str)>,
    errors: Vec<Diagnostic>,
}

impl PgcatFile {
    fn read(text: &str, path: &Path) -> Result<Self, SettingsErrors> {
        let mut file = Self {
            general: General::default(),
            pools: BTreeMap::new(),
            remarks: Vec::new(),
            differences: BTreeSet::new(),
            errors: Vec::new(),
        };
        let text = SettingsText::new(text, path);
        let document = text.parse()?;
        PgcatReader { text, file: &mut file }.read_document(&document);
        if file.errors.is_empty() { Ok(file) } else { Err(SettingsErrors(file.errors)) }
    }
}

type SpannedName<'a> = Spanned<Cow<'a, str>>;
type SpannedValue<'a> = Spanned<DeValue<'a>>;

struct PgcatReader<'a> {
    text: SettingsText<'a>,
    file: &'a mut PgcatFile,
}

impl PgcatReader<'_> {
    fn read_document(&mut self, table: &DeTable<'_>) {
        let mut plugins = None;
        for (name, value) in table {
            match name.get_ref().as_ref() {
                "general" => {
                    let mut general = std::mem::take(&mut self.file.general);
                    self.rows(general::KEYS, &mut general, "general", value);
                    self.file.general = general;
                }
                "pools" => self.for_each_table("pools", value, |reader, name, key, value| {
                    let mut pool = PgcatPool::default();
                    reader.pool(&mut pool, &key, value);
                    reader.file.pools.insert(name, pool);
                }),
                "plugins" => plugins = Some(value),
                "path" => {}
                key => self.remark(name.span().start, key, "unknown key, which PgCat ignores"),
            }
        }
        // The plugins of the section `[plugins]` apply to pools that configure none.
        if let Some(value) = plugins {
            let mut pool = PgcatPool::default();
            self.rows(pools::PLUGINS, &mut pool, "plugins", value);
            for own in self.file.pools.values_mut().filter(|own| own.connect_query.is_none()) {
                own.connect_query.clone_from(&pool.connect_query);
            }
        }
    }

    fn pool(&mut self, pool: &mut PgcatPool, key: &str, value: &SpannedValue<'_>) {
        let Some(table) = self.table(key, value) else { return };
        for (name, value) in table {
            let below = format!("{key}.{}", name.get_ref());
            match name.get_ref().as_ref() {
                "users" => self.for_each_table(&below, value, |reader, _, key, value| {
                    let mut user = pools::PgcatUser::default();
                    reader.rows(pools::USERS, &mut user, &key, value);
                    user.line = reader.text.line(value.span().start);
                    if user.name.is_empty() {
                        reader.error(value.span().start, &key, "must have a username");
                    }
                    pool.users.push(user);
                }),
                "shards" => self.for_each_table(&below, value, |reader, name, key, value| {
                    let mut shard = pools::PgcatShard::default();
                    reader.rows(pools::SHARDS, &mut shard, &key, value);
                    match name.parse() {
                        Ok(number) => drop(pool.shards.insert(number, shard)),
                        Err(_) => reader.error(value.span().start, &key, "name must be a number"),
                    }
                }),
                "plugins" => self.rows(pools::PLUGINS, pool, &below, value),
                known => self.row(pools::KEYS, pool, known, &below, name, value),
            }
        }
    }

    /// Calls `read` for each table within a table.
    fn for_each_table(
        &mut self,
        key: &str,
        value: &SpannedValue<'_>,
        mut read: impl FnMut(&mut Self, String, String, &SpannedValue<'_>),
    ) {
        let Some(table) = self.table(key, value) else { return };
        for (name, value) in table {
            let name = name.get_ref().to_string();
            let below = format!("{key}.{name}");
            read(self, name, below, value);
        }
    }

    fn table<'v, 'i>(&mut self, key: &str, value: &'v SpannedValue<'i>) -> Option<&'v DeTable<'i>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.error(value.span().start, key, "must be a table");
        }
        table
    }

    /// Reads the table at `key` into `into`; its valid keys are those in `rows`.
    fn rows<T>(&mut self, rows: &[PgcatKey<T>], into: &mut T, key: &str, value: &SpannedValue<'_>) {
        let Some(table) = self.table(key, value) else { return };
        for (name, value) in table {
            let below = format!("{key}.{}", name.get_ref());
            self.row(rows, into, name.get_ref(), &below, name, value);
        }
    }

    fn row<T>(
        &mut self,
        rows: &[PgcatKey<T>],
        into: &mut T,
        known: &str,
        key: &str,
        name: &SpannedName<'_>,
        value: &SpannedValue<'_>,
    ) {
        let at = name.span().start;
        let Some(row) = rows.iter().find(|row| row.name == known) else {
            return self.remark(at, key, "unknown key, which PgCat ignores");
        };
        match (row.read)(into, value.get_ref()) {
            Ok(None) if row.ours.is_empty() || row.difference.is_empty() => {}
            Ok(None) => drop(self.file.differences.insert((row.name, row.ours, row.difference))),
            Ok(Some(remark)) => self.remark(at, key, &remark),
            Err(why) => self.error(at, key, &why),
        }
    }

    fn remark(&mut self, at: usize, key: &str, text: &str) {
        self.file.remarks.push(self.text.diagnostic(at, key, text));
    }

    fn error(&mut self, at: usize, key: &str, text: &str) {
        self.file.errors.push(self.text.diagnostic(at, key, text));
    }
}

/// Converts a timeout in milliseconds; 0 means no timeout.
fn timeout_millis(millis: u64) -> Option<Duration> {
    Some(Duration::from_millis(millis)).filter(|it| !it.is_zero())
}

#[cfg(test)]
mod tests;

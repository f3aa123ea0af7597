//! Generates the reference page of PgCat's keys from the tables of keys.

use std::fmt::Write as _;

use super::{
    super::{keys, reference_page},
    general,
    keys::PgcatKey,
    pools::{KEYS, PLUGINS, SHARDS, USERS},
};

const HEAD: &str = "\
# Keys of pgcat.toml

<!-- Generated from the tables of keys by `INSTA_UPDATE=always cargo test -p howdah-pool-config --lib page`. -->

`howdah pool import pgcat.toml` converts PgCat's configuration to the section `[pool]` of a `howdah.toml`: see
[Move from PgCat](../guide/move-from-pgcat.md). The tables have all keys of PgCat as of its last commit of February
2025. Comments at the top of the result list what was not converted, by file, line and key, with the reason, and keys
unknown to PgCat, which ignores them. For keys missing in the file, PgCat's default is written.
";

fn section<T>(page: &mut String, name: &str, below: &str, rows: &[PgcatKey<T>]) {
    let _ = write!(page, "\n## `[{name}]`\n\n| key | in `{below}` | difference |\n|---|---|---|\n");
    for row in rows {
        let ours = match row.ours {
            "" => "not converted".to_owned(),
            ours => format!("`{ours}`"),
        };
        let _ = writeln!(page, "| `{}` | {ours} | {} |", row.name, row.difference);
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    section(&mut page, "general", "pool", general::KEYS);
    section(&mut page, "pools.NAME", "pool.databases.NAME", KEYS);
    section(&mut page, "pools.NAME.users.N", "pool.users.NAME", USERS);
    section(&mut page, "pools.NAME.shards.N", "pool.databases.NAME", SHARDS);
    section(&mut page, "plugins] and [pools.NAME.plugins", "pool.databases.NAME", PLUGINS);
    page
}

#[test]
fn pgcat_page_matches_tables() {
    reference_page::assert_up_to_date("pgcat-settings.md", &page());
}

#[test]
fn every_converted_key_is_in_reference() {
    fn ours<T>(rows: &[PgcatKey<T>]) -> Vec<&'static str> {
        assert!(rows.is_sorted_by_key(|row| row.name));
        rows.iter().map(|row| row.ours).filter(|ours| !ours.is_empty()).collect()
    }
    let reference = include_str!("../../../../docs/src/reference/pool.md");
    let all = [ours(general::KEYS), ours(KEYS), ours(USERS), ours(SHARDS), ours(PLUGINS)];
    for ours in all.concat() {
        let last = ours.rsplit('.').next().unwrap_or(ours);
        let is_documented =
            reference.contains(&format!("`{last}`")) || matches!(last, "NAME" | "shard");
        assert!(is_documented, "{ours} is not explained");
        let path = ours.strip_prefix("users.NAME.").unwrap_or(ours);
        let path = path.strip_prefix("databases.NAME.").unwrap_or(path);
        let is_key = keys::find(keys::KEYS, path).is_some()
            || keys::find(keys::DATABASE_KEYS, path).is_some()
            || keys::find(keys::USER_KEYS, path).is_some();
        assert!(is_key || last == "NAME", "{ours} is not a key");
    }
}

//! The page of the reference that follows from the tables of keys.

use std::fmt::Write as _;

use super::{
    super::page,
    general,
    keys::Row,
    pools::{KEYS, PLUGINS, SHARDS, USERS},
};

const HEAD: &str = "\
# Keys of pgcat.toml

<!-- Made from the tables of keys by `INSTA_UPDATE=always cargo test -p howdah-pool --lib page`. -->

`howdah pool import pgcat.toml` writes what a file of PgCat says as the section `[pool]` of a `howdah.toml`: see
[Move from PgCat](../guide/move-from-pgcat.md). These are all keys that PgCat knows, as of its last commit of February
2025. What is not carried over is named at the top of what is written, by file, line and key, with the reason; so is a
key that PgCat does not know, which it passes over. Where a file says nothing, PgCat's default is written.
";

fn section<T>(page: &mut String, name: &str, below: &str, rows: &[Row<T>]) {
    let _ = write!(page, "\n## `[{name}]`\n\n| key | in `{below}` | difference |\n|---|---|---|\n");
    for row in rows {
        let ours = match row.ours {
            "" => "nothing".to_owned(),
            ours => format!("`{ours}`"),
        };
        let _ = writeln!(page, "| `{}` | {ours} | {} |", row.name, row.note);
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
fn the_page_of_pgcat_is_what_the_tables_say() {
    page::is_kept("pgcat-settings.md", &page());
}

#[test]
fn what_a_key_of_pgcat_becomes_is_explained() {
    fn ours<T>(rows: &[Row<T>]) -> Vec<&'static str> {
        assert!(rows.is_sorted_by_key(|row| row.name));
        rows.iter().map(|row| row.ours).filter(|ours| !ours.is_empty()).collect()
    }
    let reference = include_str!("../../../../../docs/src/reference/pool.md");
    let all = [ours(general::KEYS), ours(KEYS), ours(USERS), ours(SHARDS), ours(PLUGINS)];
    for ours in all.concat() {
        let last = ours.rsplit('.').next().unwrap_or(ours);
        let is_told = reference.contains(&format!("`{last}`")) || matches!(last, "NAME" | "shard");
        assert!(is_told, "{ours} is not explained");
    }
}
